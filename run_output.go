package main

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"text/tabwriter"
	"time"
)

// A runOutput takes event lines: into a file, through the policy, and into the table.
type runOutput struct {
	evaluation *evaluation
	files      []*os.File
	writers    []*bufio.Writer
	events     *bufio.Writer // nil if nobody wants them
	learned    *bufio.Writer // for the policy; likewise
	page       *bufio.Writer // for the report; likewise
	recording  *recording    // likewise
	group      int           // of the server's processes, if it is known
	line       []byte        // that is not whole yet
	n          int           // of the last line
	err        error         // of the first write that failed

	tools map[string]*toolCounts // by tool, as JSON; what belongs to none has an empty one
	order []string
	lost  int
}

// toolCounts is a row of the table.
type toolCounts struct {
	calls, failed, events int
	latency               time.Duration
	findings              [4]int // by severity
}

// runFiles names the files that a session is written to; empty for those that are not.
type runFiles struct{ events, findings, sarif, learn, report, record string }

// newRunOutput opens the files. Those that are new belong to user.
func newRunOutput(p policy, files runFiles, user *serverUser) (*runOutput, error) {
	o := &runOutput{tools: map[string]*toolCounts{}}
	var err error
	open := func(file string) *bufio.Writer {
		if file == "" || err != nil {
			return nil
		}
		var f *os.File
		if f, err = createFor(user, file); err != nil {
			return nil
		}
		if err = o.alone(f); err != nil {
			f.Close()
			return nil
		}
		o.files = append(o.files, f)
		w := bufio.NewWriterSize(f, 64<<10)
		o.writers = append(o.writers, w)
		return w
	}
	out := findingWriters{o}
	o.events = open(files.events)
	if w := open(files.findings); w != nil {
		out = append(out, &findingLines{out: w})
	}
	if w := open(files.sarif); w != nil {
		out = append(out, newFindingSARIF(w, cmp.Or(files.events, "-")))
	}
	if w := open(files.record); w != nil {
		o.recording = newRecording(w)
	}
	o.learned, o.page = open(files.learn), open(files.report)
	if err != nil {
		return nil, usageError{err}
	}
	var page *report
	if o.page != nil {
		page = newReport(p)
		out = append(out, page)
	}
	if o.evaluation, err = newEvaluation(p, out); err != nil {
		return nil, usageError{err}
	}
	o.evaluation.report = page
	if o.learned != nil {
		if o.evaluation.learned, err = newLearnedPolicy(p); err != nil {
			return nil, usageError{err}
		}
	}
	return o, nil
}

// alone tells that f is a file which nothing else is written to; a device takes all.
func (o *runOutput) alone(f *os.File) error {
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return err
	}
	for _, other := range o.files {
		if otherInfo, err := other.Stat(); err == nil && os.SameFile(info, otherInfo) {
			return fmt.Errorf("%s and %s are one file: each output wants its own", other.Name(), f.Name())
		}
	}
	return nil
}

// createFor opens a file to be written, which belongs to user if it is new.
func createFor(user *serverUser, name string) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if errors.Is(err, fs.ErrExist) {
		return os.OpenFile(name, os.O_WRONLY|os.O_CREATE, 0o666)
	} else if err != nil {
		return nil, err
	}
	user.own(f) // a file system without owners has files of its own
	return f, nil
}

// findingWriters writes to several.
type findingWriters []findingWriter

func (ws findingWriters) write(n int, line []byte, ev *policyEvent, f finding, tool []byte) error {
	var errs error
	for _, w := range ws {
		errs = errors.Join(errs, w.write(n, line, ev, f, tool))
	}
	return errs
}

func (ws findingWriters) finish() error {
	var errs error
	for _, w := range ws {
		errs = errors.Join(errs, w.finish())
	}
	return errs
}

// Write takes whole lines and parts of them, and leaves nothing that is to be written for
// later: this process may be killed at any time. It never fails: what goes wrong is told
// at the end, since the session is to go on.
func (o *runOutput) Write(p []byte) (int, error) {
	o.take(p)
	for _, w := range o.writers {
		if err := w.Flush(); err != nil && o.err == nil {
			o.err = err
		}
	}
	return len(p), nil
}

