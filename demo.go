package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"time"
)

const demoUsage = `mcpfz-probe demo calls each tool of a small MCP server that misbehaves, harmlessly,
and shows what the kernel saw of each call.

Usage:
  sudo mcpfz-probe demo      the real thing; needs Linux 5.15 or later
  mcpfz-probe demo           without root: the same session as a script tells it

It works in a temporary folder, which it removes, and contacts nothing but this
machine itself.

Flags:
  --backend ebpf|fake|auto   where events come from (default auto: ebpf if it can be had)
  --help
`

const (
	demoTimeout = 30 * time.Second // for all of it
	lateTimeout = 3 * time.Second  // for what start_background leaves behind
)

// demoArguments are what the tools are called with, by the parameter's name.
var demoArguments = map[string]string{"command": "hello; id"}

func demo(args []string, _ io.Reader, stdout, _ io.Writer) error {
	flags := flag.NewFlagSet("demo", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	name := flags.String("backend", "auto", "")
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		_, err := io.WriteString(stdout, demoUsage)
		return err
	} else if err != nil {
		return usageError{fmt.Errorf("demo: %w", err)}
	} else if flags.NArg() > 0 {
		return usageError{fmt.Errorf("demo: unexpected argument %q", flags.Arg(0))}
	}

	ctx, stop := signal.NotifyContext(context.Background(), endSignals...)
	defer stop()
	report, err := watchDemo(ctx, *name)
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	_, err = io.WriteString(stdout, report)
	return err
}

// watchDemo does all that the demo does but for printing the report that it
// returns. Nothing else is left of it then.
func watchDemo(ctx context.Context, backendName string) (report string, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, demoTimeout, fmt.Errorf("not done after %v", demoTimeout))
	defer cancel()
	dir, err := makeDemoFolder()
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	server, err := startDemoServer(dir)
	if err != nil {
		return "", fmt.Errorf("start the server: %w", err)
	}
	defer server.end()
	b, missing, err := demoBackend(backendName, dir, server.cmd.Process.Pid)
	if err != nil {
		return "", err
	}
	defer b.Close()
	w := &demoWatch{probe: startDemoProbe(b), calls: make([]demoCall, len(demoTools)+1)}
	defer w.probe.out.Close()
	if err := w.callTools(ctx, server, dir); err != nil {
		return "", err
	}
	return w.report(dir, b.name(), missing), nil
}

// A demoLine is what the demo reads of the probe's lines, and what its script has.
type demoLine struct {
	Type        string   `json:"type"`
	Bucket      string   `json:"bucket,omitempty"`
	CallID      string   `json:"call_id,omitempty"`
	Origin      string   `json:"origin_call_id,omitempty"`
	Message     string   `json:"message,omitempty"`
	Error       string   `json:"error,omitempty"`
	Count       int      `json:"count,omitempty"`
	Reason      string   `json:"reason,omitempty"`
	Pid         int      `json:"pid,omitempty"`
	ChildPid    int      `json:"child_pid,omitempty"`
	TargetPid   int      `json:"target_pid,omitempty"`
	RequestName string   `json:"request_name,omitempty"`
	Argv        []string `json:"argv,omitempty"`
	Path        string   `json:"path,omitempty"`
	OldPath     string   `json:"old_path,omitempty"`
	Target      string   `json:"target,omitempty"`
	Flags       string   `json:"flags,omitempty"`
	Mode        string   `json:"mode,omitempty"`
	Proto       string   `json:"proto,omitempty"`
	Dst         string   `json:"dst,omitempty"`
	Errno       string   `json:"errno,omitempty"`
}

// A demoWatch gathers what the probe says. Calls have their number as id; number 0
// stands for no call.
type demoWatch struct {
	probe *demoPeer
	last  demoLine
	calls []demoCall
	lost  []demoLine
}

type demoCall struct {
	events []demoLine // in the call
	late   []demoLine // of what it left behind
}

// callTools calls one tool after the other, each between its marks.
func (w *demoWatch) callTools(ctx context.Context, server *demoPeer, dir string) error {
	err := server.request(ctx, 0, "initialize", jsonObject{
		"protocolVersion": demoProtocols[0],
		"capabilities":    jsonObject{},
		"clientInfo":      jsonObject{"name": "mcpfz-probe-demo", "version": version},
	})
	if err != nil {
		return err
	}
	if err := server.send(jsonObject{"jsonrpc": "2.0", "method": "notifications/initialized"}); err != nil {
		return err
	}
	scope := jsonObject{"op": "scope", "pgid": server.cmd.Process.Pid, "generation": 1}
	if err := w.control(ctx, scope, "scope", ""); err != nil {
		return err
	}
	for i, tool := range demoTools {
		if err := w.callTool(ctx, server, i+1, tool); err != nil {
			return fmt.Errorf("%s: %w", tool.name, err)
		}
	}
	lateCtx, cancel := context.WithTimeout(ctx, lateTimeout)
	defer cancel()
	isLate := func(l demoLine) bool { return l.Path == demoLate(dir) }
	err = w.until(lateCtx, func() bool { return slices.ContainsFunc(w.calls[len(demoTools)].late, isLate) })
	if err != nil && lateCtx.Err() == nil { // if it does not come, the report lacks it
		return err
	}
	if err := w.probe.send(jsonObject{"op": "shutdown"}); err != nil {
		return err
	}
	if err := w.until(ctx, func() bool { return false }); err != io.EOF {
		return err
	}
	return nil
}

func (w *demoWatch) callTool(ctx context.Context, server *demoPeer, number int, tool demoTool) error {
	id, arguments := strconv.Itoa(number), jsonObject{}
	if tool.param != "" {
		arguments[tool.param] = demoArguments[tool.param]
	}
	begin := jsonObject{"op": "mark", "phase": "begin", "call_id": id, "tool": tool.name}
	if err := w.control(ctx, begin, "begin", id); err != nil {
		return err
	}
	params := jsonObject{"name": tool.name, "arguments": arguments}
	if err := server.request(ctx, number, "tools/call", params); err != nil {
		return err
	}
	return w.control(ctx, jsonObject{"op": "mark", "phase": "end", "call_id": id}, "end", id)
}

// control sends a control line and waits for its status. Everything that the probe
// has to say of the time before comes before that.
func (w *demoWatch) control(ctx context.Context, line jsonObject, message, id string) error {
	if err := w.probe.send(line); err != nil {
		return err
	}
	return w.until(ctx, func() bool { return w.last.Message == message && w.last.CallID == id })
}

// until takes in lines until there was enough.
func (w *demoWatch) until(ctx context.Context, enough func() bool) error {
	for !enough() {
		if err := w.read(ctx); err != nil {
			return err
		}
	}
	return nil
}

// read takes in one line of the probe.
func (w *demoWatch) read(ctx context.Context) error {
	w.last = demoLine{}
	l := &w.last
	if err := w.probe.receive(ctx, l); err != nil {
		return err
	}
	switch {
	case l.Type == "status" && l.Error != "":
		return errors.New("the probe says: " + l.Error)
	case l.Type == "status":
	case l.Type == "drop":
		w.lost = append(w.lost, *l)
	case l.Bucket == "call":
		c := w.call(l.CallID)
		c.events = append(c.events, *l)
	case l.Bucket != "startup": // then it is of those who started the demo
		c := w.call(l.Origin)
		c.late = append(c.late, *l)
	}
	return nil
}

func (w *demoWatch) call(id string) *demoCall {
	number, _ := strconv.Atoi(id) // 0 if there is none
	return &w.calls[number]
}
