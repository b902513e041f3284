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
		"percent":  func(x float64) string { return fmt.Sprintf("%.2f%%", x*100/timelineSize) },
	}).Parse(reportHTML))
})

// maxShownNames is how many names of a tool's the page lists.
const maxShownNames = 100

// A reportPage is what the template shows.
type reportPage struct {
	CSS            template.CSS
	JS             template.JS
	SecurityPolicy string

	Version, Backend, Server string
	Start                    time.Time
	Length                   time.Duration
	Calls, Failed, Events    int
	Kept                     int
	BySeverity               []pageCount // the worst first, without those of which there are none
	Clear                    bool        // no finding
	Totals                   []pageTotal
	Findings                 []pageFinding
	MoreFindings             int
	Policy                   policy
	Timeline                 timeline
	Tools                    []pageTool
	Losses                   []pageLoss
	Lost, Unread             int
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
	Name  string
	Count int
	Most  bool // Count is not all of them
}

type pageFinding struct {
	Severity, Category, Detail, OWASP string
	Failed                            bool
	Count, Line                       int
	Where, Link                       string
	Others                            []pageCount // of the same kind, in calls of the same tool
	MoreOthers                        int
}

type pageTool struct {
	Name                           string
	Link                           string
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
	// Places are start-up, what is outside of calls, further calls, and then the calls.
	Places    []dataPlace   `json:"places"`
	Tools     []string      `json:"tools"`
	Classes   []string      `json:"classes"`
	Facts     []any         `json:"facts"` // three values each: class, words, fields (a JSON object)
	Who       []any         `json:"who"`   // two values each: process, fields (likewise)
	Processes []dataProcess `json:"processes"`
}

// firstCall is the place of call 1 in Places.
const firstCall = 3

type dataPlace struct {
	Tool      int    `json:"tool"`
	At        int64  `json:"at"`
	Latency   int64  `json:"latency"` // µs, -1 if it has not ended
	Failed    bool   `json:"failed,omitempty"`
	Method    string `json:"method,omitempty"`
	RequestID string `json:"id,omitempty"`
	Problem   string `json:"problem,omitempty"`
	Severity  int    `json:"severity"`
	N         int    `json:"n"`

	// Events have five values each: line and time, as differences from those of the
	// event before, who, fact, and its severity plus one, plus 8 if it is late.
	Events []int64 `json:"events"`
}

type dataProcess struct {
	Pid      int    `json:"pid"`
	Parent   int32  `json:"parent"`
	Name     string `json:"name"`
	Place    int    `json:"place"`
	At       int64  `json:"at"`
	N        int    `json:"n"`
	Severity int    `json:"severity"`
}

// writePage writes the page.
func (r *report) writePage(w io.Writer) error {
	page := reportPage{
		CSS: template.CSS(reportCSS), JS: template.JS(reportJS),
		SecurityPolicy: fmt.Sprintf("default-src 'none'; script-src '%s'; style-src '%s'; base-uri 'none'; form-action 'none'",
			sourceHash(reportJS), sourceHash(reportCSS)),
		Version: version, Backend: r.backend, Server: r.server,
		Start: time.Unix(0, r.start).UTC(), Length: time.Duration(r.end - r.start),
		Kept: r.kept, Calls: len(r.calls) + r.moreCalls,
		Clear:        r.bySeverity == [4]int{},
		BySeverity:   severityCounts(r.bySeverity),
		MoreFindings: r.moreFindings, Policy: r.policy,
		Lost: r.lost, Unread: r.unread,
		MoreCalls: r.moreCalls, MoreProcesses: r.moreProcesses,
		Processes: len(r.processes) - 1,
		Timeline:  r.timeline(),
	}
	rows := slices.Clone(r.toolOrder)
	for _, p := range []*reportPlace{r.further, r.startup, r.ambient} {
		if p.tool.calls+p.tool.events > 0 {
			rows = append(rows, p.tool)
		}
	}
	kinds := []struct {
		name   string
		of     func(*reportTool) *nameCounts
		totals nameCounts
	}{
		{name: "programs run", of: func(t *reportTool) *nameCounts { return &t.programs }},
		{name: "hosts and sockets contacted", of: func(t *reportTool) *nameCounts { return &t.hosts }},
		{name: "files written or changed", of: func(t *reportTool) *nameCounts { return &t.written }},
		{name: "files read", of: func(t *reportTool) *nameCounts { return &t.read }},
	}
	for _, t := range rows {
		page.Failed += t.failed
		page.Events += t.events
		page.Tools = append(page.Tools, t.page(r.linkOf(t)))
		for i := range kinds {
			kinds[i].totals.addAll(kinds[i].of(t))
		}
	}
	for _, k := range kinds {
		page.Totals = append(page.Totals, pageTotal{k.name, len(k.totals.counts), k.totals.more > 0})
	}
	page.Findings = r.pageFindings()
	for _, loss := range r.lossOrder {
		where, link := r.where(loss.place)
		page.Losses = append(page.Losses, pageLoss{where, link, loss.reason, r.losses[loss]})
	}
	page.Data = r.data(rows)
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
	counts, first := map[kind]int{}, map[kind]int{}
	for _, f := range r.findingOrder {
		counts[kindOf(f)]++
	}
	for _, f := range r.findingOrder {
		k, tally := kindOf(f), r.findings[f]
		if i, ok := first[k]; ok && counts[k] >= many {
			row := &rows[i]
			row.Count += tally.count
			if len(row.Others) == maxShownNames {
				row.MoreOthers++
				continue
			}
			detail := f.detail
			if f.failed {
				detail += " (tried, and failed)"
			}
			row.Others = append(row.Others, pageCount{detail, tally.count})
			continue
		}
		first[k] = len(rows)
		where, link := r.where(tally.place)
		rows = append(rows, pageFinding{
			Severity: f.severity, Category: f.category, Detail: f.detail, OWASP: owaspIDs[f.category],
			Failed: f.failed, Count: tally.count, Line: tally.line, Where: where, Link: link,
		})
	}
	slices.SortStableFunc(rows, func(a, b pageFinding) int {
		return slices.Index(severities, b.Severity) - slices.Index(severities, a.Severity)
	})
	return rows
}

