package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The command report: a saved session as a page for people. What is gathered of a session
// for it is here; report_page.go makes the page.

// A page is of use only if a browser opens it at once. Beyond these bounds things are
// counted, and the page says so.
const (
	maxReportEvents    = 200_000  // that the page has each by itself
	maxReportBytes     = 24 << 20 // of what is told of them
	maxReportCalls     = 50_000
	maxReportProcesses = 50_000
	maxReportFindings  = 5_000    // different ones
	maxReportNames     = 1_000    // files, hosts and programs of a tool; also tools
	maxReportNameBytes = 16 << 20 // of all tools' names
	maxReportText      = 300      // bytes of what stands in a line with other things
)

// reportCommand is the command report.
func reportCommand(args []string, stdin io.Reader, stdout, _ io.Writer) error {
	flags := flag.NewFlagSet("mcpfz-probe report", flag.ContinueOnError)
	policyFlags := newPolicyFlags(flags)
	file := flags.String("o", "-", "")
	events, source, err := openEvents(flags, args, reportUsage, stdin, stdout)
	if err != nil {
		return err
	}
	defer events.Close()
	p, err := policyFlags.policy()
	if err != nil {
		return err
	}
	if sameFile(source, *file) {
		return usageError{fmt.Errorf("-o %s: that is the file of events", *file)}
	}
	r := newReport(p)
	ev, err := newEvaluation(p, r)
	if err != nil {
		return usageError{err}
	}
	ev.report = r
	readErr := ev.read(events)
	r.unread = ev.skipped
	out := stdout
	if *file != "-" {
		f, err := os.Create(*file)
		if err != nil {
			return errors.Join(usageError{err}, readErr)
		}
		defer f.Close()
		out = f
	}
	if err := r.writePage(out); err != nil {
		return errors.Join(fmt.Errorf("write the report: %w", err), readErr)
	}
	if readErr != nil {
		return fmt.Errorf("read events: %w", readErr)
	}
	return policyFlags.verdict(ev)
}

// sameFile tells whether two names are of one file that exists.
func sameFile(a, b string) bool {
	x, err1 := os.Stat(a)
	y, err2 := os.Stat(b)
	return err1 == nil && err2 == nil && os.SameFile(x, y)
}

const reportUsage = `mcpfz-probe report makes a page of a session: one HTML file, for a browser.

Usage:
  mcpfz-probe report [flags] [EVENTS] -o FILE.html

EVENTS is a file of event lines, as run --events and the sidecar write them; - or
nothing is standard input. The page needs nothing but itself, and no network.

  -o FILE.html           where the page goes (default: standard output)
  --policy FILE, --workspace DIR, --tmpdir DIR, --allow-exec A,B,
  --allow-host A,B, --fail-on SEVERITY
                         as for evaluate: what the page has as findings

Exit codes: 0 if all was read; 1 if --fail-on is met, or a line could not be read,
though the page has all others; 2 for bad arguments.
`

// A report is what a page tells of a session. It takes the lines in their order, and then
// the findings in each.
type report struct {
	policy     policy
	start, end int64 // wall clock of the first and the last line, in ns
	backend    string
	server     string // its command line, if it was seen to start
	root       string // its process group, as JSON
	unread     int    // lines

	startup, ambient, further *reportPlace // further is what is of calls beyond the bound
	calls                     []*reportPlace
	open                      map[string]*reportPlace // by call id, as JSON; the newest of that id
	moreCalls                 int

	tools     map[string]*reportTool // by name, as JSON
	toolOrder []*reportTool
	nameBytes int // of what tools have to do with

	processes     []reportProcess
	byPid         map[int]int32
	moreProcesses int

	who   *interner[reportWho]
	facts *interner[reportFact]
	kept  int // events
	limit int // of events for each place; beyond it they are counted

	findings     map[reportFinding]*reportTally
	findingOrder []reportFinding
	moreFindings int
	bySeverity   [4]int
	last         *reportPlace // of the last event
	lastTool     *reportTool  // likewise
	line         reportLine   // that is read
	key          []byte       // of who is looked for

	losses    map[reportLoss]int
	lossOrder []reportLoss
	lost      int
}

