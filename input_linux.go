package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// A polledInput is a file that is read only when there is something to read.
type polledInput struct {
	file *os.File
	set  syscall.RawConn // an epoll set with the file in it
	all  io.Closer       // that set
}

// pollInput returns a reader of the same input that waits for it as Go waits for its
// own files. A read that blocks keeps its processor, of which there are few, until the
// scheduler takes it away, and that looks only every 10 ms when little happens: so long
// a line that was read could wait for somebody to obey it.
//
// The input stays as it is: others may share it, whom O_NONBLOCK would surprise. What
// cannot be polled, as a regular file, is returned itself.
func pollInput(r io.Reader) io.Reader {
	file, ok := r.(*os.File)
	if !ok {
		return r
	}
	set, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return r
	}
	// Without O_NONBLOCK Go would not wait for the set.
	if unix.SetNonblock(set, true) != nil || addInput(set, file) != nil {
		unix.Close(set)
		return r
	}
	all := os.NewFile(uintptr(set), "epoll set")
	wait, err := all.SyscallConn()
	if err != nil {
		return r
	}
	return &polledInput{file, wait, all}
}

func addInput(set int, file *os.File) (err error) {
	conn, err := file.SyscallConn()
	if err != nil {
		return err
	}
	if e := conn.Control(func(fd uintptr) {
		err = unix.EpollCtl(set, unix.EPOLL_CTL_ADD, int(fd), &unix.EpollEvent{Events: unix.EPOLLIN})
	}); e != nil {
		return e
	}
	return err
}

func (p *polledInput) Read(b []byte) (int, error) {
	err := p.set.Read(func(set uintptr) bool {
		var event [1]unix.EpollEvent
		n, err := unix.EpollWait(int(set), event[:], 0)
		return n > 0 || err != nil && err != unix.EINTR // what is wrong, the read tells
	})
	if err != nil {
		return 0, fmt.Errorf("wait for %s: %w", p.file.Name(), err)
	}
	return p.file.Read(b)
}

func (p *polledInput) SyscallConn() (syscall.RawConn, error) { return p.file.SyscallConn() }

// Close closes the file: whoever writes into it sees that nobody reads.
func (p *polledInput) Close() error { return errors.Join(p.file.Close(), p.all.Close()) }
