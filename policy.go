package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"unicode/utf8"
)

// A policy says what a server may do. What it may not is a finding: the same ones, in the
// same order, as those of mcpfz-probe 0.1.3's Python policy, and then some of our own
// (policy_beyond.go), which say that they are.

// A policy has the fields of the Python one, by the same names.
type policy struct {
	Workspace         string   `json:"workspace"`
	Tmpdir            string   `json:"tmpdir"`
	ExecAllow         []string `json:"exec_allow"`
	NetAllow          []string `json:"net_allow"`
	FSWriteAllow      []string `json:"fs_write_allow"` // if empty, workspace and tmpdir
	SensitivePatterns []string `json:"sensitive_patterns"`

	// Allow is not a Python field: what findings are none, as wildcards for a category
	// and a detail with a space between, such as "runtime.process_spawn *".
	Allow []string `json:"allow,omitempty"`
}

// sensitivePatterns are those of the Python policy.
var sensitivePatterns = []string{
	"*/.ssh/*",
	"*/.aws/credentials",
	"*/.config/gcloud/*",
	"*/.kube/config",
	"*/.gnupg/*",
	"*/.env",
	"*/.env.*",
	"*/Library/Application Support/Google/Chrome/*",
	"*/.mozilla/firefox/*",
}

// defaultPolicy is what holds without a policy file, as mcp-fuzzer has it.
func defaultPolicy() (policy, error) {
	dir, err := os.Getwd()
	if err != nil {
		return policy{}, fmt.Errorf("find the workspace: %w; go to a folder that can be read", err)
	}
	return policy{Workspace: dir, Tmpdir: "/tmp", SensitivePatterns: slices.Clone(sensitivePatterns)}, nil
}

// read replaces what the file has.
func (p *policy) read(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("read the policy: %w", err)
	}
	d := json.NewDecoder(strings.NewReader(string(text)))
	d.DisallowUnknownFields()
	if err := d.Decode(p); err != nil {
		return fmt.Errorf("read the policy %s: %w", file, err)
	}
	if d.More() {
		return fmt.Errorf("read the policy %s: there is more after its end", file)
	}
	return nil
}

// severities are the least severe first.
var severities = []string{"low", "medium", "high", "critical"}

// A finding is something that the policy does not allow.
type finding struct {
	category string // as "runtime.exec"
	severity string // one of severities
	detail   string
	beyond   bool // the Python policy does not have it
}

// owaspIDs are those of the OWASP MCP Top 10, as mcp-fuzzer 0.7.0 assigns them, and for
// categories that it does not have in the same spirit.
var owaspIDs = map[string]string{
	"runtime.exec":           "MCP05:2025",
	"runtime.process_spawn":  "MCP05:2025",
	"runtime.net_connect":    "MCP02:2025",
	"runtime.net_bind":       "MCP08:2025",
	"runtime.net_listen":     "MCP08:2025",
	"runtime.sensitive_read": "MCP02:2025",
	"runtime.fs_write":       "MCP02:2025",
	"runtime.fs_delete":      "MCP02:2025",
	"runtime.fs_chmod":       "MCP02:2025",
	"runtime.fs_mkdir":       "MCP02:2025",
	"runtime.fs_rename":      "MCP02:2025",
	"runtime.fs_symlink":     "MCP02:2025",
	"runtime.fs_link":        "MCP02:2025",
	"runtime.ptrace":         "MCP05:2025",

	"runtime.after_call":     "MCP05:2025",
	"runtime.control_socket": "MCP02:2025",
	"runtime.dns":            "MCP02:2025",
	"runtime.fileless_exec":  "MCP05:2025",
	"runtime.fs_chown":       "MCP02:2025",
	"runtime.fs_mknod":       "MCP02:2025",
	"runtime.fs_truncate":    "MCP02:2025",
	"runtime.fs_xattr":       "MCP02:2025",
	"runtime.inject":         "MCP05:2025",
	"runtime.kernel":         "MCP02:2025",
	"runtime.mount":          "MCP02:2025",
	"runtime.namespace":      "MCP02:2025",
	"runtime.net_other":      "MCP02:2025",
	"runtime.privilege":      "MCP02:2025",
	"runtime.signal":         "MCP05:2025",
}

// An evaluator holds events against a policy. It is for one goroutine.
type evaluator struct {
	exec      map[string]bool
	net       []wildcard
	sensitive []wildcard
	writable  []root
	allow     []wildcard
	resolved  map[string]resolution // of paths lately seen
	findings  []finding             // of the current event
}

// A root is a folder in which may be written.
type root struct {
	path string
	err  error
}

type resolution struct {
	path string
	err  error
}

// maxResolved bounds how many paths are remembered. Where a path leads is looked up
// when its event is evaluated, as in Python, and that takes longer than all the rest.
const maxResolved = 1 << 16

