//go:build linux

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// brief shows a line as "type bucket call", with a status's message for its type.
func brief(l outLine) string {
	s := l.str("type")
	if m := l.str("message"); m != "" {
		s = m
	}
	for _, k := range []string{"bucket", "call_id", "origin_call_id"} {
		if v := l.str(k); v != "" {
			s += " " + v
		}
	}
	if v, ok := l["candidate_call_ids"]; ok {
		s += fmt.Sprint(" ", v)
	}
	return s
}

func briefs(lines []outLine) []string {
	var s []string
	for _, l := range lines {
		s = append(s, brief(l))
	}
	return s
}

func startFake(t *testing.T, script string, grace time.Duration) *testSession {
	t.Helper()
	b, err := newFakeBackend([]byte(script))
	if err != nil {
		t.Fatal(err)
	}
	return startSession(t, b, grace)
}

// sessionScript has an event for each trigger, two of them with a tool.
const sessionScript = `{"events":[
	{"trigger":"startup","event":{"type":"exec","pid":1}},
	{"trigger":"scope","event":{"type":"connect","pid":2}},
	{"trigger":"begin","tool":"t","event":{"type":"file_open","pid":3,"ts_ns":5,"path":"/a
b"}},
	{"trigger":"end","tool":"t","event":{"type":"file_delete","pid":4,"deep":{ "x" : [1, "é", "\ud800"] }}},
	{"trigger":"begin","tool":"other","event":{"type":"never"}},
	{"trigger":"begin","event":{"pid":9}},
	{"trigger":"end","event":{"type":"kept","bucket":"mine","call_id":"own"}},
	{"trigger":"end","event":{"type":"late","bucket":"ambient"}}
]}`

func TestFakeSession(t *testing.T) {
	script := strings.Replace(sessionScript, "/a\nb", `/a\nb`, 1)
	s := startFake(t, script, 0)
	s.send(`{"op":"scope","pgid":77,"generation":3}`)
	s.sendBegin("1", "t")
	s.sendEnd("1")
	s.sendEnd("unknown")
	s.send("{nonsense")
	s.sendBegin("2", "x")
	got := s.shutdown()
	want := []string{
		"exec startup",
		"scope ambient", "connect ambient",
		"begin call 1", "file_open call 1",
		"file_delete call 1", "kept mine own", "late ambient", "end call 1",
		"end call unknown",
		"parse_error ambient",
		"begin call 2",
	}
	if !slices.Equal(briefs(got), want) {
		t.Fatalf("got  %q\nwant %q", briefs(got), want)
	}
	if err := <-s.done; err != nil {
		t.Errorf("the session ends with %v", err)
	}
	s.done <- nil

	if l := got[1]; l["pgid"] != 77.0 || l["generation"] != 3.0 {
		t.Errorf("scope status is %v", l)
	}
	if l := got[3]; l["tool"] != "t" {
		t.Errorf("begin status is %v", l)
	}
	now := time.Now().UnixNano()
	for _, l := range got {
		if ts := int64(l["ts_ns"].(float64)); ts > now+1e9 || ts < now-1e11 {
			t.Errorf("%s happened at %d, and now is %d", brief(l), ts, now)
		}
	}
	if l := got[4]; l["path"] != "/a\nb" || l["pid"] != 3.0 {
		t.Errorf("event is %v", l)
	}
	if l := got[5]; !reflect.DeepEqual(l["deep"], map[string]any{"x": []any{1.0, "é", "\uFFFD"}}) {
		t.Errorf("event is %v", l)
	}
	if l := got[9]; l["error"] == "" {
		t.Errorf("end without begin is %v", l)
	}
}

