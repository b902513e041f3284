package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// The command run: the probe in front of any MCP server. It starts the server, passes
// every byte between it and the client on as it is, and makes the marks itself, from the
// requests and answers that it sees.

// exitStatus is how a process has ended that has said why: run ends the same way.
type exitStatus int

func (e exitStatus) Error() string { return fmt.Sprintf("it has ended with %d", int(e)) }

// callMethods are the requests that are a call, by what names their tool.
var callMethods = map[string]func(*wireMessage) []byte{
	"tools/call":     func(m *wireMessage) []byte { return m.name },
	"resources/read": func(m *wireMessage) []byte { return m.uri },
	"prompts/get":    func(m *wireMessage) []byte { return m.name },
}

// runOptions are the flags of run.
type runOptions struct {
	policyFlags         policyFlags
	backend, eventsFile string
	files               runFiles
	asRoot, serialize   bool
	listen, upstream    string // of HTTP; empty for stdio
	ring                byteSize
	command             []string
}

func parseRun(args []string, stdout io.Writer) (*runOptions, error) {
	flags := flag.NewFlagSet("mcpfz-probe run", flag.ContinueOnError)
	o := &runOptions{policyFlags: newPolicyFlags(flags), ring: 16 << 20}
	flags.StringVar(&o.backend, "backend", "auto", "")
	flags.StringVar(&o.eventsFile, "events-file", "", "")
	flags.StringVar(&o.files.events, "events", "", "")
	flags.StringVar(&o.files.findings, "findings", "", "")
	flags.StringVar(&o.files.sarif, "sarif", "", "")
	flags.StringVar(&o.files.learn, "learn", "", "")
	flags.StringVar(&o.files.report, "report", "", "")
	flags.StringVar(&o.files.record, "record", "", "")
	flags.BoolVar(&o.asRoot, "as-root", false, "")
	flags.BoolVar(&o.serialize, "serialize", false, "")
	httpFlag := flags.String("http", "", "")
	flags.Var(&o.ring, "ring-size", "")
	if err := parseFlags(flags, args, runUsage, stdout); err != nil {
		return nil, err
	}
	if o.command = flags.Args(); len(o.command) == 0 {
		return nil, usageError{errors.New("run: want a command, as in mcpfz-probe run -- npx server")}
	}
	if *httpFlag != "" {
		var err error
		if o.listen, o.upstream, err = parseHTTP(*httpFlag); err != nil {
			return nil, err
		}
	}
	return o, nil
}

// policy is the policy of the flags, which allows the command: whoever calls it so wants
// it run.
func (o *runOptions) policy() (policy, error) {
	p, err := o.policyFlags.policy()
	if err != nil {
		return policy{}, err
	}
	if path, err := exec.LookPath(o.command[0]); err == nil {
		if path, err = filepath.Abs(path); err == nil {
			p.ExecAllow = append(slices.Clone(p.ExecAllow), path)
		}
	}
	return p, nil
}

// runCommand is the command run.
func runCommand(args []string, stdin io.Reader, stdout, stderr io.Writer) error {
	signal.Ignore(brokenPipe...)
	o, err := parseRun(args, stdout)
	if err != nil {
		return err
	}
	var listener net.Listener
	if o.listen != "" {
		if listener, err = net.Listen("tcp", o.listen); err != nil {
			return usageError{err}
		}
		defer listener.Close()
	}
	out, err := startOutput(args, stderr)
	if err != nil {
		return err
	}
	defer out.close()
	b, err := newBackend(o.backend, o.eventsFile, int(o.ring))
	if err != nil {
		return err
	}
	defer b.Close()
	if err := out.ready(); err != nil {
		return err
	}
	if b.name() == "fake" && o.eventsFile == "" {
		fmt.Fprintln(stderr, "mcpfz-probe: no kernel events, only calls: they need root, or CAP_BPF and CAP_PERFMON, on Linux 5.15 or later")
	}
	user, err := invokingUser(o.asRoot)
	if err != nil {
		return err
	}
	server, err := startServer(o.command, nil, user, stderr)
	if err != nil {
		return err
	}
	if b.name() == "ebpf" {
		if err := dropCapabilities(); err != nil {
			server.kill()
			return err
		}
	}
	r := &runner{session: newSession(b, out, 0), server: server, over: make(chan struct{})}
	if o.serialize {
		r.serializer = newSerializer(r, server.in)
	}
	var runErr error
	if listener != nil {
		// What such a server writes is for people.
		go func() {
			io.Copy(stderr, server.out)
			server.out.Close()
		}()
		server.in.Close()
		runErr = r.run(func() error { return r.serveHTTP(listener, o.upstream) })
	} else {
		runErr = r.run(func() error {
			r.serveStdio(pollInput(stdin), stdout)
			return nil
		})
	}
	err = errors.Join(runErr, out.close())
	if status := server.status(); status != 0 {
		var told exitStatus
		if err != nil && !errors.As(err, &told) {
			fmt.Fprintf(stderr, "mcpfz-probe: %v\n", err)
		}
		return exitStatus(status)
	}
	return err
}

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

