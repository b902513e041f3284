//go:build linux

package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// runSession runs the command with this input, and returns what it writes and the event
// lines.
func runSession(t *testing.T, input string, args ...string) (stdout, stderr string, events []outLine, code int) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "events")
	var out bytes.Buffer
	var errs sharedBuffer
	code = run(append([]string{"run", "--events", file}, args...), strings.NewReader(input), &out, &errs)
	return out.String(), errs.String(), readEvents(t, file), code
}

// A sharedBuffer is what several processes write to.
type sharedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *sharedBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *sharedBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func readEvents(t *testing.T, file string) (events []outLine) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(text) {
		events = append(events, decodeLine(t, line))
	}
	return events
}

// TestRunBytes checks that what goes through is what comes out, whatever it is.
func TestRunBytes(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	var input []byte
	for range 300 {
		switch random.IntN(4) {
		case 0:
			for range random.IntN(200_000) {
				input = append(input, byte(random.Uint32()))
			}
		case 1:
			input = append(input, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"x"}}`, random.IntN(5))...)
		case 2:
			input = append(input, `[{"id":1,"result":{}},`...)
		}
		input = append(input, "\n"[:random.IntN(2)]...)
	}
	out, errs, _, code := runSession(t, string(input), "--backend", "fake", "--", "cat")
	if code != 0 || out != string(input) {
		t.Errorf("exit code %d, %d bytes of %d, the same: %v; %s", code, len(out), len(input), out == string(input), errs)
	}
}

// writeLog keeps what is written, write by write.
type writeLog []string

func (w *writeLog) Write(p []byte) (int, error) {
	*w = append(*w, string(p))
	return len(p), nil
}

// TestRunWrites checks that a message goes on with its newline, and is seen before its end
// goes on.
func TestRunWrites(t *testing.T) {
	var got writeLog
	var writing atomic.Bool
	const message = `{"jsonrpc":"2.0","id":1,"method":"tools/call"}`
	seen := -1
	pass(strings.NewReader(message+"\r\n"+message+"\n\n"+message), &got, &writing, func([]wireMessage) { seen = len(got) })
	if want := (writeLog{message + "\r\n", message + "\n\n", message}); !slices.Equal(got, want) || seen != 2 {
		t.Errorf("written %q, want %q; the last one seen after %d", got, want, seen)
	}
}

func TestRunStatus(t *testing.T) {
	for _, tt := range []struct {
		command []string
		code    int
		stderr  string
	}{
		{[]string{"true"}, 0, ""},
		{[]string{"sh", "-c", "echo oops >&2; exit 7"}, 7, "oops\n"},
		{[]string{"sh", "-c", "kill -9 $$"}, 128 + 9, ""},
		{[]string{"/nonexistent/server"}, 127, "run /nonexistent/server"},
		{[]string{"/etc/passwd"}, 126, "permission denied"},
		{nil, exitUsage, "want a command"},
	} {
		_, errs, _, code := "", "", []outLine(nil), 0
		if tt.command == nil {
			var b bytes.Buffer
			code = run([]string{"run"}, strings.NewReader(""), io.Discard, &b)
			errs = b.String()
		} else {
			_, errs, _, code = runSession(t, "", append([]string{"--backend", "fake", "--"}, tt.command...)...)
		}
		if code != tt.code || !strings.Contains(errs, tt.stderr) {
			t.Errorf("%q: exit code %d, want %d; %s", tt.command, code, tt.code, errs)
		}
	}
}

// A runTest is a runner without a server.
type runTest struct {
	t *testing.T
	r *runner
	b bytes.Buffer
}

func newRunTest(t *testing.T) *runTest {
	b, err := newFakeBackend(nil)
	if err != nil {
		t.Fatal(err)
	}
	rt := &runTest{t: t}
	rt.r = &runner{session: newSession(b, &rt.b, 0), over: make(chan struct{})}
	go func() {
		rt.r.err = rt.r.session.run()
		close(rt.r.over)
	}()
	t.Cleanup(func() { b.Close() })
	return rt
}

// client and server say something.
func (rt *runTest) client(lines string) {
	var writing atomic.Bool
	pass(strings.NewReader(lines), io.Discard, &writing, func(m []wireMessage) { rt.r.fromClient("", m) })
}

func (rt *runTest) server(lines string) {
	var writing atomic.Bool
	pass(strings.NewReader(lines), io.Discard, &writing, func(m []wireMessage) { rt.r.fromServer("", m) })
}

// statuses ends the session and returns its begins and ends in short.
func (rt *runTest) statuses() string {
	rt.r.session.lines <- controlLine{control: control{op: controlShutdown}}
	<-rt.r.over
	var got []string
	for line := range bytes.Lines(rt.b.Bytes()) {
		switch l := outLine(decodeLine(rt.t, line)); l["message"] {
		case "begin":
			id, _ := json.Marshal(l["request_id"])
			got = append(got, fmt.Sprintf("+%s %v %v %s", l["call_id"], l["tool"], l["method"], id))
		case "end":
			text := fmt.Sprintf("-%s", l["call_id"])
			if l["failed"] == true {
				text += " failed"
			}
			if l["error"] != nil {
				text += ": " + l.str("error")
			}
			if latency, ok := l["latency_us"].(float64); !ok || latency < 0 {
				rt.t.Errorf("no latency: %v", l)
			}
			got = append(got, text)
		case "initialized":
			got = append(got, "initialized")
		}
	}
	return strings.Join(got, "\n")
}

// TestRunCalls checks which messages open and close which windows.
func TestRunCalls(t *testing.T) {
	const read = `"method":"tools/call","params":{"name":"read"}`
	for _, tt := range []struct{ name, script, want string }{
		{"a call", `> {"method":"notifications/initialized"}
> {"id":1,` + read + `}
< {"jsonrpc":"2.0","id":1,"result":{"content":[]}}`, "initialized\n+1 read tools/call 1\n-1"},
		{"others", `> {"id":1,"method":"resources/read","params":{"uri":"file:///x"}}
< {"jsonrpc":"2.0","id":1,"result":{}}
> {"id":2,"method":"prompts/get","params":{"name":"p"}}
< {"jsonrpc":"2.0","id":2,"result":{}}
> {"id":3,"method":"tools/list"}
< {"jsonrpc":"2.0","id":3,"result":{}}`, "initialized\n+1 file:///x resources/read 1\n-1\n+2 p prompts/get 2\n-2"},
		{"failed", `> {"id":1,` + read + `}
< {"jsonrpc":"2.0","id":1,"error":{"code":1}}
> {"id":2,` + read + `}
< {"jsonrpc":"2.0","id":2,"result":{"isError":true}}`, "initialized\n+1 read tools/call 1\n-1 failed\n+2 read tools/call 2\n-2 failed"},
		{"answers in another order", `> {"id":1,` + read + `}
> {"id":2,` + read + `}
< {"jsonrpc":"2.0","id":2,"result":{}}
< {"jsonrpc":"2.0","id":1,"result":{}}`, "initialized\n+1 read tools/call 1\n+2 read tools/call 2\n-2\n-1"},
		{"ids of two kinds", `> {"id":1,` + read + `}
> {"id":"1",` + read + `}
< {"jsonrpc":"2.0","id":"\u0031","result":{}}
< {"jsonrpc":"2.0","id":1.0,"result":{}}
< {"jsonrpc":"2.0","id":1,"result":{}}`, "initialized\n+1 read tools/call 1\n+2 read tools/call \"1\"\n-2\n-1"},
		{"an id of the other kind, as clients take it", `> {"id":1,` + read + `}
< {"jsonrpc":"2.0","id":" 1 ","result":{"x":NaN}}
> {"id":"16",` + read + `}
< {"jsonrpc":"2.0","id":0x10,"result":{}}
< {"jsonrpc":"2.0","method":null,"id":16,"result":{}}`, "initialized\n+1 read tools/call 1\n-1\n+2 read tools/call \"16\"\n-2"},
		{"answers that clients do not take", `> {"id":1,` + read + `}
< {"id":1,"result":{}}
< {"jsonrpc":"2.0","id":1,"result":"\q"}
< {"jsonrpc":"2.0","id":1,"result":"a	b"}
< [{"jsonrpc":"2.0","id":1,"result":{}}]
< {"jsonrpc":"2.0","id":1,"error":{}}`, "initialized\n+1 read tools/call 1\n-1 failed"}, // and not before
		{"an error that is none", `> {"id":1,` + read + `}
< {"jsonrpc":"2.0","id":1,"result":{},"error":null}`, "initialized\n+1 read tools/call 1\n-1"},
		{"a method with an escape", `> {"id":1,"method":"tools\/call","params":{"name":"read"}}
< {"jsonrpc":"2.0","id":1,"result":{}}`, "initialized\n+1 read tools/call 1\n-1"},
		{"an id again", `> {"id":1,` + read + `}
> {"id":1,` + read + `}
< {"jsonrpc":"2.0","id":1,"result":{}}
< {"jsonrpc":"2.0","id":1,"result":{}}
< {"jsonrpc":"2.0","id":1,"result":{}}`, "initialized\n+1 read tools/call 1\n+2 read tools/call 1\n-1\n-2"},
		{"a batch", `> [{"id":1,` + read + `},{"method":"notifications/progress"},{"id":2,` + read + `}]
< [{"jsonrpc":"2.0","id":2,"result":{}},{"jsonrpc":"2.0","id":1,"error":{}}]`, "initialized\n+1 read tools/call 1\n+2 read tools/call 2\n-2\n-1 failed"},
		{"the server asks with the same id", `> {"id":1,` + read + `}
< {"jsonrpc":"2.0","id":1,"method":"sampling/createMessage","params":{}}
> {"id":1,"result":{}}
< {"method":"notifications/progress","params":{"progressToken":1}}
< {"jsonrpc":"2.0","id":1,"result":{}}`, "initialized\n+1 read tools/call 1\n-1"},
		{"cancelled", `> {"id":1,` + read + `}
> {"method":"notifications/cancelled","params":{"requestId":1}}
< {"jsonrpc":"2.0","id":1,"result":{}}
> {"method":"notifications/cancelled","params":{"requestId":9}}`, "initialized\n+1 read tools/call 1\n-1 failed: cancelled by the client"},
		{"cancelled, and then another", `> {"id":1,` + read + `}
> {"method":"notifications/cancelled","params":{"requestId":1}}
> {"method":"notifications/cancelled","params":{"requestId":1}}
> {"id":2,` + read + `}
< {"jsonrpc":"2.0","id":1,"result":{}}
< {"jsonrpc":"2.0","id":2,"result":{}}`, "initialized\n+1 read tools/call 1\n-1 failed: cancelled by the client\n+2 read tools/call 2\n-2"},
		{"cancelled, and still open", `> {"id":1,` + read + `}
> {"method":"notifications/cancelled","params":{"requestId":1}}`, "initialized\n+1 read tools/call 1"},
		{"without an id", `> {` + read + `}
< {"result":{}}`, ""},
		{"no JSON", `> {"id":1,` + read + `
< {"jsonrpc":"2.0","id":1,"result":{}`, ""},
		{"a strange name", `> {"id":null,"method":"tools/call","params":{"name":["x"]}}
> {"id":2,"method":"tools/call","params":{"name":"a\ud800\u0000\"b"}}`, "initialized\n+1  tools/call null\n+2 a\uFFFD\x00\"b tools/call 2"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			rt := newRunTest(t)
			for line := range strings.Lines(tt.script + "\n") {
				if line[0] == '<' {
					rt.server(line[2:])
				} else {
					rt.client(line[2:])
				}
			}
			if got := rt.statuses(); got != tt.want {
				t.Errorf("got\n%s\nwant\n%s", got, tt.want)
			}
		})
	}
}

// TestRunSerialize checks that a call waits for the one before it, and nothing else does.
func TestRunSerialize(t *testing.T) {
	rt := newRunTest(t)
	serverIn, toServer := io.Pipe()
	fromClient, client := io.Pipe()
	rt.r.serializer = newSerializer(rt.r, toServer)
	passed := make(chan struct{})
	go func() {
		defer close(passed)
		rt.r.serializer.pass(fromClient)
		toServer.Close()
	}()
	lines := make(chan string, 100)
	go func() {
		for r := bufio.NewReader(serverIn); ; {
			line, err := r.ReadString('\n')
			if line != "" {
				lines <- line
			}
			if err != nil {
				close(lines)
				return
			}
		}
	}()
	send := func(line string) { io.WriteString(client, line+"\n") }
	expect := func(want string) {
		t.Helper()
		select {
		case got := <-lines:
			if got != want+"\n" {
				t.Fatalf("the server gets %q, want %q", got, want)
			}
		case <-time.After(patience):
			t.Fatalf("the server does not get %q", want)
		}
	}
	call := func(id int) string {
		return fmt.Sprintf(`{"id":%d,"method":"tools/call","params":{"name":"t%d"}}`, id, id)
	}
	const ping, answer = `{"id":"p","method":"ping"}`, `{"id":"s","result":{}}`
	for _, line := range []string{call(1), call(2), call(3), ping, `{"method":"notifications/cancelled","params":{"requestId":3}}`, call(4), answer} {
		send(line)
	}
	// What is not held may overtake, in its order, what is.
	take := func(n int) map[string]bool {
		t.Helper()
		got := map[string]bool{}
		for range n {
			select {
			case line := <-lines:
				got[line] = true
			case <-time.After(patience):
				t.Fatalf("the server gets only %v", got)
			}
		}
		return got
	}
	got := take(3)
	if !got[call(1)+"\n"] || !got[ping+"\n"] || !got[answer+"\n"] {
		t.Fatalf("the server gets %v", got)
	}
	select {
	case line := <-lines:
		t.Fatalf("the server gets %q while a call is running", line)
	case <-time.After(100 * time.Millisecond):
	}
	rt.server(`{"jsonrpc":"2.0","id":1,"result":{}}` + "\n")
	expect(call(2))
	send(`{"method":"notifications/cancelled","params":{"requestId":2}}`)
	got = take(2)
	if !got[call(4)+"\n"] || len(got) != 2 {
		t.Fatalf("the server gets %v", got)
	}
	// Of a batch that is held, one call is cancelled behind it.
	batch, cancel := "["+call(5)+","+call(6)+"]", `{"method":"notifications/cancelled","params":{"requestId":6}}`
	send(batch)
	send(cancel)
	send(ping)
	expect(ping)
	rt.server(`{"jsonrpc":"2.0","id":4,"result":{}}` + "\n")
	expect(batch)
	expect(cancel)
	rt.server(`[{"jsonrpc":"2.0","id":5,"result":{}}]` + "\n")
	send(call(7))
	expect(call(7))
	client.Write([]byte("no newline"))
	rt.server(`{"jsonrpc":"2.0","id":7,"result":{}}` + "\n")
	client.Close()
	if got := take(1); !got["no newline"] {
		t.Errorf("the server gets %v", got)
	}
	<-passed
	want := "initialized\n+1 t1 tools/call 1\n-1\n+2 t2 tools/call 2\n-2 failed: cancelled by the client\n+3 t4 tools/call 4\n-3\n" +
		"+4 t5 tools/call 5\n+5 t6 tools/call 6\n-4\n-5 failed: cancelled by the client\n+6 t7 tools/call 7\n-6"
	if got := rt.statuses(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// TestRunServerDies checks that calls in flight are told of, and that the client gets
// what the server has said.
func TestRunServerDies(t *testing.T) {
	in, w := io.Pipe()
	go io.WriteString(w, `{"id":1,"method":"tools/call","params":{"name":"x"}}`+"\n"+`{"id":2,"method":"tools/call","params":{"name":"y"}}`+"\n")
	defer w.Close()
	file := filepath.Join(t.TempDir(), "events")
	var out bytes.Buffer
	var errs sharedBuffer
	code := run([]string{"run", "--events", file, "--backend", "fake", "--", "sh", "-c", "read x; read y; echo last words; exit 5"}, in, &out, &errs)
	if code != 5 || out.String() != "last words\n" {
		t.Errorf("exit code %d, %q", code, out.String())
	}
	var ends []string
	for _, l := range readEvents(t, file) {
		if l["message"] == "end" {
			ends = append(ends, fmt.Sprint(l["call_id"], " ", l["tool"], " ", l["failed"], " ", l["error"]))
		}
	}
	if fmt.Sprint(ends) != "[1 x true the server has ended 2 y true the server has ended]" {
		t.Errorf("ends %q", ends)
	}
}

// TestRunServerDiesEarly checks that a server which dies before it begins is an error.
func TestRunServerDiesEarly(t *testing.T) {
	s, err := startServer([]string{"cat"}, nil, nil, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	unix.Kill(s.pid(), unix.SIGKILL)
	b, err := newFakeBackend(nil)
	if err != nil {
		t.Fatal(err)
	}
	r := &runner{session: newSession(b, io.Discard, 0), server: s, over: make(chan struct{})}
	done := make(chan error, 1)
	go func() {
		done <- r.run(func() error {
			r.serveStdio(strings.NewReader(""), io.Discard)
			return nil
		})
	}()
	select {
	case err := <-done:
		if status := s.status(); err == nil && status != 128+9 {
			t.Errorf("no error, and status %d", status)
		}
	case <-time.After(patience):
		t.Fatal("run goes on without a server")
	}
}

// TestRunFiles checks what becomes of files when run fails, and when its output does.
func TestRunFiles(t *testing.T) {
	dir := t.TempDir()
	old := filepath.Join(dir, "old")
	if err := os.WriteFile(old, []byte("what was there\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var errs sharedBuffer
	if code := run([]string{"run", "--backend", "nope", "--report", old, "--", "true"}, strings.NewReader(""), io.Discard, &errs); code != exitUsage {
		t.Errorf("exit code %d; %s", code, errs.String())
	}
	if text, err := os.ReadFile(old); err != nil || string(text) != "what was there\n" {
		t.Errorf("a run that fails leaves %q, %v", text, err)
	}
	out, stderr, _, code := runSession(t, "x\n", "--backend", "fake", "--findings", "/dev/full", "--sarif", "/dev/full", "--", "cat")
	if out != "x\n" || code != 1 || strings.Count(stderr, "no space left") != 1 {
		t.Errorf("with a disk that is full: %q, exit code %d; %s", out, code, stderr)
	}
	if out, stderr, _, code = runSession(t, "x\n", "--backend", "fake", "--findings", old, "--", "cat"); code != 0 {
		t.Errorf("%q, exit code %d; %s", out, code, stderr)
	}
	if text, err := os.ReadFile(old); err != nil || len(text) > 0 {
		t.Errorf("of what was there is left %q, %v", text, err)
	}
	if out, stderr, _, code = runSession(t, "x\n", "--backend", "fake", "--report", old, "--", "cat"); out != "x\n" || code != 0 {
		t.Errorf("%q, exit code %d; %s", out, code, stderr)
	}
	if text, err := os.ReadFile(old); err != nil || !strings.HasPrefix(string(text), "<!DOCTYPE html>") {
		t.Errorf("the report is %.100q, %v", text, err)
	}
}

// TestRunFilesClash checks that no output goes where something else is.
func TestRunFilesClash(t *testing.T) {
	dir := t.TempDir()
	file, link := filepath.Join(dir, "file"), filepath.Join(dir, "link")
	const script = `{"events":[]}`
	if err := errors.Join(os.WriteFile(file, []byte(script), 0o600), os.Symlink(file, link)); err != nil {
		t.Fatal(err)
	}
	policy := filepath.Join(dir, "policy")
	if err := os.WriteFile(policy, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"--events", file, "--findings", file},
		{"--sarif", file, "--report", link},
		{"--events-file", file, "--record", link},
		{"--policy", policy, "--learn", policy},
		{"--report", "/dev/stdout"},
	} {
		var errs sharedBuffer
		code := run(slices.Concat([]string{"run", "--backend", "fake"}, args, []string{"--", "true"}), strings.NewReader(""), io.Discard, &errs)
		if code != exitUsage || errs.String() == "" {
			t.Errorf("%q: exit code %d; %s", args, code, errs.String())
		}
		for name, want := range map[string]string{file: script, policy: "{}"} {
			if text, err := os.ReadFile(name); err != nil || string(text) != want {
				t.Errorf("%q leave %q, %v", args, text, err)
			}
		}
	}
}

// TestRunOutputHangs checks that what takes no lines is given up.
func TestRunOutputHangs(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	o := &outputProcess{cmd: exec.Command("sleep", "100"), in: w, alive: r, timeout: 50 * time.Millisecond}
	if err := o.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := o.Write(make([]byte, 1<<20)); err == nil || !strings.Contains(err.Error(), "nothing has been taken for 50ms") {
		t.Errorf("error %v", err)
	}
	if err := o.close(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("it has ended with %v", err)
	}
}

// TestRunClosedInput checks that the client sees that the server reads no more.
func TestRunClosedInput(t *testing.T) {
	for _, flag := range []string{"--backend=fake", "--serialize"} {
		cmd := partCommand("probe", "run", "--backend", "fake", flag, "--", "sh", "-c", "exec <&-; echo closed; exec sleep 100")
		cmd.Stderr = io.Discard
		in, out := startPiped(t, cmd)
		timer := time.AfterFunc(patience, func() { cmd.Process.Kill() })
		if _, err := io.ReadFull(out, make([]byte, len("closed\n"))); err != nil {
			t.Fatal(err)
		}
		var err error
		for range 1000 {
			if _, err = io.WriteString(in, strings.Repeat("x", 1000)+"\n"); err != nil {
				break
			}
			time.Sleep(time.Millisecond)
		}
		if inTime := timer.Stop(); !inTime || !errors.Is(err, unix.EPIPE) {
			t.Errorf("%s: writing to a server that has closed its input: %v, in time: %v", flag, err, inTime)
		}
		cmd.Process.Signal(unix.SIGTERM)
		cmd.Wait()
	}
}

// TestRunLateClient checks that a client which takes its time gets all that a server has
// said that has ended.
func TestRunLateClient(t *testing.T) {
	cmd := partCommand("probe", "run", "--backend", "fake", "--", "sh", "-c", "head -c 1000000 /dev/zero")
	cmd.Stderr = io.Discard
	in, out := startPiped(t, cmd)
	defer in.Close()
	timer := time.AfterFunc(patience, func() { cmd.Process.Kill() })
	defer timer.Stop()
	time.Sleep(drainTimeout + drainTimeout/2)
	n, err := io.Copy(io.Discard, out)
	if n != 1_000_000 || err != nil {
		t.Errorf("%d bytes, %v", n, err)
	}
	cmd.Wait()
}

// TestRunManyCalls checks that each of many open calls has one end.
func TestRunManyCalls(t *testing.T) {
	rt := newRunTest(t)
	for i := range maxOpenCalls + 20 {
		rt.client(fmt.Sprintf(`{"id":%d,"method":"tools/call","params":{"name":"t"}}`+"\n", i))
	}
	for i := range maxOpenCalls + 20 {
		rt.server(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"result":{}}`+"\n", i))
	}
	got := rt.statuses()
	if strings.Count(got, "\n+") != maxOpenCalls+20 || strings.Count(got, "\n-") != maxOpenCalls+20 || strings.Count(got, "taken as ended") != 20 {
		t.Errorf("got\n%s", got)
	}
}

// TestRunSignal checks that the server gets what this process is sent.
func TestRunSignal(t *testing.T) {
	cmd := partCommand("probe", "run", "--backend", "fake", "--", "sh", "-c", "trap 'echo bye; exit 9' TERM; echo ready; while :; do sleep 0.01; done")
	cmd.Stderr = io.Discard
	in, out := startPiped(t, cmd)
	defer in.Close() // it stays open meanwhile
	timer := time.AfterFunc(patience, func() { cmd.Process.Kill() })
	defer timer.Stop()
	if _, err := io.ReadFull(out, make([]byte, len("ready\n"))); err != nil {
		t.Fatal(err)
	}
	cmd.Process.Signal(unix.SIGTERM)
	rest, _ := io.ReadAll(out)
	cmd.Wait()
	if string(rest) != "bye\n" || cmd.ProcessState.ExitCode() != 9 {
		t.Errorf("%q, exit code %d", rest, cmd.ProcessState.ExitCode())
	}
}

// TestRunKilled checks that what was gathered is there when run is killed, and that the
// server ends with it.
func TestRunKilled(t *testing.T) {
	dir := t.TempDir()
	file, page := filepath.Join(dir, "events"), filepath.Join(dir, "page.html")
	cmd := partCommand("probe", "run", "--backend", "fake", "--events", file, "--report", page, "--", "sh", "-c", "sleep 99 & echo $$ $!; read x; echo '{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}'; exec sleep 100")
	cmd.Stderr = io.Discard
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, stdout := startPiped(t, cmd)
	defer in.Close()
	out := bufio.NewReader(stdout)
	line, err := out.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	io.WriteString(in, `{"id":1,"method":"tools/call","params":{"name":"x"}}`+"\n")
	if _, err := out.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	unix.Kill(-cmd.Process.Pid, unix.SIGKILL) // as clients do that mean everything
	cmd.Wait()
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(string(text), "</html>\n") {
			if !strings.Contains(string(text), "<li><b>1</b> call</li>") {
				t.Errorf("the page does not have the call")
			}
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the page has %d bytes", len(text))
		}
	}
	messages := ""
	for _, l := range readEvents(t, file) {
		messages += l.str("message") + " "
	}
	if messages != "ready scope initialized begin end " {
		t.Errorf("the file has %q", messages)
	}
	for _, field := range strings.Fields(line) {
		pid, err := strconv.Atoi(field)
		if err != nil {
			t.Fatal(err)
		}
		for end := time.Now().Add(patience); unix.Kill(pid, 0) == nil && !isZombie(pid); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				unix.Kill(pid, unix.SIGKILL)
				t.Fatalf("process %d of %s goes on", pid, line)
			}
		}
	}
}

