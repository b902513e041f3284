package main

import (
	"bufio"
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

// maxEventLine is the longest event line that is read. The sidecar's are far shorter: a
// path has 4 KiB, and arguments have 16.
const maxEventLine = 4 << 20

// maxComplaints is how many lines are named that cannot be evaluated; the others are
// counted.
const maxComplaints = 10

// policyFlags are the flags that make a policy, for each command that has one.
type policyFlags struct {
	file, workspace, tmpdir *string
	exec, host              *string
	failOn                  *string
}

func newPolicyFlags(flags *flag.FlagSet) policyFlags {
	return policyFlags{
		file:      flags.String("policy", "", ""),
		workspace: flags.String("workspace", "", ""),
		tmpdir:    flags.String("tmpdir", "", ""),
		exec:      flags.String("allow-exec", "", ""),
		host:      flags.String("allow-host", "", ""),
		failOn:    flags.String("fail-on", "", ""),
	}
}

// policy returns what the flags say: those that are given replace what the file has.
func (f policyFlags) policy() (policy, error) {
	if *f.failOn != "" && !slices.Contains(severities, *f.failOn) {
		return policy{}, usageError{fmt.Errorf("--fail-on %q: want one of %s", *f.failOn, strings.Join(severities, ", "))}
	}
	p, err := defaultPolicy()
	if err != nil {
		return policy{}, err
	}
	if *f.file != "" {
		if err := p.read(*f.file); err != nil {
			return policy{}, usageError{err}
		}
	}
	if *f.workspace != "" {
		p.Workspace = *f.workspace
	}
	if *f.tmpdir != "" {
		p.Tmpdir = *f.tmpdir
	}
	if *f.exec != "" {
		p.ExecAllow = splitList(*f.exec)
	}
	if *f.host != "" {
		p.NetAllow = splitList(*f.host)
	}
	return p, nil
}

// verdict is errFailOn if there is a finding of the severity that --fail-on names, or of a
// worse one.
func (f policyFlags) verdict(e *evaluation) error {
	if *f.failOn != "" && e.worst >= slices.Index(severities, *f.failOn) {
		return errFailOn
	}
	return nil
}

func splitList(list string) (items []string) {
	for item := range strings.SplitSeq(list, ",") {
		if item = strings.TrimSpace(item); item != "" {
			items = append(items, item)
		}
	}
	return items
}

// errFailOn is of a session that has a finding of the severity that --fail-on names.
var errFailOn = errors.New("there are findings that --fail-on names")

// A findingWriter writes findings in one of the formats.
type findingWriter interface {
	// write takes a finding of the event in line, which is the n-th. What it gets is
	// valid until it returns.
	write(n int, line []byte, ev *policyEvent, f finding, tool []byte) error

	// finish writes what comes at the end.
	finish() error
}

var findingFormats = map[string]func(out *bufio.Writer, source string) findingWriter{
	"ndjson": func(out *bufio.Writer, _ string) findingWriter { return &findingLines{out: out} },
	"text":   func(out *bufio.Writer, _ string) findingWriter { return &findingText{out: out} },
	"sarif":  func(out *bufio.Writer, source string) findingWriter { return newFindingSARIF(out, source) },
}

// evaluateCommand is the command evaluate.
func evaluateCommand(args []string, stdin io.Reader, stdout, _ io.Writer) error {
	flags := flag.NewFlagSet("mcpfz-probe evaluate", flag.ContinueOnError)
	policyFlags := newPolicyFlags(flags)
	format := flags.String("format", "ndjson", "")
	learn := flags.String("learn", "", "")
	events, source, err := openEvents(flags, args, evaluateUsage, stdin, stdout)
	if err != nil {
		return err
	}
	defer events.Close()
	newWriter := findingFormats[*format]
	if newWriter == nil {
		return usageError{fmt.Errorf("--format %q: want ndjson, text or sarif", *format)}
	}
	p, err := policyFlags.policy()
	if err != nil {
		return err
	}
	out := bufio.NewWriterSize(stdout, 64<<10)
	ev, err := newEvaluation(p, newWriter(out, source))
	if err != nil {
		return usageError{err}
	}
	if *learn != "" {
		if ev.learned, err = newLearnedPolicy(p); err != nil {
			return usageError{err}
		}
	}
	readErr := ev.read(events)
	if err := errors.Join(ev.out.finish(), out.Flush()); err != nil {
		return fmt.Errorf("write findings: %w", err)
	}
	if ev.learned != nil {
		f, err := os.Create(*learn)
		if err == nil {
			err = errors.Join(ev.learned.encode(f), f.Close())
		}
		if err != nil {
			return errors.Join(readErr, err)
		}
	}
	if readErr != nil {
		return fmt.Errorf("read events: %w", readErr)
	}
	return policyFlags.verdict(ev)
}

// openEvents parses args, of which one may be a file of events, and opens that.
func openEvents(flags *flag.FlagSet, args []string, usage string, stdin io.Reader, stdout io.Writer) (events io.ReadCloser, source string, err error) {
	var files []string
	for ; ; args = flags.Args()[1:] { // flags may come after it, too
		if err := parseFlags(flags, args, usage, stdout); err != nil {
			return nil, "", err
		}
		if flags.NArg() == 0 {
			break
		}
		files = append(files, flags.Arg(0))
	}
	switch {
	case len(files) > 1:
		return nil, "", usageError{fmt.Errorf("want one file of events, not %d", len(files))}
	case len(files) == 0 || files[0] == "-":
		return io.NopCloser(stdin), "-", nil
	}
	f, err := os.Open(files[0])
	if err != nil {
		return nil, "", usageError{err}
	}
	return f, files[0], nil
}

// An evaluation holds a stream of event lines against a policy.
type evaluation struct {
	evaluator *evaluator
	out       findingWriter
	learned   *learnedPolicy    // nil if nobody asks for it
	report    *report           // likewise
	tools     map[string][]byte // by call id, both as JSON
	calls     []string          // those ids, the oldest first
	worst     int               // of severities, -1 for none
	event     policyEvent       // of the current line

	complaints []string // about lines that cannot be evaluated
	skipped    int
}

func newEvaluation(p policy, out findingWriter) (*evaluation, error) {
	e, err := newEvaluator(p)
	if err != nil {
		return nil, err
	}
	return &evaluation{evaluator: e, out: out, tools: map[string][]byte{}, worst: -1}, nil
}

// read evaluates all lines. Those that cannot be are left out; the error names them.
func (e *evaluation) read(events io.Reader) error {
	r := bufio.NewReaderSize(events, 256<<10)
	var long []byte
	for n := 1; ; n++ {
		line, err := r.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			long = append(long[:0], line...)
			for errors.Is(err, bufio.ErrBufferFull) {
				line, err = r.ReadSlice('\n')
				if len(long) <= maxEventLine {
					long = append(long, line...)
				}
			}
			line = long
		}
		if len(line) > maxEventLine {
			e.unread(n, fmt.Errorf("it is longer than %d bytes", maxEventLine))
		} else if line = bytes.TrimSpace(line); len(line) > 0 {
			if err := e.line(n, line); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return e.complaint()
		} else if err != nil {
			return errors.Join(e.complaint(), err)
		}
	}
}

