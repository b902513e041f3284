package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// What is gathered of a session for its page.

// A report is what a page tells of a session. It takes the lines in their order, and then
// the findings in each.
type report struct {
	policy     policy
	start, end int64 // wall clock of the first and the last line, in ns; 0 for none
	backends   []string
	server     string   // its command line, if it was seen to start
	root       string   // its process group, as JSON
	warnings   []string // of the probe
	unread     int      // lines that are no events
	unjudged   int      // events that could not be held against the policy

	startup, ambient *reportPlace
	several          *reportPlace // what is of one of several calls
	further          *reportPlace // what is of calls beyond the bound
	calls            []*reportPlace
	open             map[string]*reportPlace // by call id, as JSON; the newest of that id
	moreCalls        int

	tools     map[string]*reportTool // by name
	toolOrder []*reportTool
	moreTools *reportTool // those beyond the bound, together
	nameBytes int         // of what tools have to do with

	processes     []reportProcess
	byPid         map[int]int32
	moreProcesses int

	who    *interner[reportWho]
	groups map[string]int32 // of who, by all but the thread
	facts  *interner[reportFact]
	kept   int // events
	limit  int // of events for each place; beyond it they are counted

	findings     map[reportFinding]*reportTally
	findingOrder []reportFinding
	moreFindings int
	bySeverity   [4]int
	ofSeverity   [4]int // different ones

	last keptEvent // of the last line
	line reportLine
	key  []byte // of who is looked for

	losses     map[reportLoss]int
	lossOrder  []reportLoss
	lost       int
	moreLosses int
}

// A keptEvent is an event that has been taken in, so that findings in it can be.
type keptEvent struct {
	place   *reportPlace
	tool    *reportTool
	process int32
	event   reportEvent
	fact    reportFact
	kept    bool // it is the last of its place's
	done    bool // it has been, or need not be
}

// A reportPlace is what events are listed under: a call, or one of the others.
type reportPlace struct {
	number       int    // of the call, from 1; 0 for what is none
	unlisted     bool   // it is a call beyond the bound, whose events are further's
	callID       string // text, as all that follows
	method       string
	requestID    string
	problem      string
	tool         *reportTool
	previous     *reportPlace // the call of the same id before
	began, ended int64        // as start
	over         bool         // it has ended
	latency      time.Duration
	timed        bool // latency is known
	failed       bool
	n            int // of its events
	maybe        int // of several's that may be its
	lost         int
	severity     int           // the worst of its findings, -1 for none
	events       []reportEvent // the first of them, and of those with findings
	extra        int           // how many of events are beyond the limit, for their findings
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
	own                            bool         // it is no tool, and this is our name for it
	first                          *reportPlace // its first call
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
	comm     string
	programs []string     // that it ran, the first ones
	more     int          // programs after those
	place    *reportPlace // in which it was started, nil if that was not seen
	n        int
	severity int
}

// maxReportPrograms is how many programs of a process are named.
const maxReportPrograms = 3

func (p *reportProcess) name() string {
	name := cmp.Or(strings.Join(p.programs, " → "), p.comm)
	if p.more > 0 {
		name += fmt.Sprintf(" → and %d more", p.more)
	}
	return name
}

// A reportWho is what an event line says of its process.
type reportWho struct {
	process int32
	group   int32  // equal for threads of a process of which the same is said
	fields  string // JSON members
}

// A reportFact is what an event line says but for when, in which call, and who.
type reportFact struct {
	fields       string // JSON members, the type first
	class, words string
	name         string // of the file, host or program; empty if that was only tried
	child        int
	program      string // of an exec: the command line
}

type reportFinding struct {
	category, severity, detail string
	failed                     bool
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
	in.bytes += size
	return n
}

