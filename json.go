package main

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
)

// JSON texts are read here without decoding more of them than somebody asks for: of an
// event line the policy looks at two or three fields. A value is the bytes that it is
// written in.

// maxJSONDepth is how deep arrays and objects may lie in each other.
const maxJSONDepth = 500

var errJSON = errors.New("not JSON")

func jsonError(at int, why string) error { return fmt.Errorf("%w: byte %d: %s", errJSON, at+1, why) }

// jsonMembers calls visit with the members of the object that text is. A key is decoded
// and valid until visit returns; a value is what it is written in, without spaces around.
func jsonMembers(text []byte, visit func(key, value []byte)) error {
	s := jsonScanner{text: text}
	s.space()
	if err := s.object(0, visit); err != nil {
		return err
	}
	return s.end()
}

// jsonElements calls visit with the elements of the array that text is.
func jsonElements(text []byte, visit func(value []byte)) error {
	s := jsonScanner{text: text}
	s.space()
	if err := s.array(0, visit); err != nil {
		return err
	}
	return s.end()
}

// A jsonScanner reads a text from its beginning, as RFC 8259 has it.
type jsonScanner struct {
	text []byte
	at   int
}

func (s *jsonScanner) peek() byte {
	if s.at < len(s.text) {
		return s.text[s.at]
	}
	return 0
}

func (s *jsonScanner) space() {
	for s.at < len(s.text) && s.text[s.at] <= ' ' && strings.IndexByte(" \t\n\r", s.text[s.at]) >= 0 {
		s.at++
	}
}

func (s *jsonScanner) end() error {
	if s.space(); s.at < len(s.text) {
		return jsonError(s.at, "there is more after the end")
	}
	return nil
}

// value passes over any value.
func (s *jsonScanner) value(depth int) error {
	switch c := s.peek(); {
	case c == '"':
		return s.string()
	case c == '{':
		return s.object(depth, nil)
	case c == '[':
		return s.array(depth, nil)
	case c == '-' || c >= '0' && c <= '9':
		return s.number()
	}
	for _, word := range []string{"true", "false", "null"} {
		if bytes.HasPrefix(s.text[s.at:], []byte(word)) {
			s.at += len(word)
			return nil
		}
	}
	return jsonError(s.at, "want a value")
}

// object passes over an object and calls visit, if there is one, with its members.
func (s *jsonScanner) object(depth int, visit func(key, value []byte)) error {
	if s.peek() != '{' {
		return jsonError(s.at, "want an object")
	}
	return s.list('}', depth, func() error {
		if s.peek() != '"' {
			return jsonError(s.at, "want a key")
		}
		start := s.at
		if err := s.string(); err != nil {
			return err
		}
		key := s.text[start+1 : s.at-1]
		if s.space(); s.peek() != ':' {
			return jsonError(s.at, "want a colon")
		}
		s.at++
		s.space()
		start = s.at
		if err := s.value(depth + 1); err != nil {
			return err
		}
		if visit != nil {
			if bytes.IndexByte(key, '\\') >= 0 {
				key = appendUnquoted(nil, key)
			}
			visit(key, s.text[start:s.at])
		}
		return nil
	})
}

// array passes over an array and calls visit, if there is one, with its elements.
func (s *jsonScanner) array(depth int, visit func(value []byte)) error {
	if s.peek() != '[' {
		return jsonError(s.at, "want an array")
	}
	return s.list(']', depth, func() error {
		start := s.at
		if err := s.value(depth + 1); err != nil {
			return err
		}
		if visit != nil {
			visit(s.text[start:s.at])
		}
		return nil
	})
}

// list passes over what lies between brackets, the first of which is next, with commas
// between.
func (s *jsonScanner) list(closing byte, depth int, item func() error) error {
	if depth >= maxJSONDepth {
		return jsonError(s.at, fmt.Sprintf("more than %d levels", maxJSONDepth))
	}
	s.at++
	if s.space(); s.peek() == closing {
		s.at++
		return nil
	}
	for {
		if err := item(); err != nil {
			return err
		}
		s.space()
		switch s.peek() {
		case ',':
			s.at++
			s.space()
		case closing:
			s.at++
			return nil
		default:
			return jsonError(s.at, "want a comma or the end of the list")
		}
	}
}

func (s *jsonScanner) string() error {
	text := s.text
	for i := s.at + 1; i < len(text); i++ {
		switch c := text[i]; {
		case c == '"':
			s.at = i + 1
			return nil
		case c < ' ':
			return jsonError(i, "a control character in a string")
		case c == '\\':
			n := escapeLen(text[i:])
			if n == 0 {
				return jsonError(i, "an unknown escape")
			}
			i += n - 1
		}
	}
	return jsonError(len(text), "a string without its end")
}

// escapeLen returns how long the escape is that s starts with, or zero if it is none.
func escapeLen(s []byte) int {
	if len(s) < 2 {
		return 0
	}
	switch s[1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return 2
	case 'u':
		if len(s) >= 6 && !slices.ContainsFunc(s[2:6], func(c byte) bool { return strings.IndexByte("0123456789abcdefABCDEF", c) < 0 }) {
			return 6
		}
	}
	return 0
}

func (s *jsonScanner) digits() error {
	start := s.at
	for c := s.peek(); c >= '0' && c <= '9'; c = s.peek() {
		s.at++
	}
	if s.at == start {
		return jsonError(s.at, "want a digit")
	}
	return nil
}

func (s *jsonScanner) number() error {
	if s.peek() == '-' {
		s.at++
	}
	if s.peek() == '0' {
		s.at++
	} else if err := s.digits(); err != nil {
		return err
	}
	if s.peek() == '.' {
		s.at++
		if err := s.digits(); err != nil {
			return err
		}
	}
	if c := s.peek(); c == 'e' || c == 'E' {
		s.at++
		if c := s.peek(); c == '+' || c == '-' {
			s.at++
		}
		return s.digits()
	}
	return nil
}

// jsonText decodes a value that is a string. A half of a surrogate pair, which no UTF-8
// can have, becomes the three bytes that it would have if it could, so that it is not
// taken for another half; appendRune and decodeRune do the same.
func jsonText(value []byte) (text string, ok bool) {
	if len(value) < 2 || value[0] != '"' {
		return "", false
	}
	inner := value[1 : len(value)-1]
	if bytes.IndexByte(inner, '\\') < 0 {
		return string(inner), true
	}
	return string(appendUnquoted(nil, inner)), true
}

// appendUnquoted appends what a valid JSON string says, whose quotes have been taken off.
func appendUnquoted(out, s []byte) []byte {
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' {
			out = append(out, s[i])
			continue
		}
		i++
		switch c := s[i]; c {
		case 'b':
			out = append(out, '\b')
		case 'f':
			out = append(out, '\f')
		case 'n':
			out = append(out, '\n')
		case 'r':
			out = append(out, '\r')
		case 't':
			out = append(out, '\t')
		case 'u':
			r := hex4(s[i+1:])
			i += 4
			if len(s) > i+6 && s[i+1] == '\\' && s[i+2] == 'u' {
				if pair := utf16.DecodeRune(r, hex4(s[i+3:])); pair != '\uFFFD' {
					r = pair
					i += 6
				}
			}
			out = appendRune(out, r)
		default:
			out = append(out, c)
		}
	}
	return out
}

func hex4(s []byte) rune {
	n, _ := strconv.ParseUint(string(s[:4]), 16, 16)
	return rune(n)
}
