package main

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The calls of run: which messages begin, cancel and answer them, and by which ids.

// callMethods are the requests that are a call, by what names their tool.
var callMethods = map[string]func(*wireMessage) []byte{
	"tools/call":     func(m *wireMessage) []byte { return m.name },
	"resources/read": func(m *wireMessage) []byte { return m.uri },
	"prompts/get":    func(m *wireMessage) []byte { return m.name },
}

// isCall tells whether a message is a request that is a call.
func isCall(m wireMessage) bool { return callMethods[m.asksFor()] != nil && m.id != nil }

// A runCall is a request on its way.
type runCall struct {
	id      string // of the call, as JSON
	request request
	session string
	key     string  // of the request's id; see requestKey
	number  float64 // that it stands for; NaN for none
	batch   bool    // it came in a list, and may be answered in one
	start   time.Time

	cancelled bool // nobody waits for it any more
	left      bool // and that is since the client has gone, or its stream
}

// fromClient opens a window for each call, before the server can know of it, and returns
// those calls. Ids of requests are those of a session; on stdio there is one, without a name.
func (r *runner) fromClient(session string, messages []wireMessage) (begun []*runCall) {
	for i := range messages {
		m := &messages[i]
		switch method := m.asksFor(); {
		case method == "notifications/initialized":
			r.settle()
		case method == "notifications/cancelled" && m.requestID != nil:
			r.mu.Lock()
			call := find(r.calls, session, m.requestID, true)
			r.mu.Unlock()
			if call != nil {
				r.cancel(call, "cancelled by the client", false)
			}
		case isCall(*m):
			r.settle() // at the latest
			if call := r.begin(session, m, method); call != nil {
				begun = append(begun, call)
			}
		}
	}
	return begun
}

// fromServer closes the window of each call that is answered, before the client can know.
func (r *runner) fromServer(session string, messages []wireMessage) {
	r.answered(session, nil, messages)
}

// answered is fromServer for answers that are most likely to some calls.
func (r *runner) answered(session string, likely []*runCall, messages []wireMessage) {
	for i := range messages {
		m := &messages[i]
		if !m.answered() {
			continue
		}
		r.mu.Lock()
		call := find(slices.DeleteFunc(slices.Clone(likely), func(c *runCall) bool { return !slices.Contains(r.calls, c) }), session, m.id, !m.batch)
		if call == nil {
			call = find(r.calls, session, m.id, !m.batch)
		}
		r.mu.Unlock()
		if call == nil || !r.take(call) {
			continue
		}
		call.request.latency = 0 // if it has been cancelled, this was too soon
		failed := m.failed() || call.cancelled && !call.left
		if call.left {
			call.request.why = "" // there has been a client all the same
		}
		r.end(call, failed)
	}
}

func (r *runner) settle() {
	r.mu.Lock()
	settled := r.settled
	r.settled = true
	r.mu.Unlock()
	if !settled {
		r.control(control{op: controlSettle})
	}
}

// cancel takes in that nobody waits for a call any more, or that its client has left. The
// server may go on with it for a while, so its window stays open, until it is answered all
// the same or another begins.
func (r *runner) cancel(call *runCall, why string, left bool) {
	r.mu.Lock()
	if call.cancelled || !slices.Contains(r.calls, call) {
		r.mu.Unlock()
		return
	}
	call.cancelled, call.left, call.request.why, call.request.latency = true, left, why, time.Since(call.start)
	r.running--
	r.mu.Unlock()
	if r.serializer != nil {
		r.serializer.ended()
	}
}

// leave takes in that the client of a call over HTTP does not wait for its answer there.
func (r *runner) leave(call *runCall) { r.cancel(call, "nobody waits for its answer any more", true) }

// leaveSession takes in that a session has lost the stream in which its answers come.
func (r *runner) leaveSession(session string) {
	for _, call := range r.callsOf(session) {
		r.leave(call)
	}
}

// fail ends a call that will not be answered.
func (r *runner) fail(call *runCall, why string) {
	if r.take(call) {
		call.request.why = cmp.Or(call.request.why, why)
		r.end(call, true)
	}
}

// endSession ends the calls of a session that its client has ended.
func (r *runner) endSession(session string) {
	for _, call := range r.callsOf(session) {
		r.fail(call, "the session has ended")
	}
}

func (r *runner) callsOf(session string) []*runCall {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(r.calls), func(c *runCall) bool { return c.session != session })
}

