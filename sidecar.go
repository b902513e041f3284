package main

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
)

// stopTimeout is how long a session may take to write what is left after it was
// told to end. Clients give it one second.
const stopTimeout = 800 * time.Millisecond

// maxQueuedLines is how many control lines are read ahead, so that the end of the
// input is noticed while a client that reads nothing keeps marks from being made.
const maxQueuedLines = 1024

// maxOpenCalls is how many calls can be open at once. Each window has a list of
// those that are, and an event of several calls names them all.
const maxOpenCalls = 128

// A session joins a backend to a client: control lines become marks, records
// become lines.
type session struct {
	backend backend
	attr    *attribution
	grace   time.Duration
	settled func() // called once the client knows that the session is ready; nil for nothing to do
	out     *bufio.Writer
	line    line
	window  uint64 // of the last mark that was read

	pruned  uint64          // newest window when windows were last pruned
	wasLive map[uint64]bool // what was live then

	lines chan controlLine // from the client
	eof   chan struct{}    // the last of them has been read, though others may wait
	due   chan control     // ends whose grace is over
	order sync.Mutex       // held from before a window is made until its mark has been
	quit  chan error       // from outside: nil for a signal, or why it must end at once
}

// A controlLine is what came of one read of the control side.
type controlLine struct {
	control control
	fatal   bool
	err     error
}

func newSession(b backend, stdout io.Writer, grace time.Duration) *session {
	return &session{
		backend: b,
		attr:    newAttribution(),
		grace:   grace,
		out:     bufio.NewWriterSize(stdout, 64<<10),
		lines:   make(chan controlLine, maxQueuedLines),
		eof:     make(chan struct{}),
		due:     make(chan control),
		quit:    make(chan error, 4),
	}
}

// readControls reads control lines until there are no more.
func (s *session) readControls(stdin io.Reader) {
	for r := newControlReader(stdin); ; {
		ctl, fatal, err := r.next()
		last := fatal || err == nil && ctl.op == controlShutdown
		if last {
			close(s.eof)
		}
		s.lines <- controlLine{ctl, fatal, err}
		if last {
			return
		}
	}
}

// run serves the client until it shuts down, its input ends, quit says so or the
// output fails, which is the error that it returns. What was in the backend by
// then is written out, if the client takes it in time. It does not close the
// backend.
func (s *session) run() error {
	if err := s.ready(); err != nil {
		return err
	}
	if s.settled != nil {
		go s.settled()
	}
	stop, eof := make(chan struct{}), s.eof
	failed := make(chan error, 1)
	go func(stop <-chan struct{}) {
		err := s.controlLoop(stop)
		if err == nil {
			s.order.Lock()
			err = s.backend.mark(&mark{op: markNote, window: s.attr.current(), stop: true})
			s.order.Unlock()
		}
		if err != nil {
			failed <- err
		}
	}(stop)
	done := make(chan error, 1)
	go func() { done <- s.stream() }()
	var timeout <-chan time.Time
	for {
		select {
		case err := <-done:
			return err
		case err := <-failed:
			return err
		case err := <-s.quit:
			if err != nil {
				return err
			}
			// From here on the clock runs, also if controlLoop cannot listen since
			// there is no room for a mark.
			if stop != nil {
				close(stop)
				stop = nil
			}
			timeout = sooner(timeout)
		case <-eof:
			eof = nil
			timeout = sooner(timeout)
		case <-timeout:
			return fmt.Errorf("the client did not take the rest of the output within %v", stopTimeout)
		}
	}
}

// sooner returns timeout or, if that does not run yet, one that does.
func sooner(timeout <-chan time.Time) <-chan time.Time {
	if timeout == nil {
		timeout = time.After(stopTimeout)
	}
	return timeout
}

// controlLoop turns control lines into marks until the session is to end. Its
// error is one that keeps the last mark from being made.
func (s *session) controlLoop(stop <-chan struct{}) error {
	pending := map[string]*time.Timer{} // ends in their grace, by call id
	defer func() {
		for _, t := range pending {
			t.Stop()
		}
	}()
	for {
		in, isDue := controlLine{err: io.EOF}, false
		select {
		case <-stop:
		case in.control = <-s.due:
			in.err, isDue = nil, true
		case in = <-s.lines:
		}
		last, err := s.handle(in, isDue, pending)
		if err != nil || last {
			return err
		}
	}
}

