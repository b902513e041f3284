//go:build linux && (amd64 || arm64)

package main

import (
	"encoding/binary"
	"unsafe"
)

// heldRequests are records of io_uring requests that were submitted and of which it
// is not known yet what came of them. A record that is given out all the same keeps
// EVENT_HELD, and the event says so.
type heldRequests struct {
	records map[uint64][]byte // by token
	order   []uint64          // of records, oldest first; taken ones are still in it
	out     [][]byte          // to be given out now
}

// maxHeld bounds how many are kept; a ring of io_uring has at most 32,768 entries.
const maxHeld = 4096

// hold keeps a copy of a record.
func (h *heldRequests) hold(token uint64, raw []byte) {
	if h.records == nil {
		h.records = map[uint64][]byte{}
	}
	if old := h.take(token); old != nil {
		h.out = append(h.out, old) // the kernel has used the request again: the last is over
	}
	h.records[token] = append([]byte(nil), raw...)
	h.order = append(h.order, token)
	for len(h.records) > maxHeld || len(h.order) > 2*maxHeld {
		if old := h.take(h.order[0]); old != nil {
			h.out = append(h.out, old)
		}
		h.order = h.order[1:]
	}
}

// take returns the record with that token, which is no longer held; nil for none.
func (h *heldRequests) take(token uint64) []byte {
	raw := h.records[token]
	delete(h.records, token)
	return raw
}

// giveOut ends the wait of all that are held, with another record behind them.
func (h *heldRequests) giveOut(behind []byte) {
	for _, token := range h.order {
		if raw := h.take(token); raw != nil {
			h.out = append(h.out, raw)
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

// held tells whether it is not known what came of the request that the record is of.
func (e *kernelEvent) held() bool {
	return !e.finished && e.header.Flags&uint16(probeEventFlagEVENT_HELD) != 0 && e.header.Call&probeCallUring != 0
}

// finish adds to the record of a request, which has been held, what came of it.
func (e *kernelEvent) finish(done *kernelEvent) {
	h := &e.header
	h.Ret = done.header.Ret
	e.finished = true
	switch e.kind() {
	case probeKindKIND_OPEN:
		if s := done.sections[probeTagTAG_PATH]; s.set {
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
