//go:build linux && (amd64 || arm64)

package main

// toldPaths are records of the paths that a system call is about, by the thread that
// is in it, until the record of the call itself comes.
type toldPaths map[uint32][]byte

// maxToldPaths bounds how many there are; each thread has one.
const maxToldPaths = 1024

// join keeps a record of paths, and adds to the record of an event the one that was
// told before by the same thread.
func (p *toldPaths) join(e *kernelEvent, raw []byte) {
	tid := e.header.Tid
	if e.kind() == probeKindKIND_PATH {
		if *p == nil || len(*p) >= maxToldPaths {
			*p = toldPaths{} // the names that the callers gave are there, too
		}
		(*p)[tid] = append((*p)[tid][:0], raw...)
		return
	}
	told, ok := (*p)[tid]
	if !ok || e.kind() == probeKindKIND_MARK || e.kind() == probeKindKIND_EXE {
		return
	}
	delete(*p, tid)
	var paths kernelEvent
	if paths.decode(told) != nil || paths.header.TsNs != e.header.TsNs {
		return // it is of another call, whose own record was lost
	}
	if e.sections[probeTagTAG_PATH].set || e.header.Call&probeCallUring != 0 {
		return // a descriptor's file has its own path; and a request is another thread's
	}
	switch e.kind() {
	case probeKindKIND_DELETE, probeKindKIND_MKDIR, probeKindKIND_MKNOD, probeKindKIND_SYMLINK, probeKindKIND_CHMOD,
		probeKindKIND_CHOWN, probeKindKIND_TRUNCATE, probeKindKIND_RENAME, probeKindKIND_LINK:
		e.sections[probeTagTAG_PATH], e.sections[probeTagTAG_PATH2] = paths.sections[probeTagTAG_PATH], paths.sections[probeTagTAG_PATH2]
		e.header.MntNs = paths.header.MntNs
	}
}