// handle does what a control line says, or ends a call whose grace is over.
func (s *session) handle(in controlLine, isDue bool, pending map[string]*time.Timer) (last bool, err error) {
	s.order.Lock()
	defer s.order.Unlock()
	switch {
	case isDue:
		delete(pending, in.control.callID)
		return false, s.end(in.control)
	case in.err == io.EOF:
		return true, s.endAll(pending)
	case in.fatal:
		return true, in.err
	case in.err != nil:
		return false, s.note(status{message: "parse_error", err: in.err.Error()})
	}
	last, err = s.obey(in.control, pending)
	if last && err == nil {
		err = s.endAll(pending)
	}
	return last, err
}

// endAll ends the calls that are in their grace: it is over when the session is.
func (s *session) endAll(pending map[string]*time.Timer) error {
	for id := range pending {
		if err := s.end(control{callID: id}); err != nil {
			return err
		}
	}
	return nil
}

// obeyNow does what a control says, beside controlLoop and sooner. There must be no grace.
func (s *session) obeyNow(ctl control) error {
	s.order.Lock()
	defer s.order.Unlock()
	_, err := s.obey(ctl, nil)
	return err
}

func (s *session) obey(ctl control, pending map[string]*time.Timer) (shutdown bool, err error) {
	switch ctl.op {
	case controlShutdown:
		return true, nil
	case controlScope:
		return false, s.scope(ctl)
	case controlSettle:
		return false, s.backend.mark(&mark{op: markBegin, window: s.attr.settle(), status: status{message: "initialized"}, done: ctl.done})
	case controlBegin:
		// The same id again: the call that it names so far ends here.
		if t := pending[ctl.callID]; t != nil {
			t.Stop()
			delete(pending, ctl.callID)
			if err := s.end(control{callID: ctl.callID}); err != nil {
				return false, err
			}
		}
		return false, s.begin(ctl)
	}
	if s.grace == 0 || pending[ctl.callID] != nil {
		return false, s.end(ctl)
	}
	pending[ctl.callID] = time.AfterFunc(s.grace, func() {
		select {
		case s.due <- ctl:
		case <-time.After(stopTimeout): // the session is over
		}
	})
	return false, nil
}

func (s *session) scope(ctl control) error {
	st := status{message: "scope", scope: true, pgid: ctl.pgid, generation: ctl.generation}
	n, err := s.backend.scope(ctl.pgid)
	if err != nil {
		return err
	}
	if st.processes = n; n == 0 {
		st.err = "no such process group; nothing is watched until another scope is set"
	}
	return s.backend.mark(&mark{op: markScope, window: s.attr.scope(ctl.startup), status: st, done: ctl.done})
}

func (s *session) begin(ctl control) error {
	if oldest := s.attr.oldest(maxOpenCalls); oldest != nil {
		why := fmt.Sprintf("taken as ended, since %d calls are open", maxOpenCalls)
		if err := s.endCall(status{message: "end", callID: oldest.id, err: why}, nil); err != nil {
			return err
		}
	}
	prune, err := s.pruneWindows()
	if err != nil {
		return err
	}
	_, replaced, window := s.attr.begin(ctl.callID, ctl.tool)
	return s.backend.mark(&mark{
		op: markBegin, window: window, closes: replaced, prune: prune,
		status: status{message: "begin", callID: ctl.callID, tool: ctl.tool, request: ctl.request}, done: ctl.done,
	})
}

// pruneInterval is how many windows are made before old ones are forgotten. Losses
// are reported by window for lossSlots windows.
const pruneInterval = 2 * lossSlots

// pruneWindows returns, from time to time, which windows to forget when the next
// mark is read: what the kernel has written by now is read by then, and what it
// writes later names a live window or a new one. A window must not have been live
// the last time either, since a process that forks while they are gathered, and
// ends, can hide that its child has its origin.
func (s *session) pruneWindows() (*pruning, error) {
	current := s.attr.current()
	if current < s.pruned+pruneInterval*windowStep {
		return nil, nil
	}
	live, err := s.backend.live()
	if err != nil {
		return nil, err
	}
	p := &pruning{before: current - lossSlots*windowStep, live: []map[uint64]bool{live, s.wasLive}}
	s.pruned, s.wasLive = current, live
	return p, nil
}

