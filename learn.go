package main

import (
	"encoding/json"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
)

// maxLearnedFiles is how many files of a folder a learned policy names; of a folder with
// more, it allows all.
const maxLearnedFiles = 8

// A learnedPolicy gathers what a session does, to allow that and nothing else.
type learnedPolicy struct {
	from      policy
	evaluator *evaluator // allows nothing
	roots     []string   // workspace and tmpdir, of which all is allowed if anything is
	exec, net map[string]bool
	write     map[string]bool
	allow     map[string]bool
}

func newLearnedPolicy(from policy) (*learnedPolicy, error) {
	l := &learnedPolicy{from: from, exec: map[string]bool{}, net: map[string]bool{}, write: map[string]bool{}, allow: map[string]bool{}}
	for _, dir := range []string{from.Workspace, from.Tmpdir} {
		root, err := resolvePath(dir)
		if err != nil {
			return nil, fmt.Errorf("resolve %q: %w", dir, err)
		}
		l.roots = append(l.roots, root)
	}
	var err error
	l.evaluator, err = newEvaluator(policy{FSWriteAllow: []string{nothingWritable}, SensitivePatterns: from.SensitivePatterns})
	return l, err
}

// nothingWritable is allowed where nothing else is, since an empty list means the
// workspace and tmpdir: what is written there goes nowhere.
const nothingWritable = "/dev/null"

// see takes in what the event does.
func (l *learnedPolicy) see(ev *policyEvent) {
	findings, _ := l.evaluator.evaluate(ev) // an error has been told by then
	for _, f := range findings {
		switch {
		case f.category == "runtime.exec":
			if name, ok, _ := executable(ev); ok {
				l.exec[name] = true
				continue
			}
		case f.category == "runtime.net_connect" || f.category == "runtime.net_bind":
			l.net[escapeWildcard(fieldText(ev.host, fieldText(ev.dst, "")))] = true
			continue
		case f.category == "runtime.dns":
			l.net[escapeWildcard(fieldText(ev.name, ""))] = true
			continue
		case strings.HasPrefix(f.category, "runtime.fs_"):
			if to, err := resolvePath(fieldText(ev.path, "")); err == nil {
				if i := slices.IndexFunc(l.roots, func(root string) bool { return within(to, root) }); i >= 0 {
					to = l.roots[i]
				}
				l.write[to] = true
				continue
			}
		}
		l.allow[allowPattern(f)] = true
	}
}

// numbered are the categories whose details name processes and descriptors, which have
// other numbers the next time.
var numbered = []string{"runtime.inject", "runtime.net_listen", "runtime.ptrace", "runtime.signal"}

// allowPattern stands for this finding, and for those with other numbers of processes.
func allowPattern(f finding) string {
	if !slices.Contains(numbered, f.category) {
		return f.category + " " + escapeWildcard(f.detail)
	}
	text, number := "", false
	for _, c := range f.detail {
		digit := c >= '0' && c <= '9'
		if !digit {
			text += escapeWildcard(string(c))
		} else if !number {
			text += "*"
		}
		number = digit
	}
	return f.category + " " + text
}

// escapeWildcard makes a pattern that stands for this text only.
func escapeWildcard(text string) string {
	return strings.NewReplacer("*", "[*]", "?", "[?]", "[", "[[]").Replace(text)
}

// policy returns the smallest one.
func (l *learnedPolicy) policy() policy {
	p := l.from
	p.ExecAllow, p.NetAllow, p.Allow = sortedKeys(l.exec), sortedKeys(l.net), sortedKeys(l.allow)
	files := map[string]int{} // by folder
	for file := range l.write {
		files[path.Dir(file)]++
	}
	write := map[string]bool{}
	for file := range l.write {
		if dir := path.Dir(file); files[dir] > maxLearnedFiles && dir != "/" {
			file = dir
		}
		write[file] = true
	}
	if len(write) == 0 {
		write[nothingWritable] = true
	}
	p.FSWriteAllow = sortedKeys(write)
	return p
}

func sortedKeys(m map[string]bool) []string {
	keys := []string{}
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

// encode writes the policy as a file has it.
func (l *learnedPolicy) encode(w io.Writer) error {
	text, err := json.MarshalIndent(l.policy(), "", "  ")
	if err == nil {
		_, err = w.Write(append(text, '\n'))
	}
	if err != nil {
		return fmt.Errorf("write the learned policy: %w", err)
	}
	return nil
}
