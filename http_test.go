//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"
)

// pieces reads in pieces of random size.
type pieces struct {
	r      io.Reader
	random *rand.Rand
}

func (p pieces) Read(b []byte) (int, error) { return p.r.Read(b[:min(len(b), 1+p.random.IntN(8))]) }

func TestHeldBody(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 8))
	for i := range 2000 {
		body := strings.Repeat("x", random.IntN(30))
		if i%2 == 0 {
			body = "{\"id\":1,\n\"method\":\"tools/call\",\r\n\"params\":{\"name\":\"" + body + "\"}}" + "\n"[:random.IntN(2)]
		}
		var got []byte
		seen := -1
		h := &heldBody{body: io.NopCloser(pieces{strings.NewReader(body), random}), see: func(m []wireMessage) error {
			if len(m) != 1 || string(m[0].method) != `"tools/call"` {
				t.Fatalf("messages %v of %q", m, body)
			}
			seen = len(got)
			return nil
		}}
		out := pieces{h, random}
		buf := make([]byte, 16)
		for {
			n, err := out.Read(buf)
			got = append(got, buf[:n]...)
			if err == io.EOF {
				break
			} else if err != nil {
				t.Fatal(err)
			}
		}
		if string(got) != body {
			t.Fatalf("got %q of %q", got, body)
		}
		if i%2 == 0 && (seen < 0 || seen >= len(body)) {
			t.Fatalf("told of the message with %d bytes of %d passed on", seen, len(body))
		}
	}
	// Of a body that breaks off there is no message.
	h := &heldBody{body: io.NopCloser(io.MultiReader(strings.NewReader(`{"id":1,"result":{}}`), iotest.ErrReader(errors.New("broken")))), see: func([]wireMessage) error {
		t.Error("told of a message that may not be whole")
		return nil
	}}
	if got, err := io.ReadAll(h); string(got) != `{"id":1,"result":{}}` || err == nil || err.Error() != "broken" {
		t.Errorf("got %q, %v", got, err)
	}
	// Of one that is refused, the end does not go on.
	h = &heldBody{body: io.NopCloser(strings.NewReader(`{"id":1,"result":{}}`)), see: func([]wireMessage) error { return errors.New("no") }}
	if got, err := io.ReadAll(h); string(got) != `{"id":1,"result":{}` || err == nil || err.Error() != "no" {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestEventStream(t *testing.T) {
	const stream = ": a comment\n\nevent: message\nid: 7\ndata: {\"id\":1,\ndata:\"result\":{}}\n\n" +
		"data\n\nevent: endpoint\ndata: /messages?sessionId=abc\n\n" +
		"retry: 10\ndata: {\"id\":2,\"error\":{}}\n\ndata:{\"id\":3,\"result\":{}}\nno end"
	for i, end := range []string{"\n", "\r\n", "\r"} {
		text := byteOrderMark[:3*(i%2)] + strings.ReplaceAll(stream, "\n", end)
		random := rand.New(rand.NewPCG(9, 10))
		for range 200 {
			var told []string
			x := &exchange{}
			s := &eventStream{body: io.NopCloser(pieces{strings.NewReader(text), random}), exchange: x, see: func(m []wireMessage) {
				told = append(told, fmt.Sprint(x.session, m))
			}}
			got, err := io.ReadAll(s)
			if err != nil || string(got) != text {
				t.Fatalf("got %q, %v", got, err)
			}
			if want := "[[id=1 result] abc[id=2 error]]"; fmt.Sprint(told) != want {
				t.Fatalf("with ends of lines as %q: told of %v, want %s", end, told, want)
			}
		}
	}
}

// TestRunHTTP drives a server through the proxy. The window of a call has to be open when
// the server has the whole request, and closed when the client has the whole answer.
func TestRunHTTP(t *testing.T) {
	rt := newRunTest(t)
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		if err != nil {
			t.Error(err)
		}
		if call := bytes.Contains(body, []byte("tools/call")); call != rt.r.busy() {
			t.Errorf("a call is running: %v, when the server has %.100s", rt.r.busy(), body)
		}
		w.Header().Set("Mcp-Session-Id", req.Header.Get("Mcp-Session-Id"))
		switch {
		case req.Method == http.MethodDelete:
			w.WriteHeader(http.StatusNoContent)
		case req.Header.Get("Accept") == "text/event-stream":
			w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
			io.WriteString(w, "data: {\"method\":\"notifications/progress\"}\n\n")
			w.(http.Flusher).Flush()
			fmt.Fprintf(w, "id: %s\ndata: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n\n", req.Header.Get("Last-Event-ID"))
		case !bytes.Contains(body, []byte(`"id"`)):
			w.WriteHeader(http.StatusAccepted)
		default:
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":1,"result":{"isError":true,"length":%d}}`, len(body))
		}
	}))
	defer upstream.Close()
	proxy := httptest.NewServer(rt.r.reverseProxy(strings.TrimPrefix(upstream.URL, "http://")))
	defer proxy.Close()
	ask := func(method, accept, body, want string) {
		t.Helper()
		req, err := http.NewRequest(method, proxy.URL+"/mcp", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Accept", accept)
		req.Header.Set("Mcp-Session-Id", "s")
		req.Header.Set("Last-Event-ID", "e")
		answer, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		got, err := io.ReadAll(answer.Body)
		if err != nil || string(got) != want || answer.Header.Get("Mcp-Session-Id") != "s" {
			t.Errorf("got %q, %v, %v; want %q", got, err, answer.Header, want)
		}
		if rt.r.busy() {
			t.Error("the call is still running when the client has the answer")
		}
	}
	const call = `{"id":1,"method":"tools/call","params":{"name":"read"}}`
	ask("POST", "application/json", `{"method":"notifications/initialized"}`, "")
	ask("POST", "application/json", call, `{"jsonrpc":"2.0","id":1,"result":{"isError":true,"length":55}}`)
	ask("POST", "text/event-stream", call, "data: {\"method\":\"notifications/progress\"}\n\nid: e\ndata: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n\n")
	ask("GET", "text/event-stream", "", "data: {\"method\":\"notifications/progress\"}\n\nid: e\ndata: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n\n")
	ask("DELETE", "", "", "")
	large := `{"id":1,"method":"tools/call","params":{"name":"large","x":"` + strings.Repeat("x", 3<<20) + `"}}`
	ask("POST", "application/json", large, fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"result":{"isError":true,"length":%d}}`, len(large)))
	want := "initialized\n+1 read tools/call 1\n-1 failed\n+2 read tools/call 1\n-2\n+3 large tools/call 1\n-3 failed"
	if got := rt.statuses(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// TestRunHTTPSerialize checks that there is one call at a time, and that others pass.
func TestRunHTTPSerialize(t *testing.T) {
	rt := newRunTest(t)
	rt.r.serializer = newSerializer(rt.r, nil)
	type arrival struct {
		body   string
		answer chan string
	}
	arrivals := make(chan arrival)
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		if err != nil {
			return
		}
		a := arrival{string(body), make(chan string)}
		arrivals <- a
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, <-a.answer)
	}))
	defer upstream.Close()
	proxy := httptest.NewServer(rt.r.reverseProxy(strings.TrimPrefix(upstream.URL, "http://")))
	defer proxy.Close()
	var clients sync.WaitGroup
	post := func(ctx context.Context, body string) {
		clients.Go(func() {
			req, err := http.NewRequestWithContext(ctx, "POST", proxy.URL, strings.NewReader(body))
			if err != nil {
				t.Error(err)
				return
			}
			if answer, err := http.DefaultClient.Do(req); err == nil {
				io.Copy(io.Discard, answer.Body)
				answer.Body.Close()
			}
		})
	}
	next := func(want string) arrival {
		t.Helper()
		select {
		case a := <-arrivals:
			if a.body != want {
				t.Fatalf("the server gets %s, want %s", a.body, want)
			}
			return a
		case <-time.After(patience):
			t.Fatalf("the server does not get %s", want)
		}
		panic("not reached")
	}
	call := func(id int) string {
		return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"t%d"}}`, id, id)
	}
	waiting := func(n int) {
		t.Helper()
		for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
			rt.r.serializer.mu.Lock()
			got := len(rt.r.serializer.waiting)
			rt.r.serializer.mu.Unlock()
			if got == n {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%d calls wait, want %d", got, n)
			}
		}
	}
	post(t.Context(), call(1))
	first := next(call(1))
	post(t.Context(), call(2))
	waiting(1)
	ctx, cancel := context.WithCancel(t.Context())
	post(ctx, call(3))
	waiting(2)
	post(t.Context(), call(4))
	waiting(3)
	const ping = `{"jsonrpc":"2.0","id":9,"method":"ping"}`
	post(t.Context(), ping)
	next(ping).answer <- `{"jsonrpc":"2.0","id":9,"result":{}}`
	cancel()
	waiting(2)
	select {
	case a := <-arrivals:
		t.Fatalf("the server gets %s while a call is running", a.body)
	case <-time.After(100 * time.Millisecond):
	}
	first.answer <- `{"jsonrpc":"2.0","id":1,"result":{}}`
	next(call(2)).answer <- `{"jsonrpc":"2.0","id":2,"result":{}}`
	next(call(4)).answer <- `{"jsonrpc":"2.0","id":4,"result":{}}`
	clients.Wait()
	if got, want := rt.statuses(), "initialized\n+1 t1 tools/call 1\n-1\n+2 t2 tools/call 2\n-2\n+3 t4 tools/call 4\n-3"; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// TestRunHTTPUnanswered checks what becomes of calls to which there is no answer.
