//go:build linux && (amd64 || arm64)

package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// endings ends a sidecar in each way there is, and checks that it is gone
// within the second that clients give it, with what it had attached.
func endings(t *testing.T) {
	ebpfOrSkip(t, 1<<20).Close()
	const eitherWay = -2 // whichever comes first
	// flood fills the output's pipe, the sidecar's buffer and the ring.
	flood := func(t *testing.T, p *testProbe) {
		a := startActor(t)
		p.scope(a.pid())
		p.gate.Lock()
		t.Cleanup(p.gate.Unlock)
		a.do("opens", "/dev/null", "30000")
	}
	for name, tt := range map[string]struct {
		end  func(t *testing.T, p *testProbe)
		code int // -1: by a signal
	}{
		"shutdown":     {func(t *testing.T, p *testProbe) { p.send(`{"op":"shutdown"}`) }, 0},
		"end of input": {func(t *testing.T, p *testProbe) { p.in.Close() }, 0},
		"SIGTERM":      {func(t *testing.T, p *testProbe) { p.cmd.Process.Signal(unix.SIGTERM) }, 0},
		"SIGINT":       {func(t *testing.T, p *testProbe) { p.cmd.Process.Signal(unix.SIGINT) }, 0},
		"shutdown and SIGTERM at once, as the fuzzer does": {func(t *testing.T, p *testProbe) {
			p.send(`{"op":"shutdown"}`)
			p.cmd.Process.Signal(unix.SIGTERM)
		}, 0},
		"a crash":                  {func(t *testing.T, p *testProbe) { p.cmd.Process.Signal(unix.SIGABRT) }, 2},
		"SIGKILL":                  {func(t *testing.T, p *testProbe) { p.cmd.Process.Kill() }, -1},
		"closed output, idle":      {func(t *testing.T, p *testProbe) { p.out.Close() }, 1},
		"closed output, a signal":  {func(t *testing.T, p *testProbe) { p.out.Close(); p.cmd.Process.Signal(unix.SIGTERM) }, eitherWay},
		"closed output, in a call": {func(t *testing.T, p *testProbe) { p.begin("a", ""); p.out.Close(); p.sendEnd("a") }, 1},
		"blocked output, SIGTERM":  {func(t *testing.T, p *testProbe) { flood(t, p); p.cmd.Process.Signal(unix.SIGTERM) }, 1},
		"blocked output, no room for marks, SIGTERM": {func(t *testing.T, p *testProbe) {
			p.gate.Lock()
			t.Cleanup(p.gate.Unlock)
			var sent atomic.Int64
			go func() {
				for i := range 100_000 { // until the sidecar is gone
					if _, err := fmt.Fprintf(p.in, `{"op":"mark","phase":"begin","call_id":"%d"}`+"\n", i); err != nil {
						return
					}
					sent.Add(1)
				}
			}()
			for last := int64(-1); last != sent.Load(); time.Sleep(500 * time.Millisecond) {
				last = sent.Load()
			}
			p.cmd.Process.Signal(unix.SIGTERM)
		}, 1},
		"blocked output, end of input behind marks": {func(t *testing.T, p *testProbe) {
			p.gate.Lock()
			t.Cleanup(p.gate.Unlock)
			for i := range 1500 {
				p.send(fmt.Sprintf(`{"op":"mark","phase":"begin","call_id":"%d","tool":"%0100d"}`, i, i))
			}
			p.in.Close()
		}, 1},
		"the client closes both ends":                 {func(t *testing.T, p *testProbe) { p.in.Close(); p.out.Close() }, eitherWay},
		"blocked output, the client closes both ends": {func(t *testing.T, p *testProbe) { flood(t, p); p.in.Close(); p.out.Close() }, eitherWay},
		"blocked output, closed":                      {func(t *testing.T, p *testProbe) { flood(t, p); p.out.Close() }, 1},
	} {
		t.Run(name, func(t *testing.T) {
			p := startProbe(t, "--ring-size", "1M")
			ids := programsOf(t, p.cmd.Process.Pid)
			if len(ids) < 7 {
				t.Fatalf("the sidecar holds %d programs", len(ids))
			}
			tt.end(t, p)
			start := time.Now()
			err := p.wait()
			if after := time.Since(start); after > time.Second && !testing.Short() { // emulated kernels are slow
				t.Errorf("it took %v to end", after)
			}
			code := 0
			if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
				code = exit.ExitCode()
			} else if err != nil {
				t.Fatal(err)
			}
			if code != tt.code && !(tt.code == eitherWay && (code == 0 || code == 1)) {
				t.Errorf("exit code %d, want %d", code, tt.code)
			}
			waitUnloaded(t, ids)
		})
	}
	t.Run("the client is killed", func(t *testing.T) {
		client := partCommand("client")
		out, err := client.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := client.Start(); err != nil {
			t.Fatal(err)
		}
		defer client.Wait()
		defer client.Process.Kill()
		pid := 0
		if _, err := fmt.Fscan(out, &pid); err != nil {
			t.Fatal(err)
		}
		pidfd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(pidfd)
		ids := programsOf(t, pid)
		if len(ids) < 7 {
			t.Fatalf("the sidecar holds %d programs", len(ids))
		}
		client.Process.Kill()
		timeout := time.Second
		if testing.Short() {
			timeout = patience
		}
		gone := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
		for end := time.Now().Add(timeout); ; { // a signal can interrupt it
			left := time.Until(end)
			if n, err := unix.Poll(gone, max(0, int(left.Milliseconds()))); n == 1 {
				break
			} else if left <= 0 {
				t.Errorf("the sidecar is still there after %v (%v)", timeout, err)
				unix.Kill(pid, unix.SIGKILL)
				break
			}
		}
		waitUnloaded(t, ids)
	})
}

