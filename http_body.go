package main

import (
	"bytes"
	"io"
	"net/url"
)

// The bodies of requests and responses, read for the messages in them as they pass.

// A heldBody is a body with messages, whose last byte waits until see has been told of
// them.
type heldBody struct {
	body     io.ReadCloser
	see      func([]wireMessage) error // which is that of the body then
	closed   func(whole bool)          // nil for nothing
	exchange *exchange                 // of a request's body
	wire     wireScanner
	told     []wireMessage // of messages that are whole
	last     []byte        // held back, at most one byte
	err      error         // of the body, once there is nothing more
}

func (h *heldBody) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for {
		if h.err != nil {
			n := copy(p, h.last)
			h.last = h.last[n:]
			if n > 0 {
				return n, nil
			}
			return 0, h.err
		}
		held := copy(p, h.last)
		if held == len(p) {
			// There is no room to see whether more comes.
			var one [1]byte
			n, err := h.body.Read(one[:])
			if n > 0 {
				h.feed(one[:])
				h.last = append(h.last[:0], one[0])
			}
			h.finish(err)
			if n > 0 {
				return held, nil
			}
			continue
		}
		n, err := h.body.Read(p[held:])
		h.feed(p[held : held+n])
		if n += held; n > 0 {
			h.last = append(h.last[:0], p[n-1])
			n--
		}
		h.finish(err)
		if n > 0 {
			return n, nil
		}
	}
}

// feed reads a part of the body. A line's end is a space for JSON.
func (h *heldBody) feed(part []byte) {
	for line := range bytes.Lines(part) {
		rest, ok := bytes.CutSuffix(line, []byte("\n"))
		h.told = feedAll(&h.wire, h.told, rest)
		if ok {
			h.told = feedAll(&h.wire, h.told, []byte(" "))
		}
	}
}

// feedAll reads all of data, and adds the messages that end in it.
func feedAll(w *wireScanner, messages []wireMessage, data []byte) []wireMessage {
	for len(data) > 0 {
		n, done := w.feed(data)
		if done {
			messages = append(messages, w.messages...)
		}
		data = data[n:]
	}
	return messages
}

func (h *heldBody) finish(err error) {
	if err == nil {
		return
	}
	h.err = err
	if err == io.EOF && len(h.told) > 0 {
		if err := h.see(h.told); err != nil {
			h.last, h.err = nil, err
		}
	}
}

func (h *heldBody) Close() error {
	if h.closed != nil {
		h.closed(h.err == io.EOF)
	}
	return h.body.Close()
}

// An eventStream is a stream of server-sent events (HTML, section 9.2). The end of an
// event waits until see has been told of the message in it.
type eventStream struct {
	body      io.ReadCloser
	exchange  *exchange
	see       func([]wireMessage)
	announced bool // it has said where its session's requests go
	wire      wireScanner
	told      []wireMessage // of this event

	field    []byte // of the current line, up to the colon
	inValue  bool   // after the colon
	space    bool   // the first character of the value may be a space, which is none of it
	empty    bool   // the line has nothing yet
	begun    bool   // there has been a byte
	mark     int    // bytes of a byte order mark that there have been
	cr       bool   // the last byte was a carriage return
	data     bool   // the event has had data
	event    []byte // its type
	endpoint []byte // its data, if it is of type "endpoint"
}

const maxEventField = 32

// byteOrderMark may stand before a stream's first line.
const byteOrderMark = "\ufeff"

func (s *eventStream) Read(p []byte) (int, error) {
	n, err := s.body.Read(p)
	for i := 0; i < n; {
		i += s.scan(p[i:n])
	}
	return n, err
}

// Close takes in that nothing more comes. What the stream has not answered another one may.
func (s *eventStream) Close() error {
	s.exchange.leave()
	if s.announced {
		s.exchange.r.leaveSession(s.exchange.session)
	}
	return s.body.Close()
}

// scan reads some of data and returns how much. When that is the end of an event, its
// message has been told of: what is read goes on only afterwards.
func (s *eventStream) scan(data []byte) int {
	if !s.begun {
		s.begun, s.empty = true, true
	}
	if s.mark < len(byteOrderMark) {
		if data[0] == byteOrderMark[s.mark] {
			s.mark++
			return 1
		}
		s.mark = len(byteOrderMark) // it is none, or is over
	}
	c := data[0]
	if c == '\n' && s.cr {
		s.cr = false
		return 1 // it belongs to the carriage return
	}
	s.cr = c == '\r'
	switch {
	case c == '\n' || c == '\r':
		s.endLine()
		return 1
	case s.inValue:
		if s.space && c == ' ' {
			s.space = false
			return 1
		}
		s.space = false
		n := len(data)
		if end := bytes.IndexAny(data, "\r\n"); end >= 0 {
			n = end
		}
		switch string(s.field) {
		case "data":
			s.told = feedAll(&s.wire, s.told, data[:n])
			if len(s.endpoint)+n <= maxWireText {
				s.endpoint = append(s.endpoint, data[:n]...)
			}
		case "event":
			if len(s.event)+n <= maxEventField {
				s.event = append(s.event, data[:n]...)
			}
		}
		return n
	case c == ':':
		s.inValue, s.space, s.empty = true, true, false
		switch string(s.field) {
		case "data":
			if s.data {
				s.told = feedAll(&s.wire, s.told, []byte(" ")) // for the end of the line between
			}
			s.data = true
		case "event":
			s.event = s.event[:0]
		}
	default:
		s.empty = false
		if len(s.field) <= maxEventField {
			s.field = append(s.field, c)
		}
	}
	return 1
}

func (s *eventStream) endLine() {
	if !s.empty {
		s.field, s.inValue, s.empty = s.field[:0], false, true
		return
	}
	if s.data {
		if len(s.told) > 0 {
			s.see(s.told)
		}
		s.told = s.told[:0]
		s.wire.reset()
		if string(s.event) == "endpoint" && s.exchange.session == "" {
			if u, err := url.Parse(string(s.endpoint)); err == nil {
				s.exchange.session, s.announced = sessionOfURL(u), true
			}
		}
	}
	s.data, s.event, s.endpoint = false, s.event[:0], s.endpoint[:0]
}
