package main

import (
	"bufio"
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"
)

// evaluateLines runs the command on these lines, from a folder of its own.
func evaluateLines(t *testing.T, input string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	t.Chdir(t.TempDir())
	var out, errs bytes.Buffer
	code = run(append([]string{"evaluate"}, args...), strings.NewReader(input), &out, &errs)
	return out.String(), errs.String(), code
}

// TestEvaluateFindings checks what is found in each type of event that the Python policy
// does not know, and what it does not see in others. The rest is TestPolicyPython's.
func TestEvaluateFindings(t *testing.T) {
	for _, tt := range []struct{ name, event, want string }{
		{"fileless", `{"type":"exec","argv":["/bin/sh"],"exe":"/memfd:x (deleted)","fileless":true}`, "runtime.exec high, runtime.fileless_exec critical+"},
		{"docker", `{"type":"unix_connect","path":"/run/docker.sock"}`, "runtime.control_socket critical+"},
		{"abstract", `{"type":"unix_connect","path":"@/tmp/.X11-unix/X0"}`, "runtime.control_socket critical+"},
		{"any socket", `{"type":"unix_connect","path":"/run/nscd/socket"}`, ""},
		{"vsock", `{"type":"socket_connect","family":"vsock","dst":"2:1024"}`, "runtime.net_other medium+"},
		{"netlink", `{"type":"socket_connect","family":"netlink","dst":"0"}`, ""},
		{"a name", `{"type":"dns","name":"evil.example"}`, "runtime.dns low+"},
		{"an allowed name", `{"type":"dns","name":"good.example"}`, ""},
		{"an answer", `{"type":"dns","name":"evil.example","response":true}`, ""},
		{"host", `{"type":"connect","dst":"127.66.0.9:443","host":"good.example"}`, ""},
		{"another host", `{"type":"connect","dst":"127.66.0.9:443","host":"evil.example"}`, "runtime.net_connect medium"},
		{"memory", `{"type":"file_open","path":"/proc/77/mem","flags":"O_RDWR","pid":5}`, "runtime.fs_write high, runtime.inject critical+"},
		{"a thread's memory", `{"type":"file_open","path":"/proc/77/task/78/mem","flags":"O_WRONLY","pid":5}`, "runtime.fs_write high, runtime.inject critical+"},
		{"its own memory", `{"type":"file_open","path":"/proc/5/mem","flags":"O_RDWR","pid":5}`, "runtime.fs_write high"},
		{"memory, read", `{"type":"file_open","path":"/proc/77/mem","flags":"O_RDONLY","pid":5}`, ""},
		{"process_vm_write", `{"type":"process_vm_write","target_pid":7}`, "runtime.inject critical+"},
		{"pidfd_getfd", `{"type":"pidfd_getfd","target_pid":7,"target_fd":0}`, "runtime.inject critical+"},
		{"signal", `{"type":"signal","signal":9,"target_pid":7}`, "runtime.signal medium+"},
		{"root", `{"type":"setuid","call":"setresuid","id":0}`, "runtime.privilege high+"},
		{"another user", `{"type":"setuid","call":"setuid","id":1000}`, "runtime.privilege medium+"},
		{"namespace", `{"type":"namespace","call":"unshare","flags":"CLONE_NEWUSER"}`, "runtime.namespace medium+"},
		{"mount", `{"type":"mount","call":"mount","path":"/mnt"}`, "runtime.mount high+"},
		{"module", `{"type":"module_load","call":"finit_module","path":"/x.ko"}`, "runtime.kernel critical+"},
		{"bpf", `{"type":"bpf","cmd":5}`, "runtime.kernel high+"},
		{"truncate", `{"type":"file_truncate","path":"/etc/x","length":0}`, "runtime.fs_truncate high+"},
		{"truncate inside", `{"type":"file_truncate","path":"/tmp/x","length":0}`, ""},
		{"chown", `{"type":"file_chown","path":"/etc/x"}`, "runtime.fs_chown medium+"},
		{"xattr", `{"type":"file_xattr","path":"/etc/x"}`, "runtime.fs_xattr medium+"},
		{"mknod", `{"type":"mknod","path":"/etc/x"}`, "runtime.fs_mknod high+"},
		{"after the call", `{"type":"exec","argv":["/bin/sh"],"bucket":"ambient","origin_call_id":"a"}`, "runtime.exec high, runtime.after_call high+"},
		{"harmless after the call", `{"type":"file_open","path":"/etc/passwd","flags":"O_RDONLY","bucket":"ambient","origin_call_id":"a"}`, ""},
		{"in another call", `{"type":"exec","argv":["/bin/sh"],"bucket":"call","call_id":"b","origin_call_id":"a"}`, "runtime.exec high"},
		{"drop", `{"type":"drop","count":17}`, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			out, errs, code := evaluateLines(t, tt.event+"\n", "--allow-host", "*.example.org,good.example")
			if code != 0 || errs != "" {
				t.Fatalf("exit code %d: %s", code, errs)
			}
			var got []string
			for line := range strings.Lines(out) {
				f := decodeLine(t, []byte(line))
				category, _ := f["category"].(string)
				text := fmt.Sprint(category, " ", f["severity"])
				if f["beyond_python"] == true {
					text += "+"
				}
				got = append(got, text)
				if f["type"] != "finding" || f["detail"] == "" || owaspIDs[category] == "" || f["owasp_mcp"] != owaspIDs[category] {
					t.Errorf("finding %v", f)
				}
			}
			if strings.Join(got, ", ") != tt.want {
				t.Errorf("got  %s\nwant %s", strings.Join(got, ", "), tt.want)
			}
		})
	}
}