func newEvaluator(p policy) (*evaluator, error) {
	e := &evaluator{
		exec:      map[string]bool{},
		net:       wildcards(p.NetAllow...),
		sensitive: wildcards(p.SensitivePatterns...),
		allow:     wildcards(p.Allow...),
		resolved:  map[string]resolution{},
	}
	for _, name := range p.ExecAllow {
		e.exec[name] = true
	}
	roots := p.FSWriteAllow
	if len(roots) == 0 {
		for _, dir := range []string{p.Workspace, p.Tmpdir} {
			resolved, err := resolvePath(dir)
			if err != nil {
				return nil, fmt.Errorf("resolve %q, in which may be written: %w", dir, err)
			}
			roots = append(roots, resolved)
		}
	}
	for _, dir := range roots {
		resolved, err := resolvePath(dir)
		e.writable = append(e.writable, root{resolved, err})
	}
	return e, nil
}

// A policyEvent is what an event line has that a policy looks at: values, in JSON; nil
// for what is not there.
type policyEvent struct {
	typ, bucket, callID, originCallID, pid, errno           []byte
	argv, path, comm, dst, fd, backlog, flags, mode         []byte
	request, targetPID                                      []byte
	call, cmd, exe, family, fileless, host, id, name        []byte
	response, signal, message, tool, failed, latency, count []byte
	pgid                                                    []byte
}

// parse takes a line apart. Of a field that comes twice, the last one counts.
func (ev *policyEvent) parse(line []byte) error {
	*ev = policyEvent{}
	if !utf8.Valid(line) {
		return errors.New("it is not UTF-8")
	}
	if err := jsonMembers(line, func(key, value []byte) {
		if field := ev.field(key); field != nil {
			*field = value
		}
	}); err != nil {
		return err
	}
	if ev.typ == nil {
		return errors.New(`there is no "type"`)
	}
	return nil
}

func (ev *policyEvent) field(key []byte) *[]byte {
	switch string(key) {
	case "type":
		return &ev.typ
	case "bucket":
		return &ev.bucket
	case "call_id":
		return &ev.callID
	case "origin_call_id":
		return &ev.originCallID
	case "pid":
		return &ev.pid
	case "errno":
		return &ev.errno
	case "argv":
		return &ev.argv
	case "path":
		return &ev.path
	case "comm":
		return &ev.comm
	case "dst":
		return &ev.dst
	case "fd":
		return &ev.fd
	case "backlog":
		return &ev.backlog
	case "flags":
		return &ev.flags
	case "mode":
		return &ev.mode
	case "request":
		return &ev.request
	case "target_pid":
		return &ev.targetPID
	case "call":
		return &ev.call
	case "cmd":
		return &ev.cmd
	case "exe":
		return &ev.exe
	case "family":
		return &ev.family
	case "fileless":
		return &ev.fileless
	case "host":
		return &ev.host
	case "id":
		return &ev.id
	case "name":
		return &ev.name
	case "response":
		return &ev.response
	case "signal":
		return &ev.signal
	case "message":
		return &ev.message
	case "tool":
		return &ev.tool
	case "failed":
		return &ev.failed
	case "latency_us":
		return &ev.latency
	case "count":
		return &ev.count
	case "pgid":
		return &ev.pgid
	}
	return nil
}

// fieldText is str(data.get(field, missing)).
func fieldText(value []byte, missing string) string {
	if value == nil {
		return missing
	}
	return pythonStr(value)
}

// evaluate returns what the policy does not allow of an event. The result is valid until
// the next call. An error, which may come with findings, says what keeps the event from
// being evaluated: Python would raise an exception, and find nothing in what follows.
func (e *evaluator) evaluate(ev *policyEvent) ([]finding, error) {
	e.findings = e.findings[:0]
	typ, ok := jsonText(ev.typ)
	if !ok {
		if c := ev.typ[0]; c == '[' || c == '{' {
			return nil, fmt.Errorf("%w: no event has such a type", errPythonRaises)
		}
		return nil, nil
	}
	err := e.python(typ, ev)
	if err == nil {
		err = e.beyond(typ, ev)
	}
	e.drop()
	e.afterCall(typ, ev)
	e.drop()
	return e.findings, err
}

// drop drops what is allowed by category and detail.
func (e *evaluator) drop() {
	if len(e.allow) > 0 {
		e.findings = slices.DeleteFunc(e.findings, func(f finding) bool { return matchAny(e.allow, f.category+" "+f.detail) })
	}
}

func (e *evaluator) add(category, severity, detail string) {
	e.findings = append(e.findings, finding{category: category, severity: severity, detail: detail})
}

