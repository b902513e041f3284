package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// reportOf makes a page of event lines, which are split at newlines, and returns what its
// script gets, too.
func reportOf(t *testing.T, lines string, args ...string) (page string, data reportData) {
	t.Helper()
	var out, errs bytes.Buffer
	code := run(append([]string{"report", "--workspace", "/w", "--tmpdir", "/nonexistent-tmp"}, args...), strings.NewReader(lines), &out, &errs)
	if code != 0 {
		t.Fatalf("exit code %d: %s", code, &errs)
	}
	page = out.String()
	return page, dataOf(t, page)
}

// dataOf decodes the data of a page, as a browser would.
func dataOf(t *testing.T, page string) (data reportData) {
	t.Helper()
	_, rest, ok := strings.Cut(page, `<script type="application/json" id="data">`)
	text, _, end := strings.Cut(rest, "</script>")
	if !ok || !end {
		t.Fatal("the page has no data")
	}
	if err := json.Unmarshal([]byte(text), &data); err != nil {
		t.Fatal(err)
	}
	return data
}

// words returns what the events of a place say, with marks for those that are late.
func (d *reportData) words(place int) (words []string) {
	events := d.Places[place].Events
	line := int64(0)
	for i := 0; i < len(events); i += 5 {
		line += events[i]
		text := fmt.Sprintf("%d: %s", line, d.Facts[3*events[i+3]+1])
		if events[i+4]&8 != 0 {
			text += ", late"
		}
		if severity := events[i+4]&7 - 1; severity >= 0 {
			text += ", " + severities[severity]
		}
		words = append(words, text)
	}
	return words
}

const reportSession = `{"type":"status","message":"ready","backend":"ebpf","bucket":"startup","ts_ns":1000000000000}
{"type":"status","message":"scope","bucket":"startup","pgid":100,"ts_ns":1000000000000}
{"type":"exec","bucket":"startup","ts_ns":1000001000000,"pid":100,"ppid":1,"comm":"node","argv":["/usr/bin/node","server.js"]}
{"type":"status","message":"begin","bucket":"call","call_id":"1","tool":"read","method":"tools/call","request_id":"a","ts_ns":1000100000000}
{"type":"file_open","bucket":"call","call_id":"1","ts_ns":1000101000000,"pid":100,"ppid":1,"comm":"node","path":"/home/u/.ssh/id","flags":"O_RDONLY"}
{"type":"process_spawn","bucket":"call","call_id":"1","ts_ns":1000102000000,"pid":100,"ppid":1,"comm":"node","child_pid":101}
{"type":"exec","bucket":"call","call_id":"1","ts_ns":1000103000000,"pid":101,"ppid":100,"comm":"sh","argv":["/bin/sh","-c","id"]}
{"type":"drop","bucket":"call","call_id":"1","count":3,"reason":"ring_buffer_full","ts_ns":1000104000000}
{"type":"status","message":"end","bucket":"call","call_id":"1","latency_us":5000,"failed":true,"ts_ns":1000105000000}
{"type":"connect","bucket":"ambient","origin_call_id":"1","ts_ns":1000200000000,"pid":101,"ppid":100,"comm":"sh","proto":"tcp","dst":"10.0.0.1:443","host":"evil.example"}
{"type":"file_open","bucket":"ambient","ts_ns":1000300000000,"pid":100,"ppid":1,"comm":"node","path":"/w/log","flags":"O_WRONLY|O_CREAT"}
{"type":"status","message":"begin","bucket":"call","call_id":"2","tool":"read","ts_ns":1000400000000}
{"type":"process_spawn","bucket":"call","call_id":"2","ts_ns":1000401000000,"pid":100,"ppid":1,"comm":"node","child_pid":101}
`