// aSession is a call that reads what it should not, and connects when it is over.
//
//go:embed testdata/session.ndjson
var aSession string

func TestEvaluateLines(t *testing.T) {
	out, _, code := evaluateLines(t, aSession)
	var got []map[string]any
	for line := range strings.Lines(out) {
		got = append(got, decodeLine(t, []byte(line)))
	}
	if code != 0 || len(got) != 4 {
		t.Fatalf("exit code %d, findings %v", code, got)
	}
	open := got[1]
	event, _ := open["evidence"].(map[string]any)["event"].(map[string]any)
	if open["call_id"] != "1" || open["tool"] != "run\x1b[2J" || open["bucket"] != "call" || open["evidence"].(map[string]any)["failed"] != true || event["errno"] != "EACCES" {
		t.Errorf("the open is found as %v", open)
	}
	if later := got[3]; later["category"] != "runtime.after_call" || later["call_id"] != nil || later["origin_call_id"] != "1" || later["tool"] != "run\x1b[2J" {
		t.Errorf("the connection is found as %v", later)
	}
}

func TestEvaluateText(t *testing.T) {
	out, _, code := evaluateLines(t, aSession, "--format", "text")
	want := `high      runtime.exec            run\x1b[2J            process executed /bin/sh
critical  runtime.sensitive_read  run\x1b[2J            sensitive file opened: /home/u/.ssh/id\x1b[31m (failed: EACCES)
medium    runtime.net_connect     after run\x1b[2J      network connection to 127.66.0.9:443
high      runtime.after_call      after run\x1b[2J      connect outside of the call that it comes from
4 findings: 1 critical, 2 high, 1 medium
`
	if code != 0 || out != want {
		t.Errorf("exit code %d, got\n%s", code, out)
	}
	if out, _, _ := evaluateLines(t, `{"type":"status"}`, "--format", "text"); out != "no findings\n" {
		t.Errorf("of nothing: %q", out)
	}
}

func TestEvaluateFailOn(t *testing.T) {
	for _, tt := range []struct {
		severity string
		code     int
	}{{"low", 1}, {"medium", 1}, {"high", 0}, {"critical", 0}} {
		out, _, code := evaluateLines(t, `{"type":"connect","dst":"1.2.3.4:5"}`, "--fail-on", tt.severity)
		if code != tt.code || strings.Count(out, "\n") != 1 {
			t.Errorf("--fail-on %s: exit code %d, %q", tt.severity, code, out)
		}
	}
}

