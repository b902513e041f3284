package main

import (
	"cmp"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"fmt"
	"html/template"
	"io"
	"slices"
	"strings"
	"sync"
	"time"
)

// The page of a report: one file, for someone who did not run the tool. What is to be
// seen first is HTML and needs no script; the events of each call, and the processes, are
// data that a script shows on demand. All strings in it are somebody else's: html/template
// escapes them, the script makes text of them and nothing else, and a content security
// policy keeps anything but that script from running and the page from reaching out.

//go:embed report.html
var reportHTML string

//go:embed report.css
var reportCSS string

//go:embed report.js
var reportJS string

// reportTemplate is parsed when it is used: a sidecar has no time for it when it starts.
var reportTemplate = sync.OnceValue(func() *template.Template {
	return template.Must(template.New("report").Funcs(template.FuncMap{
		"number":   groupDigits,
		"duration": showDuration,
		"plural":   plural,
		"noun":     noun,
		"percent":  func(x float64) string { return fmt.Sprintf("%.2f%%", x*100/timelineSize) },
	}).Parse(reportHTML))
})

// How many names and findings are listed: for each tool and kind, and of all. The table of
// findings is what the page is opened for, and has a bound of its own.
const (
	maxShownNames    = 100
	maxShownInAll    = 3_000
	maxShownFindings = 500
	maxToolWords     = 60 // bytes of a tool's name beside other words
)

// A reportPage is what the template shows.
type reportPage struct {
	CSS            template.CSS
	JS             template.JS
	SecurityPolicy string

	Version, Server          string
	Backends                 []string // that lines came from; "ebpf" alone has seen everything
	Observed                 bool     // by the kernel, and nothing else
	Empty                    bool     // there is neither a call nor an event
	Warnings                 []string
	Start                    time.Time // zero if no line has a time
	Length                   time.Duration
	Calls, Failed, Events    int
	Kept                     int
	BySeverity               []pageCount // the worst first, without those of which there are none
	Totals                   []pageTotal
	Findings                 []pageFinding
	MoreFindings             int
	Policy                   policy
	Timeline                 timeline
	Tools                    []pageTool
	Losses                   []pageLoss
	Lost, MoreLosses         int
	Unread, Unjudged         int
	MoreCalls, MoreProcesses int
	Processes                int
	Data                     reportData
}

type pageCount struct {
	Name  string
	Count int
}

// A pageTotal is how many different ones there are.
type pageTotal struct {
	One, Many string
	Count     int
	Most      bool // Count is not all of them
}

type pageFinding struct {
	Severity, Category, OWASP string
	pageDetail
	Total      int          // times, with those of Others
	Others     []pageDetail // of the same kind, in calls of the same tool
	MoreOthers int
}

type pageDetail struct {
	Detail      string
	Failed      bool
	Count, Line int
	Where, Link string
}

type pageTool struct {
	Name, Link                     string
	Own                            bool // it is no tool
	Calls, Failed, Events          int
	Timed                          bool
	Median, Longest                time.Duration
	Programs, Read, Written, Hosts pageNames
	Findings                       []pageCount
}

type pageNames struct {
	Count int
	Most  bool // Count is not all of them
	Names []pageCount
	More  int
}

type pageLoss struct {
	Where, Link, Reason string
	Count               int
}

// reportData is what the script shows. Times are µs since the start of the session, lines
// those of the file of events. Numbers stand for the values of the other lists, and -1 for
// none.
type reportData struct {
	// Places are start-up, what is outside of calls, what is of one of several, further
	// calls, and then the calls.
	Places    []dataPlace   `json:"places"`
	Tools     []string      `json:"tools"`
	Classes   []string      `json:"classes"`
	Facts     []any         `json:"facts"` // three values each: class, words, fields (a JSON object)
	Who       []any         `json:"who"`   // three values each: process, group, fields (likewise)
	Processes []dataProcess `json:"processes"`
}

// firstCall is the place of call 1 in Places.
const firstCall = 4

type dataPlace struct {
	Tool      int    `json:"tool"`
	CallID    string `json:"call,omitempty"`
	At        int64  `json:"at"`
	Over      bool   `json:"over,omitempty"`
	Latency   int64  `json:"latency"` // µs, -1 if it is not known
	Failed    bool   `json:"failed,omitempty"`
	Method    string `json:"method,omitempty"`
	RequestID string `json:"id,omitempty"`
	Problem   string `json:"problem,omitempty"`
	Severity  int    `json:"severity"`
	N         int    `json:"n"`
	Maybe     int    `json:"maybe,omitempty"` // events of one of several calls, this among them
	Lost      int    `json:"lost,omitempty"`

	// Events have five values each: line and time, as differences from those of the
	// event before, who, fact, and its severity plus one, plus 8 if it is late.
	Events []int64 `json:"events"`
}

type dataProcess struct {
	Pid      int    `json:"pid"`
	Parent   int32  `json:"parent"`
	Name     string `json:"name"`
	Place    int    `json:"place"`
	N        int    `json:"n"`
	Severity int    `json:"severity"`
}

