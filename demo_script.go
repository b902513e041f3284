package main

import (
	"encoding/json"
	"errors"
	"fmt"
)

// demoBackend returns the backend to use. If that is the fake one since eBPF cannot
// be had, missing says why.
func demoBackend(name, dir string, pid int) (b backend, missing, err error) {
	switch name {
	case "ebpf":
		b, err = newBackend("ebpf", "", 16<<20)
		return b, nil, err
	case "auto":
		b, missing = newBackend("ebpf", "", 16<<20)
		if missing == nil {
			return b, nil, nil
		}
		if !errors.As(missing, new(unavailable)) {
			return nil, nil, fmt.Errorf("%w; --backend fake shows what the demo would", missing)
		}
	case "fake":
	default:
		return nil, nil, usageError{fmt.Errorf("unknown backend %q, want ebpf, fake or auto", name)}
	}
	script, err := demoScript(dir, pid)
	if err != nil {
		return nil, nil, err
	}
	b, err = newFakeBackend(script)
	return b, missing, err
}

// demoScript is the session as the fake backend plays it: what the kernel says of
// it, as far as it can be told beforehand.
func demoScript(dir string, pid int) ([]byte, error) {
	type entry struct {
		Trigger string     `json:"trigger"`
		Tool    string     `json:"tool"`
		Origin  jsonObject `json:"origin,omitempty"`
		Event   eventLine  `json:"event"`
	}
	var script []entry
	in := func(tool string, events ...eventLine) {
		for _, e := range events {
			script = append(script, entry{Trigger: "begin", Tool: tool, Event: e})
		}
	}
	// shell is what starting one looks like.
	shell := func(pid int, args ...string) []eventLine {
		return []eventLine{
			{Type: "process_spawn", ChildPid: pid},
			{Type: "exec", Pid: pid, Argv: append([]string{"/bin/sh", "-c"}, args...)},
			{Type: "file_open", Pid: pid, Path: "/etc/ld.so.cache", Flags: "O_RDONLY|O_CLOEXEC"},
			{Type: "file_open", Pid: pid, Path: "/usr/lib/x86_64-linux-gnu/libc.so.6", Flags: "O_RDONLY|O_CLOEXEC"},
		}
	}
	in("run_command", shell(pid+1, echoScript, "sh", demoArguments["command"])...)
	in("read_secret", eventLine{Type: "file_open", Path: demoSecret(dir), Flags: "O_RDONLY|O_CLOEXEC"})
	in("drop_file",
		eventLine{Type: "file_open", Path: demoDrop(dir), Flags: "O_WRONLY|O_CREAT|O_TRUNC|O_CLOEXEC"},
		eventLine{Type: "chmod", Path: demoDrop(dir), Mode: "755"},
		eventLine{Type: "file_delete", Path: demoDrop(dir)})
	in("send_beacon",
		eventLine{Type: "connect", Proto: "udp", Dst: beaconUDP},
		eventLine{Type: "connect", Proto: "tcp", Dst: beaconTCP})
	in("trace_process", eventLine{Type: "ptrace", RequestName: "PTRACE_ATTACH", TargetPid: pid, Errno: "EPERM"})
	in("start_background", shell(pid+2, lateScript, "sh", demoLate(dir))...)
	script = append(script, entry{
		Trigger: "after", Tool: "start_background", Origin: jsonObject{"tool": "start_background", "nth": 1},
		Event: eventLine{Type: "file_open", Pid: pid + 2, Path: demoLate(dir), Flags: "O_WRONLY|O_CREAT|O_TRUNC"},
	})
	return json.Marshal(script)
}