func (o *runOutput) take(p []byte) {
	for rest := p; ; {
		end := bytes.IndexByte(rest, '\n')
		if end < 0 {
			o.line = append(o.line, rest...)
			return
		}
		line := rest[:end]
		if len(o.line) > 0 {
			o.line = append(o.line, line...)
			line = o.line
		}
		if o.n++; o.n == 1 {
			o.begin()
		}
		if o.events != nil {
			o.events.Write(line) // an error comes again when it is flushed
			o.events.WriteByte('\n')
		}
		if err := o.evaluation.line(o.n, line); err != nil && o.err == nil {
			o.err = err
		}
		o.count(&o.evaluation.event)
		if o.recording != nil {
			o.recording.see(line, &o.evaluation.event)
		}
		o.line, rest = o.line[:0], rest[end+1:]
	}
}

// begin makes room for what comes: before there is anything, files stay as they were.
func (o *runOutput) begin() {
	for _, f := range o.files {
		f.Truncate(0) // what cannot be, as a pipe, has nothing to lose
	}
}

// row returns the row of a tool.
func (o *runOutput) row(tool string) *toolCounts {
	row := o.tools[tool]
	if row == nil {
		row = &toolCounts{}
		o.tools[tool] = row
		o.order = append(o.order, tool)
	}
	return row
}

// count takes an event into the table.
func (o *runOutput) count(ev *policyEvent) {
	id := string(ev.callID)
	if id == "" {
		id = string(ev.originCallID)
	}
	switch string(ev.typ) {
	case `"status"`:
		if string(ev.message) == `"scope"` {
			o.group, _ = strconv.Atoi(string(ev.pgid))
		}
		if id == "" {
			return
		}
		switch string(ev.message) {
		case `"begin"`:
			o.row(string(ev.tool)).calls++
		case `"end"`:
			row := o.row(string(o.evaluation.tools[id]))
			if string(ev.failed) == "true" {
				row.failed++
			}
			var us int64
			fmt.Sscan(string(ev.latency), &us)
			row.latency += time.Duration(us) * time.Microsecond
		}
	case `"drop"`:
		n := 0
		fmt.Sscan(string(ev.count), &n)
		o.lost += n
	default:
		o.row(string(o.evaluation.tools[id])).events++
	}
}

// write takes a finding into the table.
func (o *runOutput) write(_ int, _ []byte, ev *policyEvent, f finding, tool []byte) error {
	o.row(string(tool)).findings[slices.Index(severities, f.severity)]++
	return nil
}

func (o *runOutput) finish() error { return nil }

// close writes what comes last, and the table to stderr.
func (o *runOutput) close(stderr io.Writer) error {
	if o.n == 0 {
		return nil // there has not even been a beginning
	}
	err := errors.Join(o.evaluation.out.finish(), o.evaluation.complaint())
	if o.learned != nil {
		err = errors.Join(err, o.evaluation.learned.encode(o.learned))
	}
	if o.page != nil {
		err = errors.Join(err, o.evaluation.report.writePage(o.page))
	}
	if o.recording != nil {
		o.recording.finish()
	}
	for i, w := range o.writers {
		if flushErr := w.Flush(); o.err == nil {
			o.err = flushErr // which stays the same once there is one
		}
		err = errors.Join(err, o.files[i].Close())
	}
	err = errors.Join(o.err, err)
	table := tabwriter.NewWriter(stderr, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "mcpfz-probe:\tcalls\tfailed\tmean\tevents\tfindings")
	for _, tool := range o.order {
		row, name := o.tools[tool], "(no call)"
		if tool != "" {
			name = printable(pythonStr([]byte(tool)))
		}
		mean := ""
		if row.calls > 0 {
			mean = (row.latency / time.Duration(row.calls)).Round(10 * time.Microsecond).String()
		}
		fmt.Fprintf(table, "  %s\t%d\t%d\t%s\t%d\t%s\n", name, row.calls, row.failed, mean, row.events, bySeverity(row.findings))
	}
	table.Flush()
	if o.lost > 0 {
		fmt.Fprintf(stderr, "  lost: %d events, counted in the drop lines\n", o.lost)
	}
	return err
}
