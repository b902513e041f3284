//go:build linux && (amd64 || arm64)

package main

import "golang.org/x/sys/unix"

// maxShownAnswers is how many of the addresses in a message its event has.
const maxShownAnswers = 32

// learnNames decodes the event's message, if it is one, and keeps what the addresses
// in it are called if it was received: a program can send whatever it likes.
func (e *kernelEvent) learnNames() {
	data := e.sections[probeTagTAG_DATA].data
	if uint16(e.header.Value[0]) == unix.IPPROTO_TCP {
		// What is read or written at once holds one message, or the length of one.
		for rest := data; len(rest) > 0; {
			if data, rest = splitDNSOverTCP(rest); len(data) > 0 {
				break
			}
		}
	}
	e.message.decode(data) // what stands before a fault is a question all the same
	if e.header.Value[1] != 0 {
		e.hosts.learn(&e.message)
	}
}

// appendDNS writes the fields of a message to or from a server of names.
func (e *kernelEvent) appendDNS(l *line) {
	e.appendAddr(l)
	m := &e.message
	if len(m.questions) > 0 {
		l.text("name", m.questions[0].name)
		l.str("query", m.questions[0].typeName())
	}
	if len(m.questions) > 1 {
		var names [][]byte
		for _, q := range m.questions[1:] {
			names = append(names, q.name)
		}
		l.texts("more_names", names)
	}
	if len(m.questions)+len(m.answers) == 0 {
		l.bool("undecoded", true)
	}
	cut := m.truncated
	if m.response {
		l.bool("response", true)
		if m.rcode != 0 {
			l.str("rcode", m.rcodeName())
		}
		var addrs [][]byte
		for _, a := range m.answers {
			if !a.addr.IsValid() {
				continue
			}
			if len(addrs) == maxShownAnswers {
				cut = true
				break
			}
			addrs = append(addrs, []byte(a.addr.String()))
		}
		if addrs != nil {
			l.texts("answers", addrs)
		}
	}
	if cut && e.sections[probeTagTAG_DATA].flags&probeSectionFlagSECTION_CUT == 0 {
		l.bool("truncated", true)
	}
}
