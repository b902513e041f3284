//go:build linux && (amd64 || arm64)

package main

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// leavers leave the process group, the session and their parent, which is how daemons
// are made and how a scope by group, by session or by parent is lost.
func leavers(t *testing.T) {
	s, a := startScoped(t)
	stranger := startActor(t)
	leave := func(t *testing.T, how string, forks int) {
		path := "/left-" + strings.ReplaceAll(how, " ", "-")
		got := during(s.client, func() {
			a.do("part", "leave", how, strconv.Itoa(forks), strconv.Itoa(stranger.pid()), "0", path)
			s.until(func(l outLine) bool { return l["path"] == path })
		})
		acts := filter(got, fields{"path": path})
		if len(acts) != 1 {
			t.Fatalf("its act is seen %d times: %v", len(acts), acts)
		}
		for typ, key := range map[string]string{"process_spawn": "child_pid", "exec": "pid"} {
			if got := filter(got, fields{"type": typ, key: acts[0]["pid"]}); len(got) != 1 {
				t.Errorf("its %s is seen %d times: %v", typ, len(got), got)
			}
		}
		if got := filter(got, fields{"type": "exec"}); len(got) != forks+1 {
			t.Errorf("%d programs on the way, want %d: %v", len(got), forks+1, got)
		}
	}
	for how, forks := range map[string]int{
		"stays": 1, "setsid": 1, "setpgid": 1, "another group": 1, "orphan": 1, "double fork": 2, "daemon": 2, "five forks": 5,
	} {
		t.Run(how, func(t *testing.T) { leave(t, how, forks) })
	}
	a.must(unix.SYS_PRCTL, unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
	t.Run("orphan of a subreaper", func(t *testing.T) { leave(t, "orphan", 1) })
}

// A forkRow is a spelling of a fork.
type forkRow struct {
	name   string
	number int
	flags  uint64
}

// fork has the actor make a child that opens path with its first instructions and
// ends. Unless tid is zero, that is to be its pid. It returns the child's pid, or a
// negative errno.
func (a *actor) fork(r forkRow, path string, tid int) int {
	a.t.Helper()
	return a.do("fork", strconv.Itoa(r.number), strconv.FormatUint(r.flags, 10), path, strconv.Itoa(tid))
}

// forkEvents are the events of a fork whose child opens path, which does not exist.
func forkEvents(parent, child int, path string) []fields {
	return []fields{
		{"type": "process_spawn", "pid": float64(parent), "child_pid": float64(child)},
		{"type": "file_open", "pid": float64(child), "path": path, "flags": "O_RDONLY", "errno": "ENOENT"},
	}
}

// forks must be seen before the child's first instruction, or it acts out of scope.
func forks(t *testing.T) {
	s, a := startScoped(t)
	for _, r := range append([]forkRow{
		{"clone", unix.SYS_CLONE, 0},
		{"clone that waits", unix.SYS_CLONE, unix.CLONE_VFORK},
		{"clone, untraced", unix.SYS_CLONE, unix.CLONE_UNTRACED},
		{"clone for the parent", unix.SYS_CLONE, unix.CLONE_PARENT},
		{"clone with all that can be shared", unix.SYS_CLONE, unix.CLONE_FS | unix.CLONE_FILES | unix.CLONE_IO | unix.CLONE_SYSVSEM},
		{"clone3", unix.SYS_CLONE3, 0},
		{"clone3 that waits", unix.SYS_CLONE3, unix.CLONE_VFORK},
		{"clone3, untraced", unix.SYS_CLONE3, unix.CLONE_UNTRACED},
		{"clone3 for the parent", unix.SYS_CLONE3, unix.CLONE_PARENT},
	}, archForks...) {
		t.Run(r.name, func(t *testing.T) {
			child := 0
			got := during(s.client, func() {
				child = a.fork(r, "/forked", 0)
				if r.flags&unix.CLONE_PARENT != 0 {
					if _, err := unix.Wait4(child, nil, unix.WALL, nil); err != nil {
						t.Errorf("the child %d is not ours: %v", child, err)
					}
				}
			})
			checkEvents(t, got, a.pid(), forkEvents(a.pid(), child, "/forked")...)
		})
	}
	t.Run("posix_spawn", func(t *testing.T) {
		program := smallProgram(t, "program")
		child := 0
		got := during(s.client, func() { child = a.do("spawn", program, "x") })
		checkEvents(t, got, child, fields{"type": "process_spawn", "pid": float64(a.pid()), "child_pid": float64(child)},
			fields{"type": "exec", "argv": []any{program, "x"}, "exe": program, "path": program, "ppid": float64(a.pid())})
	})
}

// execFromThread has a thread take over its process: it goes into execve(2) by one
// number and comes out by another.
func execFromThread(t *testing.T) {
	s, a := startScoped(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	s.begin("thread", "")
	pid := a.do("part", "exec-thread")
	execs := filter(events(s.end("thread"), "thread"), fields{"type": "exec", "pid": float64(pid)})
	if len(execs) != 2 || !reflect.DeepEqual(execs[1]["argv"], []any{self, "done"}) {
		t.Fatalf("got %v, want the part's exec and then its thread's", execs)
	}
	// It is still in scope.
	s.begin("after", "")
	if err := os.WriteFile(fifoOf(pid), []byte("x"), 0); err != nil {
		t.Fatal(err)
	}
	waitGone(t, pid)
	if got := filter(events(s.end("after"), "after"), fields{"type": "file_open", "path": "/etc/hostname-of-" + strconv.Itoa(pid)}); len(got) != 1 || got[0]["pid"] != float64(pid) || got[0]["errno"] != "ENOENT" {
		t.Errorf("after the exec: %v", got)
	}
}

// reusedPIDs has a stranger get the pid of a member that is gone, and a member that of
// a stranger: what is kept by pid would mistake one for the other.
func reusedPIDs(t *testing.T) {
	t.Run("as chosen", func(t *testing.T) {
		s, a := startScoped(t)
		stranger := startActor(t)
		clone3 := forkRow{number: unix.SYS_CLONE3}
		// Somebody else on this machine can take the pid in between: then it is tried again.
		for try := range 10 {
			var pid, strange, again int
			got := during(s.client, func() {
				pid = a.fork(clone3, "/member", 0)
				strange = stranger.fork(clone3, "/stranger", pid)
				again = a.fork(clone3, "/member-again", pid)
			})
			later := during(s.client, func() { stranger.fork(clone3, "/stranger", pid) })
			if again == -int(unix.EEXIST) || strange == -int(unix.EEXIST) {
				t.Logf("try %d: pid %d is in use", try, pid)
				continue
			}
			if strange != pid || again != pid {
				t.Fatalf("the pids are %d, %d and %d", pid, strange, again)
			}
			checkEvents(t, got, a.pid(), append(forkEvents(a.pid(), pid, "/member"), forkEvents(a.pid(), pid, "/member-again")...)...)
			checkEvents(t, later, a.pid())
			return
		}
		t.Error("no pid could be used again")
	})
	t.Run("as they come round", func(t *testing.T) {
		var uts unix.Utsname
		var major, minor int
		if err := unix.Uname(&uts); err != nil {
			t.Fatal(err)
		}
		if fmt.Sscanf(unix.ByteSliceToString(uts.Release[:]), "%d.%d", &major, &minor); major < 6 || major == 6 && minor < 14 {
			t.Skipf("Linux %d.%d has one pid_max for all namespaces", major, minor)
		}
		inNamespaces(t, "TestInSmallPIDNamespace")
	})
}

// TestInSmallPIDNamespace has pids come round as they do on a machine that is up for
// long.
func TestInSmallPIDNamespace(t *testing.T) {
	skipOutOfNamespaces(t)
	s, a := startScoped(t)
	stranger := startActor(t)
	// The kernel goes on from 300 when it has come to the end. There has to be room for
	// the threads that the Go runtime starts.
	if err := os.WriteFile("/proc/sys/kernel/pid_max", []byte("364"), 0); err != nil {
		t.Fatal(err)
	}
	const rounds = 250
	clone3 := forkRow{number: unix.SYS_CLONE3}
	var want []fields
	members, strangers := map[int]bool{}, map[int]bool{}
	got := during(s.client, func() {
		for i := range rounds {
			pid := a.fork(clone3, "/member", 0)
			want = append(want, forkEvents(a.pid(), pid, "/member")...)
			members[pid] = true
			for range i % 4 { // not in step with the pids
				strangers[stranger.fork(clone3, "/stranger", 0)] = true
			}
		}
	})
	checkEvents(t, got, a.pid(), want...)
	both := 0
	for pid := range members {
		if strangers[pid] {
			both++
		}
	}
	if both < 20 {
		t.Errorf("only %d pids were those of a member and of a stranger", both)
	}
}

// namespaces give processes other numbers than the sidecar knows them by.
func namespaces(t *testing.T) {
	s, a := startScoped(t)
	for name, flags := range map[string]uint64{
		"pid":          unix.CLONE_NEWPID,
		"user":         unix.CLONE_NEWUSER,
		"pid and user": unix.CLONE_NEWPID | unix.CLONE_NEWUSER,
		"all that exists": unix.CLONE_NEWPID | unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWNET |
			unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP,
	} {
		for _, number := range []int{unix.SYS_CLONE, unix.SYS_CLONE3} {
			t.Run(fmt.Sprintf("%s, call %d", name, number), func(t *testing.T) {
				child := 0
				got := during(s.client, func() { child = a.fork(forkRow{number: number, flags: flags}, "/inside", 0) })
				if child == -int(unix.EINVAL) {
					t.Skip("this kernel does not have them")
				}
				for _, l := range got {
					delete(l, "mnt_ns") // that of the root directory, if it is a new one
				}
				checkEvents(t, got, a.pid(), forkEvents(a.pid(), child, "/inside")...)
			})
		}
	}
	t.Run("entered", func(t *testing.T) {
		pid := 0
		got := during(s.client, func() { pid = a.do("play", "enters-namespaces") })
		inside := filter(got, fields{"type": "file_open", "path": "/inside"})
		if len(inside) != 1 {
			t.Fatalf("its act is seen %d times: %v", len(inside), inside)
		}
		child := inside[0]["pid"]
		for _, want := range []fields{
			{"type": "process_spawn", "pid": float64(pid), "child_pid": child},
			{"type": "exec", "pid": child, "ppid": float64(pid)},
		} {
			if got := filter(got, want); len(got) != 1 {
				t.Errorf("there are %d events %v", len(got), want)
			}
		}
	})
	t.Run("the sidecar in one", func(t *testing.T) { inNamespaces(t, "TestInPIDNamespace") })
}

// namesakes look like the sidecar to whoever leaves that out by its name.
func namesakes(t *testing.T) {
	ebpfOrSkip(t, minRingSize).Close()
	p := startProbe(t)
	a := startActor(t)
	p.scope(a.pid())
	comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", p.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{strings.TrimSuffix(string(comm), "\n"), "mcpfz-probe"} {
		t.Run(name, func(t *testing.T) {
			a.do("comm", name)
			got := during(p.client, func() { a.call(unix.SYS_OPENAT, unix.AT_FDCWD, "/namesake", unix.O_RDONLY, 0) })
			checkEvents(t, got, a.pid(), fields{"type": "file_open", "comm": name, "path": "/namesake", "flags": "O_RDONLY", "errno": "ENOENT"})
		})
	}
	t.Run("a program of that name", func(t *testing.T) {
		program, child := smallProgram(t, "mcpfz-probe"), 0
		got := during(p.client, func() { child = a.do("spawn", program) })
		checkEvents(t, filter(got, fields{"type": "exec"}), child, fields{"type": "exec", "comm": "mcpfz-probe",
			"argv": []any{program}, "exe": program, "path": program, "ppid": float64(a.pid())})
	})
	t.Run("the very program", func(t *testing.T) {
		child := 0
		got := during(p.client, func() { child = a.do("play", "probe", "--ring-size", "1M") })
		if got := filter(got, fields{"type": "exec", "pid": float64(child)}); len(got) != 1 || got[0]["exe"] != p.cmd.Path {
			t.Errorf("its exec: %v", got)
		}
		if got := filter(got, fields{"type": "bpf", "pid": float64(child)}); len(got) < 7 {
			t.Errorf("it loads its programs by %d calls of bpf", len(got))
		}
	})
}

// manyChildren are gone before anybody could look them up.
func manyChildren(t *testing.T) {
	n := 10_000
	if testing.Short() {
		n = 300
	}
	s := startSession(t, ebpfOrSkip(t, 16<<20), 0)
	a := startActor(t)
	s.scope(a.pid())
	program := smallProgram(t, "program")
	got := during(s.client, func() { a.do("part", "breed", strconv.Itoa(n), program) })
	dropped := skipped(t, got)
	spawns, execs := map[any]int{}, map[string]int{} // of a pid, which can come twice; of a child
	for _, l := range filter(got, fields{"type": "process_spawn"}) {
		spawns[l["child_pid"]]++
	}
	unspawned := 0
	for _, l := range filter(got, fields{"type": "exec", "exe": program}) {
		execs[fmt.Sprint(l["argv"])]++
		if spawns[l["pid"]]--; spawns[l["pid"]] < 0 {
			unspawned++
		}
	}
	missing := 0
	for i := range n {
		switch times := execs[fmt.Sprintf("[%s %d]", program, i)]; times {
		case 0:
			missing++
		case 1:
		default:
			t.Errorf("the exec of child %d is seen %d times", i, times)
		}
	}
	if missing > dropped || unspawned > dropped || len(execs)+missing != n {
		t.Errorf("of %d children, %d are not seen and %d not when they were spawned; %d events were dropped",
			n, missing, unspawned, dropped)
	}
}

func spawn(argv []string) (int, error) {
	pid, err := syscall.ForkExec(argv[0], argv, &syscall.ProcAttr{})
	if err != nil {
		return 0, err
	}
	_, err = unix.Wait4(pid, nil, 0, nil)
	return pid, err
}

// cloneArgs is struct clone_args.
type cloneArgs struct {
	flags, pidfd, childTID, parentTID, exitSignal, stack, stackSize, tls uint64
	setTID                                                               *uint64
	setTIDSize, cgroup                                                   uint64
}

// forkAndOpen makes a system call that forks, and has the child open path. The child
// has this thread alone, and can do nothing that needs the Go runtime.
//
//go:norace
func forkAndOpen(path *byte, number, arg0, arg1 uintptr) int {
	pid, _, errno := unix.RawSyscall6(number, arg0, arg1, 0, 0, 0, 0)
	if errno != 0 {
		return -int(errno)
	}
	if pid == 0 {
		unix.RawSyscall6(unix.SYS_OPENAT, atFDCWD, uintptr(unsafe.Pointer(path)), unix.O_RDONLY, 0, 0, 0)
		for {
			unix.RawSyscall(unix.SYS_EXIT, 0, 0, 0)
		}
	}
	return int(pid)
}

func init() {
	testParts["leave"] = func(args []string) error {
		how, forks, group, parent, path := args[0], mustAtoi(args[1]), mustAtoi(args[2]), mustAtoi(args[3]), args[4]
		if forks == 0 {
			for end := time.Now().Add(patience); how != "stays" && os.Getppid() == parent && time.Now().Before(end); {
				time.Sleep(time.Millisecond)
			}
			os.ReadFile(path)
			return nil
		}
		cmd := partCommand("leave", how, strconv.Itoa(forks-1), args[2], strconv.Itoa(os.Getpid()), path)
		cmd.Stderr = nil
		switch how {
		case "setsid", "daemon":
			cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		case "setpgid":
			cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		case "another group":
			cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pgid: group}
		}
		err := cmd.Start()
		say("gone")
		return err
	}
	testParts["breed"] = func(args []string) error {
		// Whoever is busy beside them makes the kernel preempt, also in our programs.
		for range 2 {
			busy := partCommand("busy")
			if err := busy.Start(); err != nil {
				return err
			}
			defer busy.Process.Kill()
		}
		jobs := make(chan int)
		var wg sync.WaitGroup
		var failed error
		for range 16 {
			wg.Go(func() {
				for i := range jobs {
					if _, err := spawn([]string{args[1], strconv.Itoa(i)}); err != nil {
						failed = err
					}
				}
			})
		}
		for i := range mustAtoi(args[0]) {
			jobs <- i
		}
		close(jobs)
		wg.Wait()
		if failed != nil {
			return failed
		}
		say("done")
		return nil
	}
	// enters-namespaces has a child in the namespaces of another one.
	testParts["enters-namespaces"] = func(args []string) error {
		if len(args) > 0 {
			os.ReadFile("/inside")
			return nil
		}
		runtime.LockOSThread()
		host := partCommand("actor")
		host.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNET}
		in, err := host.StdinPipe()
		if err != nil {
			return err
		}
		if err := host.Start(); err != nil {
			return err
		}
		pidfd, err := unix.PidfdOpen(host.Process.Pid, 0)
		if err != nil {
			return err
		}
		if err := unix.Setns(pidfd, unix.CLONE_NEWPID|unix.CLONE_NEWNET); err != nil {
			return err
		}
		err = partCommand("enters-namespaces", "inside").Run()
		in.Close()
		return errors.Join(err, host.Wait())
	}
	actorDeeds["fork"] = func(argv []string) (int, error) {
		number, flags, tid := uintptr(mustAtoi(argv[0])), uint64(mustAtoi(argv[1])), uint64(mustAtoi(argv[3]))
		path, err := unix.BytePtrFromString(argv[2])
		if err != nil {
			return 0, err
		}
		// Without a signal at the child's end, which could interrupt the next fork.
		args := &cloneArgs{flags: flags}
		if tid != 0 {
			args.setTID, args.setTIDSize = &tid, 1
		}
		pid := 0
		switch {
		case flags&unix.CLONE_VM != 0:
			pid = forkInPlace(path, number, uintptr(flags))
		case number == unix.SYS_CLONE3:
			pid = forkAndOpen(path, number, uintptr(unsafe.Pointer(args)), unsafe.Sizeof(*args))
		default:
			pid = forkAndOpen(path, number, uintptr(flags), 0)
		}
		runtime.KeepAlive(path)
		runtime.KeepAlive(args)
		if pid > 0 && flags&unix.CLONE_PARENT == 0 {
			_, err = unix.Wait4(pid, nil, unix.WALL, nil)
		}
		return pid, err
	}
	// spawn runs a program to its end by the system calls of posix_spawn(3) alone.
	actorDeeds["spawn"] = spawn
	actorDeeds["spawn quoted"] = func(argv []string) (_ int, err error) {
		for i := 1; i < len(argv) && err == nil; i++ {
			argv[i], err = strconv.Unquote(argv[i])
		}
		if err != nil {
			return 0, err
		}
		return spawn(argv)
	}
	// play runs this binary in another part to its end.
	actorDeeds["play"] = func(argv []string) (int, error) {
		cmd := partCommand(argv[0], argv[1:]...)
		err := cmd.Run()
		if cmd.Process == nil {
			return 0, err
		}
		return cmd.Process.Pid, err
	}
}
