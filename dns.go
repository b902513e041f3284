package main

import (
	"container/list"
	"encoding/binary"
	"errors"
	"net/netip"
	"strconv"
)

// What one message may hold here. More is not read, and the message counts as
// truncated. What resolvers make is below: they ask one question a message (RFC 9619
// allows no more), and 75 addresses fill a datagram of the usual 1,232 bytes.
const (
	maxDNSQuestions = 16
	maxDNSAnswers   = 128      // records looked at, of whatever type
	maxDNSName      = 255      // bytes of a name as sent (RFC 1035, 2.3.4)
	maxDNSJumps     = 127      // pointers in a name: as many as it can have labels
	maxDNSTexts     = 16 << 10 // bytes of text after which no name is begun
)

// maxDNSText is how long the text of one name can be: four labels are the fewest that
// fill a name, and each of their 250 bytes may come with a backslash.
const maxDNSText = 2*250 + 3

const dnsHeaderLen = 12

// The types of records that are looked into (RFC 1035, 3.2.2; RFC 3596, 2.1).
const (
	dnsA     = 1
	dnsCNAME = 5
	dnsAAAA  = 28
)

var (
	errDNSHeader = errors.New("shorter than the header of a DNS message")
	errDNSName   = errors.New("a name in a DNS message is too long, runs in a circle or has a label of an unknown kind")
	errDNSMore   = errors.New("the DNS message goes on where the payload or the limit ends") // never leaves decode
)

// dnsMessage is a DNS message (RFC 1035, 4) as far as it tells what was asked for and
// what addresses came back. It is reused from message to message; what it holds is
// valid until the next decode.
//
// Names are text: labels joined by dots, without one at the end; the root is ".". A
// dot or backslash in a label has a backslash before it, as in master files (RFC 1035,
// 5.1); all other bytes are as they were sent, of whatever value. So a name is from 1
// to maxDNSText bytes long, and no two names have the same text.
type dnsMessage struct {
	id        uint16
	response  bool
	opcode    int  // 0 for a query and its response
	rcode     int  // the header's four bits of it
	truncated bool // there may be more questions or answers: the sender says so, the payload ends early, or a limit
	questions []dnsQuestion
	answers   []dnsAnswer

	text []byte // buffer for names, also of records that are passed over
}

type dnsQuestion struct {
	name []byte
	typ  uint16
}

// A dnsAnswer is a record of type A or AAAA, with an address, or CNAME, with a name
// that stands for the owner's.
type dnsAnswer struct {
	name  []byte     // the record's owner
	addr  netip.Addr // not valid for a CNAME
	cname []byte     // nil for an address
}

// decode takes a message apart: its questions and, of its answers, addresses and the
// CNAMEs on the way to them. Records of other types and the sections after the answers,
// with EDNS, are passed over. Classes are not looked at: resolvers in programs do not
// either, and mDNS has a flag there (RFC 6762, 10.2). The payload may be the beginning
// of a message.
//
// After an error m holds what stands before the fault. Bytes that are no DNS message at
// all mostly give no question and no answer, be it with an error or as truncated.
//
// The bytes are anyone's. The work for a message is bounded by the limits above, not by
// its size and counts: names may share their bytes, so that 2 kB have 256 of full length.
func (m *dnsMessage) decode(payload []byte) error {
	*m = dnsMessage{questions: m.questions[:0], answers: m.answers[:0], text: m.text[:0]}
	if len(payload) < dnsHeaderLen {
		m.truncated = true
		return errDNSHeader
	}
	flags := binary.BigEndian.Uint16(payload[2:])
	m.id = binary.BigEndian.Uint16(payload)
	m.response = flags&0x8000 != 0
	m.opcode = int(flags >> 11 & 15)
	m.rcode = int(flags & 15)
	err := m.decodeSections(payload)
	m.truncated = flags&0x0200 != 0 || err != nil
	if err == errDNSMore {
		return nil
	}
	return err
}