// A reportPlace is what events are listed under: a call, or one of the others.
type reportPlace struct {
	number       int    // of the call, from 1; 0 for what is none
	unlisted     bool   // it is a call beyond the bound, whose events are further's
	method       string // text, as all that follows
	requestID    string
	problem      string
	tool         *reportTool
	began, ended int64 // as start; ended is 0 if that was not seen
	latency      time.Duration
	failed       bool
	n            int           // of its events
	severity     int           // the worst of its findings, -1 for none
	events       []reportEvent // the first of them
	lastKept     bool          // the event of the last line is the last of them
}

type reportEvent struct {
	line     int
	at       int64
	who      int32
	fact     int32
	late     bool // after the call that it is listed under
	severity int8 // of the worst finding in it, -1 for none
}

// A reportTool is a row of the table of tools.
type reportTool struct {
	name                           string
	calls, failed, events          int
	latencies                      []time.Duration
	programs, read, written, hosts nameCounts
	findings                       [4]int
}

// nameCounts counts how often there was which name.
type nameCounts struct {
	counts map[string]int
	more   int // times that there was one beyond the bound
}

// add counts a name, whose length is added to bytes if it is new.
func (c *nameCounts) add(name string, bytes *int) {
	if c.counts == nil {
		c.counts = map[string]int{}
	}
	if _, ok := c.counts[name]; !ok {
		if len(c.counts) >= maxReportNames || *bytes+len(name) > maxReportNameBytes {
			c.more++
			return
		}
		*bytes += len(name)
	}
	c.counts[name]++
}

func (c *nameCounts) addAll(others *nameCounts) {
	bytes := 0
	for name := range others.counts {
		c.add(name, &bytes)
	}
	c.more += others.more
}

// byCount returns the names, the most frequent first.
func (c *nameCounts) byCount() []string {
	return slices.SortedFunc(maps.Keys(c.counts), func(a, b string) int {
		return cmp.Or(c.counts[b]-c.counts[a], strings.Compare(a, b))
	})
}

// A reportProcess is a process, from its start on; another one of the same pid is another.
type reportProcess struct {
	pid      int
	parent   int32 // -1 if it is not known
	name     string
	place    *reportPlace // in which it was started, nil if that was not seen
	at       int64
	n        int
	severity int
}

// A reportWho is what an event line says of its process.
type reportWho struct {
	process int32
	fields  string // JSON members
}

// A reportFact is what an event line says but for when, in which call, and who.
type reportFact struct {
	fields       string // JSON members, the type first
	class, words string
	name         string // of the file, host or program
	child        int
	program      string // of an exec: the command line
}

type reportFinding struct {
	category, severity, detail string
	beyond, failed             bool
	tool                       *reportTool
}

type reportTally struct {
	count, line int // line is that of the first
	place       *reportPlace
}

type reportLoss struct {
	place  *reportPlace
	reason string
}

// An interner gives equal values a number.
type interner[T any] struct {
	numbers map[string]int32
	values  []T
	bytes   int // of the keys, and of what they stand for
}

func newInterner[T any]() *interner[T] { return &interner[T]{numbers: map[string]int32{}} }

func (in *interner[T]) find(key []byte) (n int32, ok bool) {
	n, ok = in.numbers[string(key)]
	return n, ok
}

func (in *interner[T]) add(key string, value T, size int) int32 {
	n := int32(len(in.values))
	in.numbers[key] = n
	in.values = append(in.values, value)
	in.bytes += len(key) + size
	return n
}

