package main

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"
)

// The report's picture: a lane for each tool, with its calls as bars and what happened in
// them as ticks below. Mostly nothing happens, for long: time without calls is cut so short
// that calls have half the width, and of theirs, what one alone would take most of.

const (
	maxLanes     = 30 // the tools after that share one
	timelineSize = 1000
	axisStep     = 90 // between the times on the axis, at least
)

// A timeline is what the template draws. Places and widths are thousandths of the width.
type timeline struct {
	Lanes []lane
	Times []axisTime
	Cuts  []axisCut
}

type lane struct {
	Name  string
	Bars  []bar
	Ticks []ticks
}

type bar struct {
	X, Width float64
	Link     string
	Title    string
	Severity string // of the worst finding
	Failed   bool

	calls, number, events int
	severity              int
}

// ticks are the events of a class, as the path of an SVG.
type ticks struct{ Class, Path string }

type axisTime struct {
	X     float64
	Text  string
	Minor bool // to be left out if the picture is narrow
}

type axisCut struct {
	X, Width, Middle float64
	Text             string
}

// A timeScale says where in the picture a time is.
type timeScale struct{ pieces []timePiece }

// In a timePiece time goes evenly from x to xEnd.
type timePiece struct {
	from, to int64
	x, xEnd  float64
	cut      bool // it is shown shorter than others
}

// newTimeScale makes the scale of a session in which calls were open from when to when.
func newTimeScale(start, end int64, calls [][2]int64) timeScale {
	change := map[int64]int{start: 0, max(start+1, end): 0} // of how many are open, by time
	for _, c := range calls {
		change[c[0]]++
		change[c[1]]--
	}
	times := slices.Sorted(maps.Keys(change))
	pieces := make([]timePiece, len(times)-1)
	lengths := make([]float64, len(pieces))
	busy := make([]bool, len(pieces))
	working := 0
	for i, open := 0, 0; i < len(pieces); i++ {
		open += change[times[i]]
		pieces[i].from, pieces[i].to = times[i], times[i+1]
		lengths[i], busy[i] = float64(times[i+1]-times[i]), open > 0
		if busy[i] {
			working++
		}
	}
	sum := func(most, mostIdle float64) (total float64) {
		for i, length := range lengths {
			if busy[i] {
				total += min(length, most)
			} else {
				total += min(length, mostIdle)
			}
		}
		return total
	}
	most, mostIdle := math.Inf(1), math.Inf(1)
	if working > 0 {
		// Of the time in which calls are open, none between two marks has more than a
		// share. What is left for all becomes less when some are cut, and so does the
		// share of each, but never to nothing: all shares are more than the whole.
		share := max(1.0/20, min(1, 2/float64(working)))
		for range 50 {
			most = sum(most, 0) * share
		}
		mostIdle = sum(most, 0) / float64(max(1, len(pieces)-working))
	}
	total, x := sum(most, mostIdle), 0.0
	for i := range pieces {
		p, limit := &pieces[i], mostIdle
		if busy[i] {
			limit = most
		}
		p.cut = lengths[i] > limit*1.01
		p.x = x
		x += min(lengths[i], limit) / total * timelineSize
		p.xEnd = x
	}
	return timeScale{pieces}
}

func (s timeScale) at(ts int64) float64 {
	i, _ := slices.BinarySearchFunc(s.pieces, ts, func(p timePiece, ts int64) int { return cmp.Compare(p.to, ts) })
	if i == len(s.pieces) {
		return timelineSize
	}
	p := s.pieces[i]
	return min(timelineSize, p.x+(p.xEnd-p.x)*float64(max(ts-p.from, 0))/float64(p.to-p.from))
}

