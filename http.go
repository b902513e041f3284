package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"
)

// MCP over HTTP: run as a reverse proxy in front of a server that listens itself. A
// message is a request's body, or that of an answer, or an event of a stream; bodies pass
// through as they come, but for their last byte, which waits for the marks.

// startTimeout is how long the server may take until it listens.
const startTimeout = 30 * time.Second

// parseHTTP takes LISTEN=UPSTREAM apart. A port alone is one of loopback.
func parseHTTP(flag string) (listen, upstream string, err error) {
	listen, upstream, ok := strings.Cut(flag, "=")
	if !ok {
		return "", "", usageError{fmt.Errorf("--http %q: want LISTEN=UPSTREAM, as 8080=3000", flag)}
	}
	for _, address := range []*string{&listen, &upstream} {
		if !strings.Contains(*address, ":") {
			*address = "127.0.0.1:" + *address
		}
		host, port, err := net.SplitHostPort(*address)
		if err != nil || port == "" {
			return "", "", usageError{fmt.Errorf("--http %q: %q is no address", flag, *address)}
		}
		if host == "" {
			*address = "127.0.0.1:" + port
		}
	}
	return listen, upstream, nil
}

// serveHTTP serves on l until the server has ended.
func (r *runner) serveHTTP(l net.Listener, upstream string) error {
	proxy := &http.Server{Handler: r.reverseProxy(upstream), ReadHeaderTimeout: time.Minute}
	failed := make(chan error, 1)
	go func() { failed <- proxy.Serve(l) }()
	ended := make(chan struct{})
	go func() {
		r.server.wait()
		close(ended)
	}()
	var err error
	select {
	case <-ended:
	case err = <-failed:
		r.server.end()
		<-ended
	}
	// Answers that the server has given still reach their clients.
	ctx, cancel := context.WithTimeout(context.Background(), drainTimeout)
	defer cancel()
	if proxy.Shutdown(ctx) != nil {
		proxy.Close()
	}
	return err
}

// An exchange is a request over HTTP with its response, and the calls that it has begun.
type exchange struct {
	r       *runner
	session string

	mu    sync.Mutex
	calls []*runCall
	over  func(*runCall) // what becomes of calls without an answer, once that is known
}

// begin takes in the messages of the request. The response may have come before.
func (x *exchange) begin(messages []wireMessage) {
	calls := x.r.fromClient(x.session, messages)
	x.mu.Lock()
	defer x.mu.Unlock()
	x.calls = append(x.calls, calls...)
	if x.over != nil {
		x.settle()
	}
}

// answer takes in messages of the response. What they answer is first of all the request.
func (x *exchange) answer(messages []wireMessage) {
	x.mu.Lock()
	calls := x.calls
	x.mu.Unlock()
	x.r.answered(x.session, calls, messages)
}

// fail ends the calls that have not been answered: they will not be.
func (x *exchange) fail(why string) {
	x.close(func(c *runCall) { x.r.fail(c, why) })
}

// leave takes in that the response has ended, or that nobody reads it. Answers may come in
// another one.
func (x *exchange) leave() { x.close(x.r.leave) }

func (x *exchange) close(over func(*runCall)) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.over = over
	x.settle()
}

func (x *exchange) settle() {
	for _, c := range x.calls {
		x.over(c)
	}
	x.calls = nil
}

// exchangeOf returns the exchange of a request that is passed on; one without a body has
// begun nothing.
func (r *runner) exchangeOf(request *http.Request) *exchange {
	if body, ok := request.Body.(*heldBody); ok {
		return body.exchange
	}
	return &exchange{r: r, session: sessionOf(request)}
}

