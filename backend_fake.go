package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"
)

// fakeBackend plays events from a script instead of watching a kernel, so that
// everything behind it can be tested on any machine, without privileges.
type fakeBackend struct {
	script []scriptEntry

	mu     sync.Mutex
	ready  sync.Cond // queue or closed changed
	queue  []record
	window uint64
	closed bool
	begun  map[string]int     // calls so far, by tool
	nth    map[string]int     // which of them an open call is, by its id
	origin map[callRef]uint64 // in which window calls began that events come from
}

var _ backend = (*fakeBackend)(nil)

// A scriptEntry is an event and the mark that sets it off.
type scriptEntry struct {
	trigger string
	tool    string // a JSON string; empty for any tool
	nth     int    // which call of that tool; 0 for each
	origin  callRef
	event   *scriptEvent
}

// A callRef names a call of a session: the n-th of a tool, from 1. None has n 0.
type callRef struct {
	tool string // a JSON string
	n    int
}

// A scriptEvent is an event object of a script, passed through but for what the
// attribution fills in.
type scriptEvent struct {
	name           string
	bucket, callID []byte
	fields         []scriptField
}

type scriptField struct {
	key   string
	value string // JSON on one line
}

// newFakeBackend returns a backend that plays a script as the README describes
// it. Without one (nil) it is silent.
func newFakeBackend(script []byte) (*fakeBackend, error) {
	b := &fakeBackend{begun: map[string]int{}, nth: map[string]int{}, origin: map[callRef]uint64{}}
	b.ready.L = &b.mu
	if script != nil {
		var err error
		if b.script, err = parseScript(script); err != nil {
			return nil, err
		}
	}
	for _, e := range b.script {
		if e.origin.n > 0 {
			b.origin[e.origin] = 0
		}
	}
	b.play("startup", "", 0)
	return b, nil
}

func parseScript(script []byte) ([]scriptEntry, error) {
	type entry struct {
		Trigger string
		Tool    json.RawMessage
		Nth     int
		Origin  *struct {
			Tool json.RawMessage
			Nth  int
		}
		Event map[string]json.RawMessage
	}
	var list []entry
	if script = bytes.TrimSpace(script); bytes.HasPrefix(script, []byte{'['}) {
		if err := json.Unmarshal(script, &list); err != nil {
			return nil, fmt.Errorf("events script: %w", err)
		}
	} else {
		var object struct{ Events *[]entry }
		if err := json.Unmarshal(script, &object); err != nil {
			return nil, fmt.Errorf("events script: %w", err)
		}
		if object.Events == nil {
			return nil, errors.New(`events script: want {"events":[…]} or […]`)
		}
		list = *object.Events
	}
	var entries []scriptEntry
	for i, e := range list {
		switch e.Trigger {
		case "startup", "scope", "begin", "end", "after":
		default:
			return nil, fmt.Errorf("events script: entry %d: unknown trigger %q, want startup, scope, begin, end or after", i, clip(e.Trigger))
		}
		if e.Nth < 0 {
			return nil, fmt.Errorf("events script: entry %d: nth %d: want the number of a call, from 1", i, e.Nth)
		}
		s := scriptEntry{trigger: e.Trigger, nth: e.Nth}
		if e.Tool != nil && string(e.Tool) != "null" {
			var err error
			if s.tool, err = jsonString(e.Tool); err != nil {
				return nil, fmt.Errorf("events script: entry %d: tool: %w", i, err)
			}
		}
		if e.Origin != nil {
			tool, err := jsonString(e.Origin.Tool)
			if err == nil && e.Origin.Nth < 1 {
				err = fmt.Errorf("nth %d: want the number of a call, from 1", e.Origin.Nth)
			}
			if err != nil {
				return nil, fmt.Errorf("events script: entry %d: origin: %w", i, err)
			}
			s.origin = callRef{tool, e.Origin.Nth}
		}
		if s.event = parseScriptEvent(e.Event); s.event != nil {
			entries = append(entries, s)
		}
	}
	return entries, nil
}

// parseScriptEvent returns nil for an event without a type: it is skipped.
func parseScriptEvent(object map[string]json.RawMessage) *scriptEvent {
	e := new(scriptEvent)
	if json.Unmarshal(object["type"], &e.name) != nil || e.name == "" {
		return nil
	}
	for key, value := range object {
		// A script for people is indented, and JSON may hold bytes that are not UTF-8.
		var buf bytes.Buffer
		if json.Compact(&buf, value) != nil {
			return nil // not reached: the whole script was parsed
		}
		value := bytes.ToValidUTF8(buf.Bytes(), []byte("\uFFFD"))
		switch key {
		case "type", "ts_ns":
		case "bucket":
			e.bucket = value
		case "call_id":
			e.callID = value
		default:
			quoted := appendQuoted(nil, key)
			e.fields = append(e.fields, scriptField{string(quoted[1 : len(quoted)-1]), string(value)})
		}
	}
	slices.SortFunc(e.fields, func(a, b scriptField) int { return bytes.Compare([]byte(a.key), []byte(b.key)) })
	return e
}

func (e *scriptEvent) typ() string { return e.name }

func (e *scriptEvent) overrides() (bucket, callID []byte) { return e.bucket, e.callID }

func (e *scriptEvent) append(l *line) {
	for _, f := range e.fields {
		l.raw(f.key, f.value)
	}
}

func (b *fakeBackend) name() string { return "fake" }

func (b *fakeBackend) scope(int) (int, error) { return processesUnknown, nil }

// live returns the windows that events to come have their origin in. All others are
// played in the current one.
func (b *fakeBackend) live() (map[uint64]bool, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	live := map[uint64]bool{}
	for _, window := range b.origin {
		live[window] = true
	}
	return live, nil
}

func (b *fakeBackend) mark(m *mark) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	id, tool := m.status.callID, m.status.tool
	if m.op == markBegin && id != "" {
		b.begun[tool]++
		ref := callRef{tool, b.begun[tool]}
		b.nth[id] = ref.n
		if _, ok := b.origin[ref]; ok {
			b.origin[ref] = m.window
		}
	}
	nth := b.nth[id]
	// In the kernel, too, the mark of a begin comes before what the call does, and
	// that of an end after it.
	if m.op == markEnd {
		b.play("end", tool, nth)
	}
	b.window = m.window
	b.push(record{mark: m})
	switch {
	case m.op == markScope:
		b.play("scope", "", 0)
	case m.op == markBegin && id != "":
		b.play("begin", tool, nth)
	case m.op == markEnd:
		delete(b.nth, id)
		b.play("after", tool, nth)
	}
	return nil
}

// play queues the events of a trigger in the current window.
func (b *fakeBackend) play(trigger, tool string, nth int) {
	for _, e := range b.script {
		if e.trigger == trigger && (e.tool == "" || e.tool == tool) && (e.nth == 0 || e.nth == nth) {
			b.push(record{event: e.event, origin: b.origin[e.origin]})
		}
	}
}

func (b *fakeBackend) push(r record) {
	r.tsNS = time.Now().UnixNano()
	r.window = b.window
	b.queue = append(b.queue, r)
	b.ready.Signal()
}

func (b *fakeBackend) next(r *record) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(b.queue) == 0 {
		if b.closed {
			return io.EOF
		}
		b.ready.Wait()
	}
	*r = b.queue[0]
	b.queue = b.queue[1:]
	r.more = len(b.queue) > 0
	return nil
}

func (b *fakeBackend) losses(uint64, func(window uint64, reason string, count uint64)) {}

func (b *fakeBackend) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	b.ready.Broadcast()
	return nil
}