func (r *report) timeline() timeline {
	var calls [][2]int64
	for _, p := range r.calls {
		if p.began != 0 {
			calls = append(calls, r.span(p))
		}
	}
	scale := newTimeScale(r.start, r.end, calls)
	var t timeline
	lanes := map[*reportTool]int{}
	var places [][]*reportPlace
	for _, p := range append(slices.Clone(r.calls), r.startup, r.ambient, r.several) {
		n, ok := lanes[p.tool]
		switch {
		case ok:
		case p.number == 0:
			n = len(t.Lanes)
			t.Lanes, places = append(t.Lanes, lane{Name: p.tool.name}), append(places, nil)
		case len(t.Lanes) > maxLanes:
			n = maxLanes
		default:
			name := shorten(p.tool.name, maxToolWords)
			if len(t.Lanes) == maxLanes {
				name = "(other tools)"
			}
			n = len(t.Lanes)
			t.Lanes, places = append(t.Lanes, lane{Name: name}), append(places, nil)
		}
		lanes[p.tool] = n
		places[n] = append(places[n], p)
	}
	for i, list := range places {
		t.Lanes[i].Bars = r.bars(list, scale)
		t.Lanes[i].Ticks = r.ticks(list, scale)
	}
	t.Lanes = slices.DeleteFunc(t.Lanes, func(l lane) bool { return len(l.Bars)+len(l.Ticks) == 0 })
	last := -float64(axisStep)
	for _, p := range scale.pieces {
		if p.x >= last+axisStep && p.x <= timelineSize-axisStep/2 {
			t.Times = append(t.Times, axisTime{p.x, "+" + showDuration(time.Duration(p.from-r.start)), len(t.Times)%4 != 0})
			last = p.x
		}
		if p.cut && p.xEnd-p.x >= 4 {
			text := ""
			if p.xEnd-p.x >= axisStep/2 {
				text = showDuration(time.Duration(p.to - p.from))
			}
			t.Cuts = append(t.Cuts, axisCut{p.x, p.xEnd - p.x, (p.x + p.xEnd) / 2, text})
		}
	}
	return t
}

// span is from when to when a call was open.
func (r *report) span(p *reportPlace) [2]int64 {
	if !p.over {
		return [2]int64{p.began, r.end}
	}
	return [2]int64{p.began, max(p.began, p.ended)}
}

// bars draws calls. Where several are too narrow to be told apart, one bar stands for all.
func (r *report) bars(calls []*reportPlace, scale timeScale) (bars []bar) {
	const narrow = 4
	for _, p := range calls {
		if p.began == 0 {
			continue
		}
		span := r.span(p)
		x, end := scale.at(span[0]), scale.at(span[1])
		width := max(end-x, 2)
		x = min(x, timelineSize-width)
		if n := len(bars); n > 0 && width < narrow && x < bars[n-1].X+bars[n-1].Width+0.5 && (bars[n-1].calls > 1 || bars[n-1].Width < narrow) {
			b := &bars[n-1]
			b.Width = max(b.Width, x+width-b.X)
			b.calls++
			b.events += p.n
			b.severity = max(b.severity, p.severity)
			b.Failed = b.Failed || p.failed
			b.Title = fmt.Sprintf("%s from call %d on, %s", plural(b.calls, "call"), b.number, plural(b.events, "event"))
		} else {
			_, link := r.where(p)
			bars = append(bars, bar{
				X: x, Width: width, Link: link, Failed: p.failed,
				Title: fmt.Sprintf("call %d (%s), %s, %s", p.number, shorten(p.tool.name, maxToolWords), r.took(p), plural(p.n, "event")),
				calls: 1, number: p.number, events: p.n, severity: p.severity,
			})
		}
	}
	for i := range bars {
		b := &bars[i]
		if b.severity >= 0 {
			b.Severity = severities[b.severity]
			b.Title += ", findings: " + b.Severity
		}
		if b.Failed {
			b.Title += ", failed"
		}
	}
	return bars
}

func (r *report) took(p *reportPlace) string {
	switch {
	case !p.over:
		return "not answered"
	case !p.timed:
		return "nobody knows how long"
	}
	return showDuration(p.latency)
}

// ticks draws the events of places, by class.
func (r *report) ticks(places []*reportPlace, scale timeScale) (list []ticks) {
	seen := map[string][]bool{}
	for _, p := range places {
		for _, e := range p.events {
			if e.at == 0 {
				continue
			}
			class := r.facts.values[e.fact].class
			if seen[class] == nil {
				seen[class] = make([]bool, timelineSize+1)
			}
			seen[class][int(scale.at(e.at))] = true
		}
	}
	for row, class := range eventClasses {
		if class == classRoutine {
			continue
		}
		var path strings.Builder
		for x, is := range seen[class] {
			if is {
				fmt.Fprintf(&path, "M%d %dv1", x, row)
			}
		}
		if path.Len() > 0 {
			list = append(list, ticks{class, path.String()})
		}
	}
	return list
}

// shorten cuts s to n bytes.
func shorten(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "…"
}