func (m *dnsMessage) decodeSections(payload []byte) error {
	questions, answers := int(binary.BigEndian.Uint16(payload[4:])), int(binary.BigEndian.Uint16(payload[6:]))
	at := dnsHeaderLen
	for range min(questions, maxDNSQuestions) {
		name, end, err := m.decodeName(payload, at)
		if err != nil {
			return err
		}
		if len(payload)-end < 4 { // type, class
			return errDNSMore
		}
		m.questions = append(m.questions, dnsQuestion{name, binary.BigEndian.Uint16(payload[end:])})
		at = end + 4
	}
	if questions > maxDNSQuestions {
		return errDNSMore
	}
	for range min(answers, maxDNSAnswers) {
		name, end, err := m.decodeName(payload, at)
		if err != nil {
			return err
		}
		if len(payload)-end < 10 { // type, class, four bytes of TTL, length
			return errDNSMore
		}
		typ := binary.BigEndian.Uint16(payload[end:])
		n, data := int(binary.BigEndian.Uint16(payload[end+8:])), end+10
		if len(payload)-data < n {
			return errDNSMore
		}
		at = data + n
		switch {
		case typ == dnsA && n == 4, typ == dnsAAAA && n == 16:
			addr, _ := netip.AddrFromSlice(payload[data:at])
			m.answers = append(m.answers, dnsAnswer{name: name, addr: addr})
		case typ == dnsCNAME:
			cname, _, err := m.decodeName(payload, data)
			if err != nil {
				return err
			}
			m.answers = append(m.answers, dnsAnswer{name: name, cname: cname})
		}
	}
	if answers > maxDNSAnswers {
		return errDNSMore
	}
	return nil
}

// decodeName makes text of the name at payload[at:], compressed or not (RFC 1035,
// 4.1.4), and tells where what follows it begins. Pointers may go forward, which is not
// allowed but which some servers take.
func (m *dnsMessage) decodeName(payload []byte, at int) (name []byte, end int, err error) {
	start := len(m.text)
	if start > maxDNSTexts {
		return nil, 0, errDNSMore
	}
	sent, jumps := 1, 0 // bytes without compression, the last zero included
	for {
		if at >= len(payload) {
			return nil, 0, errDNSMore
		}
		n := int(payload[at])
		at++
		switch {
		case n == 0:
			if jumps == 0 {
				end = at
			}
			if len(m.text) == start {
				m.text = append(m.text, '.')
			}
			return m.text[start:len(m.text):len(m.text)], end, nil
		case n < 0x40:
			if sent += 1 + n; sent > maxDNSName {
				return nil, 0, errDNSName
			}
			if len(payload)-at < n {
				return nil, 0, errDNSMore
			}
			if len(m.text) > start {
				m.text = append(m.text, '.')
			}
			for _, c := range payload[at : at+n] {
				if c == '.' || c == '\\' {
					m.text = append(m.text, '\\')
				}
				m.text = append(m.text, c)
			}
			at += n
		case n >= 0xc0:
			if at >= len(payload) {
				return nil, 0, errDNSMore
			}
			if jumps == 0 {
				end = at + 1
			}
			if jumps++; jumps > maxDNSJumps {
				return nil, 0, errDNSName
			}
			at = (n&0x3f)<<8 | int(payload[at])
		default:
			return nil, 0, errDNSName // kinds of labels that were given up (RFC 6891, 5)
		}
	}
}

// splitDNSOverTCP cuts the first message, without its two bytes of length (RFC 1035,
// 4.2.2), off what was written to a connection or read from it in one go. The message
// is not whole if the rest of it was not in there; it is empty if nothing of it was.
// The rest is shorter than the stream.
//
// Many programs read the length first and the message on its own; some write it so.
// Taken for a length and a message, such a message's count of questions, which is 1,
// would be flags: those of a query that reports an error. So it is told from others.
func splitDNSOverTCP(stream []byte) (message, rest []byte) {
	if len(stream) < 2 {
		return nil, nil
	}
	n, after := int(binary.BigEndian.Uint16(stream)), stream[2:]
	if n != len(after) && len(stream) >= dnsHeaderLen && binary.BigEndian.Uint16(stream[4:]) == 1 {
		return stream, nil
	}
	n = min(n, len(after))
	return after[:n], after[n:]
}

