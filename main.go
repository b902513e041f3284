// Mcpfz-probe tells what one MCP tool call did to the machine: see README.md.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"time"
)

const version = "0.2.0"

// minRingSize leaves room for events beside what marks need, in bytes.
const minRingSize = 1 << 20

// maxGraceMS is an hour; no client waits that long for its acknowledgement.
const maxGraceMS = 3_600_000

// Exit codes, besides 0.
const (
	exitFailure     = 1  // reading or writing failed
	exitUsage       = 2  // bad arguments or events file
	exitUnavailable = 69 // no eBPF here (EX_UNAVAILABLE of sysexits.h)
)

// usageError is a mistake of whoever wrote the command line.
type usageError struct{ error }

// commandError is of a server that cannot be started; status is as a shell has it.
type commandError struct {
	error
	status int
}

// unavailable is what the machine lacks for eBPF.
type unavailable struct{ error }

func (u unavailable) Unwrap() error { return u.error }

const usage = `mcpfz-probe tells which programs, files and hosts one MCP tool call touched.

Usage:
  mcpfz-probe [flags]     be a sidecar: control lines in on standard input,
                          events out on standard output, one JSON object a line
  mcpfz-probe run -- COMMAND…
                          stand between an MCP client and the server that COMMAND
                          starts (see run --help)
  mcpfz-probe evaluate    hold events against a policy (see evaluate --help)
  mcpfz-probe report      make a page of a session (see report --help)
  mcpfz-probe demo        watch a small vulnerable MCP server, and see what it did

Flags of the sidecar:
  --backend ebpf|fake|auto   where events come from (default ebpf)
                               ebpf  the kernel; needs root and Linux 5.15 or later
                               fake  a script, on any machine
                               auto  ebpf if it can be had, else fake
  --events-file FILE         the script that the fake backend plays
  --grace-ms N               keep a call open for N ms after its end mark, and
                             acknowledge the mark as much later (default 0)
  --ring-size BYTES          room for events on their way, a power of two from
                             1 MiB on; K, M and G are understood (default 16M)
  --help, --version

Exit codes: 0 after shutdown, the end of the input or a signal; 1 if reading or
writing failed; 2 for bad arguments or a bad events file; 69 if eBPF is not
available, with what is missing on standard error.

To try it by hand:
  sudo mcpfz-probe demo
The protocol, the events and what each field is worth are in README.md.
`

func main() {
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// run is main, for tests as well: it returns the exit code.
func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	command := sidecar
	if len(args) > 0 {
		switch args[0] {
		case "run":
			command, args = runCommand, args[1:]
		case "run-server":
			command, args = runServer, args[1:]
		case "run-output":
			command, args = runOutputCommand, args[1:]
		case "evaluate":
			command, args = evaluateCommand, args[1:]
		case "report":
			command, args = reportCommand, args[1:]
		case "demo":
			command, args = demo, args[1:]
		case "demo-server":
			command, args = demoServer, args[1:]
		}
	}
	err := command(args, stdin, stdout, stderr)
	if err == nil || errors.Is(err, flag.ErrHelp) {
		return 0
	}
	var status exitStatus
	if errors.As(err, &status) {
		return int(status)
	}
	fmt.Fprintf(stderr, "mcpfz-probe: %v\n", err)
	switch {
	case errors.As(err, new(usageError)):
		fmt.Fprintln(stderr, "Try mcpfz-probe --help.")
		return exitUsage
	case errors.As(err, new(unavailable)):
		return exitUnavailable
	}
	var of commandError
	if errors.As(err, &of) {
		return of.status
	}
	return exitFailure
}