// isZombie tells whether a process has ended and nobody has waited for it yet.
func isZombie(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, _ := strings.Cut(string(stat), ") ")
	return err == nil && strings.HasPrefix(rest, "Z")
}

// TestRunInvokingUser checks whom the server runs as under sudo.
func TestRunInvokingUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("not root")
	}
	t.Setenv("SUDO_UID", "65534")
	t.Setenv("SUDO_GID", "65534")
	out, errs, _, _ := runSession(t, "", "--backend", "fake", "--", "sh", "-c", `id -u; id -g; echo "$USER"; ls /proc/self/fd`)
	if lines := strings.Fields(out); len(lines) < 3 || lines[0] != "65534" || lines[1] != "65534" || lines[2] != "nobody" {
		t.Errorf("it runs as %q; %s", out, errs)
	} else {
		direct, err := exec.Command("sh", "-c", "ls /proc/self/fd").Output()
		if err != nil {
			t.Fatal(err)
		}
		for _, fd := range lines[3:] {
			if !slices.Contains(strings.Fields(string(direct)), fd) {
				t.Errorf("it has descriptors %s, and without us %s", lines[3:], direct)
			}
		}
	}
	if out, _, _, _ := runSession(t, "", "--backend", "fake", "--as-root", "--", "id", "-u"); out != "0\n" {
		t.Errorf("with --as-root it runs as %q", out)
	}
	// What is new belongs to that user, and what was there stays as it is.
	old, made := filepath.Join(t.TempDir(), "old"), filepath.Join(t.TempDir(), "new")
	if err := os.WriteFile(old, []byte("what was there\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	runSession(t, "", "--backend", "fake", "--findings", old, "--report", made, "--", "true")
	for file, want := range map[string]uint32{old: 0, made: 65534} {
		var st unix.Stat_t
		if err := unix.Stat(file, &st); err != nil || st.Uid != want || st.Gid != want {
			t.Errorf("%s belongs to %d:%d, want %d; %v", file, st.Uid, st.Gid, want, err)
		}
	}
	t.Setenv("SUDO_UID", "4294967294")
	var unknown sharedBuffer
	if code := run([]string{"run", "--backend", "fake", "--", "true"}, strings.NewReader(""), io.Discard, &unknown); code != 1 || !strings.Contains(unknown.String(), "--as-root") {
		t.Errorf("of a user that there is not: exit code %d, %s", code, unknown.String())
	}
}

// TestRunMemory passes a message of 100 MB through, and looks at what that takes.
func TestRunMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("100 MB")
	}
	cmd := partCommand("probe", "run", "--backend", "fake", "--", "cat")
	cmd.Stderr = io.Discard
	in, out := startPiped(t, cmd)
	const size = 100 << 20
	go func() {
		io.WriteString(in, `{"id":1,"method":"tools/call","params":{"name":"x","arguments":{"text":"`)
		block := bytes.Repeat([]byte("x"), 1<<20)
		for range size >> 20 {
			in.Write(block)
		}
		io.WriteString(in, `"}}}`+"\n")
	}()
	n, err := io.CopyN(io.Discard, out, size)
	if err != nil {
		t.Fatalf("%d bytes, %v", n, err)
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	in.Close()
	io.Copy(io.Discard, out)
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	_, after, _ := strings.Cut(string(status), "VmHWM:")
	peak := 0
	fmt.Sscan(after, &peak)
	if peak == 0 || peak > 64<<10 { // the race detector takes most of it
		t.Errorf("it took %d KiB", peak)
	}
}

