package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"
)

// stopServer is how long a server may take that was told to end.
const stopServer = 2 * time.Second

// A demoPeer is who is talked to in lines of JSON.
type demoPeer struct {
	name string
	out  io.WriteCloser
	in   <-chan []byte
	err  error     // why in ended; io.EOF if it just did
	cmd  *exec.Cmd // nil for the probe
}

func newDemoPeer(name string, in io.Reader, out io.WriteCloser) *demoPeer {
	lines := make(chan []byte)
	p := &demoPeer{name: name, out: out, in: lines}
	go func() {
		defer close(lines)
		for r := bufio.NewReader(in); ; {
			line, err := r.ReadBytes('\n')
			if p.err = err; err != nil {
				return
			}
			lines <- line
		}
	}()
	return p
}

func (p *demoPeer) send(v any) error {
	if err := json.NewEncoder(p.out).Encode(v); err != nil {
		return fmt.Errorf("write to the %s: %w", p.name, err)
	}
	return nil
}

// receive decodes the next line into v.
func (p *demoPeer) receive(ctx context.Context, v any) error {
	select {
	case line, ok := <-p.in:
		if !ok {
			return p.err // which may be io.EOF, for who expects that
		}
		if err := json.Unmarshal(line, v); err != nil {
			return fmt.Errorf("the %s wrote %.100q: %w", p.name, line, err)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for the %s: %w", p.name, context.Cause(ctx))
	}
}

// request sends an MCP request and waits for its answer. That a tool failed is an
// answer like any other: trace_process always does.
func (p *demoPeer) request(ctx context.Context, id int, method string, params any) error {
	if err := p.send(jsonObject{"jsonrpc": "2.0", "id": id, "method": method, "params": params}); err != nil {
		return err
	}
	var answer struct{ Error *demoError }
	if err := p.receive(ctx, &answer); err != nil {
		return fmt.Errorf("%s: %w", method, err)
	}
	if answer.Error != nil {
		return fmt.Errorf("%s: the %s refused: %s", method, p.name, answer.Error.Message)
	}
	return nil
}

// startDemoServer starts this very program as the server, in a process group of
// its own, as any MCP client should that wants it watched.
func startDemoServer(dir string) (*demoPeer, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self, "demo-server")
	// With cgo, glibc would count the CPUs in /sys when there are many threads, maybe
	// in the middle of a call that is to do nothing.
	cmd.Env = append(os.Environ(), "MCPFZ_DEMO_DIR="+dir, "MALLOC_ARENA_MAX=1")
	cmd.Stderr = os.Stderr
	ownGroup(cmd)
	stdin, err1 := cmd.StdinPipe()
	stdout, err2 := cmd.StdoutPipe()
	if err := errors.Join(err1, err2, cmd.Start()); err != nil {
		return nil, err
	}
	p := newDemoPeer("server", stdout, stdin)
	p.cmd = cmd
	return p, nil
}

// end lets the server end by itself, in a while.
func (p *demoPeer) end() {
	p.out.Close()
	kill := time.AfterFunc(stopServer, func() { p.cmd.Process.Kill() })
	defer kill.Stop()
	for range p.in {
	}
	p.cmd.Wait()
}

// startDemoProbe runs what a sidecar runs, in this process.
func startDemoProbe(b backend) *demoPeer {
	controls, toProbe := io.Pipe()
	fromProbe, events := io.Pipe()
	go func() {
		s := newSession(b, events, 0)
		go s.readControls(controls)
		err := s.run()
		controls.CloseWithError(cmp.Or(err, io.ErrClosedPipe))
		events.CloseWithError(err)
	}()
	return newDemoPeer("probe", fromProbe, toProbe)
}
