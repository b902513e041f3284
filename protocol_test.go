package main

import (
	"encoding/json"
	"io"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestParseControl(t *testing.T) {
	for name, tt := range map[string]struct {
		in   string
		want control
		err  string // part of the error; empty for none
	}{
		"scope":              {`{"op":"scope","pgid":1234,"generation":2}`, control{op: controlScope, pgid: 1234, generation: 2}, ""},
		"begin":              {`{"op":"mark","phase":"begin","call_id":"a","tool":"t"}`, control{op: controlBegin, callID: `"a"`, tool: `"t"`}, ""},
		"begin, no tool":     {`{"op":"mark","phase":"begin","call_id":"a"}`, control{op: controlBegin, callID: `"a"`}, ""},
		"begin, null tool":   {`{"op":"mark","phase":"begin","call_id":"a","tool":null}`, control{op: controlBegin, callID: `"a"`}, ""},
		"end":                {`{"op":"mark","phase":"end","call_id":"a"}`, control{op: controlEnd, callID: `"a"`}, ""},
		"shutdown":           {`{"op":"shutdown"}`, control{op: controlShutdown}, ""},
		"unknown fields":     {`{"op":"shutdown","why":[1,{}]}`, control{op: controlShutdown}, ""},
		"escapes are equal":  {`{"op":"mark","phase":"end","call_id":"\u0061\/"}`, control{op: controlEnd, callID: `"a/"`}, ""},
		"newline in an id":   {`{"op":"mark","phase":"end","call_id":"a\nb"}`, control{op: controlEnd, callID: `"a\nb"`}, ""},
		"lone surrogate":     {`{"op":"mark","phase":"end","call_id":"\ud800"}`, control{op: controlEnd, callID: `"\ud800"`}, ""},
		"invalid bytes":      {"{\"op\":\"mark\",\"phase\":\"end\",\"call_id\":\"\xff\"}", control{op: controlEnd, callID: "\"\uFFFD\""}, ""},
		"empty id":           {`{"op":"mark","phase":"end","call_id":""}`, control{op: controlEnd, callID: `""`}, ""},
		"broken":             {`{"op":"scope","pgid":12`, control{}, "unexpected end"},
		"not an object":      {`[1]`, control{}, "cannot unmarshal"},
		"NUL":                {"{\"op\":\x00}", control{}, "invalid character"},
		"NUL line":           {"\x00", control{}, "invalid character"},
		"no op":              {`{}`, control{}, `lacks "op"`},
		"unknown op":         {`{"op":"dance"}`, control{}, `unknown op "dance"`},
		"long unknown op":    {`{"op":"` + strings.Repeat("ä", 5000) + `"}`, control{}, "…"},
		"op is a number":     {`{"op":1}`, control{}, "cannot unmarshal"},
		"unknown phase":      {`{"op":"mark","phase":"middle","call_id":"a"}`, control{}, `unknown phase "middle"`},
		"no id":              {`{"op":"mark","phase":"begin"}`, control{}, "call_id: is missing"},
		"null id":            {`{"op":"mark","phase":"begin","call_id":null}`, control{}, "call_id: is not a string"},
		"id is a number":     {`{"op":"mark","phase":"begin","call_id":1}`, control{}, "call_id: is not a string"},
		"tool is a number":   {`{"op":"mark","phase":"begin","call_id":"a","tool":1}`, control{}, "tool: is not a string"},
		"no pgid":            {`{"op":"scope"}`, control{}, `lacks "pgid"`},
		"pgid 0":             {`{"op":"scope","pgid":0}`, control{}, "not a process group"},
		"pgid below 0":       {`{"op":"scope","pgid":-1}`, control{}, "not a process group"},
		"pgid above 2^31":    {`{"op":"scope","pgid":2147483648}`, control{}, "not a process group"},
		"pgid above 2^64":    {`{"op":"scope","pgid":99999999999999999999}`, control{}, "cannot unmarshal"},
		"pgid is a fraction": {`{"op":"scope","pgid":1.5}`, control{}, "cannot unmarshal"},
		"pgid is a string":   {`{"op":"scope","pgid":"1"}`, control{}, "cannot unmarshal"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := parseControl([]byte(tt.in))
			if tt.err == "" && err != nil || tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err)) {
				t.Fatalf("error is %v, want one with %q", err, tt.err)
			}
			if got != tt.want {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}

func TestControlReader(t *testing.T) {
	long := strings.Repeat("x", 10<<20)
	r := newControlReader(strings.NewReader("\n  \n" + long + "\n{\"op\":\"shutdown\"}\n{bad\n{\"op\":\"shutdown\"}"))
	for i, want := range []string{errLineTooLong.Error(), "", "invalid character", "", "EOF"} {
		_, fatal, err := r.next()
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Fatalf("line %d: error is %v, want %q", i, err, want)
		}
		if fatal != (err == io.EOF) {
			t.Errorf("line %d: fatal is %v", i, fatal)
		}
	}
	if _, fatal, err := newControlReader(strings.NewReader(long)).next(); fatal || err != errLineTooLong {
		t.Errorf("a long last line: %v %v", fatal, err)
	}
	if _, fatal, err := newControlReader(failingReader{}).next(); !fatal || err == nil {
		t.Errorf("a failing reader: %v %v", fatal, err)
	}
}

type failingReader struct{}

func (failingReader) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

func FuzzParseControl(f *testing.F) {
	f.Add([]byte(`{"op":"scope","pgid":1234,"generation":1}`))
	f.Add([]byte(`{"op":"mark","phase":"begin","call_id":"a\ud800","tool":"t"}`))
	f.Add([]byte("{\"op\":\"mark\",\"phase\":\"end\",\"call_id\":\"\xff\"}"))
	f.Add([]byte(`{"op":"shutdown"}`))
	f.Fuzz(func(t *testing.T, in []byte) {
		c, err := parseControl(in)
		if (err == nil) != (c != control{}) {
			t.Fatalf("%q gives %+v and %v", in, c, err)
		}
		// Whatever came in, what goes out is one valid line, and the id is what it was.
		st := status{message: "end", callID: c.callID, tool: c.tool}
		if err != nil {
			st = status{message: "parse_error", err: err.Error()}
		}
		var l line
		l.begin("status")
		st.append(&l, bucketAmbient, 1)
		out := decodeLine(t, l.end())
		var sent struct {
			CallID string `json:"call_id"`
		}
		if err == nil && c.callID != "" && json.Unmarshal(in, &sent) == nil && out["call_id"] != sent.CallID {
			t.Errorf("id %q comes back as %q", sent.CallID, out["call_id"])
		}
		if !utf8.ValidString(c.callID) {
			t.Errorf("id %q is not UTF-8", c.callID)
		}
	})
}