func newReport(p policy) *report {
	r := &report{
		policy:   p,
		open:     map[string]*reportPlace{},
		tools:    map[string]*reportTool{},
		byPid:    map[int]int32{},
		who:      newInterner[reportWho](),
		facts:    newInterner[reportFact](),
		limit:    maxReportEvents,
		findings: map[reportFinding]*reportTally{},
		losses:   map[reportLoss]int{},
	}
	r.startup = &reportPlace{severity: -1, tool: &reportTool{name: "(start-up)"}}
	r.ambient = &reportPlace{severity: -1, tool: &reportTool{name: "(outside of calls)"}}
	r.further = &reportPlace{severity: -1, tool: &reportTool{name: "(further calls)"}}
	// The first one stands for those beyond the bound, and for no process.
	r.addProcess(reportProcess{parent: -1, severity: -1})
	return r
}

// A reportLine is what a line has beyond what a policy looks at.
type reportLine struct {
	ts                                                int64
	pid, ppid                                         int
	comm                                              []byte // values, in JSON
	requestID, method, problem, backend, pgid, reason []byte
	who, fact                                         []byte // JSON members
}

func (l *reportLine) parse(line []byte, ev *policyEvent) {
	*l = reportLine{who: l.who[:0], fact: l.fact[:0]}
	jsonMembers(line, func(key, value []byte) { // it was read before
		to := &l.fact
		switch string(key) {
		case "bucket", "call_id":
			return
		case "origin_call_id":
			if ev.callID == nil {
				return // it is listed there
			}
		case "ts_ns":
			if ts, err := strconv.ParseInt(string(value), 10, 64); err == nil && ts > 0 {
				l.ts = ts
			}
			return
		case "pid":
			l.pid, _ = strconv.Atoi(string(value))
			to = &l.who
		case "ppid":
			l.ppid, _ = strconv.Atoi(string(value))
			to = &l.who
		case "comm":
			l.comm, to = value, &l.who
		case "tid", "uid", "exe", "comm_raw", "exe_raw", "mnt_ns":
			to = &l.who
		case "request_id":
			l.requestID = value
		case "method":
			l.method = value
		case "error":
			l.problem = value
		case "backend":
			l.backend = value
		case "pgid":
			l.pgid = value
		case "reason":
			l.reason = value
		}
		if len(*to) > 0 {
			*to = append(*to, ',')
		}
		*to = appendLoose(*to, string(key))
		*to = append(append(*to, ':'), value...)
	})
}

// see takes in a line, which has been parsed as ev.
func (r *report) see(n int, line []byte, ev *policyEvent) {
	l := &r.line
	l.parse(line, ev)
	if l.ts != 0 {
		if r.start == 0 {
			r.start = l.ts
		}
		r.start, r.end = min(r.start, l.ts), max(r.end, l.ts)
	}
	switch fieldText(ev.typ, "") {
	case "status":
		r.status(l, ev)
	case "drop":
		r.drop(l, ev)
	default:
		r.event(n, l, ev)
	}
}

// place returns what an event or a loss belongs to.
func (r *report) place(ev *policyEvent) *reportPlace {
	id := ev.callID
	if id == nil {
		id = ev.originCallID
	}
	switch {
	case id != nil && r.open[string(id)] != nil:
		return r.open[string(id)]
	case id != nil && r.moreCalls > 0:
		return r.further
	case id != nil:
		return r.begin(string(id), nil) // the session was there before these lines
	case string(ev.bucket) == bucketStartup:
		return r.startup
	}
	return r.ambient
}

// shownText is what a value says, for a line of the page.
func shownText(value []byte) string { return shorten(printable(fieldText(value, "")), maxReportText) }

func (r *report) tool(name []byte) *reportTool {
	text := fieldText(name, "(unknown)")
	t := r.tools[text]
	if t == nil {
		if len(r.tools) >= maxReportNames {
			return r.further.tool
		}
		t = &reportTool{name: shorten(printable(text), maxReportText)}
		r.tools[text] = t
		r.toolOrder = append(r.toolOrder, t)
	}
	return t
}

func (r *report) begin(id string, tool []byte) *reportPlace {
	p := &reportPlace{tool: r.tool(tool), severity: -1}
	p.tool.calls++
	r.open[id] = p
	if len(r.calls) < maxReportCalls {
		r.calls = append(r.calls, p)
		p.number = len(r.calls)
	} else {
		p.unlisted = true
		r.moreCalls++
	}
	return p
}