func init() {
	// client starts a sidecar, says its pid and waits to be killed.
	testParts["client"] = func([]string) error {
		probe := partCommand("probe", "--ring-size", "1M")
		probe.Stderr = nil // it says that its client has gone
		if _, err := probe.StdinPipe(); err != nil {
			return err
		}
		out, err := probe.StdoutPipe()
		if err != nil {
			return err
		}
		if err := probe.Start(); err != nil {
			return err
		}
		if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
			return err
		}
		say(probe.Process.Pid)
		time.Sleep(5 * time.Minute)
		return nil
	}
}

// waitUnloaded waits until the kernel has freed programs, which is a little after the
// end of their process, when nobody can be in them.
func waitUnloaded(t *testing.T, ids []ebpf.ProgramID) {
	t.Helper()
	for end := time.Now().Add(patience); len(ids) > 0 && time.Now().Before(end); {
		if prog, err := ebpf.NewProgramFromID(ids[0]); errors.Is(err, os.ErrNotExist) {
			ids = ids[1:]
		} else if err != nil {
			t.Fatal(err)
		} else {
			prog.Close()
			time.Sleep(time.Millisecond)
		}
	}
	if len(ids) > 0 {
		t.Errorf("programs %v are still loaded", ids)
	}
}

// programsOf returns the BPF programs that a process has descriptors of.
func programsOf(t *testing.T, pid int) []ebpf.ProgramID {
	t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/fdinfo/*", pid))
	if err != nil {
		t.Fatal(err)
	}
	seen := map[ebpf.ProgramID]bool{}
	var ids []ebpf.ProgramID
	for _, f := range files {
		b, _ := os.ReadFile(f)
		if m := regexp.MustCompile(`(?m)^prog_id:\s*(\d+)`).FindSubmatch(b); m != nil {
			n, _ := strconv.Atoi(string(m[1]))
			if id := ebpf.ProgramID(n); !seen[id] {
				seen[id] = true
				ids = append(ids, id)
			}
		}
	}
	return ids
}

// inNamespaces runs a test as process 2 of a new pid namespace, with mounts of its own.
func inNamespaces(t *testing.T, test string) {
	ebpfOrSkip(t, minRingSize).Close()
	cmd := partCommand("in-namespaces", test, strconv.FormatBool(testing.Short()))
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS}
	out, err := cmd.Output()
	if err != nil {
		t.Errorf("%v", err)
	}
	for line := range strings.Lines(string(out)) {
		t.Log(strings.TrimSuffix(line, "\n"))
	}
	if !strings.HasSuffix(string(out), "PASS\n") {
		t.Errorf("it does not work in namespaces")
	}
}

func init() {
	// in-namespaces is process 1 of its namespace: it runs a test.
	testParts["in-namespaces"] = func(args []string) error {
		if os.Getpid() != 1 {
			return fmt.Errorf("it is process %d of its namespace", os.Getpid())
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return err
		}
		if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
			return err
		}
		os.Setenv("PROBE_TEST_IN_NAMESPACES", "1")
		self, err := os.Executable()
		if err != nil {
			return err
		}
		// Process 1 reaps, process 2 tests.
		cmd := exec.Command(self, "-test.run=^"+args[0]+"$", "-test.v", "-test.short="+args[1])
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		return cmd.Run()
	}
}

// skipOutOfNamespaces skips a test that only inNamespaces runs.
func skipOutOfNamespaces(t *testing.T) {
	if os.Getenv("PROBE_TEST_IN_NAMESPACES") == "" {
		t.Skip("it is a part of TestEBPFEvasions")
	}
}

// TestInPIDNamespace is the other half of rule 7: inside a pid namespace the
// sidecar takes and gives the numbers that processes have there.
func TestInPIDNamespace(t *testing.T) {
	skipOutOfNamespaces(t)
	p := startProbe(t)
	a := startActor(t)
	if a.pid() > 1000 {
		t.Fatalf("the actor is %d: this is no new namespace", a.pid())
	}
	if l := p.scope(a.pid()); l[len(l)-1]["processes"] != 1.0 {
		t.Fatalf("the scope is %v", l[len(l)-1])
	}
	p.begin("a", "")
	child := a.do("run", "true", "/proc/self/exe", "-test.run=none")
	lines := events(p.end("a"), "a")
	if got := filter(lines, fields{"type": "process_spawn", "pid": float64(a.pid()), "child_pid": float64(child)}); len(got) != 1 {
		t.Errorf("the actor is %d and its child %d: %v", a.pid(), child, filter(lines, fields{"type": "process_spawn"}))
	}
	if got := filter(lines, fields{"type": "exec", "pid": float64(child), "ppid": float64(a.pid())}); len(got) != 1 {
		t.Errorf("the actor is %d and its child %d: %v", a.pid(), child, filter(lines, fields{"type": "exec"}))
	}
	// A child in a namespace below has a number in this one, too.
	p.begin("b", "")
	below := a.do("part", "namespace-below")
	if got := filter(p.until(func(l outLine) bool { return l["path"] == "/below" }), fields{"path": "/below"}); got[0]["pid"] == 1.0 || got[0]["pid"].(float64) <= float64(below) {
		t.Errorf("process 1 of the namespace below is %v", got)
	}
}

func init() {
	testParts["namespace-below"] = func(args []string) error {
		if len(args) > 0 {
			os.ReadFile("/below")
			return nil
		}
		cmd := partCommand("namespace-below", "1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID}
		err := cmd.Run()
		say("done")
		return err
	}
}

// TestEBPFPrivileges checks what it takes, and what is said without it.
func TestEBPFPrivileges(t *testing.T) {
	ebpfOrSkip(t, minRingSize).Close()
	for name, tt := range map[string]struct {
		caps []uintptr
		code int
		err  string
	}{
		"CAP_BPF and CAP_PERFMON": {[]uintptr{unix.CAP_BPF, unix.CAP_PERFMON}, 0, ""},
		"CAP_BPF alone":           {[]uintptr{unix.CAP_BPF}, exitUnavailable, "lacks CAP_PERFMON"},
		"none":                    {nil, exitUnavailable, "lacks CAP_BPF and CAP_PERFMON"},
	} {
		t.Run(name, func(t *testing.T) {
			var stderr strings.Builder
			cmd := partCommand("probe")
			cmd.Stderr = &stderr
			cmd.SysProcAttr = &syscall.SysProcAttr{
				Credential:  &syscall.Credential{Uid: 65534, Gid: 65534},
				AmbientCaps: tt.caps,
			}
			// The test binary lies where others cannot read.
			exe, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			b, err := os.ReadFile(exe)
			if err != nil {
				t.Fatal(err)
			}
			dir, err := os.MkdirTemp("", "probe")
			if err != nil {
				t.Fatal(err)
			}
			defer os.RemoveAll(dir)
			cmd.Path, cmd.Dir = filepath.Join(dir, "probe"), "/"
			for _, err := range []error{os.Chmod(dir, 0o755), os.WriteFile(cmd.Path, b, 0o755)} {
				if err != nil {
					t.Fatal(err)
				}
			}
			out, err := cmd.Output()
			if cmd.ProcessState.ExitCode() != tt.code || !strings.Contains(stderr.String(), tt.err) {
				t.Errorf("%v, and it says %q; want code %d and %q", err, stderr.String(), tt.code, tt.err)
			}
			if n := strings.Count(stderr.String(), "\n"); tt.code != 0 && n != 1 {
				t.Errorf("it says %d lines", n)
			}
			if ready := strings.Contains(string(out), `"ready"`); ready != (tt.code == 0) {
				t.Errorf("output is %q", out)
			}
		})
	}
}

// TestEBPFRefusedProgram checks that a program that the kernel refuses says why, and
// does not fill the pipe of standard error, which clients do not read.
func TestEBPFRefusedProgram(t *testing.T) {
	ebpfOrSkip(t, 1<<20).Close()
	// A long way to a read of a register that holds nothing.
	insns := asm.Instructions{asm.Mov.Imm(asm.R0, 0)}
	for range 4000 {
		insns = append(insns, asm.Add.Imm(asm.R0, 1))
	}
	insns = append(insns, asm.Mov.Reg(asm.R0, asm.R7), asm.Return())
	spec := &ebpf.ProgramSpec{Name: "refused", Type: ebpf.RawTracepoint, License: "GPL", ByteOrder: binary.LittleEndian, Instructions: insns}
	kernel, err := readKernelBTF(nil)
	if err != nil {
		t.Fatal(err)
	}
	_, err = loadProgram(spec, nil, kernel)
	if err == nil {
		t.Fatal("the kernel takes it")
	}
	err = explainEBPF(err)
	if s := err.Error(); !strings.Contains(s, "r0 = r7") || !errors.Is(err, unix.EACCES) || len(s) > 2000 {
		t.Errorf("%d bytes: %.2000s", len(s), s)
	}
}