func TestRunHTTPUnanswered(t *testing.T) {
	rt := newRunTest(t)
	reached := make(chan bool)
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		io.Copy(io.Discard, req.Body)
		switch req.URL.Path {
		case "/refused":
			http.Error(w, "no such session", http.StatusNotFound)
		case "/broken":
			panic(http.ErrAbortHandler)
		case "/stream":
			w.Header().Set("Content-Type", "text/event-stream")
			io.WriteString(w, ": wait\n\n")
			w.(http.Flusher).Flush()
			reached <- true
			<-req.Context().Done()
		case "/elsewhere": // the answer comes when another stream is opened
			w.Header().Set("Content-Type", "text/event-stream")
			io.WriteString(w, "retry: 10\n\n")
		}
	}))
	defer upstream.Close()
	proxy := httptest.NewServer(rt.r.reverseProxy(strings.TrimPrefix(upstream.URL, "http://")))
	defer proxy.Close()
	id := 0
	post := func(ctx context.Context, path string) {
		id++
		body := fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"%s"}}`, id, path)
		req, err := http.NewRequestWithContext(ctx, "POST", proxy.URL+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		if answer, err := http.DefaultClient.Do(req); err == nil {
			io.Copy(io.Discard, answer.Body)
			answer.Body.Close()
		}
	}
	idle := func() {
		t.Helper()
		for end := time.Now().Add(patience); rt.r.busy(); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("the call goes on")
			}
		}
	}
	post(t.Context(), "/refused")
	idle()
	post(t.Context(), "/broken")
	idle()
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-reached
		cancel()
	}()
	post(ctx, "/stream")
	idle()
	post(t.Context(), "/elsewhere")
	idle()
	rt.server(`{"jsonrpc":"2.0","id":4,"result":{}}` + "\n")
	want := strings.Join([]string{
		"initialized", "+1 /refused tools/call 1", "-1 failed: 404 Not Found",
		"+2 /broken tools/call 2", "-2 failed: the server does not answer",
		"+3 /stream tools/call 3", "-3 failed: nobody waits for its answer any more",
		"+4 /elsewhere tools/call 4", "-4",
	}, "\n")
	if got := rt.statuses(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// TestRunHTTPSerializeGoesOn checks that no call keeps others from their turn, whatever
// becomes of it.
func TestRunHTTPSerializeGoesOn(t *testing.T) {
	rt := newRunTest(t)
	rt.r.serializer = newSerializer(rt.r, nil)
	var location string
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path == "/early" {
			w.Header().Set("Connection", "close")
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		body, err := io.ReadAll(req.Body)
		if err != nil {
			return
		}
		if req.Host != "server.test" {
			t.Errorf("the server is called %q", req.Host)
		}
		w.Header().Set("Content-Type", "application/json")
		switch req.URL.Path {
		case "/ok":
			var m struct{ ID json.Number }
			json.Unmarshal(body, &m)
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":{}}`, m.ID)
		case "/redirect":
			w.Header().Set("Location", location+"/other")
			w.WriteHeader(http.StatusTemporaryRedirect)
		case "/null":
			io.WriteString(w, `{"jsonrpc":"2.0","id":null,"error":{}}`)
		case "/nothing":
			w.WriteHeader(http.StatusNoContent)
		case "/text":
			w.Header().Set("Content-Type", "text/plain")
			io.WriteString(w, "fine")
		case "/half":
			w.Header().Set("Content-Length", "100")
			io.WriteString(w, `{"jsonrpc"`)
		case "/hang":
			io.WriteString(w, `{"jsonrpc"`)
			w.(http.Flusher).Flush()
			<-req.Context().Done()
		}
	}))
	defer upstream.Close()
	location = upstream.URL
	proxy := httptest.NewServer(rt.r.reverseProxy(strings.TrimPrefix(upstream.URL, "http://")))
	defer proxy.Close()
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	var ids atomic.Int64
	post := func(ctx context.Context, path, body string) *http.Response {
		req, err := http.NewRequestWithContext(ctx, "POST", proxy.URL+path, strings.NewReader(body))
		if err != nil {
			t.Error(err)
			return nil
		}
		req.Host = "server.test"
		answer, err := client.Do(req)
		if err != nil {
			return nil
		}
		io.Copy(io.Discard, answer.Body)
		answer.Body.Close()
		return answer
	}
	call := func() string {
		return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"t"}}`, ids.Add(1))
	}
	fine := func(after string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		if answer := post(ctx, "/ok", call()); answer == nil || answer.StatusCode != http.StatusOK {
			t.Fatalf("after %s nothing is answered any more", after)
		}
	}
	for _, path := range []string{"/early", "/redirect", "/null", "/nothing", "/text", "/half", "/hang"} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second/10)
		answer := post(ctx, path, call())
		cancel()
		if path == "/redirect" && (answer == nil || answer.Header.Get("Location") != "http://server.test/other") {
			t.Errorf("the redirection is %v", answer)
		}
		fine(path)
	}
	post(t.Context(), "/nothing", `[`+call()+`,{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":`+fmt.Sprint(ids.Load())+`}}]`)
	fine("a batch that cancels itself")
	random := rand.New(rand.NewPCG(11, 12))
	var clients sync.WaitGroup
	for range 8 {
		wait := make([]time.Duration, 40)
		for i := range wait {
			wait[i] = time.Duration(random.IntN(4000)) * time.Microsecond
		}
		clients.Go(func() {
			for _, w := range wait {
				ctx, cancel := context.WithTimeout(t.Context(), w)
				post(ctx, "/ok", call())
				cancel()
			}
		})
	}
	clients.Wait()
	fine("clients that leave")
	// Those that nobody waited for end at the next begin.
	if got := rt.statuses(); strings.Count(got, "+") != strings.Count(got, "\n-") {
		t.Errorf("calls are left open:\n%s", got)
	}
}

// TestRunHTTPEarlyAnswer checks that a call ends that begins when it has been refused.
func TestRunHTTPEarlyAnswer(t *testing.T) {
	rt := newRunTest(t)
	x := &exchange{r: rt.r}
	x.fail("401 Unauthorized")
	x.begin([]wireMessage{{id: []byte("1"), method: []byte(`"tools/call"`)}})
	if got := rt.statuses(); got != "initialized\n+1  tools/call 1\n-1 failed: 401 Unauthorized" {
		t.Errorf("got\n%s", got)
	}
}

// TestRunHTTPPassesOn checks that the server gets what the client has sent.
func TestRunHTTPPassesOn(t *testing.T) {
	rt := newRunTest(t)
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		fmt.Fprint(w, req.Host, " ", req.URL.RawQuery, " ", req.Header["X-Forwarded-For"], " ", req.Header["Forwarded"])
	}))
	defer upstream.Close()
	proxy := httptest.NewServer(rt.r.reverseProxy(strings.TrimPrefix(upstream.URL, "http://")))
	defer proxy.Close()
	req, err := http.NewRequest("GET", proxy.URL+"/a?x=1;y=2&z=%zz&q", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Host = "server.test"
	req.Header.Set("X-Forwarded-For", "192.0.2.1")
	req.Header.Set("Forwarded", "for=192.0.2.1")
	answer, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	got, err := io.ReadAll(answer.Body)
	if want := "server.test x=1;y=2&z=%zz&q [192.0.2.1] [for=192.0.2.1]"; err != nil || string(got) != want {
		t.Errorf("the server gets %q, want %q; %v", got, want, err)
	}
}

