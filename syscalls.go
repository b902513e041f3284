//go:build linux && (amd64 || arm64)

package main

import "golang.org/x/sys/unix"

// abiNative and abi32 index the table of shapes: the machine's own system call
// numbers, and those of the 32-bit ABI beside it.
const (
	abiNative = 0
	abi32     = 1
)

// A syscallSpec says what a system call number means to the probe.
type syscallSpec struct {
	number int
	shape  probeShape
}

// syscallSpecs holds the system calls that all architectures have; the older
// spellings, which arm64 never had, are in archSyscallSpecs. Arguments count
// from zero, as in syscall(2).
var syscallSpecs = []syscallSpec{
	{unix.SYS_OPENAT, open(0, 1, 2, 3)},
	{unix.SYS_OPENAT2, how(open(0, 1, none, none), probeHowHOW_OPENAT2)},
	{unix.SYS_OPEN_BY_HANDLE_AT, open(none, none, 2, none)},
	{unix.SYS_UNLINKAT, name(probeKindKIND_DELETE, 0, 1, 2)},
	{unix.SYS_MKDIRAT, name(probeKindKIND_MKDIR, 0, 1, 2)},
	{unix.SYS_RENAMEAT, names(probeKindKIND_RENAME, 0, 1, 2, 3, none)},
	{unix.SYS_RENAMEAT2, names(probeKindKIND_RENAME, 0, 1, 2, 3, 4)},
	{unix.SYS_LINKAT, names(probeKindKIND_LINK, 0, 1, 2, 3, 4)},
	{unix.SYS_SYMLINKAT, symlink(1, 2, 0)},
	{unix.SYS_FCHMOD, how(name(probeKindKIND_CHMOD, 0, none, 1), probeHowHOW_FD)},
	{unix.SYS_FCHMODAT, name(probeKindKIND_CHMOD, 0, 1, 2)},
	{unix.SYS_FCHMODAT2, name(probeKindKIND_CHMOD, 0, 1, 2)},

	{unix.SYS_EXECVE, how(name(probeKindKIND_EXEC_FAILED, cwd, 0, none), probeHowHOW_ELSEWHERE)},
	{unix.SYS_EXECVEAT, how(name(probeKindKIND_EXEC_FAILED, 0, 1, none), probeHowHOW_ELSEWHERE)},
	{unix.SYS_CLONE, how(values(probeKindKIND_SPAWN, 0, none), probeHowHOW_ELSEWHERE)},
	{unix.SYS_CLONE3, how(values(probeKindKIND_SPAWN, none, none), probeHowHOW_CLONE3)},
	{unix.SYS_PTRACE, values(probeKindKIND_PTRACE, 0, 1)},

	{unix.SYS_CONNECT, how(values(probeKindKIND_CONNECT, none, none), probeHowHOW_CONNECT)},
	{unix.SYS_BIND, how(values(probeKindKIND_BIND, none, none), probeHowHOW_BIND)},
	{unix.SYS_LISTEN, how(values(probeKindKIND_LISTEN, none, none), probeHowHOW_LISTEN)},
	{unix.SYS_SENDTO, how(values(probeKindKIND_CONNECT, none, none), probeHowHOW_SENDTO)},
	{unix.SYS_SENDMSG, how(values(probeKindKIND_CONNECT, none, none), probeHowHOW_SENDMSG)},
	{unix.SYS_SENDMMSG, how(values(probeKindKIND_CONNECT, none, none), probeHowHOW_SENDMMSG)},
}

const (
	cwd  = uint8(probeArgARG_CWD)
	none = uint8(probeArgARG_NONE)
)

// values is a call of which the probe takes numbers only.
func values(kind probeKind, first, second uint8) probeShape {
	return probeShape{
		Kind: uint8(kind), Dir: none, Name: none, Dir2: none, Name2: none,
		Value: [2]uint8{first, second},
	}
}

// name is a call on one name, relative to the directory dir.
func name(kind probeKind, dir, name, value uint8) probeShape {
	s := values(kind, value, none)
	s.Dir, s.Name = dir, name
	return s
}

// names is a call on an old and a new name.
func names(kind probeKind, dir, name1, dir2, name2, value uint8) probeShape {
	s := name(kind, dir, name1, value)
	s.Dir2, s.Name2 = dir2, name2
	return s
}

// symlink is a call that makes a name for a target, which is just a string.
func symlink(dir, link, target uint8) probeShape {
	return how(names(probeKindKIND_SYMLINK, dir, link, none, target, none), probeHowHOW_SYMLINK)
}

// open is a call that returns a descriptor of a file.
func open(dir, path, flags, mode uint8) probeShape {
	s := how(name(probeKindKIND_OPEN, dir, path, flags), probeHowHOW_OPEN)
	s.Value[1] = mode
	return s
}

func how(s probeShape, h probeHow) probeShape {
	s.How = uint8(h)
	return s
}

// syscallShapes is the table that the kernel side looks system calls up in, by
// ABI and number. It is the one place that ties a number to a meaning.
func syscallShapes() [2][512]probeShape {
	var table [2][512]probeShape
	for _, specs := range [][]syscallSpec{syscallSpecs, archSyscallSpecs} {
		for _, s := range specs {
			table[abiNative][s.number] = s.shape
		}
	}
	return table
}