// endCancelled ends the calls that have been cancelled.
func (r *runner) endCancelled() {
	r.mu.Lock()
	var ended []*runCall
	r.calls = slices.DeleteFunc(r.calls, func(c *runCall) bool {
		if c.cancelled {
			ended = append(ended, c)
		}
		return c.cancelled
	})
	r.mu.Unlock()
	for _, call := range ended {
		r.end(call, true)
	}
}

// begin returns nil if there is no server any more.
func (r *runner) begin(session string, m *wireMessage, method string) *runCall {
	r.endCancelled()
	tool := `""`
	if name := callMethods[method](m); name != nil {
		if text, ok := jsonText(name); ok {
			tool = string(appendLoose(nil, text))
		}
	}
	r.mu.Lock()
	if r.ended {
		r.mu.Unlock()
		return nil
	}
	var oldest *runCall
	if len(r.calls) >= maxOpenCalls {
		oldest = r.calls[0]
	}
	r.number++
	call := &runCall{
		id:      strconv.Quote(strconv.Itoa(r.number)),
		request: request{method: string(appendQuoted(nil, method)), id: quoteID(m.id)},
		key:     requestKey(m.id),
		session: session,
		number:  idNumber(m.id),
		batch:   m.batch,
		start:   time.Now(),
	}
	r.calls = append(r.calls, call)
	r.running++
	r.mu.Unlock()
	if oldest != nil {
		r.fail(oldest, fmt.Sprintf("taken as ended, since %d calls are open", maxOpenCalls))
	}
	known := call.request
	r.control(control{op: controlBegin, callID: call.id, tool: tool, request: &known})
	return call
}

func (r *runner) end(call *runCall, failed bool) {
	if call.request.latency == 0 {
		call.request.latency = time.Since(call.start)
	}
	call.request.over, call.request.failed = true, failed
	r.control(control{op: controlEnd, callID: call.id, request: &call.request})
	if call.cancelled {
		return // it does not run since then
	}
	r.mu.Lock()
	r.running--
	r.mu.Unlock()
	if r.serializer != nil {
		r.serializer.ended()
	}
}

// busy tells whether a call is running that somebody waits for.
func (r *runner) busy() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.running > 0
}

// take takes a call, which is over now, from those that are not; false if it was over.
func (r *runner) take(call *runCall) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := len(r.calls)
	r.calls = slices.DeleteFunc(r.calls, func(c *runCall) bool { return c == call })
	return len(r.calls) < before
}

// find returns the oldest of calls that is of a request with that id; nil if there is none.
// Clients look for an answer's id as it is, and then for the number that it stands for. An
// answer that comes in a list is one only to a request that came in one.
func find(calls []*runCall, session string, id []byte, alone bool) *runCall {
	key, number := requestKey(id), idNumber(id)
	for _, same := range []func(*runCall) bool{
		func(c *runCall) bool { return c.key == key },
		func(c *runCall) bool { return c.number == number },
	} {
		i := slices.IndexFunc(calls, func(c *runCall) bool { return c.session == session && (alone || c.batch) && same(c) })
		if i >= 0 {
			return calls[i]
		}
	}
	return nil
}

// endCalls ends whatever has not been answered.
func (r *runner) endCalls(why string) {
	r.mu.Lock()
	left := slices.Clone(r.calls)
	r.ended = true
	r.mu.Unlock()
	for _, call := range left {
		r.fail(call, why)
	}
}

// requestKey is the same for equal ids, however they are written.
func requestKey(id []byte) string {
	if text, ok := jsonText(id); ok {
		return `"` + text
	}
	if c := id[0]; c == '-' || c >= '0' && c <= '9' {
		return string(appendNumberRepr(nil, string(id)))
	}
	return string(id)
}

// idNumber is the number that an id stands for, as JavaScript's Number() has it; NaN, which
// is equal to nothing, for none.
func idNumber(id []byte) float64 {
	text, ok := jsonText(id)
	if !ok {
		text = string(id)
	}
	text = strings.TrimSpace(text)
	if text == "" {
		return 0
	}
	if n, err := strconv.ParseInt(text, 0, 64); err == nil && !strings.Contains(text, "_") {
		return float64(n)
	}
	if n, err := strconv.ParseFloat(text, 64); err == nil {
		return n
	}
	return math.NaN()
}

// quoteID writes an id so that it is valid UTF-8, whatever its client has sent.
func quoteID(id []byte) string {
	if text, ok := jsonText(id); ok {
		return string(appendLoose(nil, text))
	}
	return string(id)
}