// pageSize is about how long texts are when the page has them as a string of a script.
func pageSize(texts ...string) (n int) {
	for _, s := range texts {
		n += len(s) + strings.Count(s, `"`) + strings.Count(s, `\`) + 5*(strings.Count(s, "<")+strings.Count(s, ">")+strings.Count(s, "&"))
	}
	return n
}

func newReport(p policy) *report {
	r := &report{
		policy:   p,
		open:     map[string]*reportPlace{},
		tools:    map[string]*reportTool{},
		byPid:    map[int]int32{},
		who:      newInterner[reportWho](),
		groups:   map[string]int32{},
		facts:    newInterner[reportFact](),
		limit:    maxReportEvents,
		findings: map[reportFinding]*reportTally{},
		losses:   map[reportLoss]int{},
	}
	r.moreTools = &reportTool{name: "further tools", own: true}
	for _, other := range []struct {
		place **reportPlace
		name  string
	}{{&r.startup, "start-up"}, {&r.ambient, "outside of calls"}, {&r.several, "in one of several calls"}, {&r.further, "further calls"}} {
		p := &reportPlace{severity: -1, tool: &reportTool{name: other.name, own: true}}
		p.tool.first = p
		*other.place = p
	}
	// The first one stands for those beyond the bound, and for no process.
	r.addProcess(reportProcess{parent: -1, severity: -1})
	return r
}

// A reportLine is what a line has beyond what a policy looks at.
type reportLine struct {
	ts                                          int64
	pid, ppid                                   int
	comm                                        []byte // values, in JSON
	requestID, method, problem, backend, reason []byte
	candidates                                  []byte
	who, fact                                   []byte // JSON members
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
		case "reason":
			l.reason = value
		case "candidate_call_ids":
			l.candidates = value
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
func (r *report) place(l *reportLine, ev *policyEvent) *reportPlace {
	id := ev.callID
	if id == nil {
		id = ev.originCallID
	}
	p := r.open[string(id)]
	switch {
	case id == nil && l.candidates != nil:
		jsonElements(l.candidates, func(id []byte) {
			if p := r.open[string(id)]; p != nil {
				p.maybe++
			}
		})
		return r.several
	case id == nil && string(ev.bucket) == bucketStartup:
		return r.startup
	case id == nil:
		return r.ambient
	case p != nil && ev.callID == nil && !p.over && p.previous != nil:
		return p.previous // what is open has left nothing behind yet
	case p != nil:
		return p
	case r.moreCalls > 0:
		return r.further
	}
	return r.begin(string(id), nil) // the session was there before these lines
}

// shownText is what a value says, for a line of the page.
func shownText(value []byte) string { return shorten(printable(fieldText(value, "")), maxReportText) }

func (r *report) tool(name []byte) *reportTool {
	text := shorten(printable(fieldText(name, "(unknown)")), maxReportText)
	t := r.tools[text]
	if t == nil {
		if len(r.tools) >= maxReportNames {
			return r.moreTools
		}
		t = &reportTool{name: text}
		r.tools[text] = t
		r.toolOrder = append(r.toolOrder, t)
	}
	return t
}

func (r *report) begin(id string, tool []byte) *reportPlace {
	p := &reportPlace{callID: shownText([]byte(id)), tool: r.tool(tool), previous: r.open[id], severity: -1}
	if p.previous != nil {
		p.previous.previous = nil // or all would be kept
	}
	p.tool.calls++
	r.open[id] = p
	if len(r.calls) < maxReportCalls {
		r.calls = append(r.calls, p)
		p.number = len(r.calls)
		if p.tool.first == nil {
			p.tool.first = p
		}
	} else {
		p.unlisted = true
		r.moreCalls++
	}
	return p
}

func (r *report) status(l *reportLine, ev *policyEvent) {
	message := fieldText(ev.message, "")
	if l.problem != nil && message != "end" {
		if len(r.warnings) < maxReportWarnings {
			r.warnings = append(r.warnings, shorten(printable(message), 40)+": "+shownText(l.problem))
		}
	}
	switch message {
	case "ready":
		if name := shownText(l.backend); !slices.Contains(r.backends, name) && len(r.backends) < maxReportWarnings {
			r.backends = append(r.backends, name)
		}
	case "scope":
		r.root = string(ev.pgid)
	case "begin":
		if ev.callID != nil {
			p := r.begin(string(ev.callID), ev.tool)
			p.began, p.method, p.requestID = l.ts, shownText(l.method), shownText(l.requestID)
		}
	case "end":
		p := r.open[string(ev.callID)]
		if p == nil || p.over {
			return // a client may end what never began
		}
		p.over, p.ended, p.problem = true, l.ts, shownText(l.problem)
		if us, err := strconv.ParseUint(string(ev.latency), 10, 50); err == nil {
			p.latency, p.timed = time.Duration(us)*time.Microsecond, true
		} else if p.began != 0 && p.ended >= p.began {
			p.latency, p.timed = time.Duration(p.ended-p.began), true
		}
		if p.timed {
			p.tool.latencies = append(p.tool.latencies, p.latency)
		}
		if p.failed = string(ev.failed) == "true"; p.failed {
			p.tool.failed++
		}
		if p.unlisted {
			delete(r.open, string(ev.callID))
		}
	}
}

func (r *report) drop(l *reportLine, ev *policyEvent) {
	count, err := strconv.ParseUint(string(ev.count), 10, 50)
	if err != nil {
		return
	}
	place := r.listed(r.place(l, ev))
	r.lost += int(count)
	place.lost += int(count)
	loss := reportLoss{place, shownText(l.reason)}
	if _, ok := r.losses[loss]; !ok {
		if len(r.losses) >= maxReportNames {
			r.moreLosses++
			return
		}
		r.lossOrder = append(r.lossOrder, loss)
	}
	r.losses[loss] += int(count)
}

// listed returns what the page has for a place.
func (r *report) listed(p *reportPlace) *reportPlace {
	if p.unlisted {
		return r.further
	}
	return p
}

func (r *report) event(n int, l *reportLine, ev *policyEvent) {
	place := r.place(l, ev)
	tool := place.tool
	place = r.listed(place)
	process := r.process(l.pid, l.ppid, l.comm)
	var f reportFact
	if fact, known := r.facts.find(l.fact); known {
		f = r.facts.values[fact]
	} else {
		f = newFact(l.fact)
	}
	r.processes[process].n++
	if f.program != "" {
		if l.pid != 0 && strconv.Itoa(l.pid) == r.root && r.server == "" {
			r.server = f.program
		}
		if p := &r.processes[process]; len(p.programs) < maxReportPrograms {
			p.programs = append(p.programs, f.program)
		} else {
			p.more++
		}
	}
	if f.child > 0 {
		r.fork(process, f.child, place)
	}
	place.n++
	tool.count(&f, &r.nameBytes)
	late := ev.callID == nil && ev.originCallID != nil
	r.last = keptEvent{place: place, tool: tool, process: process, fact: f, event: reportEvent{line: n, at: l.ts, late: late, severity: -1}}
	if len(place.events)-place.extra < r.limit {
		r.keep()
	}
}

// keep keeps the last event, so that the page has it by itself.
func (r *report) keep() {
	e, l := &r.last, &r.line
	fact, known := r.facts.find(l.fact)
	if !known {
		fact = r.addFact(e.fact)
	}
	e.event.fact, e.event.who, e.kept = fact, r.addWho(e.process, l.who), true
	e.place.events = append(e.place.events, e.event)
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
	e := parseEventLine(fields)
	f := reportFact{fields: string(fields), class: e.class(), words: e.words(), child: e.ChildPid}
	name := ""
	switch {
	case e.Type == "exec":
		words := make([]string, len(e.Argv))
		for i, arg := range e.Argv {
			words[i] = shellWord(arg)
		}
		name = shellWord(e.Path)
		if len(words) > 0 {
			name = words[0]
		}
		f.program = shorten(cmp.Or(strings.Join(words, " "), name), maxReportText)
	case e.Type == "connect" || e.Type == "socket_connect":
		name = printable(e.Dst + inBrackets(e.Host))
	case f.class != classProgram && e.Path != "":
		name = shellWord(e.Path)
	}
	if e.Errno == "" {
		f.name = shorten(name, maxReportText)
	}
	return f
}

func (r *report) addFact(f reportFact) int32 {
	return r.facts.add(f.fields, f, pageSize(f.fields, f.words))
}

func (r *report) addWho(process int32, fields []byte) int32 {
	r.key = append(strconv.AppendInt(r.key[:0], int64(process), 10), fields...)
	if n, ok := r.who.find(r.key); ok {
		return n
	}
	return r.who.add(string(r.key), reportWho{process, r.group(process, fields), string(fields)}, pageSize(string(fields)))
}

// group numbers what is said of a process but for its thread.
func (r *report) group(process int32, fields []byte) int32 {
	key := strconv.AppendInt(nil, int64(process), 10)
	jsonMembers(slices.Concat([]byte("{"), fields, []byte("}")), func(name, value []byte) {
		if string(name) != "tid" {
			key = append(append(append(key, ' '), name...), value...)
		}
	})
	n, ok := r.groups[string(key)]
	if !ok {
		n = int32(len(r.groups))
		r.groups[string(key)] = n
	}
	return n
}

// process returns the newest process of a pid.
func (r *report) process(pid, ppid int, comm []byte) int32 {
	if p, ok := r.byPid[pid]; ok {
		if r.processes[p].comm == "" {
			r.processes[p].comm = shownText(comm)
		}
		return p
	}
	parent, ok := r.byPid[ppid]
	if !ok || parent == 0 {
		parent = -1
	}
	return r.addProcess(reportProcess{pid: pid, parent: parent, comm: shownText(comm), severity: -1})
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
func (r *report) fork(parent int32, pid int, place *reportPlace) {
	if p, ok := r.byPid[pid]; ok && r.processes[p].parent == parent && r.processes[p].place == nil {
		r.processes[p].place = place // it has been faster
		return
	}
	r.addProcess(reportProcess{pid: pid, parent: parent, place: place, severity: -1})
}

// write takes in a finding in the last line.
func (r *report) write(n int, _ []byte, ev *policyEvent, f finding, _ []byte) error {
	severity := slices.Index(severities, f.severity)
	e := &r.last
	r.bySeverity[severity]++
	e.tool.findings[severity]++
	e.place.severity = max(e.place.severity, severity)
	process := &r.processes[e.process]
	process.severity = max(process.severity, severity)
	e.event.severity = max(e.event.severity, int8(severity))
	if e.kept {
		e.place.events[len(e.place.events)-1].severity = e.event.severity
	} else if !e.done && e.place.extra < r.limit {
		e.place.extra++
		r.keep()
	}
	key := reportFinding{f.category, f.severity, shorten(printable(f.detail), 2*maxReportText), ev.errno != nil, e.tool}
	tally := r.findings[key]
	if tally == nil {
		if r.ofSeverity[severity] >= maxReportFindings {
			r.moreFindings++
			return nil
		}
		r.ofSeverity[severity]++
		tally = &reportTally{line: n, place: e.place}
		r.findings[key] = tally
		r.findingOrder = append(r.findingOrder, key)
	}
	tally.count++
	return nil
}

func (r *report) finish() error { return nil }

// places are all that have events; see reportData.
func (r *report) places() []*reportPlace {
	return append([]*reportPlace{r.startup, r.ambient, r.several, r.further}, r.calls...)
}

// shrink keeps fewer events: of each place as many as of all others, and first those with
// findings, the worst of which come first.
func (r *report) shrink() {
	r.last.kept, r.last.done = false, true
	for r.kept > maxReportEvents/2 || r.facts.bytes+r.who.bytes > maxReportBytes/2 {
		r.limit /= 2
		who, facts := r.who, r.facts
		r.who, r.facts, r.kept = newInterner[reportWho](), newInterner[reportFact](), 0
		clear(r.groups)
		for _, p := range r.places() {
			if len(p.events) > r.limit {
				slices.SortStableFunc(p.events, func(a, b reportEvent) int { return int(b.severity) - int(a.severity) })
				p.events = slices.Clone(p.events[:r.limit])
				slices.SortFunc(p.events, func(a, b reportEvent) int { return a.line - b.line })
			}
			p.extra = 0
			for i := range p.events {
				e := &p.events[i]
				w, f := who.values[e.who], facts.values[e.fact]
				fact, ok := r.facts.find([]byte(f.fields))
				if !ok {
					fact = r.addFact(f)
				}
				e.who, e.fact = r.addWho(w.process, []byte(w.fields)), fact
			}
			r.kept += len(p.events)
		}
	}
}