func (r *report) status(l *reportLine, ev *policyEvent) {
	switch fieldText(ev.message, "") {
	case "ready":
		r.backend = fieldText(l.backend, "")
	case "scope":
		r.root = string(l.pgid)
	case "begin":
		if ev.callID != nil {
			p := r.begin(string(ev.callID), ev.tool)
			p.began, p.method, p.requestID = l.ts, shownText(l.method), shownText(l.requestID)
		}
	case "end":
		p := r.open[string(ev.callID)]
		if p == nil || p.ended != 0 {
			return // a client may end what never began
		}
		p.ended, p.problem = l.ts, shownText(l.problem)
		p.latency = time.Duration(p.ended - p.began)
		if us, err := strconv.ParseInt(string(ev.latency), 10, 64); err == nil {
			p.latency = time.Duration(us) * time.Microsecond
		}
		p.tool.latencies = append(p.tool.latencies, p.latency)
		if p.failed = string(ev.failed) == "true"; p.failed {
			p.tool.failed++
		}
		if p.unlisted {
			delete(r.open, string(ev.callID))
		}
	}
}

func (r *report) drop(l *reportLine, ev *policyEvent) {
	count, _ := strconv.Atoi(string(ev.count))
	r.lost += count
	loss := reportLoss{r.place(ev), shownText(l.reason)}
	if _, ok := r.losses[loss]; !ok {
		if len(r.losses) >= maxReportNames {
			return
		}
		r.lossOrder = append(r.lossOrder, loss)
	}
	r.losses[loss] += count
}

func (r *report) event(n int, l *reportLine, ev *policyEvent) {
	place := r.place(ev)
	r.lastTool = place.tool
	if place.unlisted {
		place = r.further
	}
	r.last, place.lastKept = place, false
	process := r.process(l.pid, l.ppid, l.comm)
	fact, known := r.facts.find(l.fact)
	var f reportFact
	if known {
		f = r.facts.values[fact]
	} else {
		f = newFact(l.fact)
	}
	r.processes[process].n++
	if f.program != "" {
		if l.pid != 0 && strconv.Itoa(l.pid) == r.root && r.server == "" {
			r.server = f.program
		}
		r.processes[process].name = f.program
	}
	if f.child > 0 {
		r.fork(process, f.child, place, l.ts)
	}
	place.n++
	r.lastTool.count(&f, &r.nameBytes)
	if len(place.events) >= r.limit {
		return
	}
	if !known {
		fact = r.facts.add(f.fields, f, len(f.words))
	}
	late := ev.callID == nil && ev.originCallID != nil
	place.events = append(place.events, reportEvent{n, l.ts, r.addWho(process, l.who), fact, late, -1})
	place.lastKept = true
	if r.kept++; r.kept > maxReportEvents || r.facts.bytes+r.who.bytes > maxReportBytes {
		r.shrink()
	}
}

// count takes what an event is about into the row.
func (t *reportTool) count(f *reportFact, bytes *int) {
	t.events++
	if f.name == "" {
		return
	}
	switch f.class {
	case classProgram:
		t.programs.add(f.name, bytes)
	case classRead, classRoutine:
		t.read.add(f.name, bytes)
	case classWrite:
		t.written.add(f.name, bytes)
	case classNetwork:
		t.hosts.add(f.name, bytes)
	}
}

func newFact(fields []byte) reportFact {
	var e eventLine
	json.Unmarshal([]byte("{"+string(fields)+"}"), &e) // what does not fit a field is not shown there
	f := reportFact{fields: string(fields), class: e.class(), words: e.words(), child: e.ChildPid}
	switch f.class {
	case classProgram:
		if e.Type == "exec" {
			f.name = shellWord(cmp.Or(strings.Join(e.Argv[:min(1, len(e.Argv))], ""), e.Path))
			words := make([]string, len(e.Argv))
			for i, arg := range e.Argv {
				words[i] = shellWord(arg)
			}
			f.program = shorten(cmp.Or(strings.Join(words, " "), f.name), maxReportText)
		}
	case classNetwork:
		switch e.Type {
		case "connect", "socket_connect":
			f.name = printable(e.Dst + inBrackets(e.Host))
		case "unix_connect":
			f.name = shellWord(e.Path)
		}
	default:
		if e.Path != "" {
			f.name = shellWord(e.Path)
		}
	}
	return f
}

