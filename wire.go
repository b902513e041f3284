package main

import (
	"bytes"
	"encoding/binary"
	"slices"
)

// The wire: JSON-RPC messages as MCP writes them, one a line on stdio, though some readers
// do not wait for the end of the line. Their bytes go
// through as they are; what is read of them here is what opens and closes windows. A
// message can be of any size and is not kept.

const (
	maxWireText  = 4096 // bytes of an id, a method or a name, as written; longer ones are nobody's
	maxWireDepth = 4096 // a message with more levels is not looked into
	maxBatch     = 1024 // messages of a batch that are looked at
)

// A wireMessage is what matters of one JSON-RPC message. Values are JSON as it was
// written; nil for what is not there.
type wireMessage struct {
	id, method        []byte
	name, uri         []byte // of params
	requestID         []byte // likewise, which a cancellation names
	isError           []byte // of result
	version, err      []byte // "jsonrpc" and, if it is no object, "error"
	hasResult, hasErr bool
	batch             bool // it is one of a list
}

// answered tells whether the message answers a request, for clients that look closely:
// what they do not take for an answer must not end a call.
func (m *wireMessage) answered() bool {
	request := m.method != nil && m.method[0] == '"'
	return !request && m.id != nil && (m.hasResult || m.hasErr) && string(m.version) == `"2.0"`
}

// failed tells whether an answer says that the call has failed.
func (m *wireMessage) failed() bool {
	return m.hasErr && string(m.err) != "null" || string(m.isError) == "true"
}

// asksFor returns the message's method, however it is written.
func (m *wireMessage) asksFor() string {
	method, _ := jsonText(m.method)
	return method
}

// A wireScanner reads a stream of messages piece by piece. Of a key that comes twice, the
// last one counts, as in the parsers of both SDKs.
type wireScanner struct {
	// messages are those of the last line: none if it is not one, and several of a batch.
	messages []wireMessage

	begun   bool   // part of a line has been read
	levels  []byte // of what is open: { or [
	expect  wireState
	str     bool // in a string
	escape  bool // after a backslash in it
	broken  bool // no JSON, or deeper than anyone needs
	batch   bool
	current wireMessage
	key     [2][]byte // of the message's members, and of theirs
	capture *[]byte   // what the current value is to be written to
	text    []byte    // the current key, or the value to be captured
	scalar  bool      // in a number or a word
}

// wireState is what comes next outside of strings.
type wireState uint8

const (
	wireValue   wireState = iota // a value
	wireFirst                    // a key, or the end of an object
	wireKey                      // a key
	wireColon                    // a colon
	wireMore                     // a comma or the end of the list
	wireItem                     // a value, or the end of an array
	wireNothing                  // the end of the line
)

// feed reads data up to the end of a message and returns how much of it that is. When
// done, messages has it, until the next call: several if it is a batch.
func (w *wireScanner) feed(data []byte) (n int, done bool) {
	if !w.begun {
		w.messages, w.begun = w.messages[:0], true
	}
	for n < len(data) {
		line := data[n:]
		if end := bytes.IndexByte(line, '\n'); end >= 0 {
			line = line[:end]
		}
		for len(line) > 0 && !w.broken {
			if w.str {
				read := w.inString(line)
				n, line = n+read, line[read:]
				continue
			}
			w.outside(line[0])
			n, line = n+1, line[1:]
			if w.expect == wireNothing && len(w.levels) == 0 && !w.scalar && !w.broken {
				w.reset()
				return n, true
			}
		}
		if n += len(line); n < len(data) { // there is the end of the line
			n++
			w.reset()
			w.messages, w.begun = w.messages[:0], true
		}
	}
	return n, false
}

// reset begins with the next message.
func (w *wireScanner) reset() {
	*w = wireScanner{messages: w.messages, levels: w.levels[:0], text: w.text[:0]}
}

// inString reads part of a string, to its end or that of data, and returns how much.
func (w *wireScanner) inString(data []byte) int {
	quote := -1
	for i := 0; i < len(data); i++ {
		if w.escape {
			if bytes.IndexByte([]byte(`"\/bfnrtu`), data[i]) < 0 {
				w.broken = true
				return len(data)
			}
			w.escape = false
			continue
		}
		if quote < i {
			if quote = bytes.IndexByte(data[i:], '"'); quote < 0 {
				quote = len(data)
			} else {
				quote += i
			}
		}
		if slash := bytes.IndexByte(data[i:quote], '\\'); slash >= 0 {
			w.escape = true
			i += slash
			continue
		}
		if quote == len(data) {
			break
		}
		return w.endInString(data[:quote+1], true)
	}
	return w.endInString(data, false)
}

// endInString takes what is of a string.
func (w *wireScanner) endInString(part []byte, over bool) int {
	if hasControl(part) {
		w.broken = true
		return len(part)
	}
	w.keep(part)
	if over {
		w.str = false
		w.endString()
	}
	return len(part)
}

// hasControl tells whether there is a byte below 0x20, which no JSON string has as it is.
func hasControl(data []byte) bool {
	const high = 0x8080808080808080
	for ; len(data) >= 64; data = data[64:] {
		b := (*[64]byte)(data)
		if (below20(b[0:8])|below20(b[8:16])|below20(b[16:24])|below20(b[24:32])|
			below20(b[32:40])|below20(b[40:48])|below20(b[48:56])|below20(b[56:64]))&high != 0 {
			return true
		}
	}
	return slices.ContainsFunc(data, func(c byte) bool { return c < ' ' })
}