// line evaluates one line. Its error is one of writing.
func (e *evaluation) line(n int, line []byte) error {
	ev := &e.event
	if err := ev.parse(line); err != nil {
		e.unread(n, err)
		return nil
	}
	if e.report != nil {
		e.report.see(n, line, ev)
	}
	if string(ev.typ) == `"status"` {
		if string(ev.message) == `"begin"` && ev.callID != nil && ev.tool != nil {
			e.remember(string(ev.callID), ev.tool)
		}
		return nil
	}
	findings, err := e.evaluator.evaluate(ev)
	if err != nil {
		e.skip(n, err)
		if e.report != nil {
			e.report.unjudged++
		}
	}
	if e.learned != nil {
		e.learned.see(ev)
	}
	if len(findings) == 0 {
		return nil
	}
	call := ev.callID
	if call == nil {
		call = ev.originCallID
	}
	for _, f := range findings {
		e.worst = max(e.worst, slices.Index(severities, f.severity))
		if err := e.out.write(n, line, ev, f, e.tools[string(call)]); err != nil {
			return err
		}
	}
	return nil
}

// maxRememberedCalls is of how many calls the tools are known, for what comes after them.
const maxRememberedCalls = 1 << 17

func (e *evaluation) remember(call string, tool []byte) {
	if _, again := e.tools[call]; !again {
		if len(e.calls) == maxRememberedCalls {
			delete(e.tools, e.calls[0])
			e.calls = e.calls[1:]
		}
		e.calls = append(e.calls, call)
	}
	e.tools[call] = bytes.Clone(tool)
}

// unread skips a line that is no event.
func (e *evaluation) unread(n int, err error) {
	e.skip(n, err)
	if e.report != nil {
		e.report.unread++
	}
}

func (e *evaluation) skip(n int, err error) {
	if e.skipped++; len(e.complaints) < maxComplaints {
		e.complaints = append(e.complaints, fmt.Sprintf("line %d: %v", n, err))
	}
}

func (e *evaluation) complaint() error {
	if e.skipped == 0 {
		return nil
	}
	if more := e.skipped - len(e.complaints); more > 0 {
		e.complaints = append(e.complaints, fmt.Sprintf("and %d more", more))
	}
	return fmt.Errorf("%d lines could not be evaluated, all others were:\n\t%s", e.skipped, strings.Join(e.complaints, "\n\t"))
}

