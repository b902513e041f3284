package main

import (
	"bufio"
	"strconv"
)

// A recording is a session as a script for the fake backend: what was seen once, with
// privileges, can be played anywhere to a client that makes the same calls. An event
// belongs to the mark before it; where time has to be kept apart, the n-th call of a tool
// counts, so that other tools may be called in another order.
type recording struct {
	out   *bufio.Writer
	empty bool
	buf   []byte
	fresh string             // the trigger, as JSON members, of what comes now
	begun map[string]int     // calls so far, by tool
	calls map[string]callRef // by id, as JSON; the newest of that id
	open  map[string]bool    // those that have not ended
}

func newRecording(out *bufio.Writer) *recording {
	return &recording{out: out, empty: true, fresh: `"trigger":"startup"`, begun: map[string]int{}, calls: map[string]callRef{}, open: map[string]bool{}}
}

// see takes in a line, which has been parsed as ev.
func (r *recording) see(line []byte, ev *policyEvent) {
	switch fieldText(ev.typ, "") {
	case "status":
		r.status(ev)
	case "drop": // a script has what there was
	default:
		r.event(line, ev)
	}
}

func (r *recording) status(ev *policyEvent) {
	id := string(ev.callID)
	switch fieldText(ev.message, "") {
	case "scope":
		r.fresh = `"trigger":"scope"`
	case "begin":
		tool := string(ev.tool)
		r.begun[tool]++
		r.calls[id] = callRef{tool, r.begun[tool]}
		r.fresh, r.open[id] = `"trigger":"begin",`+r.calls[id].members(), true
	case "end":
		if !r.open[id] {
			return // a client may end what never began
		}
		delete(r.open, id)
		r.fresh = `"trigger":"after",` + r.calls[id].members()
	}
}

func (c callRef) members() string {
	return `"tool":` + c.tool + `,"nth":` + strconv.Itoa(c.n)
}

func (r *recording) event(line []byte, ev *policyEvent) {
	if r.empty {
		r.out.WriteString("{\"events\":[\n{")
	} else {
		r.out.WriteString(",\n{")
	}
	r.empty = false
	r.out.WriteString(r.fresh)
	if from := r.calls[string(ev.originCallID)]; from.n > 0 {
		r.out.WriteString(`,"origin":{` + from.members() + "}")
	}
	r.buf = append(r.buf[:0], `,"event":{`...)
	// What is played after a mark has the bucket that such an event has, but for one that
	// began, or was left behind, before the call that is open.
	given := len(r.begun) > 0 && (len(r.open) == 0 || ev.callID != nil)
	first := true
	jsonMembers(line, func(key, value []byte) { // it was read before
		switch string(key) {
		case "candidate_call_ids":
			given = true // and has candidates, too
			return
		case "ts_ns", "call_id", "origin_call_id", "forked_in_call_id", "origin_candidate_call_ids", "bucket":
			return
		}
		if !first {
			r.buf = append(r.buf, ',')
		}
		first = false
		r.buf = append(append(appendLoose(r.buf, string(key)), ':'), value...)
	})
	if !given && ev.bucket != nil {
		r.buf = append(append(r.buf, `,"bucket":`...), ev.bucket...)
	}
	r.buf = append(r.buf, "}}"...)
	r.out.Write(r.buf) // an error comes again when it is flushed
}

// finish writes what comes at the end.
func (r *recording) finish() {
	if r.empty {
		r.out.WriteString(`{"events":[`)
	}
	r.out.WriteString("\n]}\n")
}