func TestReport(t *testing.T) {
	page, data := reportOf(t, reportSession)
	for _, want := range []string{
		"<code>/usr/bin/node server.js</code>",
		"<li><b>2</b> calls, 1 failed</li>",
		"<li><b>7</b> events</li>",
		`<li class="sev-high"><b>3</b> events lost</li>`,
		"sensitive file opened: /home/u/.ssh/id",
		`<a href="#call-1">call 1 (read)</a>, line 5`,
		"10.0.0.1:443 (evil.example)",
		"<td>ring_buffer_full</td>",
		`aria-label="call 1 (read), 5.00 ms, 4 events, findings: critical, failed"`,
		`aria-label="call 2 (read), not answered, 1 event, findings: medium"`,
		"5.00 ms</td>",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page does not have %s", want)
		}
	}
	for place, want := range []string{
		"3: ran /usr/bin/node server.js, high",
		"11: opened /w/log for writing",
		"",
		"",
		"5: opened /home/u/.ssh/id for reading, critical|6: started process 101, medium|7: ran /bin/sh -c id, high|10: TCP connect to 10.0.0.1:443 (evil.example), late, high",
		"13: started process 101, medium",
	} {
		if got := strings.Join(data.words(place), "|"); got != want {
			t.Errorf("place %d has\n%s, want\n%s", place, got, want)
		}
	}
	// The second process of that pid is another one.
	var tree []string
	for _, p := range data.Processes {
		tree = append(tree, fmt.Sprintf("%d<%d in %d: %s (%d)", p.Pid, p.Parent, p.Place, p.Name, p.N))
	}
	want := "0<-1 in -1:  (0)|100<-1 in -1: /usr/bin/node server.js (5)|101<1 in 4: /bin/sh -c id (2)|101<1 in 5:  (0)"
	if got := strings.Join(tree, "|"); got != want {
		t.Errorf("processes\n%s, want\n%s", got, want)
	}
}

// Whatever a server puts into a line, the page's script is the only one in it.
func TestReportHostile(t *testing.T) {
	const evil = `</script><script>alert(1)</script><img src=x onerror=alert(2)>"'&<!--]]>` + "\u202e\u2028`${alert(3)}"
	var lines []byte
	add := func(typ string, fields map[string]any) {
		fields["type"] = typ
		for _, key := range []string{"bucket", "comm", "exe", "path", "flags", "dst", "host", "proto", "name", "errno", "method", "request_id", "error", "reason", "tool", "old_path", "target", "mode", "pid", evil} {
			if _, ok := fields[key]; !ok {
				fields[key] = evil
			}
		}
		line, err := json.Marshal(fields)
		if err != nil {
			t.Fatal(err)
		}
		lines = append(append(lines, line...), '\n')
	}
	add("status", map[string]any{"message": "ready", "backend": evil})
	add("status", map[string]any{"message": "scope", "pgid": 5})
	add("exec", map[string]any{"pid": 5, "argv": []string{evil, evil}, "bucket": "startup"})
	add("status", map[string]any{"message": "begin", "call_id": evil, "ts_ns": 5})
	for _, typ := range []string{"exec", "exec_failed", "connect", "file_open", "file_rename", "file_symlink", "chmod", "ptrace", "dns", "unix_connect", "mount", evil} {
		add(typ, map[string]any{"call_id": evil, "argv": []string{evil}})
	}
	add("drop", map[string]any{"call_id": evil, "count": 1})
	add("status", map[string]any{"message": "end", "call_id": evil, "failed": true, "ts_ns": -1})
	page, data := reportOf(t, string(lines))
	if n := strings.Count(page, "<script"); n != 2 {
		t.Errorf("%d scripts", n)
	}
	seen, _, _ := strings.Cut(page, `<script type="application/json"`)
	for _, bad := range []string{"<img", "<!--", "\u202e", "\u2028"} {
		if strings.Contains(seen, bad) {
			t.Errorf("the page has %q", bad)
		}
	}
	if len(data.Places) != firstCall+1 || data.Places[firstCall].N != 12 {
		t.Errorf("places %+v", data.Places)
	}
	var fields map[string]any
	if err := json.Unmarshal([]byte(data.Facts[2].(string)), &fields); err != nil || fields["path"] != evil {
		t.Errorf("the script gets %q, %v", data.Facts[2], err)
	}
}

