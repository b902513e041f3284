package main

import (
	"errors"
	"io"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"time"
)

// What run does while the server lives: it makes marks, and passes bytes on.

// A runner is a server with a client, and a session that watches them.
type runner struct {
	session *session
	server  *server
	over    chan struct{} // closed when the session has ended
	err     error         // of the session, once it has

	serializer *serializer // nil if calls may overlap

	mu      sync.Mutex
	calls   []*runCall // oldest first
	running int        // calls whose window is open, and that somebody waits for
	number  int
	settled bool
	ended   bool // there is no server any more
}

// run sets the scope, releases the server and serves its client until the server has
// ended. Its error is one of recording, or of serving; what the server and the client say
// to each other does not depend on recording.
func (r *runner) run(serve func() error) error {
	go func() {
		r.err = r.session.run()
		r.session.backend.Close() // who makes a mark must not wait for room
		close(r.over)
	}()
	r.control(control{op: controlScope, pgid: r.server.pid(), generation: 1, startup: true})
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, endSignals...) // to the end: a second one must not kill what is about to end
	go func() {
		for s := range signals {
			if r.server.over.Load() {
				// What is left is written, or waits for somebody who does not take it.
				os.Exit(128 + signalNumber(s))
			}
			r.server.signal(s)
		}
	}()
	err := r.server.release()
	if err == nil {
		err = serve()
	} else {
		r.server.kill()
	}
	r.endCalls("the server has ended")
	select { // what is still in the ring may take its time
	case r.session.lines <- controlLine{control: control{op: controlShutdown}}:
	case <-r.over:
	}
	<-r.over
	return errors.Join(err, r.err)
}

// serveStdio passes on what client and server say, until the server has ended.
func (r *runner) serveStdio(stdin io.Reader, stdout io.Writer) {
	go func() {
		if r.serializer != nil {
			r.serializer.pass(stdin)
		} else {
			var writing atomic.Bool
			pass(stdin, r.server.in, &writing, func(messages []wireMessage) { r.fromClient("", messages) })
		}
		// Who has closed an end sees, and shows, that both are.
		r.server.in.Close()
		closeEnd(stdin)
	}()
	passed := make(chan struct{})
	var writing atomic.Bool
	go func() {
		defer close(passed)
		pass(r.server.out, stdout, &writing, func(messages []wireMessage) { r.fromServer("", messages) })
		r.server.out.Close()
		closeEnd(stdout)
	}()
	r.server.wait()
	for {
		select {
		case <-passed:
			return
		case <-time.After(drainTimeout):
			if !writing.Load() {
				return // somebody else has the server's output
			}
		}
	}
}

func closeEnd(end any) {
	if c, ok := end.(io.Closer); ok {
		c.Close()
	}
}

// drainTimeout is how long more may come of what a server has said before its end.
const drainTimeout = time.Second

// control makes a mark, and waits until it has been read and all that comes before it is
// out of this process. Of a begin, it is enough that it is in force. What is wrong with the
// session is told at its end.
func (r *runner) control(ctl control) {
	select {
	case <-r.over:
		return
	default:
	}
	done := make(chan struct{})
	if ctl.op != controlBegin {
		ctl.done = done
	}
	if err := r.session.obeyNow(ctl); err != nil {
		select {
		case r.session.quit <- err:
		default: // it has a reason already
		}
		return
	}
	if ctl.op == controlBegin {
		return
	}
	select {
	case <-done:
	case <-r.over:
	}
}

// Messages are passed on in steps of so many bytes, and through pipes that are as large
// once one has filled a step.
const (
	passStep  = 64 << 10
	largeStep = 256 << 10
)

// pass passes everything on from one side to the other. The end of a message waits until
// see has been told of it: it cannot be acted on before that.
// It returns when there is nothing more, or nobody takes it. Writing tells that it waits
// for whoever takes it.
func pass(from io.Reader, to io.Writer, writing *atomic.Bool, see func(messages []wireMessage)) {
	var w wireScanner
	buf := make([]byte, passStep)
	for {
		n, err := from.Read(buf)
		for data := buf[:n]; len(data) > 0; {
			end, done := w.feed(data)
			if done && len(w.messages) > 0 {
				see(w.messages)
			}
			// Its line ends with it, or whoever waits for that would be woken twice.
			for done && end < len(data) && (data[end] == '\n' || data[end] == '\r') {
				n, _ := w.feed(data[end : end+1])
				end += n
			}
			writing.Store(true)
			_, err := to.Write(data[:end])
			writing.Store(false)
			if err != nil {
				return
			}
			data = data[end:]
		}
		if err != nil {
			return // there is nothing left to pass on
		}
		if n == passStep && n == len(buf) {
			buf = make([]byte, largeStep)
			growPipe(from, largeStep)
			growPipe(to, largeStep)
		}
	}
}
