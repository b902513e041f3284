package main

import (
	"context"
	"errors"
	"fmt"
	"mime"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
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