// writePage writes the page.
func (r *report) writePage(w io.Writer) error {
	page := reportPage{
		CSS: template.CSS(reportCSS), JS: template.JS(reportJS),
		SecurityPolicy: fmt.Sprintf("default-src 'none'; script-src '%s'; style-src '%s'; base-uri 'none'; form-action 'none'",
			sourceHash(reportJS), sourceHash(reportCSS)),
		Version: version, Server: r.server,
		Backends: r.backends, Observed: len(r.backends) == 1 && r.backends[0] == "ebpf",
		Warnings: r.warnings,
		Length:   time.Duration(r.end - r.start),
		Kept:     r.kept, Calls: len(r.calls) + r.moreCalls,
		BySeverity: severityCounts(r.bySeverity),
		Findings:   r.pageFindings(), MoreFindings: r.moreFindings, Policy: r.policy,
		Lost: r.lost, MoreLosses: r.moreLosses, Unread: r.unread, Unjudged: r.unjudged,
		MoreCalls: r.moreCalls, MoreProcesses: r.moreProcesses,
		Processes: len(r.processes) - 1,
		Timeline:  r.timeline(),
	}
	if r.start != 0 {
		page.Start = time.Unix(0, r.start).UTC()
	}
	rows := slices.Clone(r.toolOrder)
	for _, t := range []*reportTool{r.moreTools, r.further.tool, r.startup.tool, r.ambient.tool, r.several.tool} {
		if t.calls+t.events > 0 || t.first != nil && t.first.lost > 0 {
			rows = append(rows, t)
		}
	}
	kinds := []struct {
		one, many string
		of        func(*reportTool) *nameCounts
		totals    nameCounts
	}{
		{one: "program run", many: "programs run", of: func(t *reportTool) *nameCounts { return &t.programs }},
		{one: "host or socket contacted", many: "hosts and sockets contacted", of: func(t *reportTool) *nameCounts { return &t.hosts }},
		{one: "file written or changed", many: "files written or changed", of: func(t *reportTool) *nameCounts { return &t.written }},
		{one: "file read", many: "files read", of: func(t *reportTool) *nameCounts { return &t.read }},
	}
	room := maxShownInAll
	for _, t := range rows {
		page.Failed += t.failed
		page.Events += t.events
		page.Tools = append(page.Tools, r.pageTool(t, &room))
		for i := range kinds {
			kinds[i].totals.addAll(kinds[i].of(t))
		}
	}
	for _, k := range kinds {
		page.Totals = append(page.Totals, pageTotal{k.one, k.many, len(k.totals.counts), k.totals.more > 0})
	}
	page.Empty = page.Calls+page.Events == 0
	for _, loss := range r.lossOrder {
		where, link := r.where(loss.place)
		page.Losses = append(page.Losses, pageLoss{where, link, loss.reason, r.losses[loss]})
	}
	page.Data = r.data()
	return reportTemplate().Execute(w, &page)
}

// pageFindings lists findings, the worst first. A tool with many of a kind has one row for
// them.
func (r *report) pageFindings() (rows []pageFinding) {
	const many = 4
	type kind struct {
		category, severity string
		tool               *reportTool
	}
	kindOf := func(f reportFinding) kind { return kind{f.category, f.severity, f.tool} }
	order := slices.Clone(r.findingOrder)
	slices.SortStableFunc(order, func(a, b reportFinding) int {
		return slices.Index(severities, b.severity) - slices.Index(severities, a.severity)
	})
	counts, first := map[kind]int{}, map[kind]int{}
	for _, f := range order {
		counts[kindOf(f)]++
	}
	room := maxShownInAll
	for _, f := range order {
		k, tally := kindOf(f), r.findings[f]
		where, link := r.where(tally.place)
		detail := pageDetail{f.detail, f.failed, tally.count, tally.line, where, link}
		i, ok := first[k]
		if !ok || counts[k] < many {
			first[k] = len(rows)
			rows = append(rows, pageFinding{
				Severity: f.severity, Category: f.category, OWASP: owaspIDs[f.category], pageDetail: detail, Total: tally.count,
			})
			continue
		}
		row := &rows[i]
		row.Total += tally.count
		if len(row.Others) == maxShownFindings || room == 0 {
			row.MoreOthers++
			continue
		}
		room--
		row.Others = append(row.Others, detail)
	}
	return rows
}

// sourceHash names what a content security policy allows (CSP level 3, section 2.3.1).
func sourceHash(source string) string {
	sum := sha256.Sum256([]byte(source))
	return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
}

// where names a place, and what of the page it is.
func (r *report) where(p *reportPlace) (name, link string) {
	for i, other := range r.places()[:firstCall] {
		if p == other {
			return p.tool.name, "#" + otherPlaces[i]
		}
	}
	if p.unlisted {
		return "a further call", "#further"
	}
	return fmt.Sprintf("call %d (%s)", p.number, shorten(p.tool.name, maxToolWords)), fmt.Sprintf("#call-%d", p.number)
}