// findingLines writes a finding a line.
type findingLines struct {
	out  *bufio.Writer
	line line
}

func (w *findingLines) write(_ int, event []byte, ev *policyEvent, f finding, tool []byte) error {
	l := &w.line
	l.begin("finding")
	l.str("category", f.category)
	l.str("severity", f.severity)
	l.key("detail")
	l.buf = appendLoose(l.buf, f.detail)
	for _, field := range []struct {
		key   string
		value []byte
	}{
		{"call_id", ev.callID},
		{"origin_call_id", ev.originCallID},
		{"tool", tool},
		{"bucket", ev.bucket},
	} {
		if field.value != nil {
			l.raw(field.key, string(field.value))
		}
	}
	if id := owaspIDs[f.category]; id != "" {
		l.str("owasp_mcp", id)
	}
	if f.beyond {
		l.bool("beyond_python", true)
	}
	l.key("evidence")
	l.buf = append(l.buf, `{"event":`...)
	l.buf = append(l.buf, event...)
	if ev.errno != nil {
		l.buf = append(l.buf, `,"failed":true`...)
	}
	l.buf = append(l.buf, '}')
	_, err := w.out.Write(l.end())
	return err
}

func (w *findingLines) finish() error { return nil }

// appendLoose appends a JSON string of text in which there may be halves of surrogate
// pairs: they are escaped, as what they came from was.
func appendLoose(buf []byte, text string) []byte {
	if !hasSurrogate(text) {
		return appendQuoted(buf, text)
	}
	buf = append(buf, '"')
	for len(text) > 0 {
		r, size := decodeRune(text)
		if r >= 0xd800 && r < 0xe000 {
			buf = appendHex(append(buf, '\\', 'u'), r, 4)
		} else {
			quoted := appendQuoted(nil, text[:size])
			buf = append(buf, quoted[1:len(quoted)-1]...)
		}
		text = text[size:]
	}
	return append(buf, '"')
}

// findingText writes for people.
type findingText struct {
	out    *bufio.Writer
	counts [4]int // by severity
}

func (w *findingText) write(_ int, _ []byte, ev *policyEvent, f finding, tool []byte) error {
	w.counts[slices.Index(severities, f.severity)]++
	where := "ambient"
	if tool != nil {
		where = printable(fieldText(tool, ""))
		if ev.callID == nil {
			where = "after " + where
		}
	} else if ev.bucket != nil {
		where = printable(fieldText(ev.bucket, ""))
	}
	failed := ""
	if ev.errno != nil {
		failed = " (failed: " + printable(fieldText(ev.errno, "")) + ")"
	}
	_, err := fmt.Fprintf(w.out, "%-8s  %-22s  %-20s  %s%s\n", f.severity, f.category, where, printable(f.detail), failed)
	return err
}

func (w *findingText) finish() error {
	total := 0
	for _, n := range w.counts {
		total += n
	}
	if total == 0 {
		_, err := fmt.Fprintln(w.out, "no findings")
		return err
	}
	_, err := fmt.Fprintf(w.out, "%d findings: %s\n", total, bySeverity(w.counts))
	return err
}

// bySeverity is how many there are of each severity, the worst first.
func bySeverity(counts [4]int) string {
	var parts []string
	for i, n := range slices.Backward(counts[:]) {
		if n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, severities[i]))
		}
	}
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, ", ")
}

// printable returns text as a terminal may show it: what would move its cursor, change
// its colours or the direction of writing, or not be seen, is escaped.
func printable(text string) string {
	quoted := appendTextRepr(nil, text)
	return escapeUnseen(string(quoted[1 : len(quoted)-1]))
}

const evaluateUsage = `mcpfz-probe evaluate holds events against a policy, and writes what it does not allow.

Usage:
  mcpfz-probe evaluate [flags] [EVENTS]

EVENTS is a file of event lines, as the sidecar writes them; - or nothing is
standard input.

  --policy FILE          a policy in JSON: workspace, tmpdir, exec_allow,
                         net_allow, fs_write_allow, sensitive_patterns
  --workspace DIR        where the server may write (default: the current folder)
  --tmpdir DIR           where it may, too (default: /tmp)
  --allow-exec A,B       programs that it may run, by absolute path
  --allow-host A,B       hosts that it may reach: names, addresses, address:port,
                         with * and ? as wildcards
  --format FORMAT        ndjson (default), text or sarif
  --fail-on SEVERITY     exit with 1 if there is a finding as severe as that, or
                         more: low, medium, high, critical
  --learn FILE           write the smallest policy under which there would be no
                         finding, to be read before it is used

Exit codes: 0 if all was evaluated; 1 if --fail-on is met, or a line could not be
evaluated; 2 for bad arguments.
`
