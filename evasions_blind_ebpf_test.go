//go:build linux && (amd64 || arm64)

package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// aMillionOpens are more than can be read; what was hidden among them must not be
// missing in silence.
func aMillionOpens(t *testing.T) {
	ebpfOrSkip(t, minRingSize).Close()
	n := 1_000_000
	if testing.Short() {
		n = 50_000
	}
	t.Run("ring of 16M", func(t *testing.T) { manyOpens(t, "16M", n) })
	t.Run("ring of 1M", func(t *testing.T) { manyOpens(t, "1M", n/10) })
}

// manyOpens makes opens beside an exec.
func manyOpens(t *testing.T, ring string, n int) {
	a := startActor(t)
	b := startActorIn(t, a.pid())
	program := smallProgram(t, "program")
	p := benchProbe(t, "--ring-size", ring)
	p.command(fmt.Sprintf(`{"op":"scope","pgid":%d,"generation":1}`, a.pid()))
	p.command(`{"op":"mark","phase":"begin","call_id":"a"}`)
	counts := map[string]int{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			l := p.line()
			typ, _, _ := bytes.Cut(bytes.TrimPrefix(l, []byte(`{"type":"`)), []byte(`"`))
			if counts["drop"] += droppedIn(t, l); string(typ) != "drop" {
				counts[string(typ)]++
			}
			if string(typ) == "status" {
				return
			}
		}
	}()
	a.ask(actorCommand{Do: "opens", Argv: []string{"/dev/null", strconv.Itoa(n)}})
	b.do("spawn", program)
	a.answer()
	io.WriteString(p.in, `{"op":"mark","phase":"end","call_id":"a"}`+"\n")
	<-done
	sum := 0
	for _, typ := range []string{"file_open", "process_spawn", "exec", "drop"} {
		sum += counts[typ]
	}
	if sum != n+2 || counts["file_open"] > n || counts["process_spawn"] > 1 || counts["exec"] > 1 || counts["status"] != 1 {
		t.Errorf("%d events: %v; want %d opens, a spawn and an exec", sum, counts, n)
	}
}

// busyNeighbour is not in scope, and must not matter.
func busyNeighbour(t *testing.T) {
	s, a := startScoped(t)
	for range 2 {
		cmd := partCommand("neighbour")
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		startFor(t, cmd)
		if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
			t.Fatalf("the neighbour does not start: %v", err)
		}
	}
	rounds := 1000
	if testing.Short() {
		rounds = 100
	}
	program := smallProgram(t, "program")
	var want []fields
	got := during(s.client, func() {
		for i := range rounds {
			path := "/in-scope-" + strconv.Itoa(i)
			a.call(unix.SYS_OPENAT, unix.AT_FDCWD, path, unix.O_RDONLY, 0)
			child := float64(a.do("spawn", program))
			want = append(want, fields{"type": "file_open", "path": path, "flags": "O_RDONLY", "errno": "ENOENT"},
				fields{"type": "process_spawn", "child_pid": child},
				fields{"type": "exec", "pid": child, "argv": []any{program}, "exe": program, "path": program, "ppid": float64(a.pid())})
		}
	})
	if n := skipped(t, got); n == 0 {
		checkEvents(t, got, a.pid(), want...)
	} else if seen := len(got) - len(filter(got, fields{"type": "drop"})); seen+n != len(want) {
		t.Errorf("%d events are seen and %d lost, of %d", seen, n, len(want))
	}
}

// exactSum has an actor open files for a time in which the probe or its reader is
// stopped, and checks that each open is delivered or counted.
func exactSum(t *testing.T, p *testProbe, a *actor, stop func(), d time.Duration, goOn func()) {
	t.Helper()
	n := 0
	p.begin("stopped", "")
	stop()
	for start := time.Now(); time.Since(start) < d; {
		n += a.do("opens", "/dev/null", "20000")
	}
	p.sendEnd("stopped")
	goOn()
	got := events(p.untilStatus("end", "stopped"), "stopped")
	delivered, dropped := len(filter(got, fields{"type": "file_open", "path": "/dev/null"})), 0
	for _, l := range filter(got, fields{"type": "drop"}) {
		dropped += int(l["count"].(float64))
	}
	if delivered+dropped != n || delivered == 0 || dropped == 0 {
		t.Errorf("%d are delivered and %d dropped, of %d", delivered, dropped, n)
	}
	got = during(p.client, func() { a.do("opens", "/dev/null", "10") })
	if len(got) != 10 || len(filter(got, fields{"type": "file_open"})) != 10 {
		t.Errorf("afterwards, of 10: %v", got)
	}
}