// dnsTypes has the types that programs ask for, by the names of the IANA registry "DNS
// Parameters".
var dnsTypes = map[uint16]string{
	dnsA: "A", 2: "NS", dnsCNAME: "CNAME", 6: "SOA", 10: "NULL", 12: "PTR", 13: "HINFO", 15: "MX", 16: "TXT",
	dnsAAAA: "AAAA", 33: "SRV", 35: "NAPTR", 43: "DS", 44: "SSHFP", 46: "RRSIG", 47: "NSEC", 48: "DNSKEY",
	52: "TLSA", 64: "SVCB", 65: "HTTPS", 251: "IXFR", 252: "AXFR", 255: "ANY", 256: "URI", 257: "CAA",
}

// typeName returns the name of the type that was asked for; of one without a name it is
// "TYPE" and the number (RFC 3597, 5).
func (q *dnsQuestion) typeName() string {
	if name, ok := dnsTypes[q.typ]; ok {
		return name
	}
	return "TYPE" + strconv.Itoa(int(q.typ))
}

// dnsRcodes has the codes that resolvers give (RFC 1035, 4.1.1, in the spelling of RFC
// 6895, 2.3).
var dnsRcodes = [...]string{"NOERROR", "FORMERR", "SERVFAIL", "NXDOMAIN", "NOTIMP", "REFUSED"}

// rcodeName returns the name of the response's code; of one without a name it is
// "RCODE" and the number.
func (m *dnsMessage) rcodeName() string {
	if m.rcode < len(dnsRcodes) {
		return dnsRcodes[m.rcode]
	}
	return "RCODE" + strconv.Itoa(m.rcode)
}

// maxHostNames is how many addresses have a name. With the longest names, and those
// are not to be had without an effort, they take 3 MB.
const maxHostNames = 4096

// hostNames remembers by what name an address was last asked for. It is a hint and no
// evidence: whoever answers chooses the addresses, and many names share one. The zero
// value is ready for use, by one goroutine at a time.
type hostNames struct {
	byAddr map[netip.Addr]*list.Element
	byAge  list.List // of *hostName, the last learnt first
}

type hostName struct {
	addr netip.Addr
	name []byte // its memory is reused
}

// learn takes what a response says. The caller sees to it that the message was
// received, for anyone can send a response.
//
// An address goes by the name that was asked for, whatever the names on the way to it:
// a program that asked for a.example and got CNAMEs has a.example in mind. CNAMEs are
// not even followed for that, since programs do not all do so either: musl and Go take
// an address for the answer whoever its owner. With the owner's name, a server could
// pass its address off as anyone's. Only what answers no question (mDNS; RFC 6762, 6)
// or several goes by its owner.
func (h *hostNames) learn(m *dnsMessage) {
	if !m.response || m.opcode != 0 || m.rcode != 0 {
		return
	}
	for i := range m.answers {
		a := &m.answers[i]
		if !a.addr.IsValid() {
			continue
		}
		name := a.name
		if len(m.questions) == 1 {
			name = m.questions[0].name
		}
		h.set(a.addr.Unmap(), name)
	}
}

// set gives an address its name. The address whose name is the oldest makes room.
func (h *hostNames) set(addr netip.Addr, name []byte) {
	e := h.byAddr[addr]
	if e == nil {
		if h.byAddr == nil {
			h.byAddr = make(map[netip.Addr]*list.Element)
		}
		if h.byAge.Len() < maxHostNames {
			e = h.byAge.PushFront(new(hostName))
		} else {
			e = h.byAge.Back()
			delete(h.byAddr, e.Value.(*hostName).addr)
		}
		h.byAddr[addr] = e
	}
	h.byAge.MoveToFront(e)
	known := e.Value.(*hostName)
	known.addr, known.name = addr, append(known.name[:0], name...)
}

// lookup returns the name by which an address was last asked for, as it was asked for,
// or nil. It is valid until the next learn.
func (h *hostNames) lookup(addr netip.Addr) []byte {
	e := h.byAddr[addr.Unmap().WithZone("")]
	if e == nil {
		return nil
	}
	return e.Value.(*hostName).name
}
