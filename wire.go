package main

import "bytes"

// The wire: JSON-RPC messages as MCP writes them, one a line on stdio. Their bytes go
// through as they are; what is read of them here is what opens and closes windows. A
// message can be of any size and is not kept.

const (
	maxWireText  = 4096 // bytes of an id, a method or a name, as written; longer ones are nobody's
	maxWireDepth = 4096 // a message with more levels is not looked into
)

// A wireMessage is what matters of one JSON-RPC message. Values are JSON as it was
// written; nil for what is not there.
type wireMessage struct {
	id, method        []byte
	name, uri         []byte // of params
	requestID         []byte // likewise, which a cancellation names
	isError           []byte // of result
	hasResult, hasErr bool
}

// answered tells whether the message answers a request.
func (m *wireMessage) answered() bool {
	return m.method == nil && m.id != nil && (m.hasResult || m.hasErr)
}

// failed tells whether an answer says that the call has failed.
func (m *wireMessage) failed() bool { return m.hasErr || string(m.isError) == "true" }

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

// feed reads data up to the end of a line and returns how much of it that is. When done,
// messages has what was on the line, until the next call.
func (w *wireScanner) feed(data []byte) (n int, done bool) {
	if !w.begun {
		w.messages, w.begun = w.messages[:0], true
	}
	end := bytes.IndexByte(data, '\n')
	if end < 0 {
		w.scan(data)
		return len(data), false
	}
	w.scan(data[:end])
	w.endLine()
	return end + 1, true
}

func (w *wireScanner) scan(data []byte) {
	for i := 0; i < len(data) && !w.broken; {
		if w.str {
			i += w.inString(data[i:])
		} else {
			w.outside(data[i])
			i++
		}
	}
}

// endLine takes the line for messages if it was whole.
func (w *wireScanner) endLine() {
	if w.scalar {
		w.endScalar()
	}
	if w.broken || w.str || len(w.levels) > 0 || w.expect != wireNothing {
		w.messages = w.messages[:0]
	}
	messages := w.messages
	*w = wireScanner{messages: messages, levels: w.levels[:0], text: w.text[:0]}
}

// inString reads part of a string, to its end or that of data, and returns how much.
func (w *wireScanner) inString(data []byte) int {
	quote := -1
	for i := 0; i < len(data); i++ {
		if w.escape {
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
		w.keep(data[:quote+1])
		w.str = false
		w.endString()
		return quote + 1
	}
	w.keep(data)
	return len(data)
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
		w.current = wireMessage{}
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
	if open == '{' && w.depth() == 0 {
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
	if s := (jsonScanner{text: w.text}); len(w.text) <= maxWireText && (s.value(0) != nil || s.at < len(w.text)) {
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
