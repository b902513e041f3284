package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
)

// A demoPeer is the server, which is talked to in lines of JSON.
type demoPeer struct {
	out io.WriteCloser
	in  <-chan []byte
	err error // why in ended; io.EOF if it just did
}

func newDemoPeer(in io.Reader, out io.WriteCloser) *demoPeer {
	lines := make(chan []byte)
	p := &demoPeer{out: out, in: lines}
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
		return fmt.Errorf("write to the server: %w", err)
	}
	return nil
}

// receive decodes the next line into v.
func (p *demoPeer) receive(ctx context.Context, v any) error {
	select {
	case line, ok := <-p.in:
		if !ok {
			return p.err
		}
		if err := json.Unmarshal(line, v); err != nil {
			return fmt.Errorf("the server wrote %.100q: %w", line, err)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for the server: %w", context.Cause(ctx))
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
		return fmt.Errorf("%s: the server refused: %s", method, answer.Error.Message)
	}
	return nil
}
