package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
)

// The command run: the probe in front of any MCP server. It starts the server, passes
// every byte between it and the client on as it is, and makes the marks itself, from the
// requests and answers that it sees.

// exitStatus is how a process has ended that has said why: run ends the same way.
type exitStatus int

func (e exitStatus) Error() string { return fmt.Sprintf("it has ended with %d", int(e)) }

// runOptions are the flags of run.
type runOptions struct {
	policyFlags         policyFlags
	backend, eventsFile string
	files               runFiles
	asRoot, serialize   bool
	listen, upstream    string // of HTTP; empty for stdio
	ring                byteSize
	command             []string
}

func parseRun(args []string, stdout io.Writer) (*runOptions, error) {
	flags := flag.NewFlagSet("mcpfz-probe run", flag.ContinueOnError)
	o := &runOptions{policyFlags: newPolicyFlags(flags), ring: 16 << 20}
	flags.StringVar(&o.backend, "backend", "auto", "")
	flags.StringVar(&o.eventsFile, "events-file", "", "")
	flags.StringVar(&o.files.events, "events", "", "")
	flags.StringVar(&o.files.findings, "findings", "", "")
	flags.StringVar(&o.files.sarif, "sarif", "", "")
	flags.StringVar(&o.files.learn, "learn", "", "")
	flags.StringVar(&o.files.report, "report", "", "")
	flags.StringVar(&o.files.record, "record", "", "")
	flags.BoolVar(&o.asRoot, "as-root", false, "")
	flags.BoolVar(&o.serialize, "serialize", false, "")
	httpFlag := flags.String("http", "", "")
	flags.Var(&o.ring, "ring-size", "")
	if err := parseFlags(flags, args, runUsage, stdout); err != nil {
		return nil, err
	}
	if o.command = flags.Args(); len(o.command) == 0 {
		return nil, usageError{errors.New("run: want a command, as in mcpfz-probe run -- npx server")}
	}
	if *httpFlag != "" {
		var err error
		if o.listen, o.upstream, err = parseHTTP(*httpFlag); err != nil {
			return nil, err
		}
	}
	return o, nil
}

// policy is the policy of the flags, which allows the command: whoever calls it so wants
// it run.
func (o *runOptions) policy() (policy, error) {
	p, err := o.policyFlags.policy()
	if err != nil {
		return policy{}, err
	}
	if path, err := exec.LookPath(o.command[0]); err == nil {
		if path, err = filepath.Abs(path); err == nil {
			p.ExecAllow = append(slices.Clone(p.ExecAllow), path)
		}
	}
	return p, nil
}

// runCommand is the command run.
func runCommand(args []string, stdin io.Reader, stdout, stderr io.Writer) error {
	signal.Ignore(brokenPipe...)
	o, err := parseRun(args, stdout)
	if err != nil {
		return err
	}
	var listener net.Listener
	if o.listen != "" {
		if listener, err = net.Listen("tcp", o.listen); err != nil {
			return usageError{err}
		}
		defer listener.Close()
	}
	out, err := startOutput(args, stderr)
	if err != nil {
		return err
	}
	defer out.close()
	b, err := newBackend(o.backend, o.eventsFile, int(o.ring))
	if err != nil {
		return err
	}
	defer b.Close()
	if err := out.ready(); err != nil {
		return err
	}
	if b.name() == "fake" && o.eventsFile == "" {
		fmt.Fprintln(stderr, "mcpfz-probe: no kernel events, only calls: they need root, or CAP_BPF and CAP_PERFMON, on Linux 5.15 or later")
	}
	user, err := invokingUser(o.asRoot)
	if err != nil {
		return err
	}
	server, err := startServer(o.command, nil, user, stderr)
	if err != nil {
		return err
	}
	if b.name() == "ebpf" {
		if err := dropCapabilities(); err != nil {
			server.kill()
			return err
		}
	}
	r := &runner{session: newSession(b, out, 0), server: server, over: make(chan struct{})}
	if o.serialize {
		r.serializer = newSerializer(r, server.in)
	}
	var runErr error
	if listener != nil {
		// What such a server writes is for people.
		go func() {
			io.Copy(stderr, server.out)
			server.out.Close()
		}()
		server.in.Close()
		runErr = r.run(func() error { return r.serveHTTP(listener, o.upstream) })
	} else {
		runErr = r.run(func() error {
			r.serveStdio(pollInput(stdin), stdout)
			return nil
		})
	}
	err = errors.Join(runErr, out.close())
	if status := server.status(); status != 0 {
		var told exitStatus
		if err != nil && !errors.As(err, &told) {
			fmt.Fprintf(stderr, "mcpfz-probe: %v\n", err)
		}
		return exitStatus(status)
	}
	return err
}

const runUsage = `mcpfz-probe run stands between an MCP client and a server, and tells what each call did.

Usage:
  mcpfz-probe run [flags] -- COMMAND [ARGS…]
  mcpfz-probe run --http LISTEN=UPSTREAM [flags] -- COMMAND [ARGS…]

It starts COMMAND, an MCP server on standard input and output, and passes every
byte on as it is: put it in front of the command in a client's configuration. On
standard error is a table when the server has ended. With --http, COMMAND is a
server that listens on UPSTREAM for HTTP, and clients go to LISTEN: both are
address:port, or a port of loopback.

  --events FILE          event lines, as the sidecar writes them
  --findings FILE        what the policy does not allow, a line each
  --sarif FILE           the same as SARIF 2.1.0
  --report FILE.html     a page for a browser, to look at and to hand on
  --learn FILE           the smallest policy under which there is no finding
  --record FILE          the session as a script, which --backend fake
                         --events-file FILE plays without privileges
  --policy FILE, --workspace DIR, --tmpdir DIR, --allow-exec A,B,
  --allow-host A,B, --fail-on SEVERITY
                         as for evaluate
  --serialize            hold further calls back until the running one has been
                         answered, so that each event belongs to one call
  --as-root              under sudo, do not run the server as who has called sudo
  --backend auto|ebpf|fake, --events-file FILE, --ring-size BYTES
                         as for the sidecar, but auto is the default: without
                         privileges there are calls and no kernel events

Exit codes: that of the server, 128 and the number if it was a signal; else 1 if
--fail-on is met or writing failed, 2 for bad arguments, 69 if --backend ebpf
cannot be had.
`
