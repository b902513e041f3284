package main

import (
	"slices"
	"sync"
)

// Window numbers count up by two; bit 0 says whether a call was open in the
// window. Window 0 is before the first mark. The kernel side knows nothing of a
// window but its number (WINDOW_IN_CALL in probe.bpf.c).
const (
	windowInCall = 1
	windowStep   = 2
)

// windowUnknown stands for a window too old to be told from others.
const windowUnknown = ^uint64(0)

// The buckets, as JSON strings.
const (
	bucketStartup = `"startup"`
	bucketCall    = `"call"`
	bucketAmbient = `"ambient"`
)

// A call is one tool call between its begin and its end mark.
type call struct {
	id    string // as a JSON string, quotes included
	tool  string // likewise; empty if the client gave none
	ended bool   // in stream order: set when the end mark is read
}

// windowInfo is what user space knows of a window.
type windowInfo struct {
	calls  []*call // open in it; never changed after the window was made
	scoped bool    // a scope was set, and has settled
}

// attribution is the only code that turns windows into buckets and call ids, for
// every backend. Its two halves run in goroutines of their own: begin, end and
// scope make windows when the client asks for them, attribute and close look at
// them in stream order, when the marks come back through the backend.
type attribution struct {
	mu      sync.Mutex
	windows []windowInfo          // by sequence number, from first on
	first   uint64                // sequence number of windows[0]
	older   map[uint64]windowInfo // those before it that are still needed, by sequence number
	open    []*call               // in the newest window
	scoped  bool
}

func newAttribution() *attribution {
	return &attribution{windows: []windowInfo{{}}}
}

// push makes a window in which the calls of a.open are active.
func (a *attribution) push() uint64 {
	a.windows = append(a.windows, windowInfo{calls: a.open, scoped: a.scoped})
	return a.newest()
}

func (a *attribution) newest() uint64 {
	w := (a.first + uint64(len(a.windows)) - 1) * windowStep
	if len(a.open) > 0 {
		w |= windowInCall
	}
	return w
}

// without returns the open calls but c, in a slice of its own.
func (a *attribution) without(c *call) []*call {
	rest := make([]*call, 0, len(a.open)+1)
	for _, o := range a.open {
		if o != c {
			rest = append(rest, o)
		}
	}
	return rest
}

func (a *attribution) find(id string) *call {
	for _, c := range a.open {
		if c.id == id {
			return c
		}
	}
	return nil
}

// oldest returns the oldest open call if there are as many as limit, else nil.
func (a *attribution) oldest(limit int) *call {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.open) < limit {
		return nil
	}
	return a.open[0]
}

// begin opens a call and returns it with its first window, and the open call of
// the same id that it replaces, if there is one.
func (a *attribution) begin(id, tool string) (opened, replaced *call, window uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	opened, replaced = &call{id: id, tool: tool}, a.find(id)
	a.open = append(a.without(replaced), opened)
	return opened, replaced, a.push()
}

// end ends the call of that id and returns it with the window after it. Without
// such a call it returns nil and the window that goes on.
func (a *attribution) end(id string) (ended *call, window uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	ended = a.find(id)
	if ended == nil {
		return nil, a.newest()
	}
	a.open = a.without(ended)
	return ended, a.push()
}

// scope makes the window in which a new scope is in force. Calls stay open. What belongs
// to no call is in the bucket "startup" if the server has still to start, until it has
// settled.
func (a *attribution) scope(startup bool) uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.scoped = !startup
	return a.push()
}

// settle makes the window in which the server has started.
func (a *attribution) settle() uint64 { return a.scope(false) }

// current returns the newest window.
func (a *attribution) current() uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.newest()
}

// close marks a call, if there is one, as ended in stream order.
func (a *attribution) close(c *call) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if c != nil {
		c.ended = true
	}
}

// A verdict says to what a record belongs. Ids are JSON strings, empty for none.
type verdict struct {
	bucket           string // as a JSON string, like the ids
	callID           string
	originID         string   // the call that this comes from, other than callID
	forkedID         string   // the call that the process comes from, if that is yet another
	candidates       []string // calls that were open together when it began
	originCandidates []string // likewise, for the call that it comes from
}

