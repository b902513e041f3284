package main

import (
	"bytes"
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

	writing sync.Mutex
	mu      sync.Mutex
	changed *sync.Cond
	held    []heldLine // oldest first
	size    int        // of them, in bytes
	closed  bool       // no more comes
}

// A heldLine is a line with a call on it; with a batch there may be several.
type heldLine struct {
	text     []byte
	messages []wireMessage
}

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
	buf := make([]byte, 64<<10)
	for {
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

func isCall(m wireMessage) bool { return callMethods[m.asksFor()] != nil && m.id != nil }

// line takes a line, which it keeps if there is a call on it.
func (s *serializer) line(text []byte, messages []wireMessage) {
	s.mu.Lock()
	if slices.ContainsFunc(messages, isCall) {
		for len(s.held) > 0 && s.size+len(text) > maxHeldCalls {
			s.changed.Wait()
		}
		s.held = append(s.held, heldLine{text, messages})
		s.size += len(text)
		s.mu.Unlock()
		s.changed.Broadcast()
		return
	}
	dropped := len(messages) == 1 && s.drop(messages[0])
	s.mu.Unlock()
	if dropped {
		return // the server has not heard of the call
	}
	s.r.fromClient("", messages)
	s.write(text)
}

// drop drops the held call that a message cancels.
func (s *serializer) drop(m wireMessage) bool {
	if m.asksFor() != "notifications/cancelled" || m.requestID == nil {
		return false
	}
	for i, held := range s.held {
		if len(held.messages) == 1 && requestKey(held.messages[0].id) == requestKey(m.requestID) {
			s.size -= len(held.text)
			s.held = slices.Delete(s.held, i, i+1)
			return true
		}
	}
	return false
}

// release passes the held lines on, each when nothing runs any more.
func (s *serializer) release() {
	for {
		s.mu.Lock()
		for len(s.held) == 0 && !s.closed || len(s.held) > 0 && s.r.busy() {
			s.changed.Wait()
		}
		if len(s.held) == 0 {
			s.mu.Unlock()
			return
		}
		next := s.held[0]
		s.held, s.size = s.held[1:], s.size-len(next.text)
		s.mu.Unlock()
		s.changed.Broadcast()
		s.r.fromClient("", next.messages)
		if !s.write(next.text) {
			return // the server has gone, and the runner sees it
		}
	}
}

// ended is called when a call is over.
func (s *serializer) ended() {
	// With the lock between, nobody has looked before and waits after.
	s.mu.Lock()
	s.mu.Unlock() //lint:ignore SA2001 see above
	s.changed.Broadcast()
}

func (s *serializer) write(text []byte) bool {
	s.writing.Lock()
	defer s.writing.Unlock()
	_, err := s.to.Write(text)
	return err == nil
}
