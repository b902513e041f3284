package main

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode"
)

// Events in words, for people: what an event line says, in one short line of text.

// An eventLine is what is shown of a line of the protocol. A field that a line does not
// have is zero.
type eventLine struct {
	Type        string   `json:"type"`
	Bucket      string   `json:"bucket,omitempty"`
	CallID      string   `json:"call_id,omitempty"`
	Origin      string   `json:"origin_call_id,omitempty"`
	Message     string   `json:"message,omitempty"`
	Error       string   `json:"error,omitempty"`
	Count       int      `json:"count,omitempty"`
	Reason      string   `json:"reason,omitempty"`
	Pid         int      `json:"pid,omitempty"`
	ChildPid    int      `json:"child_pid,omitempty"`
	TargetPid   int      `json:"target_pid,omitempty"`
	RequestName string   `json:"request_name,omitempty"`
	Argv        []string `json:"argv,omitempty"`
	Path        string   `json:"path,omitempty"`
	OldPath     string   `json:"old_path,omitempty"`
	Target      string   `json:"target,omitempty"`
	Source      string   `json:"source,omitempty"`
	Flags       string   `json:"flags,omitempty"`
	Mode        string   `json:"mode,omitempty"`
	Proto       string   `json:"proto,omitempty"`
	Family      string   `json:"family,omitempty"`
	Dst         string   `json:"dst,omitempty"`
	Src         string   `json:"src,omitempty"`
	Host        string   `json:"host,omitempty"`
	Name        string   `json:"name,omitempty"`
	Query       string   `json:"query,omitempty"`
	Response    bool     `json:"response,omitempty"`
	Answers     []string `json:"answers,omitempty"`
	Call        string   `json:"call,omitempty"`
	Signal      string   `json:"signal,omitempty"`
	ID          *int     `json:"id,omitempty"`
	Cmd         *int     `json:"cmd,omitempty"`
	Owner       *int     `json:"owner,omitempty"`
	Group       *int     `json:"group,omitempty"`
	Fileless    bool     `json:"fileless,omitempty"`
	Errno       string   `json:"errno,omitempty"`
}

// eventLineKeys are the keys of an eventLine.
var eventLineKeys = sync.OnceValue(func() map[string]bool {
	keys := map[string]bool{}
	for f := range reflect.TypeFor[eventLine]().Fields() {
		key, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		keys[key] = true
	}
	return keys
})

// parseEventLine decodes the members of a line. A value of another type than its field has
// is left out. So are keys in other letters, which encoding/json would take.
func parseEventLine(members []byte) (l eventLine) {
	known := []byte("{")
	jsonMembers(slices.Concat(known, members, []byte("}")), func(key, value []byte) {
		if !eventLineKeys()[string(key)] {
			return
		}
		if len(known) > 1 {
			known = append(known, ',')
		}
		known = append(append(append(append(known, '"'), key...), '"', ':'), value...)
	})
	json.Unmarshal(append(known, '}'), &l)
	return l
}

// Classes are what events are told apart by at first sight.
const (
	classProgram = "program"
	classRead    = "read"
	classWrite   = "write" // whatever changes the file system
	classNetwork = "network"
	classProcess = "process" // what is done to others
	classOther   = "other"
	classRoutine = "routine" // what programs do when they start
)

var eventClasses = []string{classProgram, classWrite, classRead, classNetwork, classProcess, classOther, classRoutine}

// class tells what sort of act l is.
func (l *eventLine) class() string {
	switch l.Type {
	case "exec", "exec_failed", "process_spawn":
		return classProgram
	case "file_open":
		switch {
		case l.routine():
			return classRoutine
		case flagsWrite(l.Flags):
			return classWrite
		}
		return classRead
	case "chmod", "mknod":
		return classWrite
	case "connect", "bind", "listen", "accept", "unix_connect", "socket_connect", "dns":
		return classNetwork
	case "ptrace", "process_vm_write", "pidfd_getfd", "signal":
		return classProcess
	}
	if strings.HasPrefix(l.Type, "file_") {
		return classWrite
	}
	return classOther
}

// routine tells whether l is what programs do when they start.
func (l *eventLine) routine() bool {
	if l.Type != "file_open" {
		return false
	}
	if l.Path == "/dev/null" || l.Path == "/dev/tty" {
		return true
	}
	if !strings.HasPrefix(l.Flags, "O_RDONLY") || !slices.ContainsFunc(systemFolders, func(dir string) bool { return strings.HasPrefix(l.Path, dir) }) {
		return false
	}
	name := filepath.Base(l.Path)
	return strings.HasSuffix(name, ".so") || strings.Contains(name, ".so.") ||
		strings.HasPrefix(l.Path, "/etc/ld") || // where shared libraries are
		strings.Contains(l.Path, "/locale") || strings.Contains(l.Path, "/gconv")
}

// systemFolders are those in which nobody but the system's owner puts anything.
var systemFolders = []string{"/usr/", "/lib", "/etc/ld", "/opt/", "/nix/store/", "/snap/"}

// words says what an event means, in text that can be printed: nothing in it moves a
// cursor or changes the direction of writing.
func (l eventLine) words() string {
	for _, field := range []*string{
		&l.Type, &l.RequestName, &l.Flags, &l.Mode, &l.Proto, &l.Family, &l.Dst, &l.Src, &l.Host, &l.Query, &l.Call, &l.Signal, &l.Errno,
	} {
		if *field != "" {
			*field = printable(*field) // the others become words of a shell
		}
	}
	s := l.act()
	if l.Errno != "" {
		s += " (" + l.Errno + ")"
	}
	return s
}

