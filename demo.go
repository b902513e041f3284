package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"time"
)

const demoUsage = `mcpfz-probe demo calls each tool of a small MCP server that misbehaves, harmlessly,
and shows what the kernel saw of each call. It does what run does, with a client of
its own.

Usage:
  sudo mcpfz-probe demo      the real thing; needs Linux 5.15 or later
  mcpfz-probe demo           without root: the same session as a script tells it

It works in a temporary folder, which it removes, and contacts nothing but this
machine itself.

Flags:
  --backend ebpf|fake|auto   where events come from (default auto: ebpf if it can be had)
  --report FILE.html         the session as a page for a browser, too
  --help
`

const (
	demoTimeout = 30 * time.Second // for all of it
	lateTimeout = 3 * time.Second  // for what start_background leaves behind
	stopServer  = 2 * time.Second  // for the server, when its client has gone
)

// demoArguments are what the tools are called with, by the parameter's name.
var demoArguments = map[string]string{"command": "hello; id"}

func demo(args []string, _ io.Reader, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("mcpfz-probe demo", flag.ContinueOnError)
	backendName := flags.String("backend", "auto", "")
	var files runFiles
	flags.StringVar(&files.report, "report", "", "")
	if err := parseFlags(flags, args, demoUsage, stdout); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return usageError{fmt.Errorf("demo: unexpected argument %q", flags.Arg(0))}
	}
	p, err := defaultPolicy()
	if err != nil {
		return err
	}
	if self, err := os.Executable(); err == nil {
		p.ExecAllow = []string{self}
	}
	user, err := invokingUser(false)
	if err != nil {
		return err
	}
	out, err := newRunOutput(p, files, user)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), endSignals...)
	defer stop()
	table, err := watchDemo(ctx, *backendName, user, out, stderr)
	if err = errors.Join(err, out.close(io.Discard)); err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	if files.report != "" {
		table += "The page is in " + shellWord(files.report) + ".\n"
	}
	_, err = io.WriteString(stdout, table)
	return err
}

// watchDemo does all that the demo does but for printing the table that it returns. Nothing
// else is left of it then. Lines go to out, too.
func watchDemo(ctx context.Context, backendName string, user *serverUser, out, stderr io.Writer) (table string, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, demoTimeout, fmt.Errorf("not done after %v", demoTimeout))
	defer cancel()
	dir, err := makeDemoFolder()
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := user.ownAll(dir); err != nil {
		return "", err
	}
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	// With cgo, glibc would count the CPUs in /sys when there are many threads, maybe
	// in the middle of a call that is to do nothing.
	server, err := startServer([]string{self, "demo-server"}, []string{"MCPFZ_DEMO_DIR=" + dir, "MALLOC_ARENA_MAX=1"}, user, stderr)
	if err != nil {
		return "", err
	}
	b, missing, err := demoBackend(backendName, dir, server.pid())
	if err != nil {
		server.kill()
		return "", err
	}
	defer b.Close()
	w := newDemoWatch(dir)
	r := &runner{session: newSession(b, io.MultiWriter(out, w), 0), server: server, over: make(chan struct{})}
	fromClient, toServer := io.Pipe()
	fromServer, toClient := io.Pipe()
	done := make(chan error, 1)
	go func() {
		err := r.run(func() error {
			r.serveStdio(fromClient, toClient)
			return nil
		})
		toClient.Close()
		fromClient.Close() // or the client would write for ever
		done <- err
	}()
	callErr := callDemoTools(ctx, newDemoPeer(fromServer, toServer), w)
	toServer.Close()
	end := time.AfterFunc(stopServer, server.end)
	defer end.Stop()
	if err := cmp.Or(callErr, <-done, w.err); err != nil {
		return "", err
	}
	return w.report(dir, b.name(), missing), nil
}

// callDemoTools is the client: it calls one tool after the other.
func callDemoTools(ctx context.Context, server *demoPeer, w *demoWatch) error {
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
	for i, tool := range demoTools {
		arguments := jsonObject{}
		if tool.param != "" {
			arguments[tool.param] = demoArguments[tool.param]
		}
		params := jsonObject{"name": tool.name, "arguments": arguments}
		if err := server.request(ctx, i+1, "tools/call", params); err != nil {
			return fmt.Errorf("%s: %w", tool.name, err)
		}
	}
	select {
	case <-w.late:
	case <-time.After(lateTimeout): // if it does not come, the table lacks it
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}

// A demoWatch gathers the lines that are written to it. Calls have their number as id;
// number 0 stands for no call.
type demoWatch struct {
	calls []demoCall
	lost  []eventLine
	late  chan struct{} // closed when start_background's child has acted
	err   error         // the first line that says that something is wrong

	part     []byte // of a line that is not whole yet
	lateFile string
	seen     sync.Once
}

type demoCall struct {
	events []eventLine // in the call
	late   []eventLine // of what it left behind
}

func newDemoWatch(dir string) *demoWatch {
	return &demoWatch{calls: make([]demoCall, len(demoTools)+1), late: make(chan struct{}), lateFile: demoLate(dir)}
}

// Write takes whole lines and parts of them, in one goroutine. It never fails: an error is
// told at the end.
func (w *demoWatch) Write(p []byte) (int, error) {
	for part := range bytes.Lines(p) {
		if w.part = append(w.part, part...); !bytes.HasSuffix(part, []byte("\n")) {
			continue
		}
		var l eventLine
		err := json.Unmarshal(w.part, &l)
		if err == nil {
			err = w.take(l)
		}
		w.err = cmp.Or(w.err, err)
		w.part = w.part[:0]
	}
	return len(p), nil
}

func (w *demoWatch) take(l eventLine) error {
	switch {
	case l.Type == "status" && l.Error != "":
		return errors.New("the probe says: " + l.Error)
	case l.Type == "status":
	case l.Type == "drop":
		w.lost = append(w.lost, l)
	case l.Bucket == "call":
		c := w.call(l.CallID)
		c.events = append(c.events, l)
	case l.Bucket != "startup":
		c := w.call(l.Origin)
		if c.late = append(c.late, l); l.Path == w.lateFile {
			w.seen.Do(func() { close(w.late) })
		}
	}
	return nil
}

func (w *demoWatch) call(id string) *demoCall {
	number, _ := strconv.Atoi(id) // 0 if there is none
	return &w.calls[number]
}
