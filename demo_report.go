package main

import (
	"cmp"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"unicode/utf8"
)

// The demo's report is a table for people: what the events of the stream mean, in a
// few words each.

// reportColumns is how wide it may be.
const reportColumns = 100

// report tells what w has gathered. missing says why there is no eBPF, if that is
// why the backend is the fake one.
func (w *demoWatch) report(dir, backend string, missing error) string {
	r := &demoReport{dir: dir}
	heading, source := "what the kernel saw of it", "ebpf: all of this was seen by the kernel"
	if backend == "fake" {
		heading = "what the kernel would see of it (scripted, not observed)"
		source = "fake: all of this is scripted, not observed"
	}
	r.text("The %d tools of a small MCP server that misbehaves, called one by one.", len(demoTools))
	r.text("")
	r.row("call", "tool", heading)
	for i, tool := range demoTools {
		r.events(strconv.Itoa(i+1), tool.name, w.calls[i+1].events, "")
	}
	for i, c := range w.calls {
		switch {
		case i == 0 && len(c.late) > 0:
			r.text("")
			r.text("outside of any call:")
		case i == len(demoTools), i > 0 && len(c.late) > 0:
			r.text("")
			r.text("after call %d (%s), when it had been answered:", i, demoTools[i-1].name)
		default:
			continue
		}
		r.events("", "", c.late, "process %d: ")
	}
	r.text("")
	r.text("…  is %s, which has been removed.", dir)
	if r.routine > 0 {
		r.text("Routine opens are those of shared libraries, locales, /dev/null and /dev/tty.")
	}
	for _, l := range w.lost {
		r.text("Lost: %d events of call %s (%s).", l.Count, cmp.Or(l.CallID, l.Origin, "unknown"), l.Reason)
	}
	if len(w.lost) == 0 && backend != "fake" {
		r.text("Lost: nothing.")
	}
	r.text("Backend %s.", source)
	if backend != "fake" {
		r.text("")
		r.text("Next: README.md shows how to watch a server of your own.")
		return r.String()
	}
	if missing != nil {
		r.text("")
		r.text("The server did run, but eBPF, which would have watched it, is not available: %v.", missing)
	}
	r.text("")
	r.text("Next, to see the real thing:  %s", toSeeMore(missing))
	return r.String()
}

// toSeeMore tells how to have eBPF.
func toSeeMore(missing error) string {
	sudo := "sudo "
	if os.Geteuid() == 0 {
		sudo = ""
	}
	switch {
	case runtime.GOOS != "linux":
		return "run this on Linux, as root."
	case missing != nil && sudo == "":
		return "mend that and run this again."
	case strings.Contains(os.Args[0], "go-build"):
		// go run's program is gone when it has ended, and root may have no go.
		return "go run -exec sudo . demo"
	}
	return sudo + shellWord(os.Args[0]) + " demo"
}

type demoReport struct {
	strings.Builder
	dir     string
	routine int // opens that were only counted
}

// text writes a line, or as many as it takes.
func (r *demoReport) text(format string, args ...any) {
	column := 0
	for i, w := range strings.Split(fmt.Sprintf(format, args...), " ") {
		width := utf8.RuneCountInString(w)
		switch {
		case i == 0:
		case column+1+width > reportColumns:
			r.WriteString("\n  ")
			column = 2
		default:
			r.WriteString(" ")
			column++
		}
		r.WriteString(w)
		column += width
	}
	r.WriteString("\n")
}

func (r *demoReport) row(call, tool, text string) {
	line := fmt.Sprintf("%4s  %-16s  %s", call, tool, text)
	if utf8.RuneCountInString(line) > reportColumns {
		line = string([]rune(line)[:reportColumns-1]) + "…"
	}
	r.WriteString(line + "\n")
}

// events writes a row for each event that has something to tell, and one for the
// rest. actor, if there is one, is how a row names the event's process.
func (r *demoReport) events(call, tool string, list []eventLine, actor string) {
	var rows []string
	routine := 0
	for _, l := range list {
		if l.routine() {
			routine++
			continue
		}
		text := strings.ReplaceAll(l.words(), r.dir, "…")
		if actor != "" {
			text = fmt.Sprintf(actor, l.Pid) + text
		}
		rows = append(rows, text)
	}
	r.routine += routine
	switch {
	case routine == 1:
		rows = append(rows, "and 1 routine open")
	case routine > 1:
		rows = append(rows, fmt.Sprintf("and %d routine opens", routine))
	case len(rows) == 0:
		rows = append(rows, "nothing")
	}
	for _, text := range rows {
		r.row(call, tool, text)
		call, tool = "", ""
	}
}
