package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"
)

// The protocol: one JSON object a line, control lines in on standard input,
// status lines and events out on standard output. Standard output holds nothing
// else; standard error is for people. Unknown fields are ignored, so that either
// side can be newer than the other. The README has the full contract.

// maxControlLine is the longest control line, in bytes. No client sends one of a
// kilobyte; whatever is longer is passed over without being kept.
const maxControlLine = 64 << 10

// controlOp is what a control line asks for.
type controlOp int

const (
	controlScope controlOp = iota + 1
	controlBegin
	controlEnd
	controlShutdown
	controlSettle // no line asks for it: the server has started
)

// A control is one control line.
type control struct {
	op         controlOp
	pgid       int
	generation int64
	callID     string // as a JSON string, quotes included
	tool       string // likewise; empty if there is none

	// No control line has the rest, which is for whoever makes controls in this process.
	startup bool            // of a scope: what it does until it is settled is in the bucket "startup"
	request *request        // behind a call
	done    chan<- struct{} // closed when the mark has come back
}

// A request is what the status lines of a call say of the request behind it.
type request struct {
	method  string // as JSON, like the id
	id      string
	over    bool          // the rest is known
	latency time.Duration // from the request to its answer
	failed  bool
	why     string // it is over without an answer; empty if there was one
}

var errLineTooLong = fmt.Errorf("control line is longer than %d bytes", maxControlLine)

// controlReader reads control lines.
type controlReader struct {
	r *bufio.Reader
}

func newControlReader(r io.Reader) *controlReader {
	return &controlReader{bufio.NewReaderSize(r, maxControlLine)}
}

// next returns the next control line. An error for which fatal is false concerns
// that line only; the reader has passed over it. At the end it returns io.EOF.
func (c *controlReader) next() (ctl control, fatal bool, err error) {
	for {
		line, err := c.r.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			for errors.Is(err, bufio.ErrBufferFull) {
				_, err = c.r.ReadSlice('\n')
			}
			if err != nil && err != io.EOF {
				return control{}, true, fmt.Errorf("read control lines: %w", err)
			}
			return control{}, false, errLineTooLong
		}
		if len(bytes.TrimSpace(line)) > 0 {
			ctl, err := parseControl(line) // a last line may lack its newline
			return ctl, false, err
		}
		if err == io.EOF {
			return control{}, true, io.EOF
		}
		if err != nil {
			return control{}, true, fmt.Errorf("read control lines: %w", err)
		}
	}
}

// parseControl parses one control line.
func parseControl(line []byte) (control, error) {
	var in struct {
		Op         string
		Phase      string
		Pgid       *int64
		Generation int64
		CallID     json.RawMessage `json:"call_id"`
		Tool       json.RawMessage
	}
	if err := json.Unmarshal(line, &in); err != nil {
		return control{}, fmt.Errorf("control line is not what it should be: %w", err)
	}
	switch in.Op {
	case "shutdown":
		return control{op: controlShutdown}, nil
	case "scope":
		if in.Pgid == nil {
			return control{}, errors.New(`scope lacks "pgid"`)
		}
		if *in.Pgid <= 0 || *in.Pgid > 1<<31-1 {
			return control{}, fmt.Errorf("scope: pgid %d is not a process group", *in.Pgid)
		}
		return control{op: controlScope, pgid: int(*in.Pgid), generation: in.Generation}, nil
	case "mark":
		c := control{op: controlBegin}
		switch in.Phase {
		case "begin":
		case "end":
			c.op = controlEnd
		default:
			return control{}, fmt.Errorf(`mark: unknown phase %q, want "begin" or "end"`, clip(in.Phase))
		}
		var err error
		if c.callID, err = jsonString(in.CallID); err != nil {
			return control{}, fmt.Errorf("mark: call_id: %w", err)
		}
		if c.op == controlBegin && in.Tool != nil && string(in.Tool) != "null" {
			if c.tool, err = jsonString(in.Tool); err != nil {
				return control{}, fmt.Errorf("mark: tool: %w", err)
			}
		}
		return c, nil
	case "":
		return control{}, errors.New(`control line lacks "op"`)
	}
	return control{}, fmt.Errorf("unknown op %q", clip(in.Op))
}

// jsonString returns a JSON string in the one spelling that the probe uses for it,
// so that equal strings compare equal and go out as valid UTF-8. A lone surrogate,
// which Go's strings cannot hold, keeps the spelling that it came in, so that a
// client that waits for its id gets it back.
func jsonString(raw json.RawMessage) (string, error) {
	if len(raw) == 0 {
		return "", errors.New("is missing")
	}
	if raw[0] != '"' {
		return "", errors.New("is not a string")
	}
	var s string
	if err := json.Unmarshal(raw, &s); err != nil {
		return "", err
	}
	if strings.ContainsRune(s, utf8.RuneError) && utf8.Valid(raw) {
		return string(raw), nil
	}
	return string(appendQuoted(nil, s)), nil
}

// clip shortens what a client sent for an error message about it.
func clip(s string) string {
	if len(s) > 64 {
		return strings.ToValidUTF8(s[:64], "") + "…"
	}
	return s
}

// A status is a status line in the making: what the control side knows of it. The
// bucket and the time are known when its mark comes back.
type status struct {
	message string // empty for none
	callID  string // as in control; its presence makes the bucket "call"
	tool    string
	err     string

	request    *request // nil if it is not known
	scope      bool
	pgid       int
	generation int64
	processes  int
}

// append adds the status's fields after its type. bucket is for a status that
// concerns no call.
func (s *status) append(l *line, bucket string, tsNS int64) {
	l.str("message", s.message)
	if s.callID == "" {
		l.raw("bucket", bucket)
	} else {
		l.raw("bucket", bucketCall)
		l.raw("call_id", s.callID)
	}
	if s.tool != "" {
		l.raw("tool", s.tool)
	}
	if r := s.request; r != nil {
		l.raw("method", r.method)
		l.raw("request_id", r.id)
		if r.over {
			l.int("latency_us", r.latency.Microseconds())
			l.bool("failed", r.failed)
		}
	}
	if s.scope {
		l.int("pgid", int64(s.pgid))
		l.int("generation", s.generation)
		if s.processes != processesUnknown {
			l.int("processes", int64(s.processes))
		}
	}
	if s.err != "" {
		l.str("error", s.err)
	}
	l.int("ts_ns", tsNS)
}
