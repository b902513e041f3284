package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
)

// A demoPeer is who is talked to in lines of JSON.
type demoPeer struct {
	name string
	out  io.WriteCloser
	in   <-chan []byte
	err  error // why in ended; io.EOF if it just did
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
