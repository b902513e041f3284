package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"
	"time"
)

// The demo and run start their own program as the server: in tests, this is the test
// binary.
func init() {
	if len(os.Args) > 1 && slices.Contains([]string{"demo-server", "run-server", "run-output"}, os.Args[1]) {
		os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
	}
}

func newDemoMCP(tb testing.TB) *demoMCP {
	tb.Helper()
	demoFolderIn(tb, tb.TempDir())
	dir, err := makeDemoFolder()
	if err != nil {
		tb.Fatal(err)
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		tb.Fatal(err)
	}
	s := &demoMCP{dir: dir, null: null}
	tb.Cleanup(func() {
		s.children.Wait()
		null.Close()
	})
	return s
}

// demoFolderIn makes the test's demo folders where nobody else has any.
func demoFolderIn(tb testing.TB, parent string) {
	old := demoParents
	demoParents = []string{parent}
	tb.Cleanup(func() { demoParents = old })
}

func toolCall(name, arguments string) string {
	return `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"` + name + `","arguments":` + arguments + `}}`
}

const (
	textAnswer = `{"jsonrpc":"2.0","id":1,"result":{"isError":false,"content":[{"type":"text","text":"*"}]}}`
	toolError  = `{"jsonrpc":"2.0","id":1,"result":{"isError":true,"content":[{"type":"text","text":"*"}]}}`
)

func rpcFailure(id, code string) string {
	return `{"jsonrpc":"2.0","id":` + id + `,"error":{"code":` + code + `,"message":"*"}}`
}