// What is too much for a page is counted, and of each call the first events are kept.
func TestReportBounds(t *testing.T) {
	if testing.Short() {
		t.Skip("not short")
	}
	r := newReport(policy{})
	e, err := newEvaluation(policy{}, r)
	if err != nil {
		t.Fatal(err)
	}
	e.report = r
	n, total := 0, 0
	line := func(format string, args ...any) {
		n++
		if err := e.line(n, fmt.Appendf(nil, format, args...)); err != nil {
			t.Fatal(err)
		}
	}
	const calls, each = 5, 50_000
	for call := range calls {
		line(`{"type":"status","message":"begin","call_id":"%d","tool":"t%d","ts_ns":%d}`, call, call, n+1)
		for i := range each {
			line(`{"type":"x","call_id":"%d","pid":%d,"path":"/%d","ts_ns":%d}`, call, i, n, n+1)
			total++
		}
		line(`{"type":"status","message":"end","call_id":"%d","ts_ns":%d}`, call, n+1)
	}
	if r.kept > maxReportEvents || r.kept < maxReportEvents/4 {
		t.Errorf("%d of %d events are kept", r.kept, total)
	}
	if len(r.processes) > maxReportProcesses {
		t.Errorf("%d processes", len(r.processes))
	}
	kept := 0
	for i, p := range r.calls {
		if p.n != each || len(p.events) == 0 || p.events[0].line != i*(each+2)+2 {
			t.Errorf("call %d has %d events, of which %d are kept", i, p.n, len(p.events))
		}
		kept += len(p.events)
		for j, e := range p.events[:2] {
			if want := fmt.Sprintf(`"type":"x","path":"/%d"`, e.line-1); r.facts.values[e.fact].fields != want {
				t.Errorf("call %d, event %d is %s, want %s", i, j, r.facts.values[e.fact].fields, want)
			}
		}
	}
	if kept != r.kept || len(r.facts.values) > r.kept {
		t.Errorf("%d events and %d facts, %d are said to be kept", kept, len(r.facts.values), r.kept)
	}
	var page bytes.Buffer
	if err := r.writePage(&page); err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf("All %s events are counted. %s of them are listed", groupDigits(total), groupDigits(r.kept)); !strings.Contains(page.String(), want) {
		t.Errorf("the page does not say %q", want)
	}
}

// Calls beyond the bound, and tools, and findings, are counted as well.
func TestReportManyCalls(t *testing.T) {
	if testing.Short() {
		t.Skip("not short")
	}
	var lines strings.Builder
	const calls = maxReportCalls + 5_000
	for i := range calls {
		fmt.Fprintf(&lines, `{"type":"status","message":"begin","call_id":"%d","tool":"t%d","ts_ns":%d}`+"\n", i, i%2000, i+1)
		fmt.Fprintf(&lines, `{"type":"bind","call_id":"%d","pid":%d,"dst":"127.0.0.1:%d","ts_ns":%d}`+"\n", i, i, i, i+1)
		fmt.Fprintf(&lines, `{"type":"status","message":"end","call_id":"%d","failed":true,"latency_us":1,"ts_ns":%d}`+"\n", i, i+1)
	}
	page, data := reportOf(t, lines.String())
	for _, want := range []string{
		fmt.Sprintf("<b>%s</b> calls, %s failed", groupDigits(calls), groupDigits(calls)),
		fmt.Sprintf("<b>%s</b> events", groupDigits(calls)),
		fmt.Sprintf("<b>%s</b> high findings", groupDigits(calls)),
		"5,000 further calls are counted and not listed",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page does not have %s", want)
		}
	}
	total := 0
	for _, p := range data.Places {
		total += p.N
	}
	if total != calls || data.Places[firstCall-1].N != 5_000 || len(data.Places) != firstCall+maxReportCalls {
		t.Errorf("%d events in %d places, of which %d are of further calls", total, len(data.Places), data.Places[firstCall-1].N)
	}
}

// A flood does not hide what is worse than it.
func TestReportFlood(t *testing.T) {
	if testing.Short() {
		t.Skip("not short")
	}
	var lines strings.Builder
	n := 0
	add := func(format string, args ...any) {
		n++
		fmt.Fprintf(&lines, format+"\n", args...)
	}
	add(`{"type":"status","message":"begin","call_id":"1","tool":"t","ts_ns":1}`)
	for i := range maxReportFindings + 100 {
		add(`{"type":"dns","call_id":"1","name":"n%d.example","ts_ns":1}`, i)
	}
	for i := range maxReportEvents + 100 {
		add(`{"type":"x","call_id":"1","pid":1,"path":"/%d","ts_ns":1}`, i)
	}
	add(`{"type":"file_open","call_id":"1","pid":1,"path":"/home/u/.ssh/id_rsa","flags":"O_RDONLY","ts_ns":1}`)
	secret := n
	for i := range maxReportEvents {
		add(`{"type":"y","call_id":"1","pid":1,"path":"/%d","ts_ns":1}`, i)
	}
	page, data := reportOf(t, lines.String())
	for _, want := range []string{"sensitive file opened: /home/u/.ssh/id_rsa", "100 further findings are counted and not listed"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page does not say %q", want)
		}
	}
	if want := fmt.Sprintf("%d: opened /home/u/.ssh/id_rsa for reading, critical", secret); !slices.Contains(data.words(firstCall), want) {
		t.Errorf("%q is not listed among %d events", want, len(data.Places[firstCall].Events)/5)
	}
}

