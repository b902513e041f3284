package main

import (
	"bytes"
	"context"
	"io"
	"slices"
	"sync"
)

// maxHeldCalls is how many bytes of calls may wait for others; then the client has to.
const maxHeldCalls = 64 << 20

// A serializer passes on what the client sends, but holds calls back until the one that
// is running has been answered, so that there is never more than one. Whatever else the
// client sends goes on meanwhile: the call that runs may be waiting for it.
type serializer struct {
	r  *runner
	to io.Writer

	passing sync.Mutex // held while something goes to the server; taken before mu
	mu      sync.Mutex
	changed *sync.Cond
	held    []heldLine // oldest first
	size    int        // of them, in bytes
	closed  bool       // no more comes
	gone    bool       // the server takes nothing any more
	tickets int        // that have been given out; HTTP has no lines
	waiting []int      // for their turn, the first one first
}

// A heldLine is a line with a call on it, with a batch several, or one that has to stay
// behind such a line.
type heldLine struct {
	text     []byte
	messages []wireMessage
}

func (h heldLine) calls() bool { return slices.ContainsFunc(h.messages, isCall) }

func newSerializer(r *runner, to io.Writer) *serializer {
	s := &serializer{r: r, to: to}
	s.changed = sync.NewCond(&s.mu)
	return s
}

// pass passes on all that comes from the client.
func (s *serializer) pass(from io.Reader) {
	released := make(chan struct{})
	go func() {
		defer close(released)
		s.release()
	}()
	var w wireScanner
	var line []byte
	var messages []wireMessage // on it
	buf := make([]byte, largeStep)
	for !s.over() {
		n, err := from.Read(buf)
		for part := range bytes.Lines(buf[:n]) {
			messages = feedAll(&w, messages, part)
			line = append(line, part...)
			if bytes.HasSuffix(part, []byte("\n")) {
				s.line(line, messages)
				line, messages = nil, nil
			}
		}
		if err != nil {
			break
		}
	}
	if len(line) > 0 {
		s.line(line, messages)
	}
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.changed.Broadcast()
	<-released
}

// line takes a line, which it keeps if there is a call on it.
func (s *serializer) line(text []byte, messages []wireMessage) {
	line := heldLine{text, messages}
	if line.calls() {
		s.mu.Lock()
		for len(s.held) > 0 && s.size+len(text) > maxHeldCalls && !s.gone {
			s.changed.Wait()
		}
		s.held = append(s.held, line)
		s.size += len(text)
		s.mu.Unlock()
		s.changed.Broadcast()
		return
	}
	// A call that is on its way to the server stays before what comes after it.
	s.passing.Lock()
	defer s.passing.Unlock()
	if !s.cancels(line) {
		s.forward(line)
	}
}

// cancels tells whether a line cancels a call that is held, and sees to that: such a call
// does not get to the server, and nor does the line, unless the call is one of several.
func (s *serializer) cancels(line heldLine) bool {
	if len(line.messages) != 1 || line.messages[0].asksFor() != "notifications/cancelled" || line.messages[0].requestID == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	key := requestKey(line.messages[0].requestID)
	for i, held := range s.held {
		if !slices.ContainsFunc(held.messages, func(m wireMessage) bool { return isCall(m) && requestKey(m.id) == key }) {
			continue
		}
		if len(held.messages) == 1 {
			s.size -= len(held.text)
			s.held = slices.Delete(s.held, i, i+1)
		} else {
			s.size += len(line.text)
			s.held = slices.Insert(s.held, i+1, line)
		}
		return true
	}
	return false
}

// release passes the held lines on, each when nothing runs any more.
func (s *serializer) release() {
	for {
		s.mu.Lock()
		for !s.gone && (len(s.held) == 0 && !s.closed || len(s.held) > 0 && s.held[0].calls() && s.r.busy()) {
			s.changed.Wait()
		}
		s.mu.Unlock()
		if !s.releaseNext() {
			return
		}
	}
}

// releaseNext passes the first held line on. It returns false if there will be no more.
func (s *serializer) releaseNext() bool {
	s.passing.Lock()
	defer s.passing.Unlock()
	s.mu.Lock()
	if len(s.held) == 0 || s.gone {
		defer s.mu.Unlock()
		return !s.closed && !s.gone // the line may have been cancelled by now
	}
	next := s.held[0]
	s.held, s.size = s.held[1:], s.size-len(next.text)
	s.mu.Unlock()
	s.changed.Broadcast()
	return s.forward(next) // else the server has gone, and the runner sees it
}

// forward passes a line on. It returns false if nobody takes it.
func (s *serializer) forward(line heldLine) bool {
	s.r.fromClient("", line.messages)
	if _, err := s.to.Write(line.text); err != nil {
		s.mu.Lock()
		s.gone = true
		s.mu.Unlock()
		s.changed.Broadcast()
		return false
	}
	return true
}

// over tells whether the server takes nothing any more.
func (s *serializer) over() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.gone
}

// turn waits until nothing runs and it is the caller's turn, and calls begin then; if ctx
// is done before, it returns why.
func (s *serializer) turn(ctx context.Context, begin func()) error {
	defer context.AfterFunc(ctx, s.ended)()
	s.mu.Lock()
	s.tickets++
	me := s.tickets
	s.waiting = append(s.waiting, me)
	for ctx.Err() == nil && (s.waiting[0] != me || s.r.busy()) {
		s.changed.Wait()
	}
	s.mu.Unlock()
	err := ctx.Err()
	if err == nil {
		begin() // nobody else is first meanwhile
	}
	s.mu.Lock()
	s.waiting = slices.DeleteFunc(s.waiting, func(other int) bool { return other == me })
	s.mu.Unlock()
	s.changed.Broadcast()
	return err
}

// ended is called when a call is over.
func (s *serializer) ended() {
	// With the lock between, nobody has looked before and waits after.
	s.mu.Lock()
	s.mu.Unlock() //lint:ignore SA2001 see above
	s.changed.Broadcast()
}