// A runCall is a request on its way.
type runCall struct {
	id      string // of the call, as JSON
	request request
	session string
	key     string  // of the request's id; see requestKey
	number  float64 // that it stands for; NaN for none
	batch   bool    // it came in a list, and may be answered in one
	start   time.Time

	cancelled bool // nobody waits for it any more
	left      bool // and that is since the client has gone, or its stream
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

// fromClient opens a window for each call, before the server can know of it, and returns
// those calls. Ids of requests are those of a session; on stdio there is one, without a name.
func (r *runner) fromClient(session string, messages []wireMessage) (begun []*runCall) {
	for i := range messages {
		m := &messages[i]
		switch method := m.asksFor(); {
		case method == "notifications/initialized":
			r.settle()
		case method == "notifications/cancelled" && m.requestID != nil:
			r.mu.Lock()
			call := find(r.calls, session, m.requestID, true)
			r.mu.Unlock()
			if call != nil {
				r.cancel(call, "cancelled by the client", false)
			}
		case isCall(*m):
			r.settle() // at the latest
			if call := r.begin(session, m, method); call != nil {
				begun = append(begun, call)
			}
		}
	}
	return begun
}

// fromServer closes the window of each call that is answered, before the client can know.
func (r *runner) fromServer(session string, messages []wireMessage) {
	r.answered(session, nil, messages)
}

// answered is fromServer for answers that are most likely to some calls.
func (r *runner) answered(session string, likely []*runCall, messages []wireMessage) {
	for i := range messages {
		m := &messages[i]
		if !m.answered() {
			continue
		}
		r.mu.Lock()
		call := find(slices.DeleteFunc(slices.Clone(likely), func(c *runCall) bool { return !slices.Contains(r.calls, c) }), session, m.id, !m.batch)
		if call == nil {
			call = find(r.calls, session, m.id, !m.batch)
		}
		r.mu.Unlock()
		if call == nil || !r.take(call) {
			continue
		}
		call.request.latency = 0 // if it has been cancelled, this was too soon
		failed := m.failed() || call.cancelled && !call.left
		if call.left {
			call.request.why = "" // there has been a client all the same
		}
		r.end(call, failed)
	}
}

func (r *runner) settle() {
	r.mu.Lock()
	settled := r.settled
	r.settled = true
	r.mu.Unlock()
	if !settled {
		r.control(control{op: controlSettle})
	}
}

// cancel takes in that nobody waits for a call any more, or that its client has left. The
// server may go on with it for a while, so its window stays open, until it is answered all
// the same or another begins.
func (r *runner) cancel(call *runCall, why string, left bool) {
	r.mu.Lock()
	if call.cancelled || !slices.Contains(r.calls, call) {
		r.mu.Unlock()
		return
	}
	call.cancelled, call.left, call.request.why, call.request.latency = true, left, why, time.Since(call.start)
	r.running--
	r.mu.Unlock()
	if r.serializer != nil {
		r.serializer.ended()
	}
}

// leave takes in that the client of a call over HTTP does not wait for its answer there.
func (r *runner) leave(call *runCall) { r.cancel(call, "nobody waits for its answer any more", true) }

// leaveSession takes in that a session has lost the stream in which its answers come.
func (r *runner) leaveSession(session string) {
	for _, call := range r.callsOf(session) {
		r.leave(call)
	}
}

// fail ends a call that will not be answered.
func (r *runner) fail(call *runCall, why string) {
	if r.take(call) {
		call.request.why = cmp.Or(call.request.why, why)
		r.end(call, true)
	}
}

// endSession ends the calls of a session that its client has ended.
func (r *runner) endSession(session string) {
	for _, call := range r.callsOf(session) {
		r.fail(call, "the session has ended")
	}
}

func (r *runner) callsOf(session string) []*runCall {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(r.calls), func(c *runCall) bool { return c.session != session })
}

// endCancelled ends the calls that have been cancelled.
func (r *runner) endCancelled() {
	r.mu.Lock()
	var ended []*runCall
	r.calls = slices.DeleteFunc(r.calls, func(c *runCall) bool {
		if c.cancelled {
			ended = append(ended, c)
		}
		return c.cancelled
	})
	r.mu.Unlock()
	for _, call := range ended {
		r.end(call, true)
	}
}

// begin returns nil if there is no server any more.
func (r *runner) begin(session string, m *wireMessage, method string) *runCall {
	r.endCancelled()
	tool := `""`
	if name := callMethods[method](m); name != nil {
		if text, ok := jsonText(name); ok {
			tool = string(appendLoose(nil, text))
		}
	}
	r.mu.Lock()
	if r.ended {
		r.mu.Unlock()
		return nil
	}
	var oldest *runCall
	if len(r.calls) >= maxOpenCalls {
		oldest = r.calls[0]
	}
	r.number++
	call := &runCall{
		id:      strconv.Quote(strconv.Itoa(r.number)),
		request: request{method: string(appendQuoted(nil, method)), id: quoteID(m.id)},
		key:     requestKey(m.id),
		session: session,
		number:  idNumber(m.id),
		batch:   m.batch,
		start:   time.Now(),
	}
	r.calls = append(r.calls, call)
	r.running++
	r.mu.Unlock()
	if oldest != nil {
		r.fail(oldest, fmt.Sprintf("taken as ended, since %d calls are open", maxOpenCalls))
	}
	known := call.request
	r.control(control{op: controlBegin, callID: call.id, tool: tool, request: &known})
	return call
}

