//go:build linux && (amd64 || arm64)

package main

import (
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestEBPFEvasions runs, by the numbers that they have there, the ways past a probe that evasions.md lists.
func TestEBPFEvasions(t *testing.T) {
	for _, e := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"01 leaves the scope", leavers},
		{"03 exec from a thread", execFromThread},
		{"05 namespaces of pids and users", insidePIDNamespace},
		{"07 many children", manyChildren},
		{"08 every spelling", everySpelling},
		{"09 32-bit system calls", compatSystemCalls},
		{"11 every way to send", everyDestination},
		{"12 UNIX sockets", unixSockets},
		{"13 descriptors from elsewhere", foreignDescriptors},
		{"14 acts in another process", otherProcesses},
		{"17 misleading paths", misleadingPaths},
		{"19 misleading arguments", programs},
		{"26 calls that overlap", overlappingCalls},
		{"27 work that goes on", workGoesOn},
		{"29 the client is gone", endings},
	} {
		t.Run(e.name, e.run)
	}
}

func leavers(t *testing.T) {
	s, a := startScoped(t)
	for _, how := range []string{"plain", "setsid", "setpgid", "double", "orphan"} {
		s.begin(how, "")
		a.do("part", "leave", how)
		want := "/left-" + how
		lines := s.until(func(l outLine) bool { return l["path"] == want })
		if got := filter(lines, fields{"path": want}); len(got) != 1 || got[0].str("call_id") != how {
			t.Errorf("%s: %v", how, got)
		}
		s.end(how)
	}
}

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

func manyChildren(t *testing.T) {
	n := 2000
	if testing.Short() {
		n = 200
	}
	s := startSession(t, ebpfOrSkip(t, 16<<20), 0)
	a := startActor(t)
	s.scope(a.pid())
	s.begin("a", "")
	a.do("part", "breed", strconv.Itoa(n))
	lines := s.end("a")
	// On a kernel that preempts, on emulated CPUs, even three copies can be busy.
	dropped := 0
	for _, l := range filter(lines, fields{"type": "drop"}) {
		if copies, err := hookCopies(); err != nil || copies == 1 || l["reason"] != "program_skipped" {
			t.Fatalf("some were lost: %v", l)
		}
		dropped += int(l["count"].(float64))
	}
	spawned, execed := map[any]bool{}, map[any]int{}
	for _, l := range filter(lines, fields{"type": "process_spawn"}) {
		spawned[l["child_pid"]] = true
	}
	for _, l := range filter(lines, fields{"type": "exec"}) {
		if args := l["argv"].([]any); len(args) > 1 && args[1] == "bred" {
			execed[l["pid"]]++
		}
	}
	total, unspawned := 0, 0
	for pid, times := range execed {
		if total += times; !spawned[pid] {
			unspawned++
		}
	}
	if total > n || n-total > dropped || unspawned > dropped {
		t.Errorf("%d children were seen, %d of them not when they were spawned, and %d events dropped; want %d children", total, unspawned, dropped, n)
	}
}

func everySpelling(t *testing.T) {
	s, a := startScoped(t)
	runCallRows(t, s, a, 8)
	t.Run("open by handle", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		handle, _, err := unix.NameToHandleAt(unix.AT_FDCWD, file, 0)
		if err != nil {
			t.Skipf("no handles on this file system: %v", err)
		}
		dirfd := a.must(unix.SYS_OPENAT, unix.AT_FDCWD, filepath.Dir(file), unix.O_RDONLY, 0)
		raw := binary.NativeEndian.AppendUint32(nil, uint32(handle.Size()))
		raw = binary.NativeEndian.AppendUint32(raw, uint32(handle.Type()))
		s.begin("handle", "")
		ret := a.call(unix.SYS_OPEN_BY_HANDLE_AT, dirfd, append(raw, handle.Bytes()...), unix.O_RDONLY)
		if ret < 0 {
			t.Skipf("no handles on this file system: %v", syscall.Errno(-ret))
		}
		checkEvents(t, events(s.end("handle"), "handle"), a.pid(), fields{"type": "file_open", "path": file, "flags": "O_RDONLY"})
	})
	t.Run("from memory", func(t *testing.T) {
		s.begin("memfd", "")
		pid := a.do("part", "memfd")
		got := filter(events(s.end("memfd"), "memfd"), fields{"type": "exec", "fileless": true})
		if len(got) != 1 || got[0]["pid"] == float64(pid) || got[0]["exe"] != "/memfd:probe" || got[0]["argv0"] != "innocent" || !strings.HasPrefix(got[0].str("path"), "/proc/self/fd/") {
			t.Errorf("got %v", got)
		}
	})
}