// A "*" in want stands for any string.
var demoMessages = map[string]struct{ message, want string }{
	"initialize": {
		`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"a","version":"1"}}}`,
		`{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"*","version":"*"}}}`,
	},
	"initialize, an older revision": {
		`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2024-11-05"}}`,
		`{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":"2024-11-05","capabilities":{"tools":{}},"serverInfo":{"name":"*","version":"*"}}}`,
	},
	"initialize, a revision that is not known": {
		`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2099-01-01"}}`,
		`{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"*","version":"*"}}}`,
	},
	"initialize without a revision":   {`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{}}`, rpcFailure("0", "-32602")},
	"initialize without parameters":   {`{"jsonrpc":"2.0","id":0,"method":"initialize"}`, rpcFailure("0", "-32602")},
	"initialized":                     {`{"jsonrpc":"2.0","method":"notifications/initialized"}`, ""},
	"a notification that is not":      {`{"jsonrpc":"2.0","method":"tools/call","params":{"name":"drop_file"}}`, ""},
	"an unknown notification":         {`{"jsonrpc":"2.0","method":"x"}`, ""},
	"an answer":                       {`{"jsonrpc":"2.0","id":3,"result":{}}`, ""},
	"an error":                        {`{"jsonrpc":"2.0","id":3,"error":{"code":1,"message":""}}`, ""},
	"an empty line":                   {" \t\r", ""},
	"ping":                            {`{"jsonrpc":"2.0","id":"a","method":"ping"}`, `{"jsonrpc":"2.0","id":"a","result":{}}`},
	"an empty id":                     {`{"jsonrpc":"2.0","id":"","method":"ping"}`, `{"jsonrpc":"2.0","id":"","result":{}}`},
	"a negative id":                   {`{"jsonrpc":"2.0","id":-1,"method":"ping"}`, `{"jsonrpc":"2.0","id":-1,"result":{}}`},
	"id null":                         {`{"jsonrpc":"2.0","id":null,"method":"ping"}`, rpcFailure("null", "-32600")},
	"id true":                         {`{"jsonrpc":"2.0","id":true,"method":"ping"}`, rpcFailure("null", "-32600")},
	"id an object":                    {`{"jsonrpc":"2.0","id":{},"method":"ping"}`, rpcFailure("null", "-32600")},
	"no JSON":                         {`{"jsonrpc":"2.0",`, rpcFailure("null", "-32700")},
	"not UTF-8":                       {"{\"jsonrpc\":\"2.0\",\"id\":\"\xff\",\"method\":\"ping\"}", rpcFailure("null", "-32700")},
	"NUL":                             {"\x00", rpcFailure("null", "-32700")},
	"too deep":                        {strings.Repeat("[", 20000) + strings.Repeat("]", 20000), rpcFailure("null", "-32700")},
	"too long":                        {`{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":"` + strings.Repeat("a", maxDemoMessage) + `"}}`, rpcFailure("null", "-32700")},
	"a batch":                         {`[{"jsonrpc":"2.0","id":1,"method":"ping"}]`, rpcFailure("null", "-32600")},
	"null":                            {`null`, rpcFailure("null", "-32600")},
	"a string":                        {`"ping"`, rpcFailure("null", "-32600")},
	"an empty object":                 {`{}`, rpcFailure("null", "-32600")},
	"no version":                      {`{"id":1,"method":"ping"}`, rpcFailure("1", "-32600")},
	"another version":                 {`{"jsonrpc":"1.0","id":1,"method":"ping"}`, rpcFailure("1", "-32600")},
	"no method":                       {`{"jsonrpc":"2.0","id":1}`, rpcFailure("1", "-32600")},
	"method a number":                 {`{"jsonrpc":"2.0","id":1,"method":1}`, rpcFailure("1", "-32600")},
	"an unknown method":               {`{"jsonrpc":"2.0","id":1,"method":"resources/list"}`, rpcFailure("1", "-32601")},
	"a method in other case":          {`{"jsonrpc":"2.0","id":1,"method":"Ping"}`, rpcFailure("1", "-32601")},
	"parameters an array":             {`{"jsonrpc":"2.0","id":1,"method":"ping","params":[]}`, rpcFailure("1", "-32602")},
	"parameters null":                 {`{"jsonrpc":"2.0","id":1,"method":"ping","params":null}`, rpcFailure("1", "-32602")},
	"a call of no tool":               {`{"jsonrpc":"2.0","id":1,"method":"tools/call"}`, rpcFailure("1", "-32602")},
	"a call of an unknown tool":       {toolCall("x", `{}`), rpcFailure("1", "-32602")},
	"a call of a tool with no name":   {toolCall("", `{}`), rpcFailure("1", "-32602")},
	"arguments an array":              {toolCall("get_time", `[]`), rpcFailure("1", "-32602")},
	"an argument is missing":          {toolCall("run_command", `{}`), rpcFailure("1", "-32602")},
	"an argument is null":             {toolCall("run_command", `{"command":null}`), rpcFailure("1", "-32602")},
	"an argument is a number":         {toolCall("run_command", `{"command":1}`), rpcFailure("1", "-32602")},
	"get_time":                        {toolCall("get_time", `{}`), textAnswer},
	"get_time with null for no":       {toolCall("get_time", `null`), textAnswer},
	"get_time with what it ignores":   {toolCall("get_time", `{"":{"a":[1]}}`), textAnswer},
	"run_command":                     {toolCall("run_command", `{"command":"-n ; exit 1 \" $(exit 1) \\c"}`), textAnswer},
	"run_command with NUL":            {toolCall("run_command", `{"command":"a\u0000b"}`), toolError},
	"run_command with half a letter":  {toolCall("run_command", `{"command":"\ud800"}`), textAnswer},
	"run_command with too much":       {toolCall("run_command", `{"command":"`+strings.Repeat("a", 3<<20)+`"}`), toolError},
	"read_secret":                     {toolCall("read_secret", `{}`), textAnswer},
	"drop_file":                       {toolCall("drop_file", `{}`), textAnswer},
	"send_beacon":                     {toolCall("send_beacon", `{}`), textAnswer},
	"trace_process":                   {toolCall("trace_process", `{}`), toolError},
	"start_background":                {toolCall("start_background", `{}`), textAnswer},
	"an id that could be taken apart": {`{"jsonrpc":"2.0","id":"<&>` + "\u2028" + `","method":"ping"}`, `{"jsonrpc":"2.0","id":"<&>` + "\u2028" + `","result":{}}`},
}

func TestDemoServer(t *testing.T) {
	for name, tt := range demoMessages {
		t.Run(name, func(t *testing.T) {
			s := newDemoMCP(t)
			var out bytes.Buffer
			if err := s.serve(strings.NewReader(tt.message+"\n"), &out); err != nil {
				t.Fatal(err)
			}
			if tt.want == "" {
				if out.Len() > 0 {
					t.Errorf("answered %s", &out)
				}
				return
			}
			var got, want any
			if err := json.Unmarshal(out.Bytes(), &got); err != nil {
				t.Fatalf("answered %.200q: %v", &out, err)
			}
			if err := json.Unmarshal([]byte(tt.want), &want); err != nil {
				t.Fatal(err)
			}
			if !alike(got, want) {
				t.Errorf("answered %.500s\nwant     %s", &out, tt.want)
			}
		})
	}
}

