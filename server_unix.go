//go:build unix

package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// A server is the MCP server that run has started, in a process group of its own. It
// begins as a copy of this program that waits to be released, so that it is in scope
// before its first instruction.
type server struct {
	cmd  *exec.Cmd
	in   *os.File // its standard input
	out  *os.File // its standard output
	gate *os.File // it sends a byte when it waits, and a byte releases it
	over atomic.Bool
}

// serverUser is whom the server runs as: nil for the user of this process.
type serverUser struct {
	credential *syscall.Credential
	env        []string // what else the user has in the environment
}

// invokingUser is who has called sudo.
func invokingUser(asRoot bool) (*serverUser, error) {
	id := os.Getenv("SUDO_UID")
	if asRoot || os.Geteuid() != 0 || id == "" || id == "0" {
		return nil, nil
	}
	fail := func(err error) (*serverUser, error) {
		return nil, fmt.Errorf("run the server as user %s, who has called sudo: %w; --as-root runs it as root", id, err)
	}
	uid, err := strconv.ParseUint(id, 10, 32)
	if err != nil {
		return fail(err)
	}
	gid, err := strconv.ParseUint(os.Getenv("SUDO_GID"), 10, 32)
	if err != nil {
		return fail(fmt.Errorf("SUDO_GID: %w", err))
	}
	c := &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	u, err := user.LookupId(id)
	if err != nil {
		return fail(err)
	}
	groups, err := u.GroupIds()
	if err != nil {
		return fail(err)
	}
	for _, group := range groups {
		if g, err := strconv.ParseUint(group, 10, 32); err == nil {
			c.Groups = append(c.Groups, uint32(g))
		}
	}
	return &serverUser{c, []string{"HOME=" + u.HomeDir, "USER=" + u.Username, "LOGNAME=" + u.Username}}, nil
}

// own gives the user a file.
func (u *serverUser) own(f *os.File) error {
	if u == nil {
		return nil
	}
	return f.Chown(int(u.credential.Uid), int(u.credential.Gid))
}

// ownAll gives the user a folder with all that is in it.
func (u *serverUser) ownAll(dir string) error {
	if u == nil {
		return nil
	}
	return filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		return cmp.Or(err, os.Lchown(path, int(u.credential.Uid), int(u.credential.Gid)))
	})
}

// startServer starts a server that waits to be released, with env beside this process's
// environment. It ends with the thread that it is started by, if nothing else ends it; see
// dieWithParent.
func startServer(command, env []string, as *serverUser, stderr io.Writer) (*server, error) {
	self, err := ownProgram()
	if err != nil {
		return nil, fmt.Errorf("start the server: %w", err)
	}
	s := &server{cmd: exec.Command(self, append([]string{"run-server", "--"}, command...)...)}
	s.cmd.Stderr = stderr
	s.cmd.Env = append(os.Environ(), env...)
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if as != nil {
		s.cmd.SysProcAttr.Credential = as.credential
		s.cmd.Env = append(s.cmd.Env, as.env...)
	}
	var theirs []*os.File
	defer func() {
		for _, f := range theirs {
			f.Close()
		}
	}()
	pipe := func() (r, w *os.File, err error) {
		if r, w, err = os.Pipe(); err != nil {
			err = fmt.Errorf("start the server: %w", err)
		}
		return r, w, err
	}
	in, ours, err := pipe()
	if err != nil {
		return nil, err
	}
	theirs, s.in, s.cmd.Stdin = append(theirs, in), ours, in
	ours, out, err := pipe()
	if err != nil {
		return nil, err
	}
	theirs, s.out, s.cmd.Stdout = append(theirs, out), ours, out
	gate, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		return nil, fmt.Errorf("start the server: %w", os.NewSyscallError("socketpair", err))
	}
	unix.CloseOnExec(gate[0])
	unix.CloseOnExec(gate[1])
	s.gate = os.NewFile(uintptr(gate[0]), "gate")
	theirs = append(theirs, os.NewFile(uintptr(gate[1]), "gate"))
	s.cmd.ExtraFiles = theirs[2:]
	runtime.LockOSThread() // to the end of this process
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the server: %w", err)
	}
	theirs[2].Close() // or there would be no end to wait for if it dies
	if n, _ := s.gate.Read(make([]byte, 1)); n == 0 {
		return nil, errors.New("start the server: it has ended before it began")
	}
	return s, nil
}

func (s *server) pid() int { return s.cmd.Process.Pid }

// release lets the server begin.
func (s *server) release() error {
	_, err := s.gate.Write([]byte{1})
	if err = errors.Join(err, s.gate.Close()); err != nil {
		return fmt.Errorf("start the server: %w", err)
	}
	return nil
}

// signal passes a signal on to the server and its group.
func (s *server) signal(sig os.Signal) {
	if !s.over.Load() { // else its number may be somebody else's
		unix.Kill(-s.pid(), sig.(syscall.Signal))
	}
}

// end asks the server to end.
func (s *server) end() { s.signal(unix.SIGTERM) }

// kill ends a server that waits.
func (s *server) kill() {
	s.gate.Close()
	s.wait()
}

// wait waits until the server has ended.
func (s *server) wait() {
	s.cmd.Wait() // status has what it ended with
	s.over.Store(true)
}

// status is what the server has ended with, as a shell has it.
func (s *server) status() int {
	if s.cmd.ProcessState == nil {
		return 0 // nobody could wait for it, which is an error of its own
	}
	status, ok := s.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if ok && status.Signaled() {
		return 128 + int(status.Signal())
	}
	return s.cmd.ProcessState.ExitCode()
}

// runServer is the hidden command run-server: it waits to be released, and becomes the
// server.
func runServer(args []string, _ io.Reader, _, _ io.Writer) error {
	gate := os.NewFile(3, "gate")
	gate.Write([]byte{1})
	if n, _ := gate.Read(make([]byte, 1)); n == 0 {
		return exitStatus(1) // run has gone, or has said what is wrong
	}
	gate.Close()
	dieWithParent()
	if len(args) < 2 {
		return usageError{errors.New("run-server: want a command")}
	}
	command := args[1:]
	path, err := exec.LookPath(command[0])
	if err != nil && !errors.Is(err, exec.ErrDot) {
		status := 126
		if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
			status = 127
		}
		return commandError{fmt.Errorf("run %s: %w", strings.Join(command, " "), err), status}
	}
	err = syscall.Exec(path, command, os.Environ())
	return commandError{fmt.Errorf("run %s: %w", strings.Join(command, " "), err), 126}
}