// attribute tells to what an operation belongs that began in window, by a process
// whose origin is the window that it (or the ancestor that began its line) was
// forked in; zero for none.
//
// It must be called in stream order: whether a call is open is decided by the
// marks read so far.
func (a *attribution) attribute(window, origin uint64) verdict {
	a.mu.Lock()
	defer a.mu.Unlock()
	info := a.info(window)
	v := verdict{bucket: bucketAmbient}
	switch len(info.calls) {
	case 0:
		v.bucket = info.idleBucket()
	case 1:
		if c := info.calls[0]; c.ended {
			v.originID = c.id
		} else {
			v.bucket, v.callID = bucketCall, c.id
		}
	default:
		v.candidates = ids(info.calls)
	}
	if origin == 0 {
		return v
	}
	switch from := a.info(origin).calls; len(from) {
	case 0:
	case 1:
		switch id := from[0].id; {
		case id == v.callID || id == v.originID:
		case v.originID == "":
			v.originID = id
		default:
			v.forkedID = id
		}
	default:
		for _, c := range from {
			if c.id == v.callID {
				return v
			}
		}
		v.originCandidates = ids(from)
	}
	return v
}

// idle returns the bucket of what belongs to no call in a window.
func (a *attribution) idle(window uint64) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.info(window).idleBucket()
}

func (w windowInfo) idleBucket() string {
	if w.scoped {
		return bucketAmbient
	}
	return bucketStartup
}

// info returns what is known of a window. One that was never given out had no call.
func (a *attribution) info(window uint64) windowInfo {
	sequence := window / windowStep
	if info, ok := a.older[sequence]; ok {
		return info
	}
	if i := sequence - a.first; sequence >= a.first && i < uint64(len(a.windows)) {
		return a.windows[i]
	}
	return windowInfo{scoped: true}
}

// A pruning forgets the windows before one, but for those that are live.
type pruning struct {
	before uint64
	live   []map[uint64]bool
}

// prune forgets windows. A session of a million calls would keep two million of
// them, and a process needs at most two: that of its system call, and its origin.
func (a *attribution) prune(p *pruning) {
	a.mu.Lock()
	defer a.mu.Unlock()
	older := map[uint64]windowInfo{}
	for _, live := range p.live {
		for window := range live {
			if sequence := window / windowStep; window < p.before {
				older[sequence] = a.info(window)
			}
		}
	}
	before := min(p.before/windowStep, a.first+uint64(len(a.windows))-1)
	if before > a.first {
		a.windows = slices.Clone(a.windows[before-a.first:]) // or the array stays
		a.first = before
	}
	a.older = older
}

func ids(calls []*call) []string {
	list := make([]string, len(calls))
	for i, c := range calls {
		list[i] = c.id
	}
	return list
}

// override puts a bucket and a call id, as JSON and nil for none, in the place of
// the verdict's own. A bucket other than "call" comes without a call id, unless
// that is given, too.
func (v *verdict) override(bucket, callID []byte) {
	if bucket != nil {
		if v.bucket = string(bucket); v.bucket != bucketCall {
			v.callID = ""
		}
	}
	if callID != nil {
		v.callID = string(callID)
	}
}

// append adds the verdict's fields to a line.
func (v *verdict) append(l *line) {
	l.raw("bucket", v.bucket)
	if v.callID != "" {
		l.raw("call_id", v.callID)
	}
	if v.originID != "" {
		l.raw("origin_call_id", v.originID)
	}
	if v.forkedID != "" {
		l.raw("forked_in_call_id", v.forkedID)
	}
	appendIDs(l, "candidate_call_ids", v.candidates)
	appendIDs(l, "origin_candidate_call_ids", v.originCandidates)
}

func appendIDs(l *line, key string, ids []string) {
	if len(ids) == 0 {
		return
	}
	l.key(key)
	for i, id := range ids {
		c := byte(',')
		if i == 0 {
			c = '['
		}
		l.buf = append(append(l.buf, c), id...)
	}
	l.buf = append(l.buf, ']')
}