// python finds what the Python policy finds.
func (e *evaluator) python(typ string, ev *policyEvent) error {
	switch typ {
	case "exec":
		name, ok, err := executable(ev)
		if err != nil {
			return err
		}
		if !ok || !e.exec[name] {
			e.add("runtime.exec", "high", "process executed "+name)
		}
	case "process_spawn":
		e.add("runtime.process_spawn", "medium", "process creation by "+fieldText(ev.comm, "<unknown>"))
	case "connect":
		if dst := fieldText(ev.dst, ""); dst != "" && !e.reachable(dst, ev) {
			e.add("runtime.net_connect", "medium", "network connection to "+dst)
		}
	case "bind":
		if dst := fieldText(ev.dst, ""); dst != "" && !e.reachable(dst, ev) {
			e.add("runtime.net_bind", "high", "network listener bind to "+dst)
		}
	case "listen":
		e.add("runtime.net_listen", "medium",
			"listen syscall on fd "+fieldText(ev.fd, "None")+" backlog "+fieldText(ev.backlog, "None"))
	case "file_open":
		return e.open(ev)
	case "file_delete":
		return e.change(ev, "runtime.fs_delete", "high", "file deleted outside allowed paths: ", "")
	case "file_mkdir", "file_rename", "file_symlink", "file_link":
		category := "runtime.fs_" + strings.TrimPrefix(typ, "file_")
		return e.change(ev, category, "high", "filesystem mutation outside allowed paths: ", "")
	case "chmod", "file_chmod":
		return e.change(ev, "runtime.fs_chmod", "medium", "permissions changed outside allowed paths: ",
			" (mode "+fieldText(ev.mode, "")+")")
	case "ptrace":
		e.add("runtime.ptrace", "critical", "ptrace syscall (request "+fieldText(ev.request, "None")+
			") targeting pid "+fieldText(ev.targetPID, "None"))
	}
	return nil
}

// executable is argv[0] if argv else path. ok says that it is a string, which alone can
// be in a list of strings.
func executable(ev *policyEvent) (name string, ok bool, err error) {
	if ev.argv == nil || !pythonTrue(ev.argv) {
		if ev.path == nil {
			return "<unknown>", true, nil
		}
		return pythonStr(ev.path), ev.path[0] == '"', nil
	}
	switch ev.argv[0] {
	case '[':
		var first []byte
		jsonElements(ev.argv, func(value []byte) {
			if first == nil {
				first = value
			}
		})
		return pythonStr(first), first[0] == '"', nil
	case '"':
		s, _ := jsonText(ev.argv)
		_, size := decodeRune(s)
		return s[:size], true, nil
	}
	return "", false, fmt.Errorf("%w: argv has no first element", errPythonRaises)
}

var writeFlags = []string{"O_WRONLY", "O_RDWR", "O_CREAT", "O_TRUNC", "O_APPEND"}

func (e *evaluator) open(ev *policyEvent) error {
	path := fieldText(ev.path, "")
	if matchAny(e.sensitive, path) {
		e.add("runtime.sensitive_read", "critical", "sensitive file opened: "+path)
	}
	if !writes(ev) {
		return nil
	}
	if allowed, err := e.mayWrite(path); err != nil || allowed {
		return err
	}
	e.add("runtime.fs_write", "high", "file opened for write outside allowed paths: "+path)
	return nil
}

// writes tells whether a file was opened to be changed.
func writes(ev *policyEvent) bool { return flagsWrite(fieldText(ev.flags, "")) }

func flagsWrite(flags string) bool {
	return slices.ContainsFunc(writeFlags, func(flag string) bool { return strings.Contains(flags, flag) })
}

// change adds a finding if the event's path is not one to be changed.
func (e *evaluator) change(ev *policyEvent, category, severity, before, after string) error {
	path := fieldText(ev.path, "")
	if path == "" {
		return nil
	}
	if allowed, err := e.mayWrite(path); err != nil || allowed {
		return err
	}
	e.add(category, severity, before+path+after)
	return nil
}

func (e *evaluator) mayWrite(path string) (bool, error) {
	to, ok := e.resolved[path]
	if !ok {
		to.path, to.err = resolvePath(path)
		if len(e.resolved) >= maxResolved {
			clear(e.resolved)
		}
		e.resolved[path] = to
	}
	if to.err != nil {
		if errors.As(to.err, new(*fs.PathError)) {
			return false, nil
		}
		return false, to.err
	}
	for _, root := range e.writable {
		switch {
		case errors.Is(root.err, errPathText): // a ValueError, which Python goes on after
		case root.err != nil:
			return false, root.err
		case within(to.path, root.path):
			return true, nil
		}
	}
	return false, nil
}

// reachable tells whether an entry of net_allow stands for where a connection goes: for
// the address and port, for the address, or for the name that the server asked for.
func (e *evaluator) reachable(dst string, ev *policyEvent) bool {
	host := destinationHost(dst)
	name := fieldText(ev.host, "")
	return slices.ContainsFunc(e.net, func(w wildcard) bool {
		return w.match(dst) || host != "" && w.match(host) || name != "" && w.match(name)
	})
}

func destinationHost(dst string) string {
	if strings.HasPrefix(dst, "[") {
		if end := strings.IndexByte(dst, ']'); end >= 0 {
			return dst[1:end]
		}
	}
	colon := strings.LastIndexByte(dst, ':')
	if colon > 0 && pythonDigits(dst[colon+1:]) {
		return dst[:colon]
	}
	return dst
}
