//go:build !unix

package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync/atomic"
)

// A server is the MCP server that run has started. Here there are neither process groups
// nor a kernel that tells anything: it is only passed on to.
type server struct {
	cmd *exec.Cmd
	in  *os.File // its standard input
	out *os.File // its standard output

	theirs []*os.File // the other ends
	over   atomic.Bool
}

// serverUser would be whom the server runs as.
type serverUser struct{}

func (*serverUser) own(*os.File) error { return nil }

func (*serverUser) ownAll(string) error { return nil }

func invokingUser(bool) (*serverUser, error) { return nil, nil }

// startServer starts a server that waits to be released.
func startServer(command, env []string, _ *serverUser, stderr io.Writer) (*server, error) {
	s := &server{cmd: exec.Command(command[0], command[1:]...)}
	s.cmd.Env, s.cmd.Stderr = append(os.Environ(), env...), stderr
	in, ours, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start the server: %w", err)
	}
	s.cmd.Stdin, s.in = in, ours
	ours, out, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start the server: %w", err)
	}
	s.cmd.Stdout, s.out, s.theirs = out, ours, []*os.File{in, out}
	return s, nil
}

// pid is not known before the server begins, and nobody watches it.
func (s *server) pid() int { return 0 }

// release lets the server begin.
func (s *server) release() error {
	if err := s.cmd.Start(); err != nil {
		return commandError{fmt.Errorf("run %s: %w", s.cmd, err), 127}
	}
	for _, f := range s.theirs {
		f.Close()
	}
	return nil
}

func (s *server) signal(os.Signal) { s.end() }

// end ends the server, which cannot be asked to.
func (s *server) end() {
	if s.cmd.Process != nil {
		s.cmd.Process.Kill()
	}
}

// kill forgets a server that waits.
func (s *server) kill() {}

func (s *server) wait() {
	s.cmd.Wait() // status has what it ended with
	s.over.Store(true)
}

// status is what the server has ended with.
func (s *server) status() int {
	if s.cmd.ProcessState == nil {
		return 0 // it has not begun, which is an error of its own
	}
	return s.cmd.ProcessState.ExitCode()
}

// growPipe does nothing: pipes have the size that they have.
func growPipe(any, int) {}

// runServer would be a hidden command.
func runServer([]string, io.Reader, io.Writer, io.Writer) error {
	return usageError{fmt.Errorf("run-server: this system has no process groups")}
}
