package main

import (
	"io"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestPollInput reads from a pipe that blocks, as a client makes it, and from what
// cannot be polled.
func TestPollInput(t *testing.T) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	in, out := os.NewFile(uintptr(fds[0]), "in"), os.NewFile(uintptr(fds[1]), "out")
	defer in.Close()
	r := pollInput(in)
	if r == io.Reader(in) {
		t.Error("the pipe is not polled")
	}
	const want = "one line, and more than a read takes\n"
	go func() {
		for _, c := range want {
			io.WriteString(out, string(c))
		}
		out.Close()
	}()
	var got strings.Builder
	if _, err := io.CopyBuffer(struct{ io.Writer }{&got}, struct{ io.Reader }{r}, make([]byte, 3)); err != nil || got.String() != want {
		t.Errorf("read %q, %v", got.String(), err)
	}
	if flags, err := unix.FcntlInt(uintptr(fds[0]), unix.F_GETFL, 0); err != nil || flags&unix.O_NONBLOCK != 0 {
		t.Errorf("the pipe has flags %#x, %v: others would see that it does not block any more", flags, err)
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	if r := pollInput(null); r != io.Reader(null) {
		t.Error("a file is polled")
	}
}
