package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestPolicyPython holds our findings against those of the Python package, on random
// events and policies, many of which nobody would write who means well. PROBE_PYTHON is
// a Python that has the package.
func TestPolicyPython(t *testing.T) {
	python := os.Getenv("PROBE_PYTHON")
	if python == "" {
		t.Skip("PROBE_PYTHON is not set: want a Python that has mcpfz-probe==0.1.3")
	}
	const cases = 30000
	script, err := filepath.Abs("testdata/policy_python.py")
	if err != nil {
		t.Fatal(err)
	}
	dir := policyTree(t)
	t.Chdir(dir)
	random := rand.New(rand.NewPCG(1, 2))
	var in bytes.Buffer
	var asked []policyCase
	for range cases {
		c := randomPolicyCase(random, dir)
		asked = append(asked, c)
		json.NewEncoder(&in).Encode(c)
	}
	cmd := exec.Command(python, script)
	cmd.Stdin, cmd.Stderr = &in, os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	answers := bufio.NewScanner(bytes.NewReader(out))
	answers.Buffer(nil, 1<<20)
	found, raised, different := map[string]int{}, 0, 0
	for i, c := range asked {
		if !answers.Scan() {
			t.Fatalf("Python has answered %d of %d cases: %v", i, cases, answers.Err())
		}
		var want struct {
			Findings [][3]json.RawMessage
			Raises   string
		}
		if err := json.Unmarshal(answers.Bytes(), &want); err != nil {
			t.Fatal(err)
		}
		theirs := want.Raises != ""
		var wanted []string
		for _, f := range want.Findings {
			wanted = append(wanted, pythonStr(f[0])+" "+pythonStr(f[1])+" "+pythonStr(f[2]))
		}
		got, err := c.evaluate()
		if theirs != (err != nil) || !theirs && !slices.Equal(got, wanted) {
			if different++; different <= 20 {
				t.Errorf("policy %+v\nevent %s\nPython: %q %s\nhere:   %q %v", c.Policy, c.Event, wanted, want.Raises, got, err)
			}
		}
		if theirs {
			raised++
		}
		for _, f := range got {
			category, _, _ := strings.Cut(f, " ")
			found[category]++
		}
	}
	t.Logf("%d cases, %d that raise an exception in Python, %d that differ; findings: %v", cases, raised, different, found)
	if len(found) != 14 {
		t.Errorf("%d categories came up, want all 14", len(found))
	}
}

type policyCase struct {
	Policy policy `json:"policy"`
	Event  string `json:"event"`
}

func (c policyCase) evaluate() (found []string, err error) {
	e, err := newEvaluator(c.Policy)
	if err != nil {
		return nil, err
	}
	var ev policyEvent
	if err := ev.parse([]byte(c.Event)); err != nil {
		return nil, err
	}
	findings, err := e.evaluate(&ev)
	for _, f := range findings {
		if !f.beyond {
			found = append(found, f.category+" "+f.severity+" "+f.detail)
		}
	}
	return found, err
}