// TestEvaluateBadInput checks that what cannot be read is named, and the rest is evaluated.
func TestEvaluateBadInput(t *testing.T) {
	const good = `{"type":"connect","dst":"1.2.3.4:5"}`
	for _, tt := range []struct{ name, line, why string }{
		{"no JSON", "Traceback", "want an object"},
		{"cut off", good[:len(good)-1], "want a comma or the end"},
		{"another object behind", good + good, "more after the end"},
		{"an array", "[" + good + "]", "want an object"},
		{"no type", `{"path":"x"}`, `no "type"`},
		{"deep", `{"type":` + strings.Repeat("[", 100000), "levels"},
		{"long", `{"type":"` + strings.Repeat("x", maxEventLine) + `"}`, "longer than"},
		{"no UTF-8", "{\"type\":\"\xff\"}", "UTF-8"},
		{"argv", `{"type":"exec","argv":{"0":"x"}}`, "argv has no first element"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			out, errs, code := evaluateLines(t, good+"\n"+tt.line+"\n\n"+good) // the last newline may be missing
			if code != 1 || strings.Count(out, "\n") != 2 || !strings.Contains(errs, "line 2: ") || !strings.Contains(errs, tt.why) || len(errs) > 500 {
				t.Errorf("exit code %d, %d findings, %.600s", code, strings.Count(out, "\n"), errs)
			}
		})
	}
	_, errs, _ := evaluateLines(t, strings.Repeat("x\n", 1000))
	if strings.Count(errs, "\n") != maxComplaints+2 || !strings.Contains(errs, "and 990 more") {
		t.Errorf("of 1000 bad lines: %s", errs)
	}
	if _, errs, code := evaluateLines(t, "", "--policy", "missing.json"); code != exitUsage || !strings.Contains(errs, "missing.json") {
		t.Errorf("exit code %d, %s", code, errs)
	}
	for _, bad := range []string{`{"exec_alow":[]}`, `{"exec_allow":"x"}`, `{} {}`, ``} {
		file := filepath.Join(t.TempDir(), "policy.json")
		os.WriteFile(file, []byte(bad), 0o600)
		if _, errs, code := evaluateLines(t, "", "--policy", file); code != exitUsage || !strings.Contains(errs, "policy.json") {
			t.Errorf("policy %s: exit code %d, %s", bad, code, errs)
		}
	}
}

