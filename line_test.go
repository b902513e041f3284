package main

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"
)

// decodeLine fails the test unless b is one line with one JSON object in strict
// UTF-8, which it returns.
func decodeLine(t *testing.T, b []byte) map[string]any {
	t.Helper()
	if !utf8.Valid(b) {
		t.Fatalf("line is not UTF-8: %q", b)
	}
	if n := bytes.IndexByte(b, '\n'); n != len(b)-1 {
		t.Fatalf("line has its newline at %d of %d: %q", n, len(b), b)
	}
	var v map[string]any
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatalf("line is not JSON: %v: %q", err, b)
	}
	return v
}

func TestLineText(t *testing.T) {
	everyByte := make([]byte, 255)
	for i := range everyByte {
		everyByte[i] = byte(i + 1)
	}
	for name, tt := range map[string]struct {
		in   string
		text string // what a reader gets; "-" for the input itself
		raw  bool
	}{
		"plain":             {"/etc/passwd", "-", false},
		"newline and quote": {"a\n\"b\\c\"\r\t", "-", false},
		"a forged line":     {"x\"}\n{\"type\":\"exec\"", "-", false},
		"ANSI escapes":      {"\x1b[31mred\x1b]0;t\x07", "-", false},
		"C1 controls":       {"a\u009b31mb\u0085c\u007f", "-", false},
		"wide characters":   {"häß✓𝄞\u2028x\u2029", "-", false},
		"U+FFFD itself":     {"\uFFFD", "-", false},
		"invalid":           {"a\xffb", "a\uFFFDb", true},
		"cut character":     {"a\xe2\x82", "a\uFFFD\uFFFD", true},
		"surrogate":         {"\xed\xa0\x80", "\uFFFD\uFFFD\uFFFD", true},
		"every byte":        {string(everyByte), strings.ToValidUTF8(string(everyByte[:127]), "") + strings.Repeat("\uFFFD", 128), true},
		"empty":             {"", "-", false},
	} {
		t.Run(name, func(t *testing.T) {
			var l line
			l.begin("exec")
			l.text("path", []byte(tt.in))
			l.texts("argv", [][]byte{[]byte("x"), []byte(tt.in)})
			out := l.end()
			for _, c := range string(out[:len(out)-1]) {
				if c < ' ' || c >= 0x7f && c < 0xa0 || c == 0x2028 || c == 0x2029 {
					t.Errorf("line holds the control character %U", c)
				}
			}
			got := decodeLine(t, out)
			want := tt.text
			if want == "-" {
				want = tt.in
			}
			if got["path"] != want {
				t.Errorf("path is %q, want %q", got["path"], want)
			}
			if argv := got["argv"].([]any); argv[1] != want {
				t.Errorf("argv[1] is %q, want %q", argv[1], want)
			}
			if raw, ok := got["path_raw"].(string); ok != tt.raw {
				t.Errorf("path_raw is there: %v, want %v", ok, tt.raw)
			} else if b, _ := base64.StdEncoding.DecodeString(raw); ok && string(b) != tt.in {
				t.Errorf("path_raw is %q, want %q", b, tt.in)
			}
			if raw, ok := got["argv_raw"].([]any); ok != tt.raw {
				t.Errorf("argv_raw is there: %v, want %v", ok, tt.raw)
			} else if ok && (len(raw) != 2 || raw[0] != "eA==") {
				t.Errorf("argv_raw is %v", raw)
			}
		})
	}
}

func FuzzLine(f *testing.F) {
	f.Add([]byte("/etc/passwd"), "exec")
	f.Add([]byte("\xff\x00\n\"}{"), "\xffa\n")
	f.Fuzz(func(t *testing.T, text []byte, typ string) {
		var l line
		l.begin(typ)
		l.text("path", text)
		l.texts("argv", [][]byte{text, nil, text})
		got := decodeLine(t, l.end())
		if utf8.Valid(text) && got["path"] != string(text) {
			t.Errorf("%q comes back as %q", text, got["path"])
		}
		if !utf8.Valid(text) {
			if b, err := base64.StdEncoding.DecodeString(got["path_raw"].(string)); err != nil || !bytes.Equal(b, text) {
				t.Errorf("%q comes back as %q (%v)", text, b, err)
			}
		}
	})
}
