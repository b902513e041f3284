package main

import (
	"slices"
	"strings"
)

// A wildcard is a pattern of Python's fnmatch: * for any text, ? for a character, and
// [a-z] or [!a-z] for one of some. Letters are told apart by case, and slashes and
// leading dots are characters like others.
type wildcard struct {
	pieces []wildcardPiece // with a star between each two
}

// A wildcardPiece matches as many characters as it has elements.
type wildcardPiece struct {
	text     string // if all elements are characters
	elements []wildcardElement
}

type wildcardElement struct {
	char  rune // if class is nil
	class *wildcardClass
}

// A wildcardClass is some characters, or all but them.
type wildcardClass struct {
	ranges [][2]rune
	negate bool
}

var anyCharacter = &wildcardClass{negate: true}

func newWildcard(pattern string) wildcard {
	var w wildcard
	var piece []wildcardElement
	flush := func() {
		p := wildcardPiece{elements: piece}
		if !slices.ContainsFunc(piece, func(e wildcardElement) bool { return e.class != nil }) {
			var text []byte
			for _, e := range piece {
				text = appendRune(text, e.char)
			}
			p = wildcardPiece{text: string(text)}
		}
		w.pieces = append(w.pieces, p)
		piece = nil
	}
	chars := characters(pattern)
	for i := 0; i < len(chars); i++ {
		switch c := chars[i]; c {
		case '*':
			flush()
		case '?':
			piece = append(piece, wildcardElement{class: anyCharacter})
		case '[':
			if end := classEnd(chars, i+1); end > 0 {
				piece = append(piece, wildcardElement{class: newWildcardClass(chars[i+1 : end])})
				i = end
				continue
			}
			piece = append(piece, wildcardElement{char: c}) // nothing closes it
		default:
			piece = append(piece, wildcardElement{char: c})
		}
	}
	flush()
	return w
}

func characters(s string) (chars []rune) {
	for len(s) > 0 {
		r, size := decodeRune(s)
		chars, s = append(chars, r), s[size:]
	}
	return chars
}

// classEnd returns where the bracket is that closes the class from i on, or zero.
func classEnd(chars []rune, i int) int {
	if i < len(chars) && chars[i] == '!' {
		i++
	}
	if i < len(chars) && chars[i] == ']' {
		i++
	}
	for ; i < len(chars); i++ {
		if chars[i] == ']' {
			return i
		}
	}
	return 0
}

// newWildcardClass reads what is between the brackets. A hyphen between two characters
// makes a range, which they are then no other's ends; a range that goes downwards is
// nothing, and so are its ends.
func newWildcardClass(inner []rune) *wildcardClass {
	first := 1
	if inner[0] == '!' {
		first = 2
	}
	// Between each two chunks is the hyphen of a range.
	var chunks [][]rune
	start := 0
	for i := first; i < len(inner); i++ {
		if inner[i] == '-' {
			chunks = append(chunks, inner[start:i])
			start = i + 1
			i += 2
		}
	}
	if rest := inner[start:]; len(rest) > 0 || len(chunks) == 0 {
		chunks = append(chunks, rest)
	} else {
		last := len(chunks) - 1
		chunks[last] = append(slices.Clone(chunks[last]), '-')
	}
	for i := len(chunks) - 1; i > 0; i-- {
		if before := chunks[i-1]; before[len(before)-1] > chunks[i][0] {
			chunks[i-1] = append(slices.Clone(before[:len(before)-1]), chunks[i][1:]...)
			chunks = slices.Delete(chunks, i, i+1)
		}
	}
	c := &wildcardClass{}
	if len(chunks[0]) > 0 && chunks[0][0] == '!' {
		chunks[0], c.negate = chunks[0][1:], true
	}
	for i, chunk := range chunks {
		for _, char := range chunk {
			c.ranges = append(c.ranges, [2]rune{char, char})
		}
		if i > 0 {
			if before := chunks[i-1]; len(before) > 0 {
				c.ranges = append(c.ranges, [2]rune{before[len(before)-1], chunk[0]})
			} else {
				c.ranges = append(c.ranges, [2]rune{'-', '-'}) // with nothing before it, it stands for itself
			}
		}
	}
	return c
}

func (c *wildcardClass) has(char rune) bool {
	for _, r := range c.ranges {
		if char >= r[0] && char <= r[1] {
			return !c.negate
		}
	}
	return c.negate
}

// match tells whether the pattern stands for all of s.
func (w wildcard) match(s string) bool {
	first, last := w.pieces[0], len(w.pieces)-1
	n := first.prefix(s)
	if n < 0 {
		return false
	}
	s = s[n:]
	if last == 0 {
		return s == ""
	}
	// The first place where a piece fits leaves the most to those after it.
	for _, p := range w.pieces[1:last] {
		if p.elements == nil {
			at := strings.Index(s, p.text)
			if at < 0 {
				return false
			}
			s = s[at+len(p.text):]
			continue
		}
		for n = p.prefix(s); n < 0; n = p.prefix(s) {
			if s == "" {
				return false
			}
			_, size := decodeRune(s)
			s = s[size:]
		}
		s = s[n:]
	}
	p := w.pieces[last]
	if p.elements == nil {
		return strings.HasSuffix(s, p.text)
	}
	chars := characters(s)
	if len(chars) < len(p.elements) {
		return false
	}
	for i, char := range chars[len(chars)-len(p.elements):] {
		if !p.elements[i].has(char) {
			return false
		}
	}
	return true
}

// prefix returns how many bytes of s the piece takes from its beginning, or -1.
func (p wildcardPiece) prefix(s string) int {
	if p.elements == nil {
		if strings.HasPrefix(s, p.text) {
			return len(p.text)
		}
		return -1
	}
	n := 0
	for _, e := range p.elements {
		if n == len(s) {
			return -1
		}
		char, size := decodeRune(s[n:])
		if !e.has(char) {
			return -1
		}
		n += size
	}
	return n
}

func (e wildcardElement) has(char rune) bool {
	if e.class != nil {
		return e.class.has(char)
	}
	return e.char == char
}
