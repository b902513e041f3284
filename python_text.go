package main

import (
	"math"
	"math/big"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// What Python 3.11 makes of a JSON value, as far as the policy of mcpfz-probe 0.1.3
// shows it. Python's text can hold one half of a surrogate pair; here it is the three
// bytes that UTF-8 would have for it, if it had.

// decodeRune returns the first character of s, which is not empty.
func decodeRune(s string) (r rune, size int) {
	r, size = utf8.DecodeRuneInString(s)
	if r == utf8.RuneError && size == 1 && len(s) >= 3 && s[0] == 0xed && s[1] >= 0xa0 && s[1] < 0xc0 && s[2]&0xc0 == 0x80 {
		return 0xd000 | rune(s[1]&0x3f)<<6 | rune(s[2]&0x3f), 3
	}
	return r, size
}

// appendRune appends a character, which may be half of a surrogate pair.
func appendRune(out []byte, r rune) []byte {
	if utf16.IsSurrogate(r) {
		return append(out, 0xed, 0x80|byte(r>>6)&0x3f, 0x80|byte(r)&0x3f)
	}
	return utf8.AppendRune(out, r)
}

// pythonStr is str() of a value: of a string the string itself.
func pythonStr(value []byte) string {
	if text, ok := jsonText(value); ok {
		return text
	}
	return string(appendRepr(nil, value))
}

// pythonTrue is bool() of a value.
func pythonTrue(value []byte) bool {
	switch value[0] {
	case 'n', 'f':
		return false
	case '"':
		return len(value) > 2
	case '[', '{':
		return strings.Trim(string(value[1:len(value)-1]), " \t\n\r") != ""
	case 't':
		return true
	}
	f, _ := strconv.ParseFloat(string(value), 64)
	return f != 0
}

// appendRepr appends repr() of a value.
func appendRepr(out, value []byte) []byte {
	switch value[0] {
	case 'n':
		return append(out, "None"...)
	case 't':
		return append(out, "True"...)
	case 'f':
		return append(out, "False"...)
	case '"':
		text, _ := jsonText(value)
		return appendTextRepr(out, text)
	case '[':
		out = append(out, '[')
		first := true
		jsonElements(value, func(element []byte) {
			if !first {
				out = append(out, ", "...)
			}
			first = false
			out = appendRepr(out, element)
		})
		return append(out, ']')
	case '{':
		// A key that comes again keeps its place and gets the new value.
		var keys []string
		values := map[string][]byte{}
		jsonMembers(value, func(key, value []byte) {
			if _, ok := values[string(key)]; !ok {
				keys = append(keys, string(key))
			}
			values[string(key)] = value
		})
		out = append(out, '{')
		for i, key := range keys {
			if i > 0 {
				out = append(out, ", "...)
			}
			out = append(appendTextRepr(out, key), ": "...)
			out = appendRepr(out, values[key])
		}
		return append(out, '}')
	}
	return appendNumberRepr(out, string(value))
}

func appendNumberRepr(out []byte, number string) []byte {
	if !strings.ContainsAny(number, ".eE") {
		n, _ := new(big.Int).SetString(number, 10)
		return n.Append(out, 10)
	}
	f, _ := strconv.ParseFloat(number, 64) // an infinity if it is out of range, as in Python
	if math.IsInf(f, 1) {
		return append(out, "inf"...)
	} else if math.IsInf(f, -1) {
		return append(out, "-inf"...)
	}
	exponent := 0
	if f != 0 {
		text := strconv.FormatFloat(f, 'e', -1, 64)
		exponent, _ = strconv.Atoi(text[strings.IndexByte(text, 'e')+1:])
	}
	if exponent < -4 || exponent >= 16 {
		return strconv.AppendFloat(out, f, 'e', -1, 64)
	}
	start := len(out)
	out = strconv.AppendFloat(out, f, 'f', -1, 64)
	if !strings.Contains(string(out[start:]), ".") {
		out = append(out, ".0"...)
	}
	return out
}

func appendTextRepr(out []byte, s string) []byte {
	quote := byte('\'')
	if strings.Contains(s, "'") && !strings.Contains(s, `"`) {
		quote = '"'
	}
	out = append(out, quote)
	for len(s) > 0 {
		r, size := decodeRune(s)
		s = s[size:]
		switch {
		case r == rune(quote) || r == '\\':
			out = append(out, '\\', byte(r))
		case r == '\n':
			out = append(out, '\\', 'n')
		case r == '\r':
			out = append(out, '\\', 'r')
		case r == '\t':
			out = append(out, '\\', 't')
		case unicode.IsPrint(r) && !utf16.IsSurrogate(r):
			out = utf8.AppendRune(out, r)
		case r < 0x100:
			out = append(out, '\\', 'x', hex[r>>4], hex[r&15])
		case r < 0x10000:
			out = appendHex(append(out, '\\', 'u'), r, 4)
		default:
			out = appendHex(append(out, '\\', 'U'), r, 8)
		}
	}
	return append(out, quote)
}

func appendHex(out []byte, r rune, digits int) []byte {
	for shift := 4 * (digits - 1); shift >= 0; shift -= 4 {
		out = append(out, hex[r>>shift&15])
	}
	return out
}

// pythonDigits is str.isdigit().
func pythonDigits(s string) bool {
	if s == "" {
		return false
	}
	for len(s) > 0 {
		r, size := decodeRune(s)
		s = s[size:]
		if !unicode.Is(unicode.Nd, r) && !unicode.Is(otherDigits, r) {
			return false
		}
	}
	return true
}

// otherDigits are the digits that make no decimal numbers, such as superscripts (those
// with Numeric_Type=Digit in the Unicode Character Database).
var otherDigits = &unicode.RangeTable{
	R16: []unicode.Range16{
		{0x00b2, 0x00b3, 1},
		{0x00b9, 0x00b9, 1},
		{0x1369, 0x1371, 1},
		{0x19da, 0x19da, 1},
		{0x2070, 0x2070, 1},
		{0x2074, 0x2079, 1},
		{0x2080, 0x2089, 1},
		{0x2460, 0x2468, 1},
		{0x2474, 0x247c, 1},
		{0x2488, 0x2490, 1},
		{0x24ea, 0x24ea, 1},
		{0x24f5, 0x24fd, 1},
		{0x24ff, 0x24ff, 1},
		{0x2776, 0x277e, 1},
		{0x2780, 0x2788, 1},
		{0x278a, 0x2792, 1},
	},
	R32: []unicode.Range32{
		{0x10a40, 0x10a43, 1},
		{0x10e60, 0x10e68, 1},
		{0x11052, 0x1105a, 1},
		{0x1f100, 0x1f10a, 1},
	},
	LatinOffset: 2,
}
