package main

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
)

// The command report: a saved session as a page for people. What is gathered of a session
// for it is here; report_page.go makes the page.

// A page is of use only if a browser opens it at once. Beyond these bounds things are
// counted, and the page says so. What has findings goes before what has none.
const (
	maxReportEvents    = 200_000  // that the page has each by itself
	maxReportBytes     = 24 << 20 // of what is told of them, as the page writes it
	maxReportCalls     = 50_000
	maxReportProcesses = 50_000
	maxReportFindings  = 2_000    // different ones of a severity
	maxReportNames     = 1_000    // files, hosts and programs of a tool; also tools
	maxReportNameBytes = 16 << 20 // of all tools' names
	maxReportText      = 300      // bytes of what stands in a line with other things
	maxReportWarnings  = 20
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
	out := stdout
	if *file != "-" {
		f, err := os.Create(*file)
		if err != nil {
			return errors.Join(usageError{err}, readErr)
		}
		defer f.Close()
		out = f
	}
	page := bufio.NewWriterSize(out, 256<<10)
	if err := errors.Join(r.writePage(page), page.Flush()); err != nil {
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
