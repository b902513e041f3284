//go:build linux && (amd64 || arm64)

package main

// exeNames are the paths of programs by the numbers that the kernel side gives them,
// in the order in which it does.
type exeNames struct {
	paths  map[uint32][]byte
	oldest uint32 // of those that are kept without asking which are in use
}

// maxExeNames is of how many programs paths are kept before those not in use are
// forgotten, and half of it how many of the newest are kept: there may be records of
// them on their way.
const maxExeNames = 8192

// name returns nil for a program that is not known.
func (x *exeNames) name(number uint32) []byte { return x.paths[number] }

// set returns whether it is time to forget some.
func (x *exeNames) set(number uint32, path []byte) (full bool) {
	if x.paths == nil {
		x.paths = map[uint32][]byte{}
	}
	x.paths[number] = path
	return len(x.paths) >= maxExeNames && number-x.oldest >= maxExeNames/2
}

// forget keeps the paths of those in use and of the newest, of which last is the last.
func (x *exeNames) forget(last uint32, inUse map[uint64]bool) {
	for number := range x.paths {
		if last-number > maxExeNames/2 && !inUse[uint64(number)] {
			delete(x.paths, number)
		}
	}
	x.oldest = last
}
