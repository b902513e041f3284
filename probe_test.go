//go:build linux

package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"testing"
	"time"
	"unicode/utf8"
)

// TestMain lets the test binary play other parts: the sidecar itself, and the
// programs that it watches.
func TestMain(m *testing.M) {
	if part := os.Getenv("PROBE_TEST_PART"); part != "" {
		os.Unsetenv("PROBE_TEST_PART")
		os.Exit(playPart(part, os.Args[1:]))
	}
	os.Exit(m.Run())
}

func playPart(part string, args []string) int {
	switch part {
	case "probe":
		return run(args, os.Stdin, os.Stdout, os.Stderr)
	case "actor":
		return playActor(os.Stdin, os.Stdout)
	}
	if f := testParts[part]; f != nil {
		if err := f(args); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", part, err)
			return 1
		}
		return 0
	}
	fmt.Fprintf(os.Stderr, "unknown part %q\n", part)
	return 1
}

// testParts are further programs of single tests, by name.
var testParts = map[string]func(args []string) error{}

// patience is how long a test waits for what should come at once.
const patience = 20 * time.Second

// An outLine is a line of output, decoded, and the bytes it came as.
type outLine map[string]any

func (l outLine) str(key string) string {
	s, _ := l[key].(string)
	return s
}

// A client is what the sidecar serves, with the habits of the real ones.
type client struct {
	t     *testing.T
	in    io.WriteCloser
	lines chan outLine // closed at the end of the output

	gate sync.Mutex // held while the client does not read

	mu  sync.Mutex
	all []outLine
}

// newClient reads the sidecar's output from out, strictly, to its end.
func newClient(t *testing.T, in io.WriteCloser, out io.Reader) *client {
	c := &client{t: t, in: in, lines: make(chan outLine, 1<<20)}
	go func() {
		defer close(c.lines)
		r := bufio.NewReader(out)
		for {
			b, err := r.ReadBytes('\n')
			if err != nil {
				if len(b) > 0 && !errors.Is(err, os.ErrClosed) {
					t.Errorf("the output ends within a line: %q", b)
				}
				return
			}
			c.gate.Lock()
			var l outLine
			err = json.Unmarshal(b, &l)
			c.gate.Unlock()
			if err != nil || !utf8.Valid(b) {
				t.Errorf("the output has a line that is not JSON in UTF-8: %v: %q", err, b)
				return
			}
			c.mu.Lock()
			c.all = append(c.all, l)
			c.mu.Unlock()
			c.lines <- l
		}
	}()
	return c
}

func (c *client) send(line string) {
	c.t.Helper()
	if _, err := io.WriteString(c.in, line+"\n"); err != nil {
		c.t.Fatalf("send %s: %v", line, err)
	}
}

// next returns the next line, or nil at the end.
func (c *client) next() outLine {
	c.t.Helper()
	select {
	case l := <-c.lines:
		return l
	case <-time.After(patience):
		c.t.Fatalf("no line within %v; the last ones: %v", patience, c.tail())
		return nil
	}
}

// seen returns all lines so far.
func (c *client) seen() []outLine {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.all
}

func (c *client) tail() []outLine {
	all := c.seen()
	return all[max(0, len(all)-5):]
}

// until returns the lines up to and with the first for which stop is true.
func (c *client) until(stop func(outLine) bool) []outLine {
	c.t.Helper()
	var got []outLine
	for {
		l := c.next()
		if l == nil {
			c.t.Fatalf("the output ends; the last lines: %v", c.tail())
		}
		if got = append(got, l); stop(l) {
			return got
		}
	}
}

// untilStatus returns the lines up to and with that status line; an empty callID
// is any.
func (c *client) untilStatus(message, callID string) []outLine {
	c.t.Helper()
	return c.until(func(l outLine) bool {
		return l["type"] == "status" && l["message"] == message && (callID == "" || l["call_id"] == callID)
	})
}

func (c *client) scope(pgid int) []outLine {
	c.t.Helper()
	c.send(fmt.Sprintf(`{"op":"scope","pgid":%d,"generation":1}`, pgid))
	return c.untilStatus("scope", "")
}

func (c *client) sendBegin(id, tool string) {
	c.t.Helper()
	c.send(fmt.Sprintf(`{"op":"mark","phase":"begin","call_id":%q,"tool":%q}`, id, tool))
}

func (c *client) sendEnd(id string) {
	c.t.Helper()
	c.send(fmt.Sprintf(`{"op":"mark","phase":"end","call_id":%q}`, id))
}

func (c *client) begin(id, tool string) []outLine {
	c.t.Helper()
	c.sendBegin(id, tool)
	return c.untilStatus("begin", id)
}

func (c *client) end(id string) []outLine {
	c.t.Helper()
	c.sendEnd(id)
	return c.untilStatus("end", id)
}

// shutdown ends the session and returns the rest of the output.
func (c *client) shutdown() []outLine {
	c.t.Helper()
	c.send(`{"op":"shutdown"}`)
	return c.rest()
}

// rest returns what comes until the end of the output.
func (c *client) rest() []outLine {
	c.t.Helper()
	var got []outLine
	for {
		l := c.next()
		if l == nil {
			return got
		}
		got = append(got, l)
	}
}

// A testSession is a session in this process with a client in front of it.
type testSession struct {
	*client
	session *session
	done    chan error // gets run's result
}

// startSession serves a client with b and returns after the ready line.
func startSession(t *testing.T, b backend, grace time.Duration) *testSession {
	t.Helper()
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	s := &testSession{client: newClient(t, inW, outR), done: make(chan error, 1)}
	s.session = newSession(b, outW, grace)
	go s.session.readControls(inR)
	go func() {
		err := s.session.run()
		b.Close()
		outW.Close()
		s.done <- err
	}()
	t.Cleanup(func() {
		inW.Close()
		outR.Close()
		select {
		case <-s.done:
		case <-time.After(patience):
			t.Errorf("the session does not end")
		}
		b.Close()
	})
	s.untilStatus("ready", "")
	return s
}

// filter returns the lines with those values.
func filter(lines []outLine, want fields) []outLine {
	var got []outLine
	for _, l := range lines {
		match := true
		for k, v := range want {
			match = match && l[k] == v
		}
		if match {
			got = append(got, l)
		}
	}
	return got
}

type fields map[string]any
