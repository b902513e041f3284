package main

import "io"

// A backend is where records come from. scope, mark and live are called by one goroutine
// at a time (whoever holds the session's order), next and losses by another, Close by any.
type backend interface {
	// name is what the ready status calls it.
	name() string

	// scope takes in the processes of a group and their descendants, as found
	// when it is called, for the mark that follows. It returns how many, or
	// processesUnknown.
	scope(pgid int) (processes int, err error)

	// mark moves to m.window. The mark comes back from next, in order with the
	// events: see the rules in probe.bpf.c. It waits while there is no room for it.
	mark(m *mark) error

	// live returns the windows that a record can still name which is completed after
	// the next mark, besides the current one and those to come.
	live() (map[uint64]bool, error)

	// next waits for the next record and puts it into r, whose contents are
	// valid until the next call. It returns io.EOF after Close.
	next(r *record) error

	// losses calls report for what went missing since the last call, by the
	// window in which it began: of windows up to upTo, and of those too old to be
	// told apart (windowUnknown).
	losses(upTo uint64, report func(window uint64, reason string, count uint64))

	// Close ends next, takes away what is attached and frees the rest.
	io.Closer
}

const processesUnknown = -1

// lossSlots is for how many windows losses are told apart (LOSS_SLOTS in
// probe.bpf.c; a test compares them).
const lossSlots = 2048

// markOp says what a mark does to the window.
type markOp uint32

// Go's side of enum mark_op in probe.bpf.c.
const (
	markNote  markOp = 0 // nothing: it only travels
	markBegin markOp = 1 // of a call, or of a time without one
	markEnd   markOp = 2
	markScope markOp = 3
)

// A mark is a message of the control side to the stream side that travels through
// the backend, so that it arrives in order with the events. Fields besides op and
// window are the session's own.
type mark struct {
	op     markOp
	window uint64
	status status
	closes *call           // the call that it ends; nil for none
	stop   bool            // nothing follows
	prune  *pruning        // windows to forget; nil for none
	done   chan<- struct{} // closed when it has been read; nil if nobody waits
}

// A record is one thing from a backend: a mark, or an event that was completed.
type record struct {
	tsNS   int64 // wall clock, of the operation, not of the read
	window uint64
	origin uint64
	more   bool // another record is waiting already
	mark   *mark
	event  event // valid if mark is nil
}

// An event can write itself.
type event interface {
	// typ is the event's type. An empty one has nothing to say and is left out.
	typ() string

	// overrides returns a bucket and a call id, as JSON, to be used instead of
	// the attribution's; nil for none. Only scripts have any.
	overrides() (bucket, callID []byte)

	// append adds the event's own fields.
	append(l *line)
}