// cgoEnabled tells whether the test was built with cgo: capabilities are kept then.
func cgoEnabled(t *testing.T) bool {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		t.Fatal("there is no build information")
	}
	return slices.ContainsFunc(info.Settings, func(s debug.BuildSetting) bool { return s.Key == "CGO_ENABLED" && s.Value == "1" })
}

// TestEBPFRun runs the demo's server behind the real thing.
func TestEBPFRun(t *testing.T) {
	ebpfOrSkip(t, 1<<20).Close()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "events")
	cmd := partCommand("probe", "run", "--backend", "ebpf", "--events", file, "--", self, "demo-server")
	cmd.Env = append(cmd.Env, "MCPFZ_DEMO_DIR="+t.TempDir())
	cmd.Stderr = io.Discard
	in, out := startPiped(t, cmd)
	answers := json.NewDecoder(out)
	ask := func(format string, args ...any) {
		fmt.Fprintf(in, format+"\n", args...)
		var answer map[string]any
		if err := answers.Decode(&answer); err != nil {
			t.Fatal(err)
		}
	}
	ask(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`)
	io.WriteString(in, `{"jsonrpc":"2.0","method":"notifications/initialized"}`+"\n")
	for i, tool := range []string{"get_time", "read_secret", "trace_process"} {
		ask(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":%q,"arguments":{}}}`, i, tool)
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	_, capabilities, _ := strings.Cut(string(status), "CapEff:\t")
	left, err := strconv.ParseUint(capabilities[:16], 16, 64)
	const may = 1<<unix.CAP_KILL | 1<<unix.CAP_DAC_READ_SEARCH | 1<<unix.CAP_BPF | 1<<unix.CAP_PERFMON
	if err != nil || left&^may != 0 && !cgoEnabled(t) {
		t.Errorf("capabilities %x are left, %v", left, err)
	}
	in.Close()
	io.Copy(io.Discard, out)
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	var got []string
	started := false
	for _, l := range readEvents(t, file) {
		switch {
		case l["type"] == "exec":
			started = started || l["bucket"] == "startup" && len(l["argv"].([]any)) == 2
		case l["call_id"] != nil && l["type"] != "status":
			got = append(got, fmt.Sprint(l["call_id"], " ", l["type"]))
		}
	}
	if !started || strings.Join(got, ", ") != "2 file_open, 3 ptrace" {
		t.Errorf("started %v, and then %q", started, got)
	}
}
