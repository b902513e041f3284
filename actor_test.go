//go:build linux

package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// An actor is a process that does what a test tells it to, one thing after the
// other, by raw system calls, so that a test knows each one that was made.
type actor struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// An actorCommand is what an actor is told.
type actorCommand struct {
	Call int    // the number of a system call; or
	Args []any  // of it: numbers, strings for pointers to C strings, []byte for pointers to memory
	ABI  string // empty for the machine's own; see compatCalls
	Do   string
	Argv []string // of Do
}

// An actorAnswer is what came of it.
type actorAnswer struct {
	Ret   int
	Errno syscall.Errno
	Err   string
}

// startActor starts an actor as the leader of a process group of its own.
func startActor(t *testing.T) *actor {
	t.Helper()
	return startActorIn(t, 0)
}

// startActorIn starts an actor in a process group.
func startActorIn(t *testing.T, pgid int) *actor {
	t.Helper()
	cmd := partCommand("actor")
	cmd.Env = append(cmd.Env, "GODEBUG=asyncpreemptoff=1") // no signals that interrupt its system calls
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pgid: pgid}
	a := &actor{t: t, cmd: cmd}
	var err error
	if a.in, err = cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	a.out = bufio.NewReader(out)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.in.Close(); a.cmd.Wait() })
	a.call(unix.SYS_GETPID) // it is up: what it does from here on is what it is told
	return a
}

// partCommand returns a command that runs this test binary in another part.
func partCommand(part string, args ...string) *exec.Cmd {
	exe, err := os.Executable()
	if err != nil {
		panic(err)
	}
	cmd := exec.Command(exe, args...)
	cmd.Env = append(os.Environ(), "PROBE_TEST_PART="+part)
	cmd.Stderr = os.Stderr
	return cmd
}

