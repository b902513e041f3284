//go:build linux && (amd64 || arm64)

package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/features"
	"golang.org/x/sys/unix"
)

// explainEBPF says what is missing and how to get it, if that is why err happened.
func explainEBPF(err error) error {
	// Without privilege, the kernel says EPERM, or refuses parts of the program.
	if lacking := lackingCapabilities(); lacking != "" {
		return unavailable{fmt.Errorf("eBPF needs root, or CAP_BPF and CAP_PERFMON, and this process lacks %s; use sudo (%w)", lacking, err)}
	}
	switch {
	case errors.As(err, new(*verifierError)):
		return fmt.Errorf("the kernel refused a program; please report this with the kernel's version: %w", err)
	case errors.Is(err, unix.EPERM):
		return unavailable{fmt.Errorf("%w; something forbids eBPF here: a container's seccomp filter, or kernel lockdown", err)}
	case errors.Is(err, btf.ErrNotFound), errors.Is(err, os.ErrNotExist), errors.Is(err, ebpf.ErrNotSupported),
		// Linux 5.13 and older just say EINVAL.
		errors.Is(features.HaveProgramType(ebpf.Syscall), ebpf.ErrNotSupported):
		return unavailable{fmt.Errorf("%w; it needs Linux 5.15 or later with CONFIG_DEBUG_INFO_BTF", err)}
	}
	return err
}

// lackingCapabilities names what this process lacks of the capabilities for eBPF
// (capabilities(7)); it is empty if there is nothing, or if that cannot be told.
func lackingCapabilities() string {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if unix.Capget(&header, &sets[0]) != nil {
		return ""
	}
	has := func(capability int) bool { return sets[capability/32].Effective&(1<<(capability%32)) != 0 }
	var lacking []string
	if !has(unix.CAP_SYS_ADMIN) {
		if !has(unix.CAP_BPF) {
			lacking = append(lacking, "CAP_BPF")
		}
		if !has(unix.CAP_PERFMON) {
			lacking = append(lacking, "CAP_PERFMON")
		}
	}
	return strings.Join(lacking, " and ")
}

// notSupported returns nil for an error that says that this kernel does not have or
// allow something; but not for one of the verifier's.
func notSupported(err error) error {
	if errors.Is(err, ebpf.ErrNotSupported) || errors.Is(err, os.ErrPermission) && !errors.As(err, new(*verifierError)) {
		return nil
	}
	return err
}