// TestStatusBeforeScope checks the bucket of what concerns no call.
func TestStatusBeforeScope(t *testing.T) {
	s := startFake(t, `[]`, 0)
	s.send("?")
	if l := s.next(); brief(l) != "parse_error startup" || l["error"] == "" {
		t.Errorf("got %v", l)
	}
	s.send(`{"op":"scope","pgid":1}`)
	s.next()
	s.send(strings.Repeat("x", 10<<20))
	if l := s.next(); brief(l) != "parse_error ambient" || !strings.Contains(l.str("error"), "longer than") {
		t.Errorf("got %v", l)
	}
}

// TestAcknowledge checks that each mark has its answer at once and in order,
// however odd it is.
func TestAcknowledge(t *testing.T) {
	for name, marks := range map[string][]string{
		"pairs":        {"begin a", "end a", "begin b", "end b"},
		"the same id":  {"begin a", "end a", "begin a", "end a"},
		"begun twice":  {"begin a", "begin a", "end a", "end a"},
		"ended only":   {"end a", "end a"},
		"overlapping":  {"begin a", "begin b", "end a", "end b"},
		"never ended":  {"begin a", "begin b"},
		"many at once": strings.Split(strings.Repeat("begin a,end a,", 5000)+"end z", ","),
	} {
		t.Run(name, func(t *testing.T) {
			s := startFake(t, `[]`, 0)
			go func() {
				for _, m := range marks {
					op, id, _ := strings.Cut(m, " ")
					fmt.Fprintf(s.in, `{"op":"mark","phase":%q,"call_id":%q}`+"\n", op, id)
				}
			}()
			for i, m := range marks {
				if l := s.next(); l.str("message")+" "+l.str("call_id") != m || l["bucket"] != "call" {
					t.Fatalf("mark %d is %q, its answer %v", i, m, l)
				}
			}
		})
	}
}

// TestOpenCalls checks that calls which never end do not pile up.
func TestOpenCalls(t *testing.T) {
	s := startFake(t, `[]`, 0)
	for i := range maxOpenCalls + 3 {
		id := fmt.Sprint(i)
		got := briefs(s.begin(id, ""))
		want := []string{"begin call " + id}
		if i >= maxOpenCalls {
			want = []string{fmt.Sprint("end call ", i-maxOpenCalls), want[0]}
		}
		if !slices.Equal(got, want) {
			t.Fatalf("got %q, want %q", got, want)
		}
	}
	for _, l := range filter(s.all, fields{"message": "end"}) {
		if !strings.Contains(l.str("error"), "taken as ended") {
			t.Errorf("it ends with %v", l)
		}
	}
}

func TestGrace(t *testing.T) {
	const grace = 300 * time.Millisecond
	script := `[{"trigger":"begin","tool":"later","event":{"type":"exec"}}]`
	s := startFake(t, script, grace)
	s.begin("a", "t")
	asked := time.Now()
	s.sendEnd("a")
	s.sendEnd("unknown")
	s.begin("b", "later") // marks go on while a is kept open: the event is a's or b's
	if got := briefs(s.until(func(l outLine) bool { return l["type"] == "exec" })); !slices.Equal(got, []string{"exec ambient [a b]"}) {
		t.Errorf("got %q", got)
	}
	s.untilStatus("end", "a")
	if after := time.Since(asked); after < grace {
		t.Errorf("the end is acknowledged %v after it was asked for, within the grace of %v", after, grace)
	}
	s.sendEnd("b") // the session's end is the grace's
	asked = time.Now()
	if got := briefs(s.shutdown()); !slices.Contains(got, "end call b") {
		t.Errorf("the rest is %q", got)
	}
	if after := time.Since(asked); after > grace {
		t.Errorf("the session took %v to end", after)
	}
}

