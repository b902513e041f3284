//go:build linux

package main

import "golang.org/x/sys/unix"

var archSyscallSpecs = []syscallSpec{
	{unix.SYS_OPEN, open(cwd, 0, 1, 2)},
	{unix.SYS_CREAT, how(open(cwd, 0, none, 1), probeHowHOW_CREAT)},
	{unix.SYS_UNLINK, name(probeKindKIND_DELETE, cwd, 0, none)},
	{unix.SYS_RMDIR, name(probeKindKIND_DELETE, cwd, 0, none)},
	{unix.SYS_MKDIR, name(probeKindKIND_MKDIR, cwd, 0, 1)},
	{unix.SYS_RENAME, names(probeKindKIND_RENAME, cwd, 0, cwd, 1, none)},
	{unix.SYS_LINK, names(probeKindKIND_LINK, cwd, 0, cwd, 1, none)},
	{unix.SYS_SYMLINK, symlink(cwd, 1, 0)},
	{unix.SYS_CHMOD, name(probeKindKIND_CHMOD, cwd, 0, 1)},
	{unix.SYS_FORK, how(values(probeKindKIND_SPAWN, none, none), probeHowHOW_ELSEWHERE)},
	{unix.SYS_VFORK, how(values(probeKindKIND_SPAWN, none, none), probeHowHOW_ELSEWHERE)},
}

// largeFile is O_LARGEFILE, which 64-bit kernels add by themselves.
const largeFile = 0o100000