// reverseProxy passes requests on to upstream.
func (r *runner) reverseProxy(upstream string) http.Handler {
	transport := &http.Transport{
		DialContext:        dialOnceItListens,
		DisableCompression: true, // a message has to be read
		MaxIdleConns:       100,
		IdleConnTimeout:    time.Minute,
	}
	return &httputil.ReverseProxy{
		Transport:     transport,
		FlushInterval: -1, // events go on at once
		Rewrite: func(p *httputil.ProxyRequest) {
			p.SetURL(&url.URL{Scheme: "http", Host: upstream})
			// All else is as the client has sent it. The server may want to know by
			// which name it was called, against DNS rebinding.
			p.Out.Host, p.Out.URL.RawQuery = p.In.Host, p.In.URL.RawQuery
			for _, key := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"} {
				if values := p.In.Header.Values(key); values != nil {
					p.Out.Header[key] = values
				}
			}
			p.Out.Header.Del("Accept-Encoding")
			if p.Out.Body != nil && p.Out.Body != http.NoBody && p.Out.Method == http.MethodPost {
				x, ctx := &exchange{r: r, session: sessionOf(p.In)}, p.In.Context()
				p.Out.Body = &heldBody{body: p.Out.Body, exchange: x, see: func(messages []wireMessage) error {
					if r.serializer != nil && slices.ContainsFunc(messages, isCall) {
						return r.serializer.turn(ctx, func() { x.begin(messages) })
					}
					x.begin(messages)
					return nil
				}}
			}
		},
		ModifyResponse: func(response *http.Response) error {
			x := r.exchangeOf(response.Request)
			kind, _, _ := mime.ParseMediaType(response.Header.Get("Content-Type"))
			switch {
			case response.StatusCode >= 300:
				x.fail(response.Status)
				stayHere(response, upstream)
			case response.Request.Method == http.MethodDelete:
				r.endSession(x.session)
			case kind == "application/json":
				response.Body = &heldBody{body: response.Body, see: func(messages []wireMessage) error {
					x.answer(messages)
					return nil
				}, closed: func(whole bool) {
					if whole {
						x.fail("not answered")
					} else {
						x.leave()
					}
				}}
			case kind == "text/event-stream":
				response.Body = &eventStream{body: response.Body, exchange: x, see: x.answer}
			case response.StatusCode != http.StatusAccepted:
				x.leave()
			}
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, request *http.Request, err error) {
			x := r.exchangeOf(request)
			if errors.Is(err, context.Canceled) {
				x.leave()
				return
			}
			x.fail("the server does not answer")
			http.Error(w, "mcpfz-probe: the server does not answer: "+err.Error(), http.StatusBadGateway)
		},
	}
}

// stayHere keeps a redirection to the server from leading around the proxy.
func stayHere(response *http.Response, upstream string) {
	if u, err := url.Parse(response.Header.Get("Location")); err == nil && u.Host == upstream {
		u.Host = response.Request.Host
		response.Header.Set("Location", u.String())
	}
}

// sessionOf names the session of a request: ids of requests are its own.
func sessionOf(r *http.Request) string {
	if id := r.Header.Get("Mcp-Session-Id"); id != "" {
		return id
	}
	return sessionOfURL(r.URL)
}

// sessionOfURL is for HTTP+SSE, as it was before 2025-03-26: both SDKs have it there.
func sessionOfURL(u *url.URL) string {
	query := u.Query()
	if id := query.Get("sessionId"); id != "" {
		return id
	}
	return query.Get("session_id")
}

