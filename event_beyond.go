//go:build linux && (amd64 || arm64)

package main

import (
	"encoding/binary"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// appendBeyond writes the fields of the event types beyond the drop-in set. Where one
// type stands for several system calls, call says which it was.
func (e *kernelEvent) appendBeyond(l *line) {
	h := &e.header
	switch e.kind() {
	case probeKindKIND_DNS:
		e.appendDNS(l)
	case probeKindKIND_TRUNCATE:
		e.appendPath(l)
		l.int("length", int64(h.Value[0]|h.Value[1]<<32)) // the second is there in 32-bit calls
	case probeKindKIND_CHOWN:
		e.appendPath(l)
		l.int("owner", int64(int32(h.Value[0])))
		l.int("group", int64(int32(h.Value[1])))
	case probeKindKIND_XATTR:
		l.str("call", syscallName(h.Call))
		e.appendPath(l)
		l.text("name", e.sections[probeTagTAG_NAME2].data)
	case probeKindKIND_MKNOD:
		e.appendPath(l)
		l.str("mode", strconv.FormatUint(h.Value[0]&0o177777, 8))
		l.str("device", strconv.FormatUint(uint64(unix.Major(h.Value[1])), 10)+":"+strconv.FormatUint(uint64(unix.Minor(h.Value[1])), 10))
	case probeKindKIND_MOUNT:
		e.appendMount(l)
	case probeKindKIND_MEMFD:
		l.text("name", e.sections[probeTagTAG_NAME2].data)
	case probeKindKIND_VM_WRITE:
		l.int("target_pid", int64(int32(h.Value[0])))
	case probeKindKIND_PIDFD_GETFD:
		l.int("target_pid", int64(h.Value[2]))
		l.int("target_fd", int64(int32(h.Value[0])))
	case probeKindKIND_SIGNAL:
		l.str("signal", signalName(h.Value[1]))
		l.int("target_pid", int64(int32(h.Value[0])))
	case probeKindKIND_SETUID:
		l.str("call", syscallName(h.Call))
		l.int("id", int64(int32(h.Value[0])))
	case probeKindKIND_NAMESPACE:
		l.str("call", syscallName(h.Call))
		if e.sections[probeTagTAG_PATH].set {
			e.appendPath(l)
		}
		l.str("flags", namespaceFlags(h.Value[0]))
	case probeKindKIND_MODULE:
		l.str("call", syscallName(h.Call))
		if e.sections[probeTagTAG_PATH].set {
			e.appendPath(l)
		}
		if name := &e.sections[probeTagTAG_NAME2]; name.set {
			l.text("name", name.data)
		}
	case probeKindKIND_BPF:
		l.int("cmd", int64(int32(h.Value[0])))
	case probeKindKIND_UNIX_CONNECT:
		e.path = e.unixPath(e.path[:0])
		l.text("path", e.path)
	case probeKindKIND_SOCKET_CONNECT:
		e.appendFamily(l)
	case probeKindKIND_ACCEPT:
		l.str("proto", protocolName(uint16(h.Value[0])))
		if addr := e.addr(); addr.IsValid() {
			l.str("src", addr.String())
		}
		l.int("fd", int64(int32(h.Value[1])))
	}
}

// appendMount writes what is mounted where, or unmounted.
func (e *kernelEvent) appendMount(l *line) {
	name := syscallName(e.header.Call)
	l.str("call", name)
	switch name {
	case "move_mount":
		e.path = e.join(e.path[:0], probeTagTAG_NAME2)
		l.text("path", e.path)
		e.other = e.join(e.other[:0], probeTagTAG_NAME)
		l.text("source", e.other)
		return
	case "pivot_root":
		e.other = e.join(e.other[:0], probeTagTAG_NAME2)
		e.appendPath(l)
		l.text("old_path", e.other)
		return
	}
	e.appendPath(l)
	if source := &e.sections[probeTagTAG_NAME2]; source.set && source.flags&probeSectionFlagSECTION_UNREADABLE == 0 {
		l.text("source", source.data)
	}
}

// appendFamily writes an address that is neither of IP nor of UNIX: its family, and
// what can be told of it for the two that programs talk to each other with.
func (e *kernelEvent) appendFamily(l *line) {
	data := e.sections[probeTagTAG_ADDR].data
	if len(data) < 2 {
		return
	}
	family := binary.NativeEndian.Uint16(data)
	name, ok := addressFamilies[family]
	if !ok {
		name = "family-" + strconv.Itoa(int(family))
	}
	l.str("family", name)
	word := func(at int) string {
		return strconv.FormatUint(uint64(binary.NativeEndian.Uint32(data[at:])), 10)
	}
	switch {
	case family == unix.AF_VSOCK && len(data) >= 12:
		l.str("dst", word(8)+":"+word(4)) // context id and port, as vsock(7) has them
	case family == unix.AF_NETLINK && len(data) >= 12:
		l.str("dst", word(4)) // port id; the kernel's is 0 (netlink(7))
	}
}

// addressFamilies names them as address_families(7) does, less AF_ and in small letters.
var addressFamilies = map[uint16]string{
	unix.AF_NETLINK:   "netlink",
	unix.AF_PACKET:    "packet",
	unix.AF_VSOCK:     "vsock",
	unix.AF_BLUETOOTH: "bluetooth",
	unix.AF_ALG:       "alg",
	unix.AF_CAN:       "can",
	unix.AF_TIPC:      "tipc",
	unix.AF_KCM:       "kcm",
	unix.AF_XDP:       "xdp",
	unix.AF_PPPOX:     "pppox",
	unix.AF_RDS:       "rds",
	unix.AF_QIPCRTR:   "qipcrtr",
	unix.AF_SMC:       "smc",
	unix.AF_MCTP:      "mctp",
}

// unixPath appends the address of a UNIX socket (unix(7)): a path, made absolute, or
// an abstract name behind an @.
func (e *kernelEvent) unixPath(buf []byte) []byte {
	data := e.sections[probeTagTAG_ADDR].data
	if len(data) <= 2 {
		return buf
	}
	if name := data[2:]; name[0] == 0 {
		return append(append(buf, '@'), name[1:]...)
	}
	dir := &e.sections[probeTagTAG_DIR]
	name := cString(data[2:])
	if dir.set && dir.flags == 0 && len(dir.data) > 0 {
		buf = appendNames(buf, dir.data)
	}
	if name[0] != '/' {
		buf = append(buf, '/')
	}
	return append(buf, name...)
}

func signalName(number uint64) string {
	if name := unix.SignalName(syscall.Signal(number)); name != "" {
		return name
	}
	return strconv.FormatUint(number, 10)
}

// namespaceFlags spells the flags of unshare(2) and setns(2).
func namespaceFlags(flags uint64) string {
	var names []string
	for _, f := range []struct {
		bit  uint64
		name string
	}{
		{unix.CLONE_NEWNS, "CLONE_NEWNS"},
		{unix.CLONE_NEWUTS, "CLONE_NEWUTS"},
		{unix.CLONE_NEWIPC, "CLONE_NEWIPC"},
		{unix.CLONE_NEWUSER, "CLONE_NEWUSER"},
		{unix.CLONE_NEWPID, "CLONE_NEWPID"},
		{unix.CLONE_NEWNET, "CLONE_NEWNET"},
		{unix.CLONE_NEWCGROUP, "CLONE_NEWCGROUP"},
		{unix.CLONE_NEWTIME, "CLONE_NEWTIME"},
		{unix.CLONE_FS, "CLONE_FS"},
		{unix.CLONE_FILES, "CLONE_FILES"},
		{unix.CLONE_SYSVSEM, "CLONE_SYSVSEM"},
	} {
		if flags&f.bit != 0 {
			names = append(names, f.name)
			flags &^= f.bit
		}
	}
	if flags != 0 || len(names) == 0 {
		names = append(names, "0x"+strconv.FormatUint(flags, 16))
	}
	return strings.Join(names, "|")
}