// stoppedReader is a client that is busy with something else.
func stoppedReader(t *testing.T) {
	ebpfOrSkip(t, minRingSize).Close()
	d := 5 * time.Second
	if testing.Short() {
		d = 2 * time.Second
	}
	p := startProbe(t, "--ring-size", "1M")
	a := startActor(t)
	p.scope(a.pid())
	a.do("opens", "/dev/null", "20000") // whatever that takes, it has
	during(p.client, func() {})
	before := residentKiB(t, p.cmd.Process.Pid)
	exactSum(t, p, a, p.gate.Lock, d, func() {
		if after := residentKiB(t, p.cmd.Process.Pid); after > before+16<<10 {
			t.Errorf("the probe has grown from %d to %d KiB", before, after)
		}
		p.gate.Unlock()
	})
}

// residentKiB returns what a process has in memory.
func residentKiB(t *testing.T, pid int) (n int) {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(status), "VmRSS:")
	if _, err := fmt.Sscan(after, &n); err != nil {
		t.Fatal(err)
	}
	return n
}

// stoppedProbe cannot read, whoever has stopped it.
func stoppedProbe(t *testing.T) {
	ebpfOrSkip(t, minRingSize).Close()
	p := startProbe(t, "--ring-size", "1M")
	a := startActor(t)
	p.scope(a.pid())
	send := func(signal os.Signal) func() { return func() { p.cmd.Process.Signal(signal) } }
	exactSum(t, p, a, send(unix.SIGSTOP), 3*time.Second, send(unix.SIGCONT))
}

// overlappingCalls are calls that a client mixes up.
func overlappingCalls(t *testing.T) {
	t.Run("marks are ordered", marksAreOrdered)
	t.Run("overlap", overlap)
	s, a := startScoped(t)
	open := func(path string) { a.call(unix.SYS_OPENAT, unix.AT_FDCWD, path, unix.O_RDONLY, 0) }
	check := func(t *testing.T, want map[string]string) {
		t.Helper()
		for path, want := range want {
			if got := filter(s.seen(), fields{"path": path}); len(got) != 1 || brief(got[0]) != want {
				t.Errorf("%s is %q, want %q", path, briefs(got), want)
			}
		}
	}
	t.Run("an end without begin", func(t *testing.T) {
		open("/before-end")
		if l := s.end("never"); l[len(l)-1].str("error") == "" {
			t.Errorf("it is answered by %v", l)
		}
		open("/after-end")
		s.begin("next", "")
		s.end("never")
		open("/in-next")
		s.end("next")
		check(t, map[string]string{"/before-end": "file_open ambient", "/after-end": "file_open ambient",
			"/in-next": "file_open call next"})
	})
	t.Run("the same id twice", func(t *testing.T) {
		for _, path := range []string{"/first", "/second"} {
			s.begin("twice", "")
			open(path)
		}
		s.end("twice")
		open("/third")
		if l := s.end("twice"); l[len(l)-1].str("error") == "" {
			t.Errorf("the second end is answered by %v", l)
		}
		s.begin("twice", "")
		open("/fourth")
		s.end("twice")
		check(t, map[string]string{"/first": "file_open call twice", "/second": "file_open call twice",
			"/third": "file_open ambient", "/fourth": "file_open call twice"})
	})
	t.Run("a begin before what was done is read", func(t *testing.T) {
		s.gate.Lock()
		for i := range 1000 {
			open("/unread-" + strconv.Itoa(i))
		}
		s.sendBegin("late", "")
		s.gate.Unlock()
		s.untilStatus("begin", "late")
		open("/in-late")
		s.end("late")
		check(t, map[string]string{"/unread-0": "file_open ambient", "/unread-999": "file_open ambient",
			"/in-late": "file_open call late"})
		if got := events(s.seen(), "late"); len(got) != 1 {
			t.Errorf("got %q", briefs(got))
		}
	})
}

// workGoesOn after the call that has started it.
func workGoesOn(t *testing.T) {
	t.Run("stamp at entry", stampAtEntry)
	t.Run("lineage", lineage)
}