// sourceHash names what a content security policy allows (CSP level 3, section 2.3.1).
func sourceHash(source string) string {
	sum := sha256.Sum256([]byte(source))
	return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
}

// where names a place, and what of the page it is.
func (r *report) where(p *reportPlace) (name, link string) {
	switch {
	case p == r.startup:
		return "start-up", "#startup"
	case p == r.ambient:
		return "outside of calls", "#ambient"
	case p == r.further || p.unlisted:
		return "a further call", "#further"
	}
	return fmt.Sprintf("call %d (%s)", p.number, p.tool.name), fmt.Sprintf("#call-%d", p.number)
}

// linkOf is where the first of a tool's calls is.
func (r *report) linkOf(t *reportTool) string {
	for _, p := range r.places() {
		if p.tool == t {
			_, link := r.where(p)
			return link
		}
	}
	return "#further"
}

func (t *reportTool) page(link string) pageTool {
	p := pageTool{
		Name: t.name, Link: link, Calls: t.calls, Failed: t.failed, Events: t.events,
		Programs: t.programs.page(), Read: t.read.page(), Written: t.written.page(), Hosts: t.hosts.page(),
		Findings: severityCounts(t.findings),
	}
	if len(t.latencies) > 0 {
		slices.Sort(t.latencies)
		p.Timed, p.Median, p.Longest = true, t.latencies[len(t.latencies)/2], t.latencies[len(t.latencies)-1]
	}
	return p
}

func (c *nameCounts) page() pageNames {
	p := pageNames{Count: len(c.counts), Most: c.more > 0}
	for _, name := range c.byCount() {
		if len(p.Names) == maxShownNames {
			p.More = len(c.counts) - maxShownNames
			break
		}
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

func (r *report) data(tools []*reportTool) reportData {
	d := reportData{Classes: eventClasses, Facts: []any{}, Who: []any{}}
	toolNumbers := map[*reportTool]int{}
	for i, t := range tools {
		toolNumbers[t] = i
		d.Tools = append(d.Tools, t.name)
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
		tool, ok := toolNumbers[p.tool]
		if !ok {
			tool = -1
		}
		place := dataPlace{
			Tool: tool, At: since(p.began), Latency: -1, Failed: p.failed,
			Method: p.method, RequestID: p.requestID, Problem: p.problem,
			Severity: p.severity, N: p.n, Events: []int64{},
		}
		if p.ended != 0 {
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
		d.Who = append(d.Who, w.process, "{"+w.fields+"}")
	}
	for _, p := range r.processes {
		place, ok := numbers[p.place]
		if !ok {
			place = firstCall - 1 // one beyond the bound
		}
		d.Processes = append(d.Processes, dataProcess{p.pid, p.parent, p.name, place, since(p.at), p.n, p.severity})
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

// showDuration writes a duration as people read it, with three digits.
func showDuration(d time.Duration) string {
	switch {
	case d < time.Millisecond:
		return fmt.Sprintf("%d µs", d.Microseconds())
	case d < time.Second:
		return fmt.Sprintf("%.3g ms", d.Seconds()*1000)
	case d < time.Minute:
		return fmt.Sprintf("%.3g s", d.Seconds())
	}
	d = d.Round(time.Second)
	return fmt.Sprintf("%d min %d s", d/time.Minute, d%time.Minute/time.Second)
}

// plural writes how many there are of something.
func plural(n int, one string, many ...string) string {
	if n == 1 {
		return "1 " + one
	}
	return groupDigits(n) + " " + cmp.Or(strings.Join(many, ""), one+"s")
}
