package main

import (
	"net/http"
	"sync"
)

// A request over HTTP with its response: whose calls are whose.

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