// TestRunHTTPSessions checks that equal ids of two sessions are two calls.
func TestRunHTTPSessions(t *testing.T) {
	rt := newRunTest(t)
	call, answer := []wireMessage{{id: []byte("1"), method: []byte(`"tools/call"`)}}, []wireMessage{{id: []byte("1"), hasResult: true, version: []byte(`"2.0"`)}}
	rt.r.fromClient("a", call)
	rt.r.fromClient("b", call)
	rt.r.fromServer("b", answer)
	rt.r.fromServer("c", answer)
	rt.r.fromServer("a", answer)
	if got := rt.statuses(); got != "initialized\n+1  tools/call 1\n+2  tools/call 1\n-2\n-1" {
		t.Errorf("got\n%s", got)
	}
}

func TestParseHTTP(t *testing.T) {
	for flag, want := range map[string]string{
		"8080=3000":             "127.0.0.1:8080 127.0.0.1:3000",
		":8080=localhost:3000":  "127.0.0.1:8080 localhost:3000",
		"0.0.0.0:80=[::1]:3000": "0.0.0.0:80 [::1]:3000",
		"8080":                  "error",
		"8080=a:b:c":            "error",
		"127.0.0.1:=3000":       "error",
	} {
		listen, upstream, err := parseHTTP(flag)
		if got := listen + " " + upstream; (err != nil) != (want == "error") || err == nil && got != want {
			t.Errorf("%s: %s, %v", flag, got, err)
		}
	}
}