// otherPlaces are what links call the places that are no calls.
var otherPlaces = []string{"startup", "ambient", "several", "further"}

func (r *report) pageTool(t *reportTool, room *int) pageTool {
	p := pageTool{
		Name: t.name, Own: t.own, Link: "#further", Calls: t.calls, Failed: t.failed, Events: t.events,
		Programs: t.programs.page(room), Read: t.read.page(room), Written: t.written.page(room), Hosts: t.hosts.page(room),
		Findings: severityCounts(t.findings),
	}
	if t.first != nil {
		_, p.Link = r.where(t.first)
	}
	if len(t.latencies) > 0 {
		slices.Sort(t.latencies)
		p.Timed, p.Median, p.Longest = true, t.latencies[len(t.latencies)/2], t.latencies[len(t.latencies)-1]
	}
	return p
}

// page lists names, as far as there is room.
func (c *nameCounts) page(room *int) pageNames {
	p := pageNames{Count: len(c.counts), Most: c.more > 0}
	for i, name := range c.byCount() {
		if i == maxShownNames || *room == 0 {
			p.More = len(c.counts) - i
			break
		}
		*room--
		p.Names = append(p.Names, pageCount{name, c.counts[name]})
	}
	return p
}

func severityCounts(counts [4]int) (list []pageCount) {
	for i, n := range slices.Backward(counts[:]) {
		if n > 0 {
			list = append(list, pageCount{severities[i], n})
		}
	}
	return list
}

func (r *report) data() reportData {
	d := reportData{Classes: eventClasses, Facts: []any{}, Who: []any{}, Tools: []string{}}
	toolNumbers := map[*reportTool]int{}
	number := func(t *reportTool) int {
		n, ok := toolNumbers[t]
		if !ok {
			n = len(d.Tools)
			toolNumbers[t] = n
			d.Tools = append(d.Tools, t.name)
		}
		return n
	}
	since := func(ts int64) int64 {
		if ts == 0 {
			return -1
		}
		return (ts - r.start) / 1000
	}
	numbers := map[*reportPlace]int{nil: -1}
	for i, p := range r.places() {
		numbers[p] = i
		place := dataPlace{
			Tool: number(p.tool), CallID: p.callID, At: since(p.began), Over: p.over, Latency: -1, Failed: p.failed,
			Method: p.method, RequestID: p.requestID, Problem: p.problem,
			Severity: p.severity, N: p.n, Maybe: p.maybe, Lost: p.lost, Events: []int64{},
		}
		if p.timed {
			place.Latency = p.latency.Microseconds()
		}
		var line, at int64
		for _, e := range p.events {
			flags := int64(e.severity) + 1
			if e.late {
				flags += 8
			}
			place.Events = append(place.Events, int64(e.line)-line, since(e.at)-at, int64(e.who), int64(e.fact), flags)
			line, at = int64(e.line), since(e.at)
		}
		d.Places = append(d.Places, place)
	}
	for _, f := range r.facts.values {
		d.Facts = append(d.Facts, slices.Index(eventClasses, f.class), f.words, "{"+f.fields+"}")
	}
	for _, w := range r.who.values {
		d.Who = append(d.Who, w.process, w.group, "{"+w.fields+"}")
	}
	for i := range r.processes {
		p := &r.processes[i]
		d.Processes = append(d.Processes, dataProcess{p.pid, p.parent, p.name(), numbers[p.place], p.n, p.severity})
	}
	return d
}

// groupDigits writes a number with commas.
func groupDigits(n int) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// showDuration writes a duration as people read it, with three digits; report.js has the
// same.
func showDuration(d time.Duration) string {
	if d < time.Millisecond {
		return fmt.Sprintf("%d µs", d.Microseconds())
	}
	for _, unit := range []struct {
		name string
		is   time.Duration
		end  float64
	}{{"ms", time.Millisecond, 999.5}, {"s", time.Second, 59.95}} {
		if v := float64(d) / float64(unit.is); v < unit.end {
			return threeDigits(v) + " " + unit.name
		}
	}
	if d = d.Round(time.Second); d < time.Hour {
		return fmt.Sprintf("%d min %d s", d/time.Minute, d%time.Minute/time.Second)
	}
	return fmt.Sprintf("%d h %d min", d/time.Hour, d%time.Hour/time.Minute)
}

func threeDigits(v float64) string {
	switch {
	case v < 9.995:
		return fmt.Sprintf("%.2f", v)
	case v < 99.95:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.0f", v)
}

// plural writes how many there are of something.
func plural(n int, one string, many ...string) string {
	return groupDigits(n) + " " + noun(n, one, many...)
}

// noun is the word for so many of something.
func noun(n int, one string, many ...string) string {
	if n == 1 {
		return one
	}
	return cmp.Or(strings.Join(many, ""), one+"s")
}