// startPiped starts a command and returns its standard input and output.
func startPiped(t *testing.T, cmd *exec.Cmd) (in io.WriteCloser, out io.ReadCloser) {
	t.Helper()
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if out, err = cmd.StdoutPipe(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return in, out
}

func (a *actor) pid() int { return a.cmd.Process.Pid }

func (a *actor) tell(c actorCommand) actorAnswer {
	a.t.Helper()
	a.ask(c)
	return a.answer()
}

// ask tells the actor to do something and does not wait for the answer.
func (a *actor) ask(c actorCommand) {
	a.t.Helper()
	c.Args = slices.Clone(c.Args)
	for i, arg := range c.Args {
		switch arg := arg.(type) {
		case []byte:
			c.Args[i] = map[string]any{"b": arg}
		case string:
			c.Args[i] = map[string]any{"b": append([]byte(arg), 0)}
		case int, uintptr, uint32, uint64:
		default:
			a.t.Fatalf("argument %d is a %T", i, arg)
		}
	}
	b, err := json.Marshal(c)
	if err != nil {
		a.t.Fatal(err)
	}
	if _, err := a.in.Write(append(b, '\n')); err != nil {
		a.t.Fatalf("tell the actor: %v", err)
	}
}

func (a *actor) answer() actorAnswer {
	a.t.Helper()
	b, err := a.out.ReadBytes('\n')
	if err != nil {
		a.t.Fatalf("the actor does not answer: %v", err)
	}
	var answer actorAnswer
	if err := json.Unmarshal(b, &answer); err != nil {
		a.t.Fatalf("the actor answers %q: %v", b, err)
	}
	return answer
}

// call makes a system call and returns its result, negative errno for an error.
func (a *actor) call(number int, args ...any) int {
	a.t.Helper()
	return a.callABI("", number, args...)
}

// callABI is call for another ABI.
func (a *actor) callABI(abi string, number int, args ...any) int {
	a.t.Helper()
	answer := a.tell(actorCommand{Call: number, Args: args, ABI: abi})
	if answer.Errno != 0 {
		return -int(answer.Errno)
	}
	return answer.Ret
}

// must is call for what has to succeed.
func (a *actor) must(number int, args ...any) int {
	a.t.Helper()
	ret := a.call(number, args...)
	if ret < 0 {
		a.t.Fatalf("system call %d%v: %v", number, args, syscall.Errno(-ret))
	}
	return ret
}

// do has the actor do one of actorDeeds, which has to succeed.
func (a *actor) do(deed string, argv ...string) int {
	a.t.Helper()
	answer := a.tell(actorCommand{Do: deed, Argv: argv})
	if answer.Err != "" {
		a.t.Fatalf("%s %q: %s", deed, argv, answer.Err)
	}
	return answer.Ret
}

// playActor is the actor's side.
// An actor acts as the thread that its process began with. Only before main is the first
// goroutine sure to be on it.
func init() {
	if os.Getenv("PROBE_TEST_PART") == "actor" {
		runtime.LockOSThread()
	}
}

func playActor(in io.Reader, out io.Writer) int {
	r := bufio.NewReader(in)
	for {
		b, err := r.ReadBytes('\n')
		if err != nil {
			return 0
		}
		var c struct {
			Call int
			Args []json.RawMessage
			ABI  string
			Do   string
			Argv []string
		}
		var answer actorAnswer
		if err := json.Unmarshal(b, &c); err != nil {
			answer.Err = err.Error()
		} else if c.Do == "" {
			answer = rawCall(c.ABI, c.Call, c.Args)
		} else if deed := actorDeeds[c.Do]; deed == nil {
			answer.Err = "unknown deed"
		} else if ret, err := deed(c.Argv); err != nil {
			answer.Err = err.Error()
		} else {
			answer.Ret = ret
		}
		b, _ = json.Marshal(answer)
		out.Write(append(b, '\n'))
	}
}

// compatCalls makes system calls of the other ABI, in the ways that there are, and
// others that are odd. What pointers point to is where compatMemory puts it or, without
// that, where pointers of 32 bits reach: low does that.
var compatCalls = map[string]func(number int, args [6]uintptr) (ret int){}

var compatMemory = map[string]func([]byte) uintptr{}

var low = func(b []byte) uintptr { return uintptr(unsafe.Pointer(&b[0])) }

func rawCall(abi string, number int, args []json.RawMessage) actorAnswer {
	var a [6]uintptr
	var keep [][]byte
	at := func(b []byte) uintptr { return uintptr(unsafe.Pointer(&b[0])) }
	if place := compatMemory[abi]; place != nil {
		at = place
	} else if abi != "" {
		at = low
	}
	for i, raw := range args {
		var memory struct{ B []byte }
		var n int64
		if json.Unmarshal(raw, &n) == nil {
			a[i] = uintptr(n)
		} else if err := json.Unmarshal(raw, &memory); err != nil {
			return actorAnswer{Err: err.Error()}
		} else if len(memory.B) > 0 {
			keep = append(keep, memory.B)
			a[i] = at(memory.B)
		}
	}
	if call := compatCalls[abi]; abi != "" {
		ret := call(number, a)
		if ret < 0 && ret > -4096 {
			return actorAnswer{Errno: syscall.Errno(-ret)}
		}
		return actorAnswer{Ret: ret}
	}
	ret, _, errno := syscall.Syscall6(uintptr(number), a[0], a[1], a[2], a[3], a[4], a[5])
	runtime.KeepAlive(keep)
	return actorAnswer{Ret: int(ret), Errno: errno}
}

// actorDeeds are what takes more than one system call.
var actorDeeds = map[string]func(argv []string) (int, error){
	// run runs a program to its end; the first argument is its argv[0].
	"run": func(argv []string) (int, error) {
		cmd := exec.Command(argv[1], argv[2:]...)
		cmd.Args[0] = argv[0]
		err := cmd.Run()
		if cmd.Process == nil {
			return 0, err
		}
		return cmd.Process.Pid, nil
	},
	// part starts this binary in another part, and returns its pid after it has
	// said a line. It is reaped when it ends.
	"part": func(argv []string) (int, error) {
		cmd := partCommand(argv[0], argv[1:]...)
		out, err := cmd.StdoutPipe()
		if err != nil {
			return 0, err
		}
		if err := cmd.Start(); err != nil {
			return 0, err
		}
		if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
			return 0, fmt.Errorf("%s says nothing: %w", argv[0], err)
		}
		go cmd.Wait()
		return cmd.Process.Pid, nil
	},
	// thread makes an open in a thread that is not the process's first.
	"thread": func(argv []string) (int, error) {
		tid := make(chan int)
		go func() {
			runtime.LockOSThread()
			fd, _ := syscall.Open(argv[0], syscall.O_RDONLY, 0)
			syscall.Close(fd)
			tid <- syscall.Gettid()
		}()
		if id := <-tid; id != os.Getpid() {
			return id, nil
		}
		return 0, fmt.Errorf("the thread is the first one")
	},
	// opens opens a file as often as told.
	"opens": func(argv []string) (int, error) {
		var n int
		fmt.Sscan(argv[1], &n)
		for range n {
			fd, err := syscall.Open(argv[0], syscall.O_RDONLY, 0)
			if err != nil {
				return 0, err
			}
			syscall.Close(fd)
		}
		return n, nil
	},
	"setsid": func([]string) (int, error) { return syscall.Setsid() },
	"comm":   func(argv []string) (int, error) { return 0, os.WriteFile("/proc/self/comm", []byte(argv[0]), 0) },
}

// say tells whoever started this part that it is ready.
func say(args ...any) { fmt.Println(strings.TrimSpace(fmt.Sprint(args...))) }