// alike compares JSON values. A "*" in want is like any string.
func alike(got, want any) bool {
	switch want := want.(type) {
	case map[string]any:
		g, ok := got.(map[string]any)
		for key := range want {
			ok = ok && alike(g[key], want[key])
		}
		return ok && len(g) == len(want)
	case []any:
		return slices.EqualFunc(got.([]any), want, alike)
	case string:
		_, ok := got.(string)
		return got == want || ok && want == "*"
	}
	return reflect.DeepEqual(got, want)
}

func TestDemoServerEchoesIDs(t *testing.T) {
	s := newDemoMCP(t)
	for _, id := range []string{`1.0`, `1e400`, `123456789012345678901234567890`, `"\ud800"`, `"\u0041<"`} {
		var out bytes.Buffer
		if err := s.serve(strings.NewReader(`{"jsonrpc":"2.0","id":`+id+`,"method":"ping"}`), &out); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(out.String(), `"id":`+id) {
			t.Errorf("id %s: answered %s", id, &out)
		}
	}
}

func TestDemoServerTools(t *testing.T) {
	s := newDemoMCP(t)
	var out bytes.Buffer
	if err := s.serve(strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`), &out); err != nil {
		t.Fatal(err)
	}
	var list struct {
		Result struct {
			Tools []struct {
				Name, Description string
				InputSchema       struct {
					Type       string
					Properties map[string]struct{ Type string }
					Required   []string
				}
			}
		}
	}
	if err := json.Unmarshal(out.Bytes(), &list); err != nil {
		t.Fatal(err)
	}
	if len(list.Result.Tools) != len(demoTools) || len(demoTools) == 0 {
		t.Fatalf("%d tools, want %d", len(list.Result.Tools), len(demoTools))
	}
	for i, tool := range list.Result.Tools {
		if tool.Name != demoTools[i].name || tool.Description == "" || tool.InputSchema.Type != "object" {
			t.Errorf("tool %+v", tool)
		}
		for _, name := range tool.InputSchema.Required {
			if tool.InputSchema.Properties[name].Type != "string" {
				t.Errorf("tool %+v: %s is not a string", tool, name)
			}
		}
	}
}

func TestDemoServerIsHarmless(t *testing.T) {
	s := newDemoMCP(t)
	victim := filepath.Join(t.TempDir(), "victim")
	if err := os.WriteFile(victim, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{"; rm " + victim, "$(rm " + victim + ")", "`rm " + victim + "`", "\nrm " + victim, `"; rm ` + victim + `; "`} {
		text, err := s.runCommand(command)
		if err != nil || text != command+"\n" {
			t.Errorf("run_command %q = %q, %v", command, text, err)
		}
	}
	if _, err := os.Stat(victim); err != nil {
		t.Error(err)
	}
	if _, err := s.dropFile(""); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(filepath.Dir(demoDrop(s.dir))); err != nil || len(left) > 0 {
		t.Errorf("drop_file left %v, %v", left, err)
	}
	if err := os.RemoveAll(s.dir); err != nil {
		t.Fatal(err)
	}
	if text, err := s.readSecret(""); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("read_secret without a secret = %q, %v", text, err)
	}
}

func TestDemoServerActsLate(t *testing.T) {
	s := newDemoMCP(t)
	if _, err := s.startBackground(""); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(demoLate(s.dir)); err == nil {
		t.Error("start_background acted before it answered")
	}
	s.children.Wait()
	if _, err := os.Stat(demoLate(s.dir)); err != nil {
		t.Error(err)
	}
}

// However a server without a folder of the demo's ends, it removes its own.
func TestDemoServerCleansUp(t *testing.T) {
	for name, end := range map[string]func(p *demoPeer, process *os.Process){
		"input ends": func(p *demoPeer, _ *os.Process) { p.out.Close() },
		"SIGTERM":    func(_ *demoPeer, process *os.Process) { process.Signal(syscall.SIGTERM) },
		"SIGINT":     func(_ *demoPeer, process *os.Process) { process.Signal(os.Interrupt) },
		"late in life": func(p *demoPeer, _ *os.Process) {
			io.WriteString(p.out, toolCall("start_background", "{}"))
			p.out.Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command(os.Args[0], "demo-server")
			in, err1 := cmd.StdinPipe()
			out, err2 := cmd.StdoutPipe()
			if err := errors.Join(err1, err2, cmd.Start()); err != nil {
				t.Fatal(err)
			}
			defer in.Close()
			server := newDemoPeer(out, in)
			if err := server.send(json.RawMessage(toolCall("read_secret", "{}"))); err != nil {
				t.Fatal(err)
			}
			var answer struct {
				Result struct{ Content []struct{ Text string } }
			}
			if err := server.receive(t.Context(), &answer); err != nil {
				t.Fatal(err)
			}
			dir := regexp.MustCompile(`/\S*/mcpfz-demo-\d+`).FindString(answer.Result.Content[0].Text)
			if _, err := os.Stat(dir); err != nil {
				t.Fatalf("the folder in %+v: %v", answer, err)
			}
			end(server, cmd.Process)
			for range server.in {
			}
			if err := cmd.Wait(); err != nil {
				t.Errorf("the server ended with %v", err)
			}
			if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s is left: %v", dir, err)
			}
		})
	}
}

func TestDemoServerFails(t *testing.T) {
	s := newDemoMCP(t)
	if err := s.serve(iotest.ErrReader(os.ErrClosed), io.Discard); !errors.Is(err, os.ErrClosed) {
		t.Errorf("with an input that fails: %v", err)
	}
	_, w := io.Pipe()
	w.Close()
	if err := s.serve(strings.NewReader("x"), w); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("with an output that is closed: %v", err)
	}
}

// A message has one answer or none, a line of JSON, and one with an id has one.
func FuzzDemoServer(f *testing.F) {
	for _, tt := range demoMessages {
		f.Add([]byte(tt.message))
	}
	s := newDemoMCP(f)
	f.Fuzz(func(t *testing.T, message []byte) {
		if bytes.ContainsRune(message, '\n') {
			t.Skip("more than a message")
		}
		var out bytes.Buffer
		if err := s.serve(bytes.NewReader(message), &out); err != nil {
			t.Fatal(err)
		}
		var msg map[string]json.RawMessage
		json.Unmarshal(message, &msg)
		if out.Len() == 0 {
			if msg["id"] != nil && msg["result"] == nil && msg["error"] == nil {
				t.Errorf("no answer")
			}
			return
		}
		if answer, ok := bytes.CutSuffix(out.Bytes(), []byte("\n")); !ok || bytes.ContainsRune(answer, '\n') || !json.Valid(answer) {
			t.Errorf("answered %q", &out)
		}
	})
}

// demoTable is what the demo shows, with what differs from run to run left out.
const demoTable = `
   1  get_time          nothing
   2  run_command       started process N
                        ran /bin/sh -c 'echo "$1"' sh 'hello; id'
                        and N routine opens
   3  read_secret       opened …/home/.ssh/id_ed25519 for reading
   4  drop_file         opened …/outside/dropped for writing
                        chmod 755 …/outside/dropped
                        deleted …/outside/dropped
   5  send_beacon       UDP connect to 127.66.0.9:53999
                        TCP connect to 127.66.0.9:443
   6  trace_process     ptrace PTRACE_ATTACH of process N (EPERM)
   7  start_background  started process N
                        ran /bin/sh -c 'echo ready; read later; : > "$1"' sh …/outside/late
                        and N routine opens

after call 7 (start_background), when it had been answered:
                        process N: opened …/outside/late for writing

`

// checkDemo runs the demo and looks at its report.
func checkDemo(t *testing.T, backend string) string {
	t.Helper()
	parent := t.TempDir()
	demoFolderIn(t, parent)
	var out bytes.Buffer
	if err := demo([]string{"--backend", backend}, strings.NewReader(""), &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	got := regexp.MustCompile(`(process |and )\d+`).ReplaceAllString(out.String(), "${1}N")
	// A shell that is linked statically opens nothing by routine.
	routine := regexp.MustCompile(`(?m)^ *and N routine opens\n`)
	table := routine.ReplaceAllString(demoTable, "")
	if !strings.Contains(routine.ReplaceAllString(got, ""), table) {
		t.Errorf("the demo shows\n%s\nwithout\n%s", got, table)
	}
	for line := range strings.Lines(got) {
		if n := len([]rune(line)) - 1; n > reportColumns {
			t.Errorf("%d columns: %s", n, line)
		}
	}
	if left, err := os.ReadDir(parent); err != nil || len(left) > 0 {
		t.Errorf("the demo left %v, %v", left, err)
	}
	return got
}

func TestDemo(t *testing.T) {
	got := checkDemo(t, "fake")
	for _, want := range []string{"(scripted, not observed)\n", "Backend fake: ", "to see the real thing: "} {
		if !strings.Contains(got, want) {
			t.Errorf("the demo does not say %q:\n%s", want, got)
		}
	}
}

func TestEBPFDemo(t *testing.T) {
	b, err := newBackend("ebpf", "", minRingSize)
	if errors.As(err, new(unavailable)) && os.Getenv("PROBE_REQUIRE_BPF") == "" {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	b.Close()
	got := checkDemo(t, "ebpf")
	if !strings.Contains(got, "Lost: nothing.") || !strings.Contains(got, "Backend ebpf: ") || strings.Contains(got, "scripted") {
		t.Errorf("the demo shows\n%s", got)
	}
}

func TestDemoArguments(t *testing.T) {
	for name, tt := range map[string]struct {
		args []string
		code int
		want string
	}{
		"help":                  {[]string{"demo", "--help"}, 0, "mcpfz-probe demo"},
		"an argument":           {[]string{"demo", "x"}, exitUsage, `unexpected argument "x"`},
		"an unknown flag":       {[]string{"demo", "--x"}, exitUsage, "-x"},
		"an unknown backend":    {[]string{"demo", "--backend", "x"}, exitUsage, `unknown backend "x"`},
		"an argument of server": {[]string{"demo-server", "x"}, exitUsage, `unexpected argument "x"`},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			if code := run(tt.args, strings.NewReader(""), &out, &out); code != tt.code || !strings.Contains(out.String(), tt.want) {
				t.Errorf("run(%q) = %d with %q, want %d with %q", tt.args, code, &out, tt.code, tt.want)
			}
		})
	}
}

// Whenever the demo is interrupted, it says so and leaves nothing.
func TestDemoInterrupted(t *testing.T) {
	parent := t.TempDir()
	demoFolderIn(t, parent)
	for _, after := range []time.Duration{0, time.Millisecond, 5 * time.Millisecond, 25 * time.Millisecond} {
		interrupted := errors.New("interrupted")
		ctx, cancel := context.WithTimeoutCause(t.Context(), after, interrupted)
		table, err := watchDemo(ctx, "fake", nil, io.Discard, io.Discard)
		cancel()
		if done := table != ""; done && after == 0 || !done && !errors.Is(err, interrupted) {
			t.Errorf("interrupted after %v: %v", after, err)
		}
		if left, err := os.ReadDir(parent); err != nil || len(left) > 0 {
			t.Errorf("interrupted after %v: it left %v, %v", after, left, err)
		}
	}
}

// A probe or a server that ends, or that writes what it should not, is an error.
func TestPeerFails(t *testing.T) {
	for name, tt := range map[string]struct{ lines, want string }{
		"ends":           {"", "EOF"},
		"breaks off":     {`{"jsonrpc":`, "EOF"},
		"writes no JSON": {"hello\n", `the server wrote "hello\n"`},
		"refuses":        {rpcFailure("1", "-32602") + "\n", "the server refused: *"},
	} {
		t.Run(name, func(t *testing.T) {
			in, out := io.Pipe()
			go io.Copy(io.Discard, in)
			defer out.Close()
			err := newDemoPeer(strings.NewReader(tt.lines), out).request(t.Context(), 1, "ping", jsonObject{})
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %q", err, tt.want)
			}
		})
	}
}

func TestDemoWatch(t *testing.T) {
	w := newDemoWatch("/d")
	for _, line := range []string{
		`{"type":"status","message":"ready","bucket":"startup"}`,
		`{"type":"exec","bucket":"startup"}`,
		`{"type":"exec","bucket":"call","call_id":"1"}`,
		`{"type":"drop","bucket":"call","call_id":"1","count":3,"reason":"ring_buffer_full"}`,
		`{"type":"chmod","bucket":"ambient","origin_call_id":"2"}`,
		`{"type":"chmod","bucket":"call","call_id":"2","origin_call_id":"1"}`,
		`{"type":"bind","bucket":"ambient"}`,
		`{"type":"status","message":"scope","bucket":"ambient","error":"no such process group"}`,
	} {
		io.WriteString(w, line[:9])
		io.WriteString(w, line[9:]+"\n")
	}
	if w.err == nil || !strings.Contains(w.err.Error(), "no such process group") {
		t.Errorf("error %v", w.err)
	}
	types := func(lines []eventLine) (s []string) {
		for _, l := range lines {
			s = append(s, l.Type)
		}
		return s
	}
	got := [][]string{types(w.lost)}
	for _, c := range w.calls[:3] {
		got = append(got, types(c.events), types(c.late))
	}
	want := [][]string{{"drop"}, nil, {"bind"}, {"exec"}, nil, {"chmod"}, {"chmod"}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("gathered %q, want %q", got, want)
	}
	table := w.report("/d", "ebpf", nil)
	if want := "Lost: 3 events of call 1 (ring_buffer_full)."; !strings.Contains(table, want) {
		t.Errorf("table without %q:\n%s", want, table)
	}
}

func TestWords(t *testing.T) {
	for want, l := range map[string]eventLine{
		`ran /bin/sh -c 'a "b"' "it's" "\n" ''`:     {Type: "exec", Argv: []string{"/bin/sh", "-c", `a "b"`, "it's", "\n", ""}},
		`tried to run /bin/x (ENOENT)`:              {Type: "exec_failed", Path: "/bin/x", Errno: "ENOENT"},
		`started process 7`:                         {Type: "process_spawn", ChildPid: 7},
		`opened /a for reading`:                     {Type: "file_open", Path: "/a", Flags: "O_RDONLY|O_CLOEXEC"},
		`opened '/a b' for writing (EACCES)`:        {Type: "file_open", Path: "/a b", Flags: "O_WRONLY", Errno: "EACCES"},
		`opened /a for reading and writing`:         {Type: "file_open", Path: "/a", Flags: "O_RDWR|O_CREAT"},
		`deleted "/a\x1b[1m"`:                       {Type: "file_delete", Path: "/a\x1b[1m"},
		`deleted "/a\u3164\u2800b"`:                 {Type: "file_delete", Path: "/a\u3164\u2800b"},
		`deleted '/á́\u0301'`:                      {Type: "file_delete", Path: "/a\u0301\u0301\u0301"},
		`made folder /a`:                            {Type: "file_mkdir", Path: "/a"},
		`renamed /a to /b`:                          {Type: "file_rename", OldPath: "/a", Path: "/b"},
		`linked /b to /a`:                           {Type: "file_link", OldPath: "/a", Path: "/b"},
		`linked /b to ../a`:                         {Type: "file_symlink", Target: "../a", Path: "/b"},
		`chmod 4755 /a`:                             {Type: "chmod", Path: "/a", Mode: "4755"},
		`TCP connect to [::1]:80`:                   {Type: "connect", Proto: "tcp", Dst: "[::1]:80"},
		`UDP bind 0.0.0.0:53`:                       {Type: "bind", Proto: "udp", Dst: "0.0.0.0:53"},
		`ptrace PTRACE_ATTACH of process 1 (EPERM)`: {Type: "ptrace", RequestName: "PTRACE_ATTACH", TargetPid: 1, Errno: "EPERM"},
		`contacted socket /run/x`:                   {Type: "unix_connect", Path: "/run/x"},
	} {
		if got := l.words(); got != want {
			t.Errorf("%+v is %q, want %q", l, got, want)
		}
	}
}

func TestRoutine(t *testing.T) {
	for path, want := range map[string]bool{
		"/etc/ld.so.cache":               true,
		"/etc/ld-musl-x86_64.path":       true,
		"/usr/lib/libc.so.6":             true,
		"/usr/lib/x.so":                  true,
		"/usr/lib/locale/locale-archive": true,
		"/usr/lib64/gconv/gconv-modules": true,
		"/dev/null":                      true,
		"/dev/tty":                       true,
		"/home/a/.ssh/id_ed25519":        false,
		"/home/a/notes.sorted":           false,
		"/home/a/locale/x.so":            false,
		"/etc/passwd":                    false,
	} {
		l := eventLine{Type: "file_open", Path: path, Flags: "O_RDONLY|O_CLOEXEC"}
		if got := l.routine(); got != want {
			t.Errorf("reading %s is routine: %v, want %v", path, got, want)
		}
		l.Flags = "O_WRONLY"
		if got := l.routine(); got != strings.HasPrefix(path, "/dev/") {
			t.Errorf("writing %s is routine: %v", path, got)
		}
		l.Type = "file_delete"
		if l.routine() {
			t.Errorf("deleting %s is routine", path)
		}
	}
}
