//go:build unix

package main

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// endSignals end a session as a shutdown line does.
var endSignals = []os.Signal{unix.SIGTERM, unix.SIGINT, unix.SIGHUP}

// signalNumber is what a shell adds to 128 for who has ended by a signal.
func signalNumber(s os.Signal) int { return int(s.(syscall.Signal)) }

// brokenPipe is what the runtime would die of when the reader has gone.
var brokenPipe = []os.Signal{unix.SIGPIPE}

// killGroup kills a process group.
func killGroup(group int) { unix.Kill(-group, unix.SIGKILL) }

// ownProgram is this program, to be started again: on Linux wherever it lies, also for
// another user, and if it is gone.
func ownProgram() (string, error) {
	if runtime.GOOS == "linux" {
		return "/proc/self/exe", nil
	}
	return os.Executable()
}

// ownSession starts cmd in a session of its own, so that what is sent to a group or a
// terminal does not reach it.
func ownSession(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} }

// waitReaderGone waits until nobody can read what is written to f any more, also
// while nothing is, and returns an error that says so. For what has no reader, as
// a regular file, it waits for ever.
func waitReaderGone(f *os.File) error {
	fds := []unix.PollFd{{Fd: int32(f.Fd())}}
	for {
		n, err := unix.Poll(fds, -1)
		if errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN) {
			continue
		}
		if err != nil {
			return os.NewSyscallError("poll standard output", err)
		}
		if n > 0 {
			return errors.New("the reader of standard output has gone")
		}
	}
}