// TestBadScript checks that a script that says something else than it means is
// refused with its place.
func TestBadScript(t *testing.T) {
	for name, tt := range map[string]struct{ script, err string }{
		"empty file":      {" ", "unexpected end"},
		"not JSON":        {"{", "unexpected end"},
		"no events":       {"{}", "want"},
		"events a number": {`{"events":3}`, "cannot unmarshal"},
		"unknown trigger": {`[{"trigger":"begin","event":{"type":"x"}},{"trigger":"middle","event":{"type":"x"}}]`, `entry 1: unknown trigger "middle"`},
		"tool a number":   {`[{"trigger":"begin","tool":1,"event":{"type":"x"}}]`, "entry 0: tool"},
		"event a string":  {`[{"trigger":"begin","event":"x"}]`, "cannot unmarshal"},
		"nth a string":    {`[{"trigger":"begin","nth":"1","event":{"type":"x"}}]`, "cannot unmarshal"},
		"nth below zero":  {`[{"trigger":"begin","nth":-1,"event":{"type":"x"}}]`, "entry 0: nth"},
		"origin no call":  {`[{"trigger":"after","origin":{"tool":"x"},"event":{"type":"x"}}]`, "entry 0: origin: nth 0"},
		"origin no tool":  {`[{"trigger":"after","origin":{"nth":1},"event":{"type":"x"}}]`, "entry 0: origin"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := newFakeBackend([]byte(tt.script)); err == nil || !strings.Contains(err.Error(), tt.err) {
				t.Errorf("error is %v, want one with %q", err, tt.err)
			}
		})
	}
}

// lossyBackend is a fake that says what went missing.
type lossyBackend struct {
	*fakeBackend
	lost []func(report func(uint64, string, uint64))
}

func (b *lossyBackend) losses(_ uint64, report func(uint64, string, uint64)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, f := range b.lost {
		f(report)
	}
	b.lost = nil
}

// TestLossesComeBeforeTheEnd checks that what was lost in a call is said in it.
func TestLossesComeBeforeTheEnd(t *testing.T) {
	fake, err := newFakeBackend(nil)
	if err != nil {
		t.Fatal(err)
	}
	b := &lossyBackend{fakeBackend: fake}
	s := startSession(t, b, 0)
	s.scope(1)
	s.begin("a", "")
	b.mu.Lock()
	inCall := b.window
	b.lost = append(b.lost, func(report func(uint64, string, uint64)) {
		report(inCall, "ring_buffer_full", 17)
		report(windowUnknown, "no_memory", 1)
	})
	b.mu.Unlock()
	got := s.end("a")
	if want := []string{"drop call a", "drop ambient", "end call a"}; !slices.Equal(briefs(got), want) {
		t.Fatalf("got %q, want %q", briefs(got), want)
	}
	if l := got[0]; l["count"] != 17.0 || l["reason"] != "ring_buffer_full" {
		t.Errorf("drop is %v", l)
	}
}