func (l *eventLine) act() string {
	path := shellWord(l.Path)
	switch l.Type {
	case "exec":
		s := "ran"
		if l.Fileless {
			s = "ran, without a file,"
		}
		for _, arg := range l.Argv {
			s += " " + shellWord(arg)
		}
		if len(l.Argv) == 0 {
			s += " " + path
		}
		return s
	case "exec_failed":
		return "tried to run " + path
	case "process_spawn":
		return "started process " + strconv.Itoa(l.ChildPid)
	case "file_open":
		access, _, _ := strings.Cut(l.Flags, "|")
		purpose := map[string]string{"O_WRONLY": "writing", "O_RDWR": "reading and writing", "O_PATH": "its path"}[access]
		if purpose == "" {
			purpose = "reading"
		}
		return "opened " + path + " for " + purpose
	case "file_delete":
		return "deleted " + path
	case "file_mkdir":
		return "made folder " + path
	case "file_rename":
		return "renamed " + shellWord(l.OldPath) + " to " + path
	case "file_link":
		return "linked " + path + " to " + shellWord(l.OldPath)
	case "file_symlink":
		return "linked " + path + " to " + shellWord(l.Target)
	case "file_truncate":
		return "truncated " + path
	case "file_chown":
		return fmt.Sprintf("chown %s:%s %s", ownerWord(l.Owner), ownerWord(l.Group), path)
	case "file_xattr":
		return l.Call + " " + shellWord(l.Name) + " of " + path
	case "chmod":
		return "chmod " + l.Mode + " " + path
	case "mknod":
		return "made node " + path
	case "connect":
		return strings.ToUpper(l.Proto) + " connect to " + l.Dst + inBrackets(l.Host)
	case "bind", "listen":
		return strings.ToUpper(l.Proto) + " " + l.Type + " " + l.Dst
	case "accept":
		return strings.ToUpper(l.Proto) + " accept from " + l.Src
	case "unix_connect":
		return "contacted socket " + path
	case "socket_connect":
		return "contacted " + l.Family + " " + l.Dst
	case "dns":
		s := "asked " + l.Dst + " for " + shellWord(l.Name) + inBrackets(l.Query)
		if l.Response {
			s = "was told by " + l.Dst + " of " + shellWord(l.Name) + inBrackets(printable(strings.Join(l.Answers, ", ")))
		}
		return s
	case "ptrace":
		return fmt.Sprintf("ptrace %s of process %d", l.RequestName, l.TargetPid)
	case "process_vm_write":
		return fmt.Sprintf("wrote into the memory of process %d", l.TargetPid)
	case "pidfd_getfd":
		return fmt.Sprintf("took a descriptor from process %d", l.TargetPid)
	case "signal":
		return fmt.Sprintf("sent %s to process %d", l.Signal, l.TargetPid)
	case "setuid":
		return l.Call + " to " + ownerWord(l.ID)
	case "namespace":
		return l.Call + " " + l.Flags
	case "mount":
		if l.Source != "" {
			return l.Call + " of " + shellWord(l.Source) + " at " + path
		}
		return l.Call + " of " + path
	case "module_load":
		if l.Path != "" {
			return l.Call + " of " + path
		}
		return l.Call + " of " + shellWord(l.Name)
	case "bpf":
		return "bpf command " + ownerWord(l.Cmd)
	case "memfd_create":
		return "made a file in memory, " + shellWord(l.Name)
	}
	if l.Path != "" {
		return l.Type + " " + path
	}
	return l.Type
}

// ownerWord is a number, or a dash where there is none or it is to stay as it is.
func ownerWord(n *int) string {
	if n == nil || *n == -1 {
		return "-"
	}
	return strconv.Itoa(*n)
}

func inBrackets(s string) string {
	if s == "" {
		return ""
	}
	return " (" + s + ")"
}

// shellWord spells s as a shell would read it, or so that at least nothing is hidden.
func shellWord(s string) string {
	plain := func(r rune) bool {
		return (unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune("-_./:=,+@%", r)) && !unseen(r)
	}
	hidden := func(r rune) bool { return unseen(r) || r == '\'' }
	switch {
	case s != "" && strings.TrimLeftFunc(s, plain) == "":
		return s
	case strings.ContainsFunc(s, hidden):
		return escapeUnseen(strconv.Quote(s))
	}
	return escapeUnseen("'" + s + "'")
}

// unseen tells of a rune that has no look of its own, or changes that of others.
func unseen(r rune) bool {
	return !unicode.IsPrint(r) || r == '\u2800' || unicode.In(r, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector)
}

// maxMarks is how many combining marks in a row are left as they are: some scripts have
// two, and more of them cover the lines around.
const maxMarks = 2

// escapeUnseen spells out what is not seen in s.
func escapeUnseen(s string) string {
	if strings.IndexFunc(s, func(r rune) bool { return r >= 0x300 }) < 0 {
		return s
	}
	var b strings.Builder
	marks := 0
	for _, r := range s {
		marks++
		if !unicode.Is(unicode.M, r) {
			marks = 0
		}
		switch {
		case !unseen(r) && marks <= maxMarks:
			b.WriteRune(r)
		case r < 0x10000:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			fmt.Fprintf(&b, `\U%08x`, r)
		}
	}
	return b.String()
}