// below20 sets the highest bit of some of eight bytes, if there are any below 0x20: taking
// that away from them borrows from a bit that they lack.
func below20(b []byte) uint64 {
	word := binary.NativeEndian.Uint64(b)
	return (word - 0x2020202020202020) &^ word
}

// keep adds to the current key or value, if anyone wants it.
func (w *wireScanner) keep(data []byte) {
	if w.capture == nil && w.expect != wireColon {
		return
	}
	if len(w.text)+len(data) > maxWireText {
		data = data[:max(0, maxWireText+1-len(w.text))] // so that it can be seen to be too long
	}
	w.text = append(w.text, data...)
}

func (w *wireScanner) outside(c byte) {
	if w.scalar {
		switch c {
		case ',', ']', '}', ' ', '\t', '\r':
			w.endScalar()
		default:
			if len(w.text) <= maxWireText {
				w.text = append(w.text, c)
			}
			return
		}
	}
	switch c {
	case ' ', '\t', '\r':
		return
	case '"':
		if w.expect == wireFirst || w.expect == wireKey {
			w.begin(wireColon)
		} else if !w.beginValue() {
			return
		}
		w.str = true
		w.text = append(w.text, c)
	case '{', '[':
		if !w.beginValue() {
			return
		}
		w.push(c)
	case '}':
		w.pop('{', wireFirst)
	case ']':
		w.pop('[', wireItem)
	case ',':
		if w.expect != wireMore {
			w.broken = true
		} else if w.levels[len(w.levels)-1] == '{' {
			w.expect = wireKey
		} else {
			w.expect = wireValue
		}
	case ':':
		if w.expect != wireColon {
			w.broken = true
		}
		w.expect = wireValue
	default:
		if w.beginValue() {
			w.scalar = true
			w.text = append(w.text, c)
		}
	}
}

// depth is how many levels are open in the current message.
func (w *wireScanner) depth() int {
	if w.batch {
		return len(w.levels) - 1
	}
	return len(w.levels)
}

func (w *wireScanner) begin(state wireState) {
	w.expect, w.capture, w.text = state, nil, w.text[:0]
}

// beginValue says where the value that begins here is to go.
func (w *wireScanner) beginValue() bool {
	if w.expect != wireValue && w.expect != wireItem {
		w.broken = true
		return false
	}
	w.begin(wireMore)
	if len(w.levels) == 0 {
		w.expect = wireNothing
	}
	m := &w.current
	switch {
	case w.depth() == 1 && w.levels[len(w.levels)-1] == '{':
		switch string(w.key[0]) {
		case "jsonrpc":
			w.capture = &m.version
		case "id":
			w.capture = &m.id
		case "method":
			w.capture = &m.method
		case "params":
			m.name, m.uri, m.requestID = nil, nil, nil
		case "result":
			m.hasResult, m.isError = true, nil
		case "error":
			m.hasErr = true
			w.capture = &m.err
		}
	case w.depth() == 2 && w.levels[len(w.levels)-1] == '{':
		switch string(w.key[0]) + "." + string(w.key[1]) {
		case "params.name":
			w.capture = &m.name
		case "params.uri":
			w.capture = &m.uri
		case "params.requestId":
			w.capture = &m.requestID
		case "result.isError":
			w.capture = &m.isError
		}
	}
	return true
}

func (w *wireScanner) push(c byte) {
	if w.capture != nil { // an id, or a name, that is a list is none
		*w.capture, w.capture = nil, nil
	}
	if len(w.levels) >= maxWireDepth {
		w.broken = true
		return
	}
	if len(w.levels) == 0 && c == '[' {
		w.batch = true
	}
	w.levels = append(w.levels, c)
	if w.depth() == 1 {
		w.current = wireMessage{batch: w.batch}
	}
	w.expect = wireFirst
	if c == '[' {
		w.expect = wireItem
	}
}

func (w *wireScanner) pop(open byte, empty wireState) {
	last := len(w.levels) - 1
	if last < 0 || w.levels[last] != open || w.expect != wireMore && w.expect != empty {
		w.broken = true
		return
	}
	w.levels = w.levels[:last]
	if matters := w.current.id != nil || w.current.method != nil; open == '{' && w.depth() == 0 && matters && len(w.messages) < maxBatch {
		w.messages = append(w.messages, w.current)
	}
	w.expect = wireMore
	if last == 0 {
		w.expect = wireNothing
	}
}

func (w *wireScanner) endString() {
	if w.expect == wireColon {
		if d := w.depth(); d == 1 || d == 2 {
			key := w.text[1 : len(w.text)-1]
			if len(w.text) > maxWireText {
				key = nil
			} else if bytes.IndexByte(key, '\\') >= 0 {
				if s := (jsonScanner{text: w.text}); s.string() != nil {
					w.broken = true
					return
				}
				key = appendUnquoted(nil, key)
			}
			w.key[d-1] = append(w.key[d-1][:0], key...)
		}
		return
	}
	w.endCapture()
}

func (w *wireScanner) endScalar() {
	w.scalar = false
	s := jsonScanner{text: w.text}
	unread := len(w.text) > maxWireText || slices.Contains([]string{"NaN", "Infinity", "-Infinity"}, string(w.text)) // which Python reads and writes
	if !unread && (s.value(0) != nil || s.at < len(w.text)) {
		w.broken = true
	}
	w.endCapture()
}

func (w *wireScanner) endCapture() {
	if w.capture == nil {
		return
	}
	*w.capture = nil
	s := jsonScanner{text: w.text}
	if len(w.text) <= maxWireText && s.value(0) == nil && s.at == len(w.text) {
		*w.capture = bytes.Clone(w.text)
	}
	w.capture = nil
}