func (r *runner) end(call *runCall, failed bool) {
	if call.request.latency == 0 {
		call.request.latency = time.Since(call.start)
	}
	call.request.over, call.request.failed = true, failed
	r.control(control{op: controlEnd, callID: call.id, request: &call.request})
	if call.cancelled {
		return // it does not run since then
	}
	r.mu.Lock()
	r.running--
	r.mu.Unlock()
	if r.serializer != nil {
		r.serializer.ended()
	}
}

// busy tells whether a call is running that somebody waits for.
func (r *runner) busy() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.running > 0
}

// take takes a call, which is over now, from those that are not; false if it was over.
func (r *runner) take(call *runCall) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := len(r.calls)
	r.calls = slices.DeleteFunc(r.calls, func(c *runCall) bool { return c == call })
	return len(r.calls) < before
}

// find returns the oldest of calls that is of a request with that id; nil if there is none.
// Clients look for an answer's id as it is, and then for the number that it stands for. An
// answer that comes in a list is one only to a request that came in one.
func find(calls []*runCall, session string, id []byte, alone bool) *runCall {
	key, number := requestKey(id), idNumber(id)
	for _, same := range []func(*runCall) bool{
		func(c *runCall) bool { return c.key == key },
		func(c *runCall) bool { return c.number == number },
	} {
		i := slices.IndexFunc(calls, func(c *runCall) bool { return c.session == session && (alone || c.batch) && same(c) })
		if i >= 0 {
			return calls[i]
		}
	}
	return nil
}

// endCalls ends whatever has not been answered.
func (r *runner) endCalls(why string) {
	r.mu.Lock()
	left := slices.Clone(r.calls)
	r.ended = true
	r.mu.Unlock()
	for _, call := range left {
		r.fail(call, why)
	}
}

// requestKey is the same for equal ids, however they are written.
func requestKey(id []byte) string {
	if text, ok := jsonText(id); ok {
		return `"` + text
	}
	if c := id[0]; c == '-' || c >= '0' && c <= '9' {
		return string(appendNumberRepr(nil, string(id)))
	}
	return string(id)
}

// idNumber is the number that an id stands for, as JavaScript's Number() has it; NaN, which
// is equal to nothing, for none.
func idNumber(id []byte) float64 {
	text, ok := jsonText(id)
	if !ok {
		text = string(id)
	}
	text = strings.TrimSpace(text)
	if text == "" {
		return 0
	}
	if n, err := strconv.ParseInt(text, 0, 64); err == nil && !strings.Contains(text, "_") {
		return float64(n)
	}
	if n, err := strconv.ParseFloat(text, 64); err == nil {
		return n
	}
	return math.NaN()
}

// quoteID writes an id so that it is valid UTF-8, whatever its client has sent.
func quoteID(id []byte) string {
	if text, ok := jsonText(id); ok {
		return string(appendLoose(nil, text))
	}
	return string(id)
}

const runUsage = `mcpfz-probe run stands between an MCP client and a server, and tells what each call did.

Usage:
  mcpfz-probe run [flags] -- COMMAND [ARGS…]
  mcpfz-probe run --http LISTEN=UPSTREAM [flags] -- COMMAND [ARGS…]

It starts COMMAND, an MCP server on standard input and output, and passes every
byte on as it is: put it in front of the command in a client's configuration. On
standard error is a table when the server has ended. With --http, COMMAND is a
server that listens on UPSTREAM for HTTP, and clients go to LISTEN: both are
address:port, or a port of loopback.

  --events FILE          event lines, as the sidecar writes them
  --findings FILE        what the policy does not allow, a line each
  --sarif FILE           the same as SARIF 2.1.0
  --report FILE.html     a page for a browser, to look at and to hand on
  --learn FILE           the smallest policy under which there is no finding
  --record FILE          the session as a script, which --backend fake
                         --events-file FILE plays without privileges
  --policy FILE, --workspace DIR, --tmpdir DIR, --allow-exec A,B,
  --allow-host A,B, --fail-on SEVERITY
                         as for evaluate
  --serialize            hold further calls back until the running one has been
                         answered, so that each event belongs to one call
  --as-root              under sudo, do not run the server as who has called sudo
  --backend auto|ebpf|fake, --events-file FILE, --ring-size BYTES
                         as for the sidecar, but auto is the default: without
                         privileges there are calls and no kernel events

Exit codes: that of the server, 128 and the number if it was a signal; else 1 if
--fail-on is met or writing failed, 2 for bad arguments, 69 if --backend ebpf
cannot be had.
`