func everyDestination(t *testing.T) {
	s, a := startScoped(t)
	runCallRows(t, s, a, 11)
	port := freePort(t)
	dst := fmt.Sprintf("127.66.0.9:%d", port)
	t.Run("connect without blocking", func(t *testing.T) {
		l, err := net.Listen("tcp", "127.66.0.9:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		addr := sockaddr("127.66.0.9", l.Addr().(*net.TCPAddr).Port)
		fd := a.must(unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK, 0)
		s.begin("nonblock", "")
		rets := []int{a.call(unix.SYS_CONNECT, fd, addr, 16), a.call(unix.SYS_CONNECT, fd, addr, 16), a.call(unix.SYS_CONNECT, fd, addr, 16)}
		disconnect := a.call(unix.SYS_CONNECT, fd, make([]byte, 16), 16)
		if rets[0] != -int(unix.EINPROGRESS) || rets[2] != -int(unix.EISCONN) || disconnect != 0 {
			t.Errorf("the calls return %v and %d", rets, disconnect)
		}
		checkEvents(t, events(s.end("nonblock"), "nonblock"), a.pid(), fields{"type": "connect", "proto": "tcp", "dst": l.Addr().String()})
	})
	t.Run("connect that signals interrupt", func(t *testing.T) {
		l, busy := busyListener(t)
		s.begin("signals", "")
		a.ask(actorCommand{Do: "part", Argv: []string{"interrupted", strconv.Itoa(busy)}})
		pid := a.answer().Ret // the signals have come
		unix.Close(l)         // and now it is refused
		waitGone(t, pid)
		got := filter(events(s.end("signals"), "signals"), fields{"type": "connect"})
		for _, l := range got {
			delete(l, "tid")
		}
		checkEvents(t, got, pid, fields{"type": "connect", "proto": "tcp", "dst": fmt.Sprintf("127.66.0.9:%d", busy)})
	})
	t.Run("MPTCP", func(t *testing.T) {
		fd := a.call(unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_MPTCP)
		if fd < 0 {
			t.Skipf("this kernel has none: %v", syscall.Errno(-fd))
		}
		s.begin("mptcp", "")
		a.call(unix.SYS_CONNECT, fd, sockaddr("127.66.0.9", port), 16)
		checkEvents(t, events(s.end("mptcp"), "mptcp"), a.pid(), fields{"type": "connect", "proto": "mptcp", "dst": dst})
	})
	t.Run("sendmsg and sendmmsg", func(t *testing.T) {
		// The addresses that a struct msghdr points to must be in the actor's memory,
		// so a part of its own does this one.
		s.begin("msg", "")
		pid := a.do("part", "sendmsg", strconv.Itoa(port))
		got := filter(events(s.end("msg"), "msg"), fields{"type": "connect"})
		var dsts []string
		for _, l := range got {
			if l["pid"] != float64(pid) || l["proto"] != "udp" {
				t.Errorf("got %v", l)
			}
			dsts = append(dsts, strings.TrimSuffix(l.str("dst"), ":"+strconv.Itoa(port)))
		}
		if want := []string{"127.66.0.1", "127.66.0.2", "127.66.0.3", "127.66.0.5"}; !reflect.DeepEqual(dsts, want) {
			t.Errorf("went to %v, want %v", dsts, want)
		}
	})
	t.Run("sendmmsg of a thousand", func(t *testing.T) {
		s.begin("mmsg", "")
		a.do("part", "sendmmsg", strconv.Itoa(port), "1000")
		got := filter(events(s.end("mmsg"), "mmsg"), fields{"type": "connect"})
		if len(got) != 1000 {
			t.Fatalf("%d messages left, want 1000", len(got))
		}
		if dst := got[999].str("dst"); dst != fmt.Sprintf("127.66.3.231:%d", port) {
			t.Errorf("the last one goes to %s", dst)
		}
	})
}

func unixSockets(t *testing.T) {
	s, a := startScoped(t)
	runCallRows(t, s, a, 12)
}

func foreignDescriptors(t *testing.T) {
	s, a := startScoped(t)
	runCallRows(t, s, a, 13)
}

func otherProcesses(t *testing.T) {
	s, a := startScoped(t)
	runCallRows(t, s, a, 14)
}

func misleadingPaths(t *testing.T) {
	s, a := startScoped(t)
	t.Run("open of a pipe", func(t *testing.T) {
		s.begin("pipe", "")
		a.must(unix.SYS_OPENAT, unix.AT_FDCWD, "/proc/self/fd/0", unix.O_RDONLY|unix.O_NONBLOCK, 0)
		got := events(s.end("pipe"), "pipe")
		if want, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/0", a.pid())); err != nil || len(got) != 1 || got[0]["path"] != want {
			t.Errorf("got %v, want a path %q (%v)", got, want, err)
		}
	})
	t.Run("another mount namespace", func(t *testing.T) {
		s.begin("mounts", "")
		pid := a.do("part", "mounts")
		lines := s.end("mounts")
		if got := filter(lines, fields{"type": "file_open", "pid": float64(pid), "requested": "hostname"}); len(got) != 2 || got[0]["detached_mount"] != true || got[1]["mnt_ns"] == nil || got[0]["mnt_ns"] != nil {
			t.Errorf("got %v", got)
		}
	})
}

func overlappingCalls(t *testing.T) {
	t.Run("marks are ordered", marksAreOrdered)
	t.Run("overlap", overlap)
}

func workGoesOn(t *testing.T) {
	t.Run("stamp at entry", stampAtEntry)
	t.Run("lineage", lineage)
}

func init() {
	testParts["leave"] = func(args []string) error {
		how := args[0]
		if len(args) > 1 {
			if how == "orphan" || how == "double" {
				for os.Getppid() == mustAtoi(args[1]) {
					time.Sleep(time.Millisecond)
				}
			}
			os.ReadFile("/left-" + how)
			return nil
		}
		cmd := partCommand("leave", how, strconv.Itoa(os.Getpid()))
		cmd.Stderr = nil
		switch how {
		case "setsid", "double":
			cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		case "setpgid":
			cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
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
				for range jobs {
					if err := exec.Command("/bin/true", "bred").Run(); err != nil {
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
}
