package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"
)

// The demo server is a small MCP server whose tools misbehave: see demo_tools.go.
// It speaks JSON-RPC over standard input and output, a message a line, and answers
// whatever a fuzzer makes of that.

// demoProtocols are the MCP revisions that the server speaks, the one that it
// offers to others first. It can do nothing that differs between them. The one in
// between, 2025-03-26, asks for batches.
var demoProtocols = []string{"2025-06-18", "2024-11-05"}

// maxDemoMessage is far beyond the longest argument that a program can get.
const maxDemoMessage = 4 << 20

// demoMCP is one server.
type demoMCP struct {
	dir      string
	null     *os.File       // opened once, so that no call has to
	children sync.WaitGroup // those in the background
}

func demoServer(args []string, stdin io.Reader, stdout, _ io.Writer) error {
	if len(args) > 0 {
		return usageError{fmt.Errorf("demo-server: unexpected argument %q", args[0])}
	}
	// However the client ends this, short of SIGKILL, the folder is removed.
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, slices.Concat(endSignals, brokenPipe)...)
	defer signal.Stop(signals)
	s := &demoMCP{dir: os.Getenv("MCPFZ_DEMO_DIR")}
	if s.dir == "" {
		var err error
		if s.dir, err = makeDemoFolder(); err != nil {
			return err
		}
		defer os.RemoveAll(s.dir)
	}
	var err error
	if s.null, err = os.OpenFile(os.DevNull, os.O_RDWR, 0); err != nil {
		return err
	}
	defer s.null.Close()
	// Once in its life a Go process tries out, with a child, how to wait for
	// children. Here, that is not taken for something that a tool did.
	if self, err := os.FindProcess(os.Getpid()); err == nil {
		self.Release()
	}
	defer s.children.Wait()
	done := make(chan error, 1)
	go func() { done <- s.serve(stdin, stdout) }()
	select {
	case err := <-done:
		return err
	case <-signals:
		return nil
	}
}

// serve answers messages until the input ends.
func (s *demoMCP) serve(stdin io.Reader, stdout io.Writer) error {
	in, out := bufio.NewReaderSize(stdin, maxDemoMessage), json.NewEncoder(stdout)
	out.SetEscapeHTML(false) // an id goes back as it came
	for {
		line, err := in.ReadSlice('\n')
		for err == bufio.ErrBufferFull {
			line = []byte("a message that is too long is as bad as one that is not JSON")
			_, err = in.ReadSlice('\n')
		}
		if answer := s.answer(line); answer != nil {
			if err := out.Encode(answer); err != nil {
				return fmt.Errorf("write answers: %w", err)
			}
		}
		if err == io.EOF {
			return nil
		} else if err != nil {
			return fmt.Errorf("read messages: %w", err)
		}
	}
}

type jsonObject = map[string]any

// A demoError is the error of an answer.
type demoError struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

// The codes of JSON-RPC.
const (
	codeParse          = -32700
	codeInvalidRequest = -32600
	codeNoMethod       = -32601
	codeInvalidParams  = -32602
)

// answer returns what to send back for a message, nil for nothing.
func (s *demoMCP) answer(message []byte) jsonObject {
	if len(bytes.TrimSpace(message)) == 0 {
		return nil
	}
	id, result, err := s.obey(message)
	switch {
	case err != nil:
		return jsonObject{"jsonrpc": "2.0", "id": id, "error": err}
	case result != nil:
		return jsonObject{"jsonrpc": "2.0", "id": id, "result": result}
	}
	return nil
}

// obey does what a message asks for. It returns neither a result nor an error for
// a message that is not to be answered, and no id where it cannot be told.
func (s *demoMCP) obey(message []byte) (id json.RawMessage, result any, err *demoError) {
	if !utf8.Valid(message) || !json.Valid(message) {
		return nil, nil, &demoError{codeParse, "a message is a line of JSON"}
	}
	var msg map[string]json.RawMessage
	if json.Unmarshal(message, &msg) != nil || msg == nil {
		return nil, nil, &demoError{codeInvalidRequest, "a message is one object"}
	}
	id, isRequest := msg["id"]
	if isRequest && !strings.ContainsRune(`"-0123456789`, rune(id[0])) {
		return nil, nil, &demoError{codeInvalidRequest, "an id is a string or a number"}
	}
	if msg["method"] == nil && (msg["result"] != nil || msg["error"] != nil) {
		return nil, nil, nil // an answer, and nothing was asked
	}
	method, ok := demoString(msg["method"])
	if version, _ := demoString(msg["jsonrpc"]); !ok || version != "2.0" {
		return id, nil, &demoError{codeInvalidRequest, `a request has "jsonrpc":"2.0" and a method`}
	}
	if !isRequest {
		return nil, nil, nil // a notification, and none changes anything
	}
	var params map[string]json.RawMessage
	if raw := msg["params"]; raw != nil && (json.Unmarshal(raw, &params) != nil || params == nil) {
		return id, nil, &demoError{codeInvalidParams, "params is an object"}
	}
	switch method {
	case "initialize":
		result, err = initialize(params)
	case "ping":
		result = jsonObject{}
	case "tools/list":
		result = listTools()
	case "tools/call":
		result, err = s.callTool(params)
	default:
		err = &demoError{codeNoMethod, "there is no method " + clip(method)}
	}
	return id, result, err
}

func initialize(params map[string]json.RawMessage) (any, *demoError) {
	revision, ok := demoString(params["protocolVersion"])
	if !ok {
		return nil, &demoError{codeInvalidParams, "protocolVersion is a string"}
	}
	if !slices.Contains(demoProtocols, revision) {
		revision = demoProtocols[0]
	}
	return jsonObject{
		"protocolVersion": revision,
		"capabilities":    jsonObject{"tools": jsonObject{}},
		"serverInfo":      jsonObject{"name": "mcpfz-probe-demo-server", "version": version},
	}, nil
}

func listTools() jsonObject {
	var list []jsonObject
	for _, tool := range demoTools {
		schema := jsonObject{"type": "object"}
		if tool.param != "" {
			schema["properties"] = jsonObject{tool.param: jsonObject{"type": "string"}}
			schema["required"] = []string{tool.param}
		}
		list = append(list, jsonObject{"name": tool.name, "description": tool.description, "inputSchema": schema})
	}
	return jsonObject{"tools": list}
}

func (s *demoMCP) callTool(params map[string]json.RawMessage) (any, *demoError) {
	name, _ := demoString(params["name"])
	i := slices.IndexFunc(demoTools, func(t demoTool) bool { return t.name == name })
	if i < 0 {
		return nil, &demoError{codeInvalidParams, "there is no tool " + clip(name)}
	}
	tool := demoTools[i]
	var arguments map[string]json.RawMessage
	if raw := params["arguments"]; raw != nil && json.Unmarshal(raw, &arguments) != nil {
		return nil, &demoError{codeInvalidParams, "arguments is an object"}
	}
	arg, ok := demoString(arguments[tool.param])
	if tool.param != "" && !ok {
		return nil, &demoError{codeInvalidParams, tool.param + " is a string"}
	}
	text, err := tool.call(s, arg)
	if err != nil {
		text = err.Error()
	}
	return jsonObject{"content": []jsonObject{{"type": "text", "text": text}}, "isError": err != nil}, nil
}

// demoString returns the string that JSON holds, if it is one.
func demoString(raw json.RawMessage) (s string, ok bool) {
	if len(raw) == 0 || raw[0] != '"' {
		return "", false
	}
	err := json.Unmarshal(raw, &s)
	return s, err == nil
}
