package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

func (m wireMessage) String() string {
	var parts []string
	for _, f := range []struct {
		name  string
		value []byte
	}{{"id", m.id}, {"method", m.method}, {"name", m.name}, {"uri", m.uri}, {"requestId", m.requestID}, {"isError", m.isError}} {
		if f.value != nil {
			parts = append(parts, f.name+"="+string(f.value))
		}
	}
	if m.hasResult {
		parts = append(parts, "result")
	}
	if m.hasErr {
		parts = append(parts, "error")
	}
	return strings.Join(parts, " ")
}

// scanWire returns all messages of a text, fed in pieces of that many bytes.
func scanWire(text string, piece int) (messages []wireMessage) {
	var w wireScanner
	for rest := []byte(text); len(rest) > 0; {
		n, done := w.feed(rest[:min(piece, len(rest))])
		if rest = rest[n:]; done {
			messages = append(messages, w.messages...)
		}
	}
	return messages
}

func TestWire(t *testing.T) {
	for _, tt := range []struct{ name, line, want string }{
		{"call", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"read","arguments":{"name":"x","uri":["y"]}}}`, `[id=1 method="tools/call" name="read"]`},
		{"in another order", ` { "params" : { "arguments":{}, "name":"a\"b" } , "method":"tools/call" , "id" : "x" } `, `[id="x" method="tools/call" name="a\"b"]`},
		{"answer", `{"id":1,"result":{"content":[{"type":"text","text":"{\"id\":2}"}],"isError":true}}`, `[id=1 isError=true result]`},
		{"error", `{"id":"1","error":{"code":-1,"message":"id"}}`, `[id="1" error]`},
		{"resource", `{"id":1.5,"method":"resources/read","params":{"uri":"file:///x"}}`, `[id=1.5 method="resources/read" uri="file:///x"]`},
		{"cancellation", `{"method":"notifications/cancelled","params":{"requestId":7,"reason":"r"}}`, `[method="notifications/cancelled" requestId=7]`},
		{"batch", `[{"id":1,"method":"a"}, {"id":2,"result":null},3,[{"id":4}],{}]`, `[id=1 method="a" id=2 result]`},
		{"a key escaped", `{"\u0069d":1,"p\u0061rams":{"n\u0061me":"x"}}`, `[id=1 name="x"]`},
		{"twice", `{"id":1,"id":2,"params":{"name":"x"},"params":{"uri":"y"}}`, `[id=2 uri="y"]`},
		{"params that are a list", `{"id":1,"params":["name","x"],"x":{"name":"no"}}`, `[id=1]`},
		{"an id that is a list", `{"id":[1],"method":{"x":"y"}}`, `[]`},
		{"deeper", `{"a":{"params":{"name":"no"},"id":9},"id":1}`, `[id=1]`},
		{"no JSON", `hello {"id":1}`, `[]`},
		{"cut off", `{"id":1`, `[]`},
		{"a string cut off", `{"id":"1`, `[]`},
		{"too much", `{"id":1}}`, `[id=1]`},
		{"two on a line", `{"id":1} {"id":2}`, `[id=1 id=2]`},
		{"an escape that is none", `{"id":1,"x":"\q"}`, `[]`},
		{"a control character", "{\"id\":1,\"x\":\"12345678\t12345678\"}", `[]`},
		{"not a number", `{"id":1,"x":[NaN,-Infinity]}`, `[id=1]`},
		{"a word", `{"id":nul}`, `[]`},
		{"no comma", `{"id":1 "method":"x"}`, `[]`},
		{"a comma too many", `{"id":1,}`, `[]`},
		{"brackets that do not match", `{"id":1]`, `[]`},
		{"empty", ``, `[]`},
		{"a long id", `{"id":"` + strings.Repeat("x", maxWireText) + `","method":"m"}`, `[method="m"]`},
		{"a long key", `{"` + strings.Repeat("x", 2*maxWireText) + `":1,"id":1}`, `[id=1]`},
		{"deep", `{"id":1,"x":` + strings.Repeat("[", 4000) + strings.Repeat("]", 4000) + `}`, `[id=1]`},
		{"too deep", `{"id":1,"x":` + strings.Repeat("[", 5000) + strings.Repeat("]", 5000) + `}`, `[]`},
		{"backslashes", `{"x":"\\\\\"","id":1}`, `[id=1]`},
		{"CRLF", "{\"id\":1}\r", `[id=1]`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, piece := range []int{1 << 20, 1, 2, 3, 7, 64} {
				// Whatever is on a line, the next one is read.
				got := scanWire(tt.line+"\n"+`{"id":"next"}`+"\n", piece)
				last := len(got) - 1
				if last < 0 || fmt.Sprint(got[:last]) != tt.want || got[last].String() != `id="next"` {
					t.Errorf("in pieces of %d: got %v, want %s", piece, got, tt.want)
				}
			}
		})
	}
}

// FuzzWire compares with the library: what is JSON there is read as the library reads it,
// in whatever pieces it comes.
func FuzzWire(f *testing.F) {
	f.Add([]byte(`{"id":1,"method":"tools/call","params":{"name":"x"}}`), 3)
	f.Add([]byte(`[{"id":"\u00e9","result":{"isError":false}},{"id":2,"error":{}}]`), 1)
	f.Fuzz(func(t *testing.T, line []byte, piece int) {
		if piece < 1 || bytes.Contains(line, []byte("\n")) {
			return
		}
		got := scanWire(string(line)+"\n", piece)
		if whole := scanWire(string(line)+"\n", 1<<20); fmt.Sprint(got) != fmt.Sprint(whole) {
			t.Fatalf("in pieces %v, at once %v", got, whole)
		}
		if !json.Valid(line) {
			return
		}
		var members map[string]json.RawMessage
		if json.Unmarshal(line, &members) != nil || members == nil {
			return
		}
		want := wireMessage{}
		scalar := func(v json.RawMessage) []byte {
			if len(v) == 0 || v[0] == '{' || v[0] == '[' || len(v) > maxWireText {
				return nil
			}
			return v
		}
		want.id, want.method = scalar(members["id"]), scalar(members["method"])
		_, want.hasResult = members["result"]
		_, want.hasErr = members["error"]
		var params, result map[string]json.RawMessage
		if json.Unmarshal(members["params"], &params) == nil {
			want.name, want.uri, want.requestID = scalar(params["name"]), scalar(params["uri"]), scalar(params["requestId"])
		}
		if json.Unmarshal(members["result"], &result) == nil {
			want.isError = scalar(result["isError"])
		}
		if want.id == nil && want.method == nil {
			if len(got) != 0 {
				t.Fatalf("got %v, want nothing", got)
			}
		} else if fmt.Sprint(got) != fmt.Sprint([]wireMessage{want}) {
			t.Fatalf("got %v, want %v", got, want)
		}
	})
}

// BenchmarkWire measures how fast a large message is read.
func BenchmarkWire(b *testing.B) {
	piece := append(append([]byte(`{"id":1,"result":{"content":[{"text":"`), bytes.Repeat([]byte("Zm9vYmFy"), 1<<13)...), `"}]}}`...)
	var w wireScanner
	b.SetBytes(int64(len(piece)))
	for b.Loop() {
		w.feed(piece)
		w.feed([]byte("\n"))
	}
}
