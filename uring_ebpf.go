//go:build linux && (amd64 || arm64)

package main

import (
	"encoding/binary"
	"slices"
	"unsafe"
)

// heldRequests are records of io_uring requests that were submitted and of which it
// is not known yet what came of them. A record that is given out all the same keeps
// EVENT_HELD, and the event says so.
type heldRequests struct {
	records map[uint64]heldRequest // by token
	order   []heldToken            // oldest first; some may not be held any more
	number  uint64                 // of the newest
	out     [][]byte               // to be given out now
}

type heldRequest struct {
	raw    []byte
	number uint64
}

// A heldToken is of the record with that token and number; tokens are used again.
type heldToken struct{ token, number uint64 }

// maxHeld bounds how many are kept: as many as a ring of io_uring has entries.
const maxHeld = 32768

// hold keeps a copy of a record.
func (h *heldRequests) hold(token uint64, raw []byte) {
	if h.records == nil {
		h.records = map[uint64]heldRequest{}
	}
	if old := h.take(token); old != nil {
		h.out = append(h.out, old) // the kernel has used the request again: the last is over
	}
	h.number++
	h.records[token] = heldRequest{append([]byte(nil), raw...), h.number}
	h.order = append(h.order, heldToken{token, h.number})
	if len(h.records) > maxHeld {
		h.giveOutOldest()
	}
	if len(h.order) > 2*maxHeld {
		h.order = slices.DeleteFunc(h.order, func(t heldToken) bool { return h.records[t.token].number != t.number })
	}
}

func (h *heldRequests) giveOutOldest() {
	for i, t := range h.order {
		if h.records[t.token].number == t.number {
			h.out = append(h.out, h.take(t.token))
			h.order = h.order[i+1:]
			return
		}
	}
}

// take returns the record with that token, which is no longer held; nil for none.
func (h *heldRequests) take(token uint64) []byte {
	raw := h.records[token].raw
	delete(h.records, token)
	return raw
}

// giveOut ends the wait of all that are held, with another record behind them.
func (h *heldRequests) giveOut(behind []byte) {
	for _, t := range h.order {
		if h.records[t.token].number == t.number {
			h.out = append(h.out, h.take(t.token))
		}
	}
	h.order = h.order[:0]
	h.out = append(h.out, append([]byte(nil), behind...))
}

// next returns the next record to be given out; nil for none.
func (h *heldRequests) next() []byte {
	if len(h.out) == 0 {
		return nil
	}
	raw := h.out[0]
	h.out = h.out[1:]
	return raw
}

// held tells whether the record is to be held until it is known what came of it.
func (e *kernelEvent) held() bool {
	// The flags of what came of an open are the file's mode.
	return e.kind() != probeKindKIND_URING_DONE && e.header.Flags&uint16(probeEventFlagEVENT_HELD) != 0 && e.header.Call&probeCallUring != 0
}

// pending tells whether it is not known what came of the request that the record is of.
func (e *kernelEvent) pending() bool {
	const flags = probeEventFlagEVENT_HELD | probeEventFlagEVENT_PENDING
	return !e.finished && e.header.Flags&uint16(flags) != 0 && e.header.Call&probeCallUring != 0
}

// finish adds to the record of a request, which has been held, what came of it. If that
// is of another one, which has the token by now, the request stays pending.
func (e *kernelEvent) finish(done *kernelEvent) {
	h := &e.header
	if h.Call != done.header.Call || h.Pid != done.header.Pid {
		return
	}
	h.Ret = done.header.Ret
	e.finished = true
	switch e.kind() {
	case probeKindKIND_OPEN:
		s := done.sections[probeTagTAG_PATH]
		switch {
		case h.Ret < 0:
		case !s.set:
			e.finished = false // the kernel's path is not known; with a slot, there is no descriptor
		case h.Value[1] != done.header.Value[0]:
			// Something was closed meanwhile, and the descriptor may be another file's.
			h.Flags |= uint16(probeEventFlagEVENT_RACED)
		default:
			e.sections[probeTagTAG_PATH] = s
			h.Flags, h.Value[1], h.Value[2] = done.header.Flags, done.header.Value[1], done.header.Value[2]
		}
	case probeKindKIND_CONNECT, probeKindKIND_BIND, probeKindKIND_LISTEN:
		if h.Value[0] == 0 {
			h.Value[0] = done.header.Value[1]
		}
		if s := done.sections[probeTagTAG_ADDR]; s.set {
			e.sections[probeTagTAG_ADDR] = s
		}
	}
}

// isMark tells a mark's record without taking it apart.
func isMark(raw []byte) bool {
	at := int(unsafe.Offsetof(probeEvent{}.Kind))
	return len(raw) >= headerLen && probeKind(binary.NativeEndian.Uint16(raw[at:])) == probeKindKIND_MARK
}
