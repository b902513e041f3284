package main

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// dieWithParent has the kernel kill this process, and the program that it becomes, when
// the thread ends that has started it (PR_SET_PDEATHSIG in prctl(2)): whoever kills run
// means the server, which is in a process group of its own.
func dieWithParent() { unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0) }

// growPipe makes room in a pipe, in bytes, if it is one and the user may have that much
// (F_SETPIPE_SZ in fcntl(2), pipe-user-pages-soft in pipe(7)).
func growPipe(pipe any, size int) {
	if p, ok := pipe.(syscall.Conn); ok {
		if c, err := p.SyscallConn(); err == nil {
			c.Control(func(fd uintptr) { unix.FcntlInt(fd, unix.F_SETPIPE_SZ, size) })
		}
	}
}