// sidecar is the command without a name: it serves one client.
func sidecar(args []string, stdin io.Reader, stdout, _ io.Writer) error {
	flags := flag.NewFlagSet("mcpfz-probe", flag.ContinueOnError)
	backendName := flags.String("backend", "ebpf", "")
	eventsFile := flags.String("events-file", "", "")
	graceMS := flags.Int("grace-ms", 0, "")
	showVersion := flags.Bool("version", false, "")
	ring := byteSize(16 << 20)
	flags.Var(&ring, "ring-size", "")
	if err := parseFlags(flags, args, usage, stdout); err != nil {
		return err
	}
	switch {
	case *showVersion:
		_, err := fmt.Fprintln(stdout, "mcpfz-probe", version)
		return err
	case flags.NArg() > 0:
		return usageError{fmt.Errorf("unknown command %q", flags.Arg(0))}
	case *graceMS < 0 || *graceMS > maxGraceMS:
		return usageError{fmt.Errorf("--grace-ms %d: want 0 to %d", *graceMS, maxGraceMS)}
	}
	// A client waits: garbage is left, and loading makes several times what running does.
	percent := debug.SetGCPercent(-1)
	b, err := newBackend(*backendName, *eventsFile, int(ring))
	if err != nil {
		return err
	}
	defer b.Close()
	s := newSession(b, stdout, time.Duration(*graceMS)*time.Millisecond)
	go s.readControls(pollInput(stdin))
	s.settled = func() {
		debug.SetGCPercent(percent)
		debug.FreeOSMemory()
	}
	// Without this a closed output would be a signal, and what was gathered lost.
	signal.Ignore(brokenPipe...)
	// Never stopped: a second signal must not kill what is about to end by itself.
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, endSignals...)
	go func() {
		for range signals {
			s.quit <- nil
		}
	}()
	if f, ok := stdout.(*os.File); ok {
		go func() { s.quit <- waitReaderGone(f) }()
	}
	return s.run()
}

// parseFlags parses args. If they ask for help, it writes usage and returns flag.ErrHelp,
// with which a command has done all that it was to do.
func parseFlags(flags *flag.FlagSet, args []string, usage string, stdout io.Writer) error {
	flags.SetOutput(io.Discard)
	err := flags.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		if _, writeErr := io.WriteString(stdout, usage); writeErr != nil {
			return writeErr
		}
		return err
	} else if err != nil {
		return usageError{err}
	}
	return nil
}

func newBackend(name, eventsFile string, ringSize int) (backend, error) {
	if eventsFile != "" && name == "ebpf" {
		return nil, usageError{errors.New("--events-file is for the fake backend; add --backend fake")}
	}
	switch name {
	case "ebpf":
		return newEBPFBackend(ringSize)
	case "auto":
		b, err := newEBPFBackend(ringSize)
		if err == nil || !errors.As(err, new(unavailable)) {
			return b, err
		}
	case "fake":
	default:
		return nil, usageError{fmt.Errorf("unknown backend %q, want ebpf, fake or auto", name)}
	}
	var script []byte
	if eventsFile != "" {
		var err error
		if script, err = os.ReadFile(eventsFile); err != nil {
			return nil, usageError{err}
		}
	}
	b, err := newFakeBackend(script)
	if err != nil {
		return nil, usageError{fmt.Errorf("%s: %w", eventsFile, err)}
	}
	return b, nil
}

// byteSize is a flag: a power of two of bytes that a ring buffer can have.
type byteSize int

func (b *byteSize) String() string { return fmt.Sprint(int(*b)) }

func (b *byteSize) Set(s string) error {
	number, unit := s, 1
	for i, suffix := range []string{"K", "M", "G"} {
		if n, ok := strings.CutSuffix(strings.ToUpper(s), suffix); ok {
			number, unit = n, 1<<(10*(i+1))
		}
	}
	var n int
	if _, err := fmt.Sscanf(number+"\n", "%d\n", &n); err != nil || n <= 0 || n > (2<<30)/unit {
		return errors.New("want a number of bytes up to 2G, such as 16M")
	}
	n *= unit
	if n < minRingSize || n&(n-1) != 0 {
		return fmt.Errorf("want a power of two from %dM on", minRingSize>>20)
	}
	*b = byteSize(n)
	return nil
}
