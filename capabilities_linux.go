package main

import (
	"errors"
	"fmt"
	"syscall"
	"unsafe"

	"github.com/cilium/ebpf/features"
	"golang.org/x/sys/unix"
)

// bpfByDescriptor is Linux 5.19 (KERNEL_VERSION). From then on, whoever has a program's
// or a map's descriptor may use it without CAP_BPF (commit c8644cd0efe7).
const bpfByDescriptor = 5<<16 | 19<<8

// dropCapabilities gives up, in all threads, what is not needed when everything is
// attached. CAP_KILL is: the server may belong to another user. And so is
// CAP_DAC_READ_SEARCH, to see where paths lead in folders of others.
func dropCapabilities() error {
	keep := []uint{unix.CAP_KILL, unix.CAP_DAC_READ_SEARCH}
	if version, err := features.LinuxVersionCode(); err != nil || version < bpfByDescriptor {
		keep = append(keep, unix.CAP_BPF, unix.CAP_PERFMON)
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var has, data [2]unix.CapUserData
	if err := unix.Capget(&header, &has[0]); err != nil {
		return fmt.Errorf("drop capabilities: %w", err)
	}
	for _, c := range keep {
		bit := uint32(1) << (c % 32)
		data[c/32].Permitted |= has[c/32].Permitted & bit
		data[c/32].Effective |= has[c/32].Permitted & bit
	}
	_, _, errno := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&data[0])), 0)
	if errors.Is(errno, syscall.ENOTSUP) {
		return nil // this was built with cgo, which the threads may belong to
	} else if errno != 0 {
		return fmt.Errorf("drop capabilities: %w", errno)
	}
	return nil
}