func (r *report) addWho(process int32, fields []byte) int32 {
	r.key = append(strconv.AppendInt(r.key[:0], int64(process), 10), fields...)
	if n, ok := r.who.find(r.key); ok {
		return n
	}
	return r.who.add(string(r.key), reportWho{process, string(fields)}, 0)
}

// process returns the newest process of a pid.
func (r *report) process(pid, ppid int, comm []byte) int32 {
	if p, ok := r.byPid[pid]; ok {
		if r.processes[p].name == "" {
			r.processes[p].name = shownText(comm)
		}
		return p
	}
	parent, ok := r.byPid[ppid]
	if !ok || parent == 0 {
		parent = -1
	}
	return r.addProcess(reportProcess{pid: pid, parent: parent, name: shownText(comm), severity: -1})
}

func (r *report) addProcess(p reportProcess) int32 {
	n := int32(len(r.processes))
	if n >= maxReportProcesses {
		r.moreProcesses++
		n = 0
	} else {
		r.processes = append(r.processes, p)
	}
	r.byPid[p.pid] = n
	return n
}

// fork takes in that a process has started another one.
func (r *report) fork(parent int32, pid int, place *reportPlace, at int64) {
	if p, ok := r.byPid[pid]; ok && r.processes[p].parent == parent && r.processes[p].place == nil {
		r.processes[p].place, r.processes[p].at = place, at // it has been faster
		return
	}
	r.addProcess(reportProcess{pid: pid, parent: parent, place: place, at: at, severity: -1})
}

// write takes in a finding in the last line.
func (r *report) write(n int, _ []byte, ev *policyEvent, f finding, _ []byte) error {
	severity := slices.Index(severities, f.severity)
	p := r.last
	r.bySeverity[severity]++
	p.severity = max(p.severity, severity)
	r.lastTool.findings[severity]++
	if p.lastKept {
		e := &p.events[len(p.events)-1]
		e.severity = max(e.severity, int8(severity))
		process := &r.processes[r.who.values[e.who].process]
		process.severity = max(process.severity, severity)
	}
	key := reportFinding{f.category, f.severity, printable(f.detail), f.beyond, ev.errno != nil, r.lastTool}
	tally := r.findings[key]
	if tally == nil {
		if len(r.findings) >= maxReportFindings {
			r.moreFindings++
			return nil
		}
		tally = &reportTally{line: n, place: p}
		r.findings[key] = tally
		r.findingOrder = append(r.findingOrder, key)
	}
	tally.count++
	return nil
}

func (r *report) finish() error { return nil }

// places are all that have events.
func (r *report) places() []*reportPlace {
	return append([]*reportPlace{r.startup, r.ambient, r.further}, r.calls...)
}

// shrink keeps fewer events: of each place the first ones, and as many of all.
func (r *report) shrink() {
	for r.kept > maxReportEvents/2 || r.facts.bytes+r.who.bytes > maxReportBytes/2 {
		r.limit /= 2
		who, facts := r.who, r.facts
		r.who, r.facts, r.kept = newInterner[reportWho](), newInterner[reportFact](), 0
		for _, p := range r.places() {
			if len(p.events) > r.limit {
				p.events = slices.Clone(p.events[:r.limit])
				p.lastKept = false
			}
			for i := range p.events {
				e := &p.events[i]
				w, f := who.values[e.who], facts.values[e.fact]
				fact, ok := r.facts.find([]byte(f.fields))
				if !ok {
					fact = r.facts.add(f.fields, f, len(f.words))
				}
				e.who, e.fact = r.addWho(w.process, []byte(w.fields)), fact
			}
			r.kept += len(p.events)
		}
	}
}