// TestPolicyDefaults checks that a file replaces defaults for whoever has read it only.
func TestPolicyDefaults(t *testing.T) {
	file := filepath.Join(t.TempDir(), "policy.json")
	if err := os.WriteFile(file, []byte(`{"sensitive_patterns":["mine"]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := defaultPolicy()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.read(file); err != nil || len(p.SensitivePatterns) != 1 || p.SensitivePatterns[0] != "mine" {
		t.Errorf("patterns %q, %v", p.SensitivePatterns, err)
	}
	if again, err := defaultPolicy(); err != nil || again.SensitivePatterns[0] != "*/.ssh/*" {
		t.Errorf("patterns of another policy %q, %v", again.SensitivePatterns, err)
	}
}

// TestLearnedPolicy learns from sessions, and has no finding in them afterwards; and
// finds what another session does.
func TestLearnedPolicy(t *testing.T) {
	dir := policyTree(t)
	t.Chdir(dir)
	random := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		var session []string
		p := policy{Workspace: "work", Tmpdir: "tmp", SensitivePatterns: sensitivePatterns}
		for range 20 {
			c := randomPolicyCase(random, dir)
			if half := strings.Contains(strings.ToLower(c.Event), `\ud`); half {
				continue // the policy is written as others write JSON, without halves of characters
			}
			if _, err := c.evaluate(); err == nil {
				session = append(session, strings.ReplaceAll(c.Event, "\n", " "))
			}
		}
		session = append(session,
			`{"type":"dns","name":"a?b.example"}`, `{"type":"connect","dst":"[::1]:53","host":"a*b"}`, `{"type":"setuid","id":0,"origin_call_id":"x"}`,
			`{"type":"exec","argv":["/bin/x"],"fileless":true,"exe":"memfd","origin_call_id":"1"}`,
			`{"type":"mknod","path":"/dev/x"}`, `{"type":"file_open","path":"/proc/77/mem","flags":"O_RDWR"}`)
		learned, err := newLearnedPolicy(p)
		if err != nil {
			t.Fatal(err)
		}
		findings := func(p policy, learned *learnedPolicy) string {
			var out bytes.Buffer
			w := bufio.NewWriter(&out)
			e, err := newEvaluation(p, &findingLines{out: w})
			if err != nil {
				t.Fatal(err)
			}
			e.learned = learned
			if err := e.read(strings.NewReader(strings.Join(session, "\n"))); err != nil && strings.Contains(err.Error(), "Python") == false {
				t.Fatal(err)
			}
			w.Flush()
			return out.String()
		}
		before := findings(p, learned)
		text, err := json.Marshal(learned.policy())
		if err != nil {
			t.Fatal(err)
		}
		var again policy
		if err := json.Unmarshal(text, &again); err != nil {
			t.Fatal(err)
		}
		if after := findings(again, nil); after != "" || before == "" {
			t.Fatalf("learned %s\nof     %s\nleft   %s", text, before, after)
		}
	}
	learned, _ := newLearnedPolicy(policy{Workspace: "work", Tmpdir: "tmp"})
	if p := learned.policy(); len(p.FSWriteAllow) != 1 || p.FSWriteAllow[0] != nothingWritable {
		t.Errorf("of nothing, writes are allowed to %q", p.FSWriteAllow)
	}
	for i := range maxLearnedFiles + 1 {
		var ev policyEvent
		ev.parse(fmt.Appendf(nil, `{"type":"file_open","path":"/srv/data/%d","flags":"O_WRONLY"}`, i))
		learned.see(&ev)
	}
	if p := learned.policy(); len(p.FSWriteAllow) != 1 || p.FSWriteAllow[0] != "/srv/data" {
		t.Errorf("of many files in a folder, writes are allowed to %q", p.FSWriteAllow)
	}
}

// FuzzEvent checks that lines are taken for JSON as the standard library takes them, and
// that nothing in one breaks the evaluation or what it writes.
func FuzzEvent(f *testing.F) {
	for line := range strings.Lines(aSession) {
		f.Add([]byte(line))
	}
	f.Add([]byte(`{"type":"exec","argv":["\ud83d\ude00\ud800"],"path":1e5}`))
	f.Add([]byte(`{"type":"chmod","path":"[","mode":{"a":[null,-0.0,1E400]}}`))
	e, err := newEvaluator(policy{Workspace: "/w", Tmpdir: "/t", SensitivePatterns: sensitivePatterns, NetAllow: []string{"[a-z]*"}})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		if line = bytes.TrimSpace(line); bytes.Contains(line, []byte("\n")) || !utf8.Valid(line) {
			return
		}
		var ev policyEvent
		err := ev.parse(line)
		var object map[string]json.RawMessage
		theirs := json.Unmarshal(line, &object)
		if deep := err != nil && strings.Contains(err.Error(), "levels"); !deep && errors.Is(err, errJSON) != (theirs != nil || object == nil) {
			t.Fatalf("here %v, in the library %v", err, theirs)
		}
		if err != nil {
			return
		}
		findings, _ := e.evaluate(&ev)
		var out bytes.Buffer
		w := bufio.NewWriter(&out)
		lines, text := &findingLines{out: w}, &findingText{out: bufio.NewWriter(io.Discard)}
		sarif := newFindingSARIF(bufio.NewWriter(io.Discard), "events")
		for _, f := range findings {
			lines.write(1, line, &ev, f, nil)
			text.write(1, line, &ev, f, nil)
			sarif.write(1, line, &ev, f, nil)
		}
		if err := sarif.finish(); err != nil {
			t.Error(err)
		}
		w.Flush()
		for l := range bytes.Lines(out.Bytes()) {
			if !json.Valid(l) {
				t.Errorf("no JSON: %s", l)
			}
		}
	})
}

// BenchmarkEvaluate measures how many events are evaluated in a second. Goal: 500,000.
func BenchmarkEvaluate(b *testing.B) {
	var session bytes.Buffer
	n := 0
	for i := range 1000 {
		for _, event := range []string{
			`{"type":"status","message":"begin","bucket":"call","call_id":"%d","ts_ns":1796061981202511483,"tool":"read_file"}`,
			`{"type":"file_open","bucket":"call","call_id":"%d","ts_ns":1796061981202511483,"pid":30822,"ppid":30821,"comm":"node","exe":"/usr/bin/node","path":"/srv/project/src/module/file.ts","dev":"0:22","ino":103,"flags":"O_RDONLY|O_CLOEXEC"}`,
			`{"type":"file_open","bucket":"call","call_id":"%d","ts_ns":1796061981202511483,"pid":30822,"ppid":30821,"comm":"node","exe":"/usr/bin/node","path":"/usr/lib/x86_64-linux-gnu/libc.so.6","dev":"0:22","ino":103,"flags":"O_RDONLY|O_CLOEXEC"}`,
			`{"type":"file_open","bucket":"call","call_id":"%d","ts_ns":1796061981202511483,"pid":30822,"ppid":30821,"comm":"node","exe":"/usr/bin/node","path":"/tmp/work/out.txt","dev":"0:22","ino":103,"flags":"O_WRONLY|O_CREAT|O_TRUNC"}`,
			`{"type":"connect","bucket":"call","call_id":"%d","ts_ns":1796061981202511483,"pid":30822,"ppid":30821,"comm":"node","exe":"/usr/bin/node","proto":"tcp","dst":"127.66.0.9:443","host":"api.example.com"}`,
			`{"type":"exec","bucket":"call","call_id":"%d","ts_ns":1796061981202660542,"pid":30843,"ppid":30822,"comm":"sh","argv":["/bin/sh","-c","ls -l"],"exe":"/usr/bin/dash","path":"/bin/sh"}`,
		} {
			fmt.Fprintf(&session, event+"\n", i)
			n++
		}
	}
	p := policy{Workspace: "/srv", Tmpdir: "/tmp", SensitivePatterns: sensitivePatterns, NetAllow: []string{"*.example.com", "10.*"}}
	for b.Loop() {
		e, err := newEvaluation(p, &findingLines{out: bufio.NewWriter(io.Discard)})
		if err != nil {
			b.Fatal(err)
		}
		if err := e.read(bytes.NewReader(session.Bytes())); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(n)*float64(b.N)/b.Elapsed().Seconds(), "events/s")
	b.ReportMetric(0, "ns/op")
}

// Of a session of many calls, the last ones are known.
func TestEvaluateManyCalls(t *testing.T) {
	e, err := newEvaluation(policy{}, findingWriters{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range maxRememberedCalls + 10 {
		e.remember(fmt.Sprint(i), []byte(`"t"`))
		e.remember(fmt.Sprint(i), []byte(`"again"`))
	}
	if len(e.tools) != maxRememberedCalls || e.tools["9"] != nil || string(e.tools["10"]) != `"again"` {
		t.Errorf("%d calls are known, the tenth as %q, the eleventh as %q", len(e.tools), e.tools["9"], e.tools["10"])
	}
}

// A log of SARIF is bounded, and a rule has the score of its worst result.
func TestSARIFBounds(t *testing.T) {
	var b bytes.Buffer
	out := bufio.NewWriter(&b)
	w := newFindingSARIF(out, "//tmp/./ä")
	for i := range maxSARIFResults + 5 {
		severity := severities[min(i, len(severities)-1)]
		if err := w.write(i+1, []byte("{}"), &policyEvent{}, finding{"runtime.x", severity, "d", false}, nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.finish(), out.Flush()); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"security-severity": "9.5"`, `"5 results are left out: there are more than 25000"`, `"uri": "/tmp/%C3%A4"`} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the log does not have %s", want)
		}
	}
	if n := strings.Count(b.String(), `"ruleId"`); n != maxSARIFResults {
		t.Errorf("%d results", n)
	}
}