// TestEndings checks each way in which a session ends, and its exit code.
func TestEndings(t *testing.T) {
	blocked, _ := io.Pipe()
	for name, tt := range map[string]struct {
		args  []string
		stdin io.Reader
		out   io.Writer
		code  int
		err   string
	}{
		"end of input":     {[]string{"--backend", "fake"}, strings.NewReader(""), io.Discard, 0, ""},
		"shutdown":         {[]string{"--backend", "fake"}, io.MultiReader(strings.NewReader("{\"op\":\"shutdown\"}\n"), blocked), io.Discard, 0, ""},
		"reading fails":    {[]string{"--backend", "fake"}, failingReader{}, io.Discard, 1, "read control lines"},
		"writing fails":    {[]string{"--backend", "fake"}, blocked, failingWriter{}, 1, "write events"},
		"unknown flag":     {[]string{"--nope"}, blocked, io.Discard, 2, "-nope"},
		"unknown command":  {[]string{"dance"}, blocked, io.Discard, 2, `unknown command "dance"`},
		"unknown backend":  {[]string{"--backend", "magic"}, blocked, io.Discard, 2, `unknown backend "magic"`},
		"negative grace":   {[]string{"--grace-ms", "-1"}, blocked, io.Discard, 2, "--grace-ms -1"},
		"absurd grace":     {[]string{"--grace-ms", "9223372036854775807"}, blocked, io.Discard, 2, "--grace-ms"},
		"odd ring":         {[]string{"--ring-size", "3M"}, blocked, io.Discard, 2, "power of two"},
		"small ring":       {[]string{"--ring-size", "4096"}, blocked, io.Discard, 2, "power of two from 1M"},
		"huge ring":        {[]string{"--ring-size", "99999999999G"}, blocked, io.Discard, 2, "up to 2G"},
		"ring of words":    {[]string{"--ring-size", "big"}, blocked, io.Discard, 2, "number of bytes"},
		"no events file":   {[]string{"--backend", "fake", "--events-file", "/nonexistent/x"}, blocked, io.Discard, 2, "/nonexistent/x"},
		"events and ebpf":  {[]string{"--events-file", "x"}, blocked, io.Discard, 2, "--backend fake"},
		"a bad event file": {[]string{"--backend", "fake", "--events-file", "/etc/passwd"}, blocked, io.Discard, 2, "/etc/passwd"},
	} {
		t.Run(name, func(t *testing.T) {
			var stderr strings.Builder
			done := make(chan int, 1)
			go func() { done <- run(tt.args, tt.stdin, tt.out, &stderr) }()
			select {
			case code := <-done:
				if code != tt.code || !strings.Contains(stderr.String(), tt.err) || tt.err == "" && stderr.Len() > 0 {
					t.Errorf("exit code %d and %q, want %d and %q", code, stderr.String(), tt.code, tt.err)
				}
			case <-time.After(patience):
				t.Fatal("it does not end")
			}
		})
	}
}

type failingWriter struct{}

func (failingWriter) Write([]byte) (int, error) { return 0, errors.New("disk full") }

func TestHelpAndVersion(t *testing.T) {
	for args, want := range map[string]string{
		"--help":    "Usage:",
		"-h":        "Exit codes:",
		"--version": "mcpfz-probe " + version,
	} {
		var out, stderr strings.Builder
		if code := run([]string{args}, strings.NewReader(""), &out, &stderr); code != 0 || !strings.Contains(out.String(), want) || stderr.Len() > 0 {
			t.Errorf("%s gives code %d, %q and %q", args, code, out.String(), stderr.String())
		}
	}
}

// TestStuckClient checks that a session ends although nobody takes its output,
// and that it ends in the time that clients give it.
func TestStuckClient(t *testing.T) {
	events := make([]string, 5000)
	for i := range events {
		events[i] = `{"trigger":"scope","event":{"type":"exec","path":"` + strings.Repeat("x", 100) + `"}}`
	}
	b, err := newFakeBackend([]byte("[" + strings.Join(events, ",") + "]"))
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	outR, outW := io.Pipe()
	s := newSession(b, outW, 0)
	go s.readControls(strings.NewReader(`{"op":"scope","pgid":1}`))
	done := make(chan error, 1)
	go func() { done <- s.run() }()
	if _, err := outR.Read(make([]byte, 10)); err != nil { // the ready line, and then nothing
		t.Fatal(err)
	}
	go io.CopyN(io.Discard, outR, 200)
	start := time.Now()
	select {
	case err := <-done:
		if err == nil || !strings.Contains(err.Error(), "did not take") {
			t.Errorf("the session ends with %v", err)
		}
	case <-time.After(patience):
		t.Fatal("the session does not end")
	}
	if after := time.Since(start); after < stopTimeout/2 {
		t.Errorf("the client got only %v for the rest", after)
	}
}

func TestScriptOverrides(t *testing.T) {
	var e map[string]json.RawMessage
	if err := json.Unmarshal([]byte(`{"type":"x","a\nb":"\u0000","bucket":"b"}`), &e); err != nil {
		t.Fatal(err)
	}
	var l line
	l.begin("x")
	parseScriptEvent(e).append(&l)
	if got := decodeLine(t, l.end()); got["a\nb"] != "\x00" {
		t.Errorf("got %v", got)
	}
}
