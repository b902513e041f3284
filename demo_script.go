package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
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
		Trigger string   `json:"trigger"`
		Tool    string   `json:"tool"`
		Event   demoLine `json:"event"`
	}
	var script []entry
	in := func(tool string, events ...demoLine) {
		for _, e := range events {
			script = append(script, entry{"begin", tool, e})
		}
	}
	// shell is what starting one looks like.
	shell := func(pid int, args ...string) []demoLine {
		return []demoLine{
			{Type: "process_spawn", ChildPid: pid},
			{Type: "exec", Pid: pid, Argv: append([]string{"/bin/sh", "-c"}, args...)},
			{Type: "file_open", Pid: pid, Path: "/etc/ld.so.cache", Flags: "O_RDONLY|O_CLOEXEC"},
			{Type: "file_open", Pid: pid, Path: "/usr/lib/x86_64-linux-gnu/libc.so.6", Flags: "O_RDONLY|O_CLOEXEC"},
		}
	}
	in("run_command", shell(pid+1, echoScript, "sh", demoArguments["command"])...)
	in("read_secret", demoLine{Type: "file_open", Path: demoSecret(dir), Flags: "O_RDONLY|O_CLOEXEC"})
	in("drop_file",
		demoLine{Type: "file_open", Path: demoDrop(dir), Flags: "O_WRONLY|O_CREAT|O_TRUNC|O_CLOEXEC"},
		demoLine{Type: "chmod", Path: demoDrop(dir), Mode: "755"},
		demoLine{Type: "file_delete", Path: demoDrop(dir)})
	in("send_beacon",
		demoLine{Type: "connect", Proto: "udp", Dst: beaconUDP},
		demoLine{Type: "connect", Proto: "tcp", Dst: beaconTCP})
	in("trace_process", demoLine{Type: "ptrace", RequestName: "PTRACE_ATTACH", TargetPid: pid, Errno: "EPERM"})
	in("start_background", shell(pid+2, lateScript, "sh", demoLate(dir))...)
	// Nothing can set off an event that comes when a call has ended, so this one says
	// itself that it did.
	script = append(script, entry{"end", "start_background", demoLine{
		Type: "file_open", Bucket: "ambient", Origin: strconv.Itoa(len(demoTools)),
		Pid: pid + 2, Path: demoLate(dir), Flags: "O_WRONLY|O_CREAT|O_TRUNC",
	}})
	return json.Marshal(script)
}