// end ends a call.
func (s *session) end(ctl control) error {
	st := status{message: "end", callID: ctl.callID, request: ctl.request}
	if st.request != nil {
		st.err = st.request.why
	}
	return s.endCall(st, ctl.done)
}

// endCall ends the call of a status, which the client is sent.
func (s *session) endCall(st status, done chan<- struct{}) error {
	call, window := s.attr.end(st.callID)
	if call == nil {
		st.err = "end without begin"
		return s.backend.mark(&mark{op: markNote, window: s.attr.current(), status: st, done: done})
	}
	st.tool = call.tool
	return s.backend.mark(&mark{op: markEnd, window: window, closes: call, status: st, done: done})
}

// note sends a status on its way that changes no window.
func (s *session) note(st status) error {
	return s.backend.mark(&mark{op: markNote, window: s.attr.current(), status: st})
}

// ready tells the client that everything from here on is seen.
func (s *session) ready() error {
	s.line.begin("status")
	s.line.str("message", "ready")
	s.line.str("backend", s.backend.name())
	s.line.int("grace_ms", s.grace.Milliseconds())
	s.line.str("bucket", "startup")
	s.line.str("version", version)
	s.line.int("ts_ns", time.Now().UnixNano())
	if err := s.write(); err != nil {
		return err
	}
	return s.flush()
}

// stream writes records as lines until the last mark or an error.
func (s *session) stream() error {
	var r record
	for {
		if err := s.backend.next(&r); errors.Is(err, io.EOF) {
			return s.flush()
		} else if err != nil {
			return err
		}
		var err error
		if r.mark == nil {
			err = s.writeEvent(&r)
		} else {
			err = s.apply(&r)
		}
		if err == nil && !r.more {
			// The reader has caught up: whoever waits for a line gets it now.
			if err = s.writeLosses(r.tsNS); err == nil {
				err = s.flush()
			}
		}
		if err != nil || r.mark != nil && r.mark.stop {
			return cmp.Or(err, s.flush()) // what could not be written cannot be now
		}
	}
}

func (s *session) writeEvent(r *record) error {
	typ := r.event.typ()
	if typ == "" {
		return nil
	}
	v := s.attr.attribute(r.window, r.origin)
	s.line.begin(typ)
	if bucket, callID := r.event.overrides(); bucket != nil || callID != nil {
		v.override(bucket, callID)
	}
	v.append(&s.line)
	s.line.int("ts_ns", r.tsNS)
	r.event.append(&s.line)
	return s.write()
}

// apply writes what a mark stands for. Losses come first: what went missing in a
// call is said before the call ends.
func (s *session) apply(r *record) error {
	m := r.mark
	if err := s.writeLosses(r.tsNS); err != nil {
		return err
	}
	s.window = m.window
	if m.prune != nil {
		s.attr.prune(m.prune)
	}
	if m.op == markBegin {
		s.attr.close(m.closes)
	}
	if m.status.message != "" {
		s.line.begin("status")
		m.status.append(&s.line, s.attr.idle(m.window), r.tsNS)
		if err := s.write(); err != nil {
			return err
		}
	}
	if m.op == markEnd {
		s.attr.close(m.closes)
	}
	if m.done != nil {
		if err := s.flush(); err != nil {
			return err
		}
		close(m.done)
	}
	return nil
}

// writeLosses writes a drop line for each window and reason.
func (s *session) writeLosses(tsNS int64) (err error) {
	s.backend.losses(s.window, func(window uint64, reason string, count uint64) {
		v := s.attr.attribute(window, 0)
		s.line.begin("drop")
		v.append(&s.line)
		s.line.int("count", int64(count))
		s.line.str("reason", reason)
		s.line.int("ts_ns", tsNS)
		err = errors.Join(err, s.write())
	})
	return err
}

func (s *session) write() error {
	if _, err := s.out.Write(s.line.end()); err != nil {
		return fmt.Errorf("write events: %w", err)
	}
	return nil
}

func (s *session) flush() error {
	if err := s.out.Flush(); err != nil {
		return fmt.Errorf("write events: %w", err)
	}
	return nil
}
