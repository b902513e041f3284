//go:build linux && (amd64 || arm64)

package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// attach puts the programs on their hooks.
func (o *kernelObjects) attach() error {
	for _, h := range o.hooks {
		l, err := attachHook(h.program, tracepoints[h.name])
		if err != nil {
			return fmt.Errorf("attach %s: %w", h.name, err)
		}
		o.links = append(o.links, l)
	}
	for _, p := range o.paths {
		if p == nil {
			break
		}
		l, err := link.AttachTracing(link.TracingOptions{Program: p})
		if err == nil {
			o.links = append(o.links, l)
		}
	}
	return o.attachCgroups()
}

// attachCgroups puts the programs on cgroups on the root of cgroup v2. Where there is
// none, or this process may not, where messages go is read from their senders' memory.
func (o *kernelObjects) attachCgroups() error {
	root, err := cgroupRoot()
	if err != nil || root == "" || slices.Contains(o.cgroups, nil) {
		return err
	}
	for i, attach := range []ebpf.AttachType{ebpf.AttachCGroupUDP4Sendmsg, ebpf.AttachCGroupUDP6Sendmsg} {
		l, err := link.AttachCgroup(link.CgroupOptions{Path: root, Attach: attach, Program: o.cgroups[i]})
		if err != nil {
			return notSupported(fmt.Errorf("attach %s to %s: %w", cgroupNames[i], root, err))
		}
		o.links = append(o.links, l)
	}
	return o.UdpHooked.Set(true)
}

// cgroupRoot returns where cgroup v2 is mounted; it is empty if that is nowhere.
func cgroupRoot() (string, error) {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "", fmt.Errorf("find cgroup v2: %w", err)
	}
	for mount := range strings.Lines(string(mounts)) {
		// Before the dash: id, parent, device, root, mount point; after it: type (proc_pid_mountinfo(5)).
		before, after, _ := strings.Cut(mount, " - ")
		if fields := strings.Fields(before); strings.HasPrefix(after, "cgroup2 ") && len(fields) > 4 && fields[3] == "/" {
			return octal.Replace(fields[4]), nil
		}
	}
	return "", nil
}

// octal undoes what the kernel does to mount points for mountinfo.
var octal = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

// tracepoints has the names of those that programs of that type go to, newest first.
// Programs of the other type have theirs from the kernel's types.
var tracepoints = map[string][]string{
	probeProgOnUringSubmit:   {"io_uring_submit_req", "io_uring_submit_sqe"},
	probeProgOnUringComplete: {"io_uring_complete"},
}

func attachHook(p *ebpf.Program, names []string) (l link.Link, err error) {
	if len(names) == 0 {
		return link.AttachTracing(link.TracingOptions{Program: p})
	}
	for _, name := range names {
		l, err = link.AttachRawTracepoint(link.RawTracepointOptions{Name: name, Program: p})
		if !errors.Is(err, os.ErrNotExist) {
			break
		}
	}
	return l, err
}

// Close detaches and frees everything.
func (o *kernelObjects) Close() (err error) {
	for _, l := range o.links {
		err = errors.Join(err, l.Close())
	}
	for _, h := range o.hooks {
		err = errors.Join(err, h.program.Close())
	}
	for _, p := range slices.Concat(o.cgroups, o.paths, []*ebpf.Program{o.introduce, o.mark, o.takeIn}) {
		err = errors.Join(err, p.Close())
	}
	if o.ring != nil {
		err = errors.Join(err, o.ring.Close())
	}
	for _, m := range []*ebpf.Map{o.events, o.Tasks, o.Scratches, o.Sending, o.Bss} {
		err = errors.Join(err, m.Close())
	}
	return err
}
