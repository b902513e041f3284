package main

import "golang.org/x/sys/unix"

// dieWithParent has the kernel kill this process, and the program that it becomes, when
// the thread ends that has started it (PR_SET_PDEATHSIG in prctl(2)): whoever kills run
// means the server, which is in a process group of its own.
func dieWithParent() { unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0) }