// Long names do not make the page long.
func TestReportLongNames(t *testing.T) {
	var lines strings.Builder
	long := strings.Repeat("<", 4000)
	for i := range 500 {
		fmt.Fprintf(&lines, `{"type":"status","message":"begin","call_id":"%d","tool":"%d%s","request_id":"%s","ts_ns":1}`+"\n", i, i, long, long)
		fmt.Fprintf(&lines, `{"type":"file_delete","call_id":"%d","pid":%d,"path":"/%d%s","ts_ns":1}`+"\n", i, i, i, long)
		fmt.Fprintf(&lines, `{"type":"exec","call_id":"%d","pid":%d,"argv":["/%d%s","%s"],"ts_ns":1}`+"\n", i, i, i, long, long)
	}
	page, _ := reportOf(t, lines.String())
	if len(page) > 4*maxReportBytes {
		t.Errorf("%d bytes for %d", len(page), lines.Len())
	}
}

// What is of one of several calls is said to be, of each of them.
func TestReportCandidates(t *testing.T) {
	page, data := reportOf(t, `{"type":"status","message":"begin","call_id":"a","tool":"x","ts_ns":1}
{"type":"status","message":"begin","call_id":"b","tool":"y","ts_ns":2}
{"type":"file_open","bucket":"ambient","candidate_call_ids":["a","b"],"ts_ns":3,"pid":1,"path":"/home/u/.ssh/id","flags":"O_RDONLY"}
{"type":"drop","bucket":"call","call_id":"b","count":7,"reason":"ring_buffer_full"}
{"type":"status","message":"end","call_id":"a","ts_ns":4}
{"type":"status","message":"begin","call_id":"a","tool":"again","ts_ns":5}
{"type":"connect","bucket":"ambient","origin_call_id":"a","ts_ns":6,"pid":1,"dst":"10.0.0.1:1","errno":"EACCES"}
`)
	if !strings.Contains(page, `<a href="#several">in one of several calls</a>, line 3`) || !strings.Contains(page, "<b>0</b> hosts and sockets contacted") {
		t.Error("the page does not say so")
	}
	var got []string
	for i, p := range data.Places {
		if p.N+p.Maybe+p.Lost > 0 {
			got = append(got, fmt.Sprintf("%d %s: %d, maybe %d, lost %d", i, p.CallID, p.N, p.Maybe, p.Lost))
		}
	}
	if want := "2 : 1, maybe 0, lost 0|4 a: 1, maybe 1, lost 0|5 b: 0, maybe 1, lost 7"; strings.Join(got, "|") != want {
		t.Errorf("places %q, want %q", got, want)
	}
}

// Where nothing was watched, nothing is fine.
func TestReportNothing(t *testing.T) {
	for name, tt := range map[string]struct{ lines, want, not string }{
		"no lines":        {"", "Nothing: there is neither a call nor an event", "<b>0</b> findings"},
		"nothing watched": {`{"type":"status","message":"ready","backend":"ebpf"}` + "\n" + `{"type":"status","message":"scope","error":"no such process group"}` + "\n" + `{"type":"status","message":"begin","call_id":"1"}`, "The probe said: scope: no such process group", `class="good"`},
		"two backends":    {`{"type":"status","message":"ready","backend":"fake"}` + "\n" + `{"type":"status","message":"ready","backend":"ebpf"}`, "it comes from fake and ebpf", "Seen by the Linux kernel"},
		"no times":        {`{"type":"exec","pid":1}`, "1</b> event<", "1970"},
	} {
		page, _ := reportOf(t, tt.lines)
		if !strings.Contains(page, tt.want) || strings.Contains(page, tt.not) {
			t.Errorf("%s: the page does not say %q, or %q", name, tt.want, tt.not)
		}
	}
}

