package main

import (
	"reflect"
	"testing"
)

// TestAttribute plays a session on an attribution and looks at one event at its
// end. A step is a control line ("scope", "begin x", "end x"), or "read" for
// reading, in the stream, the marks of the oldest step not yet read.
func TestAttribute(t *testing.T) {
	for name, tt := range map[string]struct {
		steps  []string
		window int // in which the operation began, as the number of marks before it
		origin int // likewise, of the process; 0 for none
		want   verdict
	}{
		"before all":                     {nil, 0, 0, verdict{bucket: bucketStartup}},
		"in scope, no call":              {[]string{"scope", "read"}, 1, 0, verdict{bucket: bucketAmbient}},
		"began before the scope":         {[]string{"scope", "read"}, 0, 0, verdict{bucket: bucketStartup}},
		"call before any scope":          {[]string{"begin a", "read"}, 1, 0, verdict{bucket: bucketCall, callID: `"a"`}},
		"after a call before any scope":  {[]string{"begin a", "read", "end a", "read"}, 2, 0, verdict{bucket: bucketStartup}},
		"in its call":                    {[]string{"scope", "begin a", "read", "read"}, 2, 0, verdict{bucket: bucketCall, callID: `"a"`}},
		"end asked for, not yet read":    {[]string{"begin a", "read", "end a"}, 1, 0, verdict{bucket: bucketCall, callID: `"a"`}},
		"completed after its call":       {[]string{"scope", "begin a", "end a", "read", "read", "read"}, 2, 0, verdict{bucket: bucketAmbient, originID: `"a"`}},
		"after a call":                   {[]string{"scope", "begin a", "end a", "read", "read", "read"}, 3, 0, verdict{bucket: bucketAmbient}},
		"began in a, completed in b":     {[]string{"scope", "begin a", "end a", "begin b", "read", "read", "read", "read"}, 2, 0, verdict{bucket: bucketAmbient, originID: `"a"`}},
		"overlapping":                    {[]string{"scope", "begin a", "begin b", "read", "read", "read"}, 3, 0, verdict{bucket: bucketAmbient, candidates: []string{`"a"`, `"b"`}}},
		"overlapping, one ended":         {[]string{"scope", "begin a", "begin b", "end a", "read", "read", "read", "read"}, 3, 0, verdict{bucket: bucketAmbient, candidates: []string{`"a"`, `"b"`}}},
		"alone again":                    {[]string{"scope", "begin a", "begin b", "end a", "read", "read", "read", "read"}, 4, 0, verdict{bucket: bucketCall, callID: `"b"`}},
		"before the overlap":             {[]string{"scope", "begin a", "begin b", "read", "read", "read"}, 2, 0, verdict{bucket: bucketCall, callID: `"a"`}},
		"child of the call, in it":       {[]string{"begin a", "read"}, 1, 1, verdict{bucket: bucketCall, callID: `"a"`}},
		"child of the call, later":       {[]string{"scope", "begin a", "end a", "read", "read", "read"}, 3, 2, verdict{bucket: bucketAmbient, originID: `"a"`}},
		"child of a, in b":               {[]string{"scope", "begin a", "end a", "begin b", "read", "read", "read", "read"}, 4, 2, verdict{bucket: bucketCall, callID: `"b"`, originID: `"a"`}},
		"child of a, in a and b":         {[]string{"scope", "begin a", "begin b", "read", "read", "read"}, 3, 2, verdict{bucket: bucketAmbient, originID: `"a"`, candidates: []string{`"a"`, `"b"`}}},
		"child of a, began in b, late":   {[]string{"scope", "begin a", "end a", "begin b", "end b", "read", "read", "read", "read", "read"}, 4, 2, verdict{bucket: bucketAmbient, originID: `"b"`, forkedID: `"a"`}},
		"child of a or b, later":         {[]string{"scope", "begin a", "begin b", "end a", "end b", "read", "read", "read", "read", "read"}, 5, 3, verdict{bucket: bucketAmbient, originCandidates: []string{`"a"`, `"b"`}}},
		"child of a or b, in b":          {[]string{"scope", "begin a", "begin b", "end a", "read", "read", "read", "read"}, 4, 3, verdict{bucket: bucketCall, callID: `"b"`}},
		"end without begin":              {[]string{"scope", "read", "end x"}, 1, 0, verdict{bucket: bucketAmbient}},
		"same id again, in the first":    {[]string{"scope", "begin a", "begin a", "read", "read", "read"}, 2, 0, verdict{bucket: bucketAmbient, originID: `"a"`}},
		"same id again, in the second":   {[]string{"scope", "begin a", "begin a", "read", "read", "read"}, 3, 0, verdict{bucket: bucketCall, callID: `"a"`}},
		"same id again, after one end":   {[]string{"scope", "begin a", "begin a", "end a", "read", "read", "read", "read"}, 4, 0, verdict{bucket: bucketAmbient}},
		"id reused, late in the first":   {[]string{"scope", "begin a", "end a", "begin a", "read", "read", "read", "read"}, 2, 0, verdict{bucket: bucketAmbient, originID: `"a"`}},
		"a call goes on in a new scope":  {[]string{"scope", "begin a", "scope", "read", "read", "read"}, 3, 0, verdict{bucket: bucketCall, callID: `"a"`}},
		"a window that was never opened": {[]string{"begin a", "read"}, 99, 98, verdict{bucket: bucketAmbient}},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAttribution()
			windows := []uint64{0}
			type pending struct{ atBegin, atEnd *call }
			var unread []pending
			for _, step := range tt.steps {
				op, id := step, ""
				if len(step) > 5 && step[:5] == "begin" {
					op, id = "begin", `"`+step[6:]+`"`
				} else if len(step) > 3 && step[:3] == "end" {
					op, id = "end", `"`+step[4:]+`"`
				}
				switch op {
				case "scope":
					windows = append(windows, a.scope(false))
					unread = append(unread, pending{})
				case "begin":
					_, replaced, w := a.begin(id, "")
					windows = append(windows, w)
					unread = append(unread, pending{atBegin: replaced})
				case "end":
					c, w := a.end(id)
					windows = append(windows, w)
					unread = append(unread, pending{atEnd: c})
				case "read":
					a.close(unread[0].atBegin)
					a.close(unread[0].atEnd)
					unread = unread[1:]
				default:
					t.Fatalf("unknown step %q", step)
				}
			}
			at := func(n int) uint64 {
				if n < len(windows) {
					return windows[n]
				}
				return uint64(n) * windowStep
			}
			if got := a.attribute(at(tt.window), at(tt.origin)); !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}

// TestWindowNumbers checks what the kernel side relies on.
func TestWindowNumbers(t *testing.T) {
	a := newAttribution()
	if w := a.current(); w != 0 {
		t.Errorf("the first window is %d", w)
	}
	last := uint64(0)
	for i, step := range []struct {
		make   func() uint64
		inCall bool
	}{
		{a.settle, false},
		{func() uint64 { _, _, w := a.begin(`"a"`, ""); return w }, true},
		{func() uint64 { _, _, w := a.begin(`"b"`, ""); return w }, true},
		{func() uint64 { _, w := a.end(`"a"`); return w }, true},
		{func() uint64 { _, w := a.end(`"b"`); return w }, false},
	} {
		w := step.make()
		if w/windowStep != last/windowStep+1 || w&windowInCall != 0 != step.inCall {
			t.Errorf("step %d: window %d after %d, in a call: %v", i, w, last, step.inCall)
		}
		if last = w; a.current() != w {
			t.Errorf("step %d: the current window is %d, want %d", i, a.current(), w)
		}
	}
	if c, w := a.end(`"x"`); c != nil || w != last {
		t.Errorf("an end without begin makes window %d of call %v", w, c)
	}
}

// TestPrune checks that what can still be asked for is kept, and nothing else.
func TestPrune(t *testing.T) {
	a := newAttribution()
	var windows []uint64
	for range 100 {
		c, _, w := a.begin(`"x"`, "")
		windows = append(windows, w)
		a.end(`"x"`)
		a.close(c)
	}
	b, _, _ := a.begin(`"open"`, "")
	before := a.current()
	a.prune(&pruning{before: windows[90], live: []map[uint64]bool{{windows[3]: true, 0: true}, {windows[4]: true}}})
	for i, want := range map[int]string{2: "", 3: `"x"`, 4: `"x"`, 5: "", 89: "", 90: `"x"`, 99: `"x"`} {
		if got := a.attribute(windows[i], 0).originID; got != want {
			t.Errorf("window %d comes from %q, want %q", i, got, want)
		}
	}
	if v := a.attribute(0, windows[4]); v.bucket != bucketStartup || v.originID != `"x"` {
		t.Errorf("window 0 is %+v", v)
	}
	if w := a.current(); w != before || a.attribute(w, 0).callID != `"open"` {
		t.Errorf("the current window is %d, and was %d", w, before)
	}
	if n := len(a.windows) + len(a.older); n > 30 {
		t.Errorf("%d windows are kept", n)
	}
	a.prune(&pruning{before: before + 100*windowStep})
	if w := a.current(); w != before || a.attribute(w, 0).callID != `"open"` {
		t.Errorf("pruned beyond its end, the current window is %d, and was %d", w, before)
	}
	if _, w := a.end(`"open"`); w/windowStep != before/windowStep+1 {
		t.Errorf("window %d follows %d", w, before)
	}
	_ = b
}