// policyTree makes folders and links to write to and through.
func policyTree(t *testing.T) string {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, sub := range []string{"work/a/b", "tmp", "out/.ssh"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for name, to := range map[string]string{
		"work/leave": "../out", "out/enter": dir + "/work/a", "loop": "loop", "work/loop1": "loop2/x",
		"work/loop2": "loop1", "work/here": ".", "tmp/chain": "../work/here/here/leave", "work/dangling": "nothing/../a", "up": "..",
		"work/slashes": "//" + strings.TrimPrefix(dir, "/") + "//out",
	} {
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func pick[T any](r *rand.Rand, from ...T) T { return from[r.IntN(len(from))] }

func randomPolicyCase(r *rand.Rand, dir string) policyCase {
	list := func(make func() string) []string {
		l := []string{}
		for range r.IntN(4) {
			l = append(l, make())
		}
		return l
	}
	p := policy{
		Workspace:    pick(r, dir+"/work", "work", dir, "/", "", "loop", "work/leave"),
		Tmpdir:       pick(r, dir+"/tmp", "tmp", "tmp/chain", "/nonexistent"),
		ExecAllow:    list(func() string { return randomText(r) }),
		NetAllow:     list(func() string { return randomPattern(r) }),
		FSWriteAllow: list(func() string { return randomPath(r, dir) }),
	}
	if r.IntN(2) == 0 {
		p.SensitivePatterns = sensitivePatterns
	} else {
		p.SensitivePatterns = list(func() string { return randomPattern(r) })
	}
	types := []string{"exec", "process_spawn", "connect", "bind", "listen", "file_open", "file_open", "file_open", "file_delete", "file_mkdir",
		"file_rename", "file_symlink", "file_link", "chmod", "file_chmod", "ptrace", "drop", "status"}
	fields := []string{fmt.Sprintf(`"type":%q`, pick(r, types...))}
	if r.IntN(50) == 0 {
		fields[0] = `"type":` + randomValue(r, dir, 2)
	}
	for _, key := range []string{"argv", "path", "comm", "dst", "fd", "backlog", "flags", "mode", "request", "target_pid", "bucket", "call_id", "pid"} {
		if r.IntN(4) == 0 {
			continue
		}
		value := randomValue(r, dir, 2)
		if r.IntN(5) > 0 {
			switch key {
			case "argv":
				value = "[" + randomString(r, dir) + "]"
			case "path":
				value = quoteLoosely(r, randomPath(r, dir))
			case "dst":
				value = quoteLoosely(r, randomDestination(r))
			case "flags":
				value = quoteLoosely(r, pick(r, "O_RDONLY", "O_WRONLY|O_CREAT", "O_RDWR", "O_APPEND", "O_TRUNC", "xO_CREATx", ""))
			}
		}
		fields = append(fields, quoteLoosely(r, key)+":"+value)
	}
	if r.IntN(10) == 0 { // the same key again
		fields = append(fields, fmt.Sprintf("%q:%s", pick(r, "path", "argv", "dst"), randomValue(r, dir, 1)))
	}
	r.Shuffle(len(fields), func(i, j int) { fields[i], fields[j] = fields[j], fields[i] })
	return policyCase{Policy: p, Event: "{" + strings.Join(fields, pick(r, ",", " , ", ",\t")) + "}"}
}

func randomText(r *rand.Rand) string {
	var b strings.Builder
	for range r.IntN(8) {
		b.WriteString(pick(r, "a", "b", "/", ".", "*", "[", "]", "!", "-", "?", "é", "²", "\u2028", "😀", "'", `"`, `\`, "\n", "\x7f", "\u00a0", "z", "^", "&&", "/bin/sh", "curl", "\u0378", "\U000e0001"))
	}
	return b.String()
}

func randomPattern(r *rand.Rand) string {
	var b strings.Builder
	for range 1 + r.IntN(5) {
		switch r.IntN(5) {
		case 0:
			b.WriteString(randomText(r))
		case 1:
			b.WriteString("*")
		case 2:
			b.WriteString(pick(r, "127.", "example.com", "?", ".ssh/", "::1", "10.0.0.1:80", "a", "/"))
		default:
			b.WriteString("[")
			for range r.IntN(7) {
				b.WriteString(pick(r, "a", "b", "c", "z", "-", "-", "!", "^", "]", "[", `\`, "0", "9", "é", "&", "~", "|", "."))
			}
			b.WriteString("]")
		}
	}
	return b.String()
}

func randomDestination(r *rand.Rand) string {
	host := pick(r, "127.0.0.1", "::1", "[::1]", "[::1", "example.com", "a.b", "", "10.0.0.1", randomText(r))
	return host + pick(r, "", ":80", ":²", ":٣", ":", ":x", "]:1", ":80:90")
}

func randomPath(r *rand.Rand, dir string) string {
	var b strings.Builder
	b.WriteString(pick(r, dir+"/", dir+"/work", dir, "", "/", "//", "///", "work/", "./", "~/", dir+"//work/"))
	for range r.IntN(5) {
		b.WriteString(pick(r, "a", "b", "..", ".", "/", "/", "/", "leave", "enter", "loop", "loop1", "here", "chain", "dangling", "slashes", "up", ".ssh", "x", "id", "work", "out", "é", ".env", randomText(r)))
		b.WriteString(pick(r, "/", "/", ""))
	}
	return b.String()
}

// quoteLoosely makes a JSON string, in which any character may be escaped.
func quoteLoosely(r *rand.Rand, s string) string {
	b := []byte{'"'}
	for _, c := range s {
		switch {
		case r.IntN(60) == 0:
			b = fmt.Appendf(b, `\u%04x`, pick(r, 0xd800, 0xdc00, 0xdfff, 0xd83d, 0, 0x85, 0x2028))
		case c < 0x10000 && (r.IntN(10) == 0 || c < ' ' || c == '"' || c == '\\'):
			b = fmt.Appendf(b, pick(r, `\u%04x`, `\u%04X`), c)
		default:
			b = append(b, string(c)...)
		}
	}
	return string(append(b, '"'))
}

func randomString(r *rand.Rand, dir string) string {
	return quoteLoosely(r, pick(r, randomText(r), randomPath(r, dir), randomDestination(r)))
}

// randomValue is any JSON value, which may not be what an event has.
func randomValue(r *rand.Rand, dir string, depth int) string {
	switch n := r.IntN(10); {
	case n == 0:
		return pick(r, "null", "true", "false", "[]", "{}", `""`, "[ ]", "{\n}")
	case n <= 3:
		return pick(r, "0", "-0", "1", "-17", "4294967296", "123456789012345678901234567890", "0.0", "-0.0", "1.5", "1e5", "1E+16", "1e15", "1e16", "1e17",
			"123456789.123456789", "1e-4", "1e-5", "0.0001", "0.00001", "1e400", "-1e400", "1e-400", "5e-324", "1.7976931348623157e308", "100.0", "0e0", "2e1")
	case n <= 5 && depth > 0:
		var items []string
		for range r.IntN(3) {
			items = append(items, randomValue(r, dir, depth-1))
		}
		return "[" + strings.Join(items, ", ") + "]"
	case n == 6 && depth > 0:
		var items []string
		for range r.IntN(3) {
			items = append(items, randomString(r, dir)+": "+randomValue(r, dir, depth-1))
		}
		return "{" + strings.Join(items, ",") + "}"
	}
	return randomString(r, dir)
}
