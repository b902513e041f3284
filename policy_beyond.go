package main

import (
	"slices"
	"strings"
)

// What the Python policy does not look at: events of types that it does not know, and
// properties of others. These findings say that they are beyond it.

// controlSockets are those by which somebody else can be made to act: container
// runtimes, init, message buses, agents that hold keys, and screens.
var controlSockets = wildcards(
	"*/docker.sock",
	"*/containerd/containerd.sock*",
	"*/crio/crio.sock",
	"*/podman/podman.sock",
	"*/lxd/unix.socket",
	"*/snapd.socket",
	"*/libvirt/*sock*",
	"*/systemd/private",
	"*/systemd/io.systemd*",
	"*/dbus/system_bus_socket",
	"/run/user/*/bus",
	"*/S.gpg-agent*",
	"*/ssh-*/agent.*",
	"*/keyring*/*",
	"*/.X11-unix/*",
	"/run/user/*/wayland-*",
)

func wildcards(patterns ...string) (ws []wildcard) {
	for _, p := range patterns {
		ws = append(ws, newWildcard(p))
	}
	return ws
}

func matchAny(ws []wildcard, s string) bool {
	return slices.ContainsFunc(ws, func(w wildcard) bool { return w.match(s) })
}

// beyond finds what the Python policy does not. What it has found comes first.
func (e *evaluator) beyond(typ string, ev *policyEvent) error {
	known := len(e.findings)
	err := e.beyondTypes(typ, ev)
	for i := range e.findings[known:] {
		e.findings[known+i].beyond = true
	}
	return err
}

// afterCall finds that an event in which there is a finding comes after its call.
func (e *evaluator) afterCall(typ string, ev *policyEvent) {
	if len(e.findings) > 0 && fieldText(ev.originCallID, "") != "" && fieldText(ev.callID, "") == "" {
		e.findings = append(e.findings, finding{"runtime.after_call", "high", typ + " outside of the call that it comes from", true})
	}
}

func (e *evaluator) beyondTypes(typ string, ev *policyEvent) error {
	call := fieldText(ev.call, typ)
	switch typ {
	case "exec":
		if ev.fileless != nil && pythonTrue(ev.fileless) {
			e.add("runtime.fileless_exec", "critical", "program without a file executed: "+fieldText(ev.exe, "<unknown>"))
		}
	case "unix_connect":
		if path := fieldText(ev.path, ""); matchAny(controlSockets, strings.TrimPrefix(path, "@")) {
			e.add("runtime.control_socket", "critical", "control socket contacted: "+path)
		}
	case "socket_connect":
		if family := fieldText(ev.family, ""); family == "vsock" {
			e.add("runtime.net_other", "medium", "connection to another machine by vsock: "+fieldText(ev.dst, "<unknown>"))
		}
	case "dns":
		name := fieldText(ev.name, "")
		if name != "" && ev.response == nil && !matchAny(e.net, name) {
			e.add("runtime.dns", "low", "name asked for: "+name)
		}
	case "file_open":
		// The memory of another process; its own is nobody's concern.
		path := fieldText(ev.path, "")
		if pid, ok := strings.CutSuffix(path, "/mem"); ok && strings.HasPrefix(pid, "/proc/") && writes(ev) {
			if pid, _, _ := strings.Cut(pid[len("/proc/"):], "/"); pid != fieldText(ev.pid, "") {
				e.add("runtime.inject", "critical", "memory of process "+pid+" opened for write")
			}
		}
	case "process_vm_write":
		e.add("runtime.inject", "critical", "memory of process "+fieldText(ev.targetPID, "<unknown>")+" written")
	case "pidfd_getfd":
		e.add("runtime.inject", "critical", "descriptor taken from process "+fieldText(ev.targetPID, "<unknown>"))
	case "signal":
		e.add("runtime.signal", "medium", "signal "+fieldText(ev.signal, "<unknown>")+" to process "+fieldText(ev.targetPID, "<unknown>")+", which is not the server's")
	case "setuid":
		id := fieldText(ev.id, "<unknown>")
		severity := "medium"
		if id == "0" {
			severity = "high"
		}
		e.add("runtime.privilege", severity, call+" to "+id)
	case "namespace":
		e.add("runtime.namespace", "medium", "namespace changed by "+call)
	case "mount":
		e.add("runtime.mount", "high", call+" of "+fieldText(ev.path, "<unknown>"))
	case "module_load":
		e.add("runtime.kernel", "critical", call+" of "+fieldText(ev.path, fieldText(ev.name, "<unknown>")))
	case "bpf":
		e.add("runtime.kernel", "high", "bpf command "+fieldText(ev.cmd, "<unknown>"))
	case "file_truncate":
		return e.change(ev, "runtime.fs_truncate", "high", "file truncated outside allowed paths: ", "")
	case "file_chown":
		return e.change(ev, "runtime.fs_chown", "medium", "owner changed outside allowed paths: ", "")
	case "file_xattr":
		return e.change(ev, "runtime.fs_xattr", "medium", "attribute changed outside allowed paths: ", "")
	case "mknod":
		return e.change(ev, "runtime.fs_mknod", "high", "node made outside allowed paths: ", "")
	}
	return nil
}
