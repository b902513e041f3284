package main

import (
	"encoding/base64"
	"strconv"
	"unicode/utf8"
)

// A line builds one line of output: a JSON object on a line of its own, valid
// UTF-8 whatever bytes go in. It is reused from line to line.
//
// Text that is not UTF-8 appears with U+FFFD in place of what is not, followed by
// a field <key>_raw with the very bytes in base64.
type line struct {
	buf []byte
}

// begin starts a line whose first field is its type.
func (l *line) begin(typ string) {
	l.buf = append(l.buf[:0], `{"type":`...)
	l.buf = appendQuoted(l.buf, typ)
}

// end closes the line and returns it, newline included. It is valid until begin.
func (l *line) end() []byte {
	l.buf = append(l.buf, '}', '\n')
	return l.buf
}

func (l *line) key(key string) {
	l.buf = append(l.buf, ',', '"')
	l.buf = append(l.buf, key...)
	l.buf = append(l.buf, '"', ':')
}

// raw adds a field with a value that is JSON already.
func (l *line) raw(key, json string) {
	l.key(key)
	l.buf = append(l.buf, json...)
}

func (l *line) int(key string, v int64) {
	l.key(key)
	l.buf = strconv.AppendInt(l.buf, v, 10)
}

func (l *line) bool(key string, v bool) {
	l.key(key)
	l.buf = strconv.AppendBool(l.buf, v)
}

func (l *line) str(key, v string) {
	l.key(key)
	l.buf = appendQuoted(l.buf, v)
}

// text adds a string that the watched processes chose.
func (l *line) text(key string, v []byte) {
	l.key(key)
	l.buf = appendQuoted(l.buf, v)
	if !utf8.Valid(v) {
		l.key(key + "_raw")
		l.buf = appendBase64(l.buf, v)
	}
}

// texts adds an array of strings that the watched processes chose. If one of them
// is not UTF-8, <key>_raw has them all.
func (l *line) texts(key string, vs [][]byte) {
	valid := true
	l.key(key)
	l.buf = append(l.buf, '[')
	for i, v := range vs {
		if i > 0 {
			l.buf = append(l.buf, ',')
		}
		l.buf = appendQuoted(l.buf, v)
		valid = valid && utf8.Valid(v)
	}
	l.buf = append(l.buf, ']')
	if valid {
		return
	}
	l.key(key + "_raw")
	l.buf = append(l.buf, '[')
	for i, v := range vs {
		if i > 0 {
			l.buf = append(l.buf, ',')
		}
		l.buf = appendBase64(l.buf, v)
	}
	l.buf = append(l.buf, ']')
}

func appendBase64(buf, v []byte) []byte {
	buf = append(buf, '"')
	buf = base64.StdEncoding.AppendEncode(buf, v)
	return append(buf, '"')
}

const hex = "0123456789abcdef"

// appendQuoted appends s as a JSON string. Besides what JSON asks for it escapes
// DEL and the C1 controls, which some terminals take for escape sequences, and
// U+2028 and U+2029, which some readers take for the end of a line.
func appendQuoted[T string | []byte](buf []byte, s T) []byte {
	buf = append(buf, '"')
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= ' ' && c < 0x7f && c != '"' && c != '\\' {
			i++
			continue
		}
		buf = append(buf, s[start:i]...)
		size := 1
		switch {
		case c == '"' || c == '\\':
			buf = append(buf, '\\', c)
		case c == '\n':
			buf = append(buf, '\\', 'n')
		case c == '\t':
			buf = append(buf, '\\', 't')
		case c < ' ' || c == 0x7f:
			buf = append(buf, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		default:
			var r rune
			r, size = utf8.DecodeRuneInString(string(s[i:min(i+utf8.UTFMax, len(s))]))
			switch {
			case r == utf8.RuneError && size == 1:
				buf = utf8.AppendRune(buf, utf8.RuneError)
			case r < 0xa0:
				buf = append(buf, '\\', 'u', '0', '0', hex[r>>4], hex[r&15])
			case r == '\u2028' || r == '\u2029':
				buf = append(buf, '\\', 'u', '2', '0', '2', hex[r&15])
			default:
				buf = append(buf, s[i:i+size]...)
			}
		}
		i += size
		start = i
	}
	buf = append(buf, s[start:]...)
	return append(buf, '"')
}