func TestReportCommand(t *testing.T) {
	dir := t.TempDir()
	events, page := filepath.Join(dir, "events"), filepath.Join(dir, "page.html")
	if err := os.WriteFile(events, []byte(reportSession+"what?\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		args []string
		code int
		want string
	}{
		"flags after the file": {[]string{events, "-o", page}, exitFailure, "line 14"},
		"flags before it":      {[]string{"-o", page, events}, exitFailure, "line 14"},
		"help":                 {[]string{"--help"}, 0, "mcpfz-probe report"},
		"no such file":         {[]string{"/nonexistent"}, exitUsage, "/nonexistent"},
		"two files":            {[]string{events, events}, exitUsage, "want one file"},
		"a folder":             {[]string{dir}, exitFailure, "is a directory"},
		"onto its own input":   {[]string{events, "-o", events}, exitUsage, "that is the file of events"},
		"into no folder":       {[]string{events, "-o", "/nonexistent/page"}, exitUsage, "/nonexistent/page"},
	} {
		t.Run(name, func(t *testing.T) {
			os.Remove(page)
			var out bytes.Buffer
			if code := run(append([]string{"report"}, tt.args...), strings.NewReader(""), &out, &out); code != tt.code || !strings.Contains(out.String(), tt.want) {
				t.Errorf("exit code %d, want %d with %q: %.500s", code, tt.code, tt.want, &out)
			}
			if tt.code == exitFailure && name != "a folder" {
				text, err := os.ReadFile(page)
				if err != nil || !strings.Contains(string(text), "1 line could not be read and is not in here") {
					t.Errorf("the page: %v", err)
				}
			}
		})
	}
	if text, err := os.ReadFile(events); err != nil || !strings.HasPrefix(string(text), reportSession) {
		t.Errorf("the events have become %.100q, %v", text, err)
	}
}

// Long times are cut short, and everything keeps its order.
func TestTimeScale(t *testing.T) {
	second := int64(time.Second)
	calls := [][2]int64{{1000 * second, 2000 * second}, {1500 * second, 1501 * second}}
	short := 0.0
	for i := range int64(50) {
		calls = append(calls, [2]int64{(100 + i) * second, (100+i)*second + second/10})
	}
	s := newTimeScale(0, 3000*second, calls)
	last := -1.0
	for ts := int64(0); ts <= 3000*second; ts += second / 20 {
		x := s.at(ts)
		if x < last-1e-9 || x > timelineSize {
			t.Fatalf("%v is at %v, after %v", time.Duration(ts), x, last)
		}
		last = x
	}
	for _, c := range calls[2:] {
		short += s.at(c[1]) - s.at(c[0])
	}
	if short < timelineSize/3 {
		t.Errorf("the short calls have %v thousandths", short)
	}
	for _, tt := range []struct {
		start, end int64
		calls      [][2]int64
	}{{0, 0, nil}, {5, 5, nil}, {7, 9, nil}, {0, 10, [][2]int64{{0, 10}}}, {3, 9, [][2]int64{{4, 4}, {1, 20}, {2, 5}}}} {
		s := newTimeScale(tt.start, tt.end, tt.calls)
		for ts := tt.start; ts <= tt.end; ts++ {
			if x := s.at(ts); !(x >= 0 && x <= timelineSize) {
				t.Errorf("%+v: %d is at %v", tt, ts, x)
			}
		}
	}
}

// Calls too narrow to be told apart share a bar, and none is missing.
func TestReportBars(t *testing.T) {
	var lines strings.Builder
	for i := range 5000 {
		fmt.Fprintf(&lines, `{"type":"status","message":"begin","call_id":"%d","tool":"t","ts_ns":%d}`+"\n", i, 1000+i*100)
		fmt.Fprintf(&lines, `{"type":"status","message":"end","call_id":"%d","ts_ns":%d}`+"\n", i, 1050+i*100)
	}
	page, _ := reportOf(t, lines.String())
	total := 0
	for _, m := range regexp.MustCompile(`aria-label="(?:(\d[\d,]*) calls from )?call`).FindAllStringSubmatch(page, -1) {
		n := 1
		fmt.Sscan(strings.ReplaceAll(m[1], ",", ""), &n)
		total += n
	}
	if bars := strings.Count(page, `class="bar`); total != 5000 || bars > timelineSize {
		t.Errorf("%d bars for %d calls", bars, total)
	}
}

func TestShowDuration(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0 µs", 999 * time.Microsecond: "999 µs", 1234 * time.Microsecond: "1.23 ms",
		999 * time.Millisecond: "999 ms", 12345 * time.Millisecond: "12.3 s", 90 * time.Second: "1 min 30 s", 2 * time.Hour: "2 h 0 min", 999700 * time.Microsecond: "1.00 s", 9996 * time.Microsecond: "10.0 ms",
	} {
		if got := showDuration(d); got != want {
			t.Errorf("%d ns is %q, want %q", d, got, want)
		}
	}
}