// dialOnceItListens dials until somebody listens.
func dialOnceItListens(ctx context.Context, network, address string) (net.Conn, error) {
	end := time.Now().Add(startTimeout)
	for {
		var d net.Dialer
		conn, err := d.DialContext(ctx, network, address)
		if err == nil || time.Now().After(end) || ctx.Err() != nil {
			return conn, err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// A heldBody is a body with messages, whose last byte waits until see has been told of
// them.
type heldBody struct {
	body     io.ReadCloser
	see      func([]wireMessage) error // which is that of the body then
	closed   func(whole bool)          // nil for nothing
	exchange *exchange                 // of a request's body
	wire     wireScanner
	told     []wireMessage // of messages that are whole
	last     []byte        // held back, at most one byte
	err      error         // of the body, once there is nothing more
}

func (h *heldBody) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for {
		if h.err != nil {
			n := copy(p, h.last)
			h.last = h.last[n:]
			if n > 0 {
				return n, nil
			}
			return 0, h.err
		}
		held := copy(p, h.last)
		if held == len(p) {
			// There is no room to see whether more comes.
			var one [1]byte
			n, err := h.body.Read(one[:])
			if n > 0 {
				h.feed(one[:])
				h.last = append(h.last[:0], one[0])
			}
			h.finish(err)
			if n > 0 {
				return held, nil
			}
			continue
		}
		n, err := h.body.Read(p[held:])
		h.feed(p[held : held+n])
		if n += held; n > 0 {
			h.last = append(h.last[:0], p[n-1])
			n--
		}
		h.finish(err)
		if n > 0 {
			return n, nil
		}
	}
}

// feed reads a part of the body. A line's end is a space for JSON.
func (h *heldBody) feed(part []byte) {
	for line := range bytes.Lines(part) {
		rest, ok := bytes.CutSuffix(line, []byte("\n"))
		h.told = feedAll(&h.wire, h.told, rest)
		if ok {
			h.told = feedAll(&h.wire, h.told, []byte(" "))
		}
	}
}

// feedAll reads all of data, and adds the messages that end in it.
func feedAll(w *wireScanner, messages []wireMessage, data []byte) []wireMessage {
	for len(data) > 0 {
		n, done := w.feed(data)
		if done {
			messages = append(messages, w.messages...)
		}
		data = data[n:]
	}
	return messages
}

func (h *heldBody) finish(err error) {
	if err == nil {
		return
	}
	h.err = err
	if err == io.EOF && len(h.told) > 0 {
		if err := h.see(h.told); err != nil {
			h.last, h.err = nil, err
		}
	}
}

func (h *heldBody) Close() error {
	if h.closed != nil {
		h.closed(h.err == io.EOF)
	}
	return h.body.Close()
}

// An eventStream is a stream of server-sent events (HTML, section 9.2). The end of an
// event waits until see has been told of the message in it.
type eventStream struct {
	body      io.ReadCloser
	exchange  *exchange
	see       func([]wireMessage)
	announced bool // it has said where its session's requests go
	wire      wireScanner
	told      []wireMessage // of this event

	field    []byte // of the current line, up to the colon
	inValue  bool   // after the colon
	space    bool   // the first character of the value may be a space, which is none of it
	empty    bool   // the line has nothing yet
	begun    bool   // there has been a byte
	mark     int    // bytes of a byte order mark that there have been
	cr       bool   // the last byte was a carriage return
	data     bool   // the event has had data
	event    []byte // its type
	endpoint []byte // its data, if it is of type "endpoint"
}

const maxEventField = 32

// byteOrderMark may stand before a stream's first line.
const byteOrderMark = "\ufeff"

func (s *eventStream) Read(p []byte) (int, error) {
	n, err := s.body.Read(p)
	for i := 0; i < n; {
		i += s.scan(p[i:n])
	}
	return n, err
}

// Close takes in that nothing more comes. What the stream has not answered another one may.
func (s *eventStream) Close() error {
	s.exchange.leave()
	if s.announced {
		s.exchange.r.leaveSession(s.exchange.session)
	}
	return s.body.Close()
}

// scan reads some of data and returns how much. When that is the end of an event, its
// message has been told of: what is read goes on only afterwards.
func (s *eventStream) scan(data []byte) int {
	if !s.begun {
		s.begun, s.empty = true, true
	}
	if s.mark < len(byteOrderMark) {
		if data[0] == byteOrderMark[s.mark] {
			s.mark++
			return 1
		}
		s.mark = len(byteOrderMark) // it is none, or is over
	}
	c := data[0]
	if c == '\n' && s.cr {
		s.cr = false
		return 1 // it belongs to the carriage return
	}
	s.cr = c == '\r'
	switch {
	case c == '\n' || c == '\r':
		s.endLine()
		return 1
	case s.inValue:
		if s.space && c == ' ' {
			s.space = false
			return 1
		}
		s.space = false
		n := len(data)
		if end := bytes.IndexAny(data, "\r\n"); end >= 0 {
			n = end
		}
		switch string(s.field) {
		case "data":
			s.told = feedAll(&s.wire, s.told, data[:n])
			if len(s.endpoint)+n <= maxWireText {
				s.endpoint = append(s.endpoint, data[:n]...)
			}
		case "event":
			if len(s.event)+n <= maxEventField {
				s.event = append(s.event, data[:n]...)
			}
		}
		return n
	case c == ':':
		s.inValue, s.space, s.empty = true, true, false
		switch string(s.field) {
		case "data":
			if s.data {
				s.told = feedAll(&s.wire, s.told, []byte(" ")) // for the end of the line between
			}
			s.data = true
		case "event":
			s.event = s.event[:0]
		}
	default:
		s.empty = false
		if len(s.field) <= maxEventField {
			s.field = append(s.field, c)
		}
	}
	return 1
}

func (s *eventStream) endLine() {
	if !s.empty {
		s.field, s.inValue, s.empty = s.field[:0], false, true
		return
	}
	if s.data {
		if len(s.told) > 0 {
			s.see(s.told)
		}
		s.told = s.told[:0]
		s.wire.reset()
		if string(s.event) == "endpoint" && s.exchange.session == "" {
			if u, err := url.Parse(string(s.endpoint)); err == nil {
				s.exchange.session, s.announced = sessionOfURL(u), true
			}
		}
	}
	s.data, s.event, s.endpoint = false, s.event[:0], s.endpoint[:0]
}