// badControlLines must not end a session, or move it to another scope.
func badControlLines(t *testing.T) {
	s, a := startScoped(t)
	goesOn := func(t *testing.T) {
		t.Helper()
		got := during(s.client, func() { a.call(unix.SYS_UNLINKAT, unix.AT_FDCWD, "/nope", 0) })
		checkEvents(t, got, a.pid(), fields{"type": "file_delete", "path": "/nope", "errno": "ENOENT"})
	}
	for name, line := range map[string]string{
		"10 MB":                     strings.Repeat("x", 10<<20),
		"an id of 10 MB":            `{"op":"mark","phase":"begin","call_id":"` + strings.Repeat("x", 10<<20) + `"}`,
		"cut off":                   `{"op":"mark","phase":"begin","call_`,
		"two in one":                `{"op":"shutdown"}{"op":"shutdown"}`,
		"no object":                 `["shutdown"]`,
		"null":                      `null`,
		"deep":                      strings.Repeat("[", 30_000) + strings.Repeat("]", 30_000),
		"NULs":                      strings.Repeat("\x00", 1000),
		"NULs before it":            "\x00\x00" + `{"op":"shutdown"}`,
		"a NUL in a string":         "{\"op\":\"shut\x00down\"}",
		"a byte order mark":         "\ufeff" + `{"op":"shutdown"}`,
		"UTF-16":                    "{\x00\"\x00o\x00p\x00\"\x00:\x00",
		"no UTF-8":                  "{\"op\":\"\xff\xfe\"}",
		"unknown op":                `{"op":"reboot"}`,
		"no op":                     `{"pgid":1}`,
		"op in upper case":          `{"op":"SHUTDOWN"}`,
		"op of another type":        `{"op":["shutdown"]}`,
		"unknown phase":             `{"op":"mark","phase":"middle","call_id":"a"}`,
		"no id":                     `{"op":"mark","phase":"end"}`,
		"a number for an id":        `{"op":"mark","phase":"begin","call_id":7}`,
		"no group":                  `{"op":"scope"}`,
		"group 0":                   `{"op":"scope","pgid":0}`,
		"group -1":                  `{"op":"scope","pgid":-1}`,
		"group 2^31":                `{"op":"scope","pgid":2147483648}`,
		"group 2^32 and that of us": fmt.Sprintf(`{"op":"scope","pgid":%d}`, 1<<32+os.Getpid()),
		"group 2^64":                `{"op":"scope","pgid":18446744073709551616}`,
		"group 1e400":               `{"op":"scope","pgid":1e400}`,
		"half a group":              `{"op":"scope","pgid":1.5}`,
		"generation 2^63":           `{"op":"scope","pgid":1,"generation":9223372036854775808}`,
	} {
		t.Run(name, func(t *testing.T) {
			s.send(line)
			if l := s.next(); l["message"] != "parse_error" || l.str("error") == "" || len(l.str("error")) > 300 {
				t.Errorf("it is answered by %.500s", fmt.Sprint(l))
			}
			goesOn(t)
		})
	}
	t.Run("a group that does not exist", func(t *testing.T) {
		for _, pgid := range []int{1<<31 - 1, 1 << 22, 0x7ffffffe} {
			l := s.scope(pgid)
			if last := l[len(l)-1]; last["processes"] != 0.0 || last.str("error") == "" || last["pgid"] != float64(pgid) {
				t.Errorf("it is answered by %v", last)
			}
			if got := during(s.client, func() { a.call(unix.SYS_UNLINKAT, unix.AT_FDCWD, "/nope", 0) }); len(got) != 0 {
				t.Errorf("out of it: %v", got)
			}
		}
		s.scope(a.pid())
		goesOn(t)
	})
	t.Run("empty lines", func(t *testing.T) {
		s.send("\n \r\n\t")
		goesOn(t)
	})
}

func init() {
	// neighbour makes system calls, watched and unwatched ones, without end.
	testParts["neighbour"] = func([]string) error {
		path, _ := unix.BytePtrFromString("/neighbour")
		say("busy")
		for end := time.Now().Add(5 * time.Minute); time.Now().Before(end); {
			for range 1000 {
				unix.RawSyscall(unix.SYS_GETPPID, 0, 0, 0)
				unix.RawSyscall6(unix.SYS_OPENAT, atFDCWD, uintptr(unsafe.Pointer(path)), unix.O_RDONLY, 0, 0, 0)
			}
		}
		return nil
	}
}
