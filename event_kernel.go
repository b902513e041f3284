//go:build linux && (amd64 || arm64)

package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"net/netip"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A section is one part of a record's tail. data lies in the record.
type section struct {
	data  []byte
	flags probeSectionFlag
	set   bool
}

// kernelEvent is a record of the kernel side, taken apart. It is reused from
// record to record; what it holds is valid until the next decode.
type kernelEvent struct {
	header   probeEvent
	scopeUID uint32 // events by other users say so
	finished bool   // what came of it has been added; see finish
	sections [probeTagTAG_PATH2 + 1]section

	exes        exeNames
	hosts       hostNames
	message     dnsMessage
	path, other []byte   // buffers for paths
	argv        [][]byte // buffer for arguments
}

// probeMntNsNone is MNT_NS_NONE in record.bpf.h.
const probeMntNsNone = 1

const (
	headerLen  = int(unsafe.Sizeof(probeEvent{}))
	sectionLen = int(unsafe.Sizeof(probeSection{}))
)

// decode takes a record apart. A record that is not whole is an error; it then
// says nothing.
func (e *kernelEvent) decode(raw []byte) error {
	if len(raw) < headerLen {
		return fmt.Errorf("record of %d bytes is shorter than its header", len(raw))
	}
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&e.header)), headerLen), raw)
	e.sections, e.finished = [len(e.sections)]section{}, false
	tail := raw[headerLen:]
	if n := int(e.header.Len); n <= len(tail) {
		tail = tail[:n] // the ring rounds sizes up
	} else {
		return fmt.Errorf("record has a tail of %d bytes instead of %d", len(tail), n)
	}
	for len(tail) > 0 {
		if len(tail) < sectionLen {
			return fmt.Errorf("%d bytes after the last section", len(tail))
		}
		tag, flags := int(tail[0]), probeSectionFlag(tail[1])
		n := int(binary.NativeEndian.Uint16(tail[2:]))
		tail = tail[sectionLen:]
		if tag == 0 || tag >= len(e.sections) {
			return fmt.Errorf("section with unknown tag %d", tag)
		}
		if n > len(tail) {
			return fmt.Errorf("section %d has %d of %d bytes", tag, len(tail), n)
		}
		e.sections[tag] = section{data: tail[:n], flags: flags, set: true}
		tail = tail[min((n+3)&^3, len(tail)):]
	}
	return nil
}

func (e *kernelEvent) kind() probeKind { return probeKind(e.header.Kind) }

func (e *kernelEvent) overrides() (bucket, callID []byte) { return nil, nil }

func (e *kernelEvent) typ() string {
	switch e.kind() {
	case probeKindKIND_EXEC:
		return "exec"
	case probeKindKIND_EXEC_FAILED:
		return "exec_failed"
	case probeKindKIND_SPAWN:
		if e.header.Ret < 0 && e.header.Value[0]&unix.CLONE_THREAD != 0 {
			return "" // a thread is not a process, and this one is not even a thread
		}
		return "process_spawn"
	case probeKindKIND_CONNECT:
		return "connect"
	case probeKindKIND_BIND:
		return "bind"
	case probeKindKIND_LISTEN:
		return "listen"
	case probeKindKIND_OPEN:
		return "file_open"
	case probeKindKIND_DELETE:
		return "file_delete"
	case probeKindKIND_MKDIR:
		return "file_mkdir"
	case probeKindKIND_RENAME:
		return "file_rename"
	case probeKindKIND_SYMLINK:
		return "file_symlink"
	case probeKindKIND_LINK:
		return "file_link"
	case probeKindKIND_CHMOD:
		return "chmod"
	case probeKindKIND_PTRACE:
		return "ptrace"
	case probeKindKIND_TRUNCATE:
		return "file_truncate"
	case probeKindKIND_CHOWN:
		return "file_chown"
	case probeKindKIND_XATTR:
		return "file_xattr"
	case probeKindKIND_MKNOD:
		return "mknod"
	case probeKindKIND_MOUNT:
		return "mount"
	case probeKindKIND_MEMFD:
		return "memfd_create"
	case probeKindKIND_VM_WRITE:
		return "process_vm_write"
	case probeKindKIND_PIDFD_GETFD:
		return "pidfd_getfd"
	case probeKindKIND_SIGNAL:
		return "signal"
	case probeKindKIND_SETUID:
		return "setuid"
	case probeKindKIND_NAMESPACE:
		return "namespace"
	case probeKindKIND_MODULE:
		return "module_load"
	case probeKindKIND_BPF:
		return "bpf"
	case probeKindKIND_UNIX_CONNECT:
		return "unix_connect"
	case probeKindKIND_ACCEPT:
		return "accept"
	case probeKindKIND_SOCKET_CONNECT:
		return "socket_connect"
	case probeKindKIND_URING_DONE, probeKindKIND_EXE, probeKindKIND_PATH:
		return "" // of no interest by itself
	case probeKindKIND_DNS:
		if len(e.message.questions)+len(e.message.answers) == 0 && uint16(e.header.Value[0]) == unix.IPPROTO_TCP {
			return "" // a part of a message, as its length
		}
		return "dns"
	}
	return "unknown_" + strconv.Itoa(int(e.header.Kind))
}

// append writes the event's own fields. What each of them means, and whether the
// kernel or the caller says so, is in the README.
func (e *kernelEvent) append(l *line) {
	h := &e.header
	l.int("pid", int64(h.Pid))
	if h.Tid != h.Pid {
		l.int("tid", int64(h.Tid))
	}
	if h.Ppid != 0 {
		l.int("ppid", int64(h.Ppid)) // zero for a parent in another pid namespace
	}
	l.text("comm", cString(h.Comm[:]))
	if exe := e.exes.name(h.Exe); exe != nil && e.kind() != probeKindKIND_EXEC {
		l.text("exe", exe)
	}
	if h.Uid != e.scopeUID {
		l.int("uid", int64(h.Uid))
	}
	switch h.MntNs {
	case 0:
	case probeMntNsNone:
		l.bool("detached_mount", true)
	default:
		l.int("mnt_ns", int64(h.MntNs))
	}
	switch e.kind() {
	case probeKindKIND_EXEC:
		e.appendExec(l)
		return
	case probeKindKIND_SPAWN:
		if h.Ret >= 0 {
			l.int("child_pid", int64(h.Value[0]))
		}
	case probeKindKIND_EXEC_FAILED, probeKindKIND_DELETE, probeKindKIND_MKDIR:
		e.appendPath(l)
	case probeKindKIND_OPEN:
		e.appendPath(l)
		l.str("flags", openFlags(h.Value[0]&math.MaxUint32)) // an int, whatever the register holds
		if e.sections[probeTagTAG_PATH].set && h.Ret >= 0 {
			// The kernel has 20 bits for the minor number (linux/kdev_t.h).
			l.str("dev", strconv.FormatUint(h.Value[1]>>20, 10)+":"+strconv.FormatUint(h.Value[1]&0xfffff, 10))
			l.int("ino", int64(h.Value[2]))
		}
	case probeKindKIND_CHMOD:
		e.appendPath(l)
		l.str("mode", strconv.FormatUint(h.Value[0]&0o7777, 8))
	case probeKindKIND_RENAME, probeKindKIND_LINK:
		if old := &e.sections[probeTagTAG_PATH2]; old.set && old.flags&probeSectionFlagSECTION_UNREADABLE == 0 {
			e.path = appendNames(e.path[:0], e.sections[probeTagTAG_PATH].data)
			e.other = appendNames(e.other[:0], old.data)
		} else {
			e.path = e.join(e.path[:0], probeTagTAG_NAME2)
			e.other = e.join(e.other[:0], probeTagTAG_NAME)
		}
		l.text("path", e.path)
		l.text("old_path", e.other)
		e.appendRequested(l, "requested", probeTagTAG_NAME2, e.path)
		e.appendRequested(l, "old_requested", probeTagTAG_NAME, e.other)
		if flags := h.Value[0] & math.MaxUint32; flags != 0 && e.kind() == probeKindKIND_RENAME {
			l.str("flags", flagNames(flags, renameFlags))
		}
	case probeKindKIND_SYMLINK:
		e.appendPath(l)
		l.text("target", e.sections[probeTagTAG_NAME2].data)
	case probeKindKIND_CONNECT:
		e.appendAddr(l)
		if host := e.hosts.lookup(e.addr().Addr()); host != nil {
			l.text("host", host)
		}
	case probeKindKIND_BIND:
		e.appendAddr(l)
		l.int("fd", int64(int32(h.Value[1])))
	case probeKindKIND_LISTEN:
		e.appendAddr(l)
		l.int("fd", int64(int32(h.Value[1])))
		l.int("backlog", int64(int32(h.Value[2])))
	case probeKindKIND_PTRACE:
		l.int("request", int64(h.Value[0]))
		if name, ok := ptraceRequests[h.Value[0]]; ok {
			l.str("request_name", name)
		}
		l.int("target_pid", int64(int32(h.Value[1])))
	default:
		e.appendBeyond(l)
	}
	if h.Call&probeCallUring != 0 {
		l.bool("io_uring", true)
	}
	if h.Flags&uint16(probeEventFlagEVENT_RACED) != 0 && !e.sections[probeTagTAG_PATH].set {
		l.bool("raced", true)
	}
	if e.pending() {
		l.bool("pending", true)
	} else if h.Ret < 0 && h.Ret > -4096 {
		l.str("errno", errnoName(h.Ret))
	}
	e.appendTruncated(l)
}

func (e *kernelEvent) appendTruncated(l *line) {
	for _, s := range e.sections {
		if s.flags&probeSectionFlagSECTION_CUT != 0 {
			l.bool("truncated", true)
			return
		}
	}
}

// errnoName names the error in a negative result. The kernel's private
// ERESTART… codes stand for a call that a signal has interrupted; whether it is
// started again, as a call of its own, is decided after its exit.
func errnoName(ret int64) string {
	switch -ret {
	case 512, 513, 514, 516: // include/linux/errno.h
		return "EINTR"
	case int64(unix.EOPNOTSUPP): // ErrnoName has it under glibc's other name
		return "EOPNOTSUPP"
	}
	if name := unix.ErrnoName(syscall.Errno(-ret)); name != "" {
		return name
	}
	return strconv.FormatInt(-ret, 10)
}

// ptraceRequests names the requests with which one process gets hold of another.
var ptraceRequests = map[uint64]string{
	unix.PTRACE_TRACEME:  "PTRACE_TRACEME",
	unix.PTRACE_ATTACH:   "PTRACE_ATTACH",
	unix.PTRACE_SEIZE:    "PTRACE_SEIZE",
	unix.PTRACE_POKETEXT: "PTRACE_POKETEXT",
	unix.PTRACE_POKEDATA: "PTRACE_POKEDATA",
}

// appendPath writes the path of the one file that the event is about: the
// kernel's, if there is one, else the caller's name joined to where it starts.
func (e *kernelEvent) appendPath(l *line) {
	if s := &e.sections[probeTagTAG_PATH]; s.set {
		e.path = e.path[:0]
		switch {
		case s.flags&probeSectionFlagSECTION_UNREADABLE != 0:
		case e.kind() == probeKindKIND_OPEN && len(s.data) > 0 && (s.data[0] == 0 || s.data[0] == '/'):
			e.path = e.appendNameless(e.path)
		default:
			e.path = appendNames(e.path, s.data)
		}
	} else {
		e.path = e.join(e.path[:0], probeTagTAG_NAME)
	}
	l.text("path", e.path)
	e.appendRequested(l, "requested", probeTagTAG_NAME, e.path)
}

// appendNameless appends what stands for the path of an open file that is in no
// directory and has no name, as a pipe that is opened again through /proc: what
// readlink(2) says of its descriptor there.
func (e *kernelEvent) appendNameless(buf []byte) []byte {
	kind := "inode:["
	if e.header.Flags&unix.S_IFMT == unix.S_IFIFO {
		kind = "pipe:["
	}
	buf = append(buf, kind...)
	return append(strconv.AppendUint(buf, e.header.Value[2], 10), ']')
}

// appendRequested writes the caller's spelling where it differs from the path.
func (e *kernelEvent) appendRequested(l *line, key string, tag probeTag, path []byte) {
	if s := &e.sections[tag]; s.set && s.flags&probeSectionFlagSECTION_UNREADABLE == 0 && !bytes.Equal(s.data, path) {
		l.text(key, s.data)
	}
}

// join appends the name in the section tag, made absolute with the directory in
// the section after it. It drops what cannot matter ("." and doubled slashes) and
// keeps "..", since what comes before it may be a symbolic link.
func (e *kernelEvent) join(buf []byte, tag probeTag) []byte {
	name, dir := &e.sections[tag], &e.sections[tag+1]
	if name.flags&probeSectionFlagSECTION_UNREADABLE != 0 {
		return buf // the kernel could not read it either, or it was gone since
	}
	if !name.set || !dir.set || dir.flags&probeSectionFlagSECTION_UNREADABLE != 0 {
		return append(buf, name.data...) // from a descriptor that is none
	}
	if len(dir.data) > 0 {
		buf = appendNames(buf, dir.data)
	}
	atRoot := bytes.HasPrefix(name.data, []byte{'/'})
	for rest := name.data; len(rest) > 0; {
		var part []byte
		part, rest, _ = bytes.Cut(rest, []byte{'/'})
		if len(part) == 0 || string(part) == "." || atRoot && string(part) == ".." {
			continue // above a process's root there is the root itself
		}
		atRoot = false
		buf = append(append(buf, '/'), part...)
	}
	if len(buf) == 0 {
		buf = append(buf, '/')
	}
	return buf
}

// appendNames appends the path whose names data holds from the last to the first,
// each with a NUL behind it.
func appendNames(buf, data []byte) []byte {
	if len(data) == 0 {
		return append(buf, '/')
	}
	for len(data) > 0 {
		data = bytes.TrimSuffix(data, []byte{0})
		i := bytes.LastIndexByte(data, 0) + 1
		buf = append(append(buf, '/'), data[i:]...)
		data = data[:i]
	}
	return buf
}

func (e *kernelEvent) appendExec(l *line) {
	h, args := &e.header, &e.sections[probeTagTAG_ARGV]
	name := e.sections[probeTagTAG_NAME].data
	script := h.Flags&uint16(probeEventFlagEVENT_SCRIPT) != 0
	e.other = appendNames(e.other[:0], e.sections[probeTagTAG_PATH].data) // exe

	if rest, byDescriptor := bytes.CutPrefix(name, []byte("/dev/fd/")); byDescriptor && !script {
		e.path = append(e.path[:0], e.other...) // fexecve has no name to give
	} else if dir := &e.sections[probeTagTAG_DIR]; byDescriptor && dir.set && dir.flags == 0 {
		// Of a script the kernel has the descriptor of its folder, or its own.
		e.path = appendNames(e.path[:0], dir.data)
		if _, rest, ok := bytes.Cut(rest, []byte("/")); ok {
			e.path = append(append(e.path, '/'), rest...)
		}
	} else {
		e.path = e.join(e.path[:0], probeTagTAG_NAME)
	}

	e.argv = splitStrings(e.argv[:0], args.data)
	var argv0 []byte
	if script {
		// The kernel has put the interpreter, its argument and the script's name in
		// the place of the caller's argv[0], once for each interpreter.
		for i, arg := range e.argv {
			if bytes.Equal(arg, name) {
				e.argv = append(e.argv[:0], e.argv[i:]...)
				break
			}
		}
	} else if len(e.argv) > 0 {
		argv0 = e.argv[0]
	}
	if len(e.argv) == 0 {
		e.argv = append(e.argv, nil)
	}
	e.argv[0] = e.path

	l.texts("argv", e.argv)
	l.text("exe", e.other)
	l.text("path", e.path)
	if argv0 != nil && !bytes.Equal(argv0, e.path) {
		l.text("argv0", argv0)
	}
	e.appendRequested(l, "requested", probeTagTAG_NAME, e.path)
	if h.Flags&uint16(probeEventFlagEVENT_FILELESS) != 0 {
		l.bool("fileless", true)
	}
	if args.flags == 0 {
		e.appendTruncated(l)
		return
	}
	l.bool("truncated", true)
	l.int("argc", int64(h.Value[0]))
}

// learn keeps what later events need: the path of a program that has been started or
// was told of, and the addresses that a server of names has given.
// It returns whether there are too many programs.
func (e *kernelEvent) learn() (full bool) {
	switch s := &e.sections[probeTagTAG_PATH]; e.kind() {
	case probeKindKIND_EXEC, probeKindKIND_EXE:
		if s.set && s.flags&probeSectionFlagSECTION_UNREADABLE == 0 {
			return e.exes.set(e.header.Exe, appendNames(nil, s.data))
		}
	case probeKindKIND_DNS:
		e.learnNames()
	}
	return false
}

// splitStrings appends the strings in data, each with a NUL behind it but for a
// last one that was cut.
func splitStrings(list [][]byte, data []byte) [][]byte {
	for len(data) > 0 {
		var s []byte
		s, data, _ = bytes.Cut(data, []byte{0})
		list = append(list, s)
	}
	return list
}

// appendAddr writes the protocol of the event's socket and its address, if it has
// one.
func (e *kernelEvent) appendAddr(l *line) {
	if v := e.header.Value[0]; v != 0 {
		l.str("proto", protocolName(uint16(v)))
	}
	if addr := e.addr(); addr.IsValid() {
		l.str("dst", addr.String())
	}
}

// addr decodes the event's struct sockaddr. An IPv4 address in IPv6 clothes is
// shown as what goes over the wire.
func (e *kernelEvent) addr() netip.AddrPort {
	data := e.sections[probeTagTAG_ADDR].data
	if len(data) < 2 {
		return netip.AddrPort{}
	}
	switch family := binary.NativeEndian.Uint16(data); {
	case family == unix.AF_INET && len(data) >= 8:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(data[4:])), binary.BigEndian.Uint16(data[2:]))
	case family == unix.AF_INET6 && len(data) >= 24:
		return netip.AddrPortFrom(netip.AddrFrom16([16]byte(data[8:])).Unmap(), binary.BigEndian.Uint16(data[2:]))
	}
	return netip.AddrPort{}
}

// protocolName names an IP protocol as getprotobynumber(3) does.
func protocolName(number uint16) string {
	switch number {
	case unix.IPPROTO_TCP:
		return "tcp"
	case unix.IPPROTO_UDP:
		return "udp"
	case unix.IPPROTO_ICMP:
		return "icmp"
	case unix.IPPROTO_ICMPV6:
		return "icmpv6"
	case unix.IPPROTO_SCTP:
		return "sctp"
	case unix.IPPROTO_UDPLITE:
		return "udplite"
	case unix.IPPROTO_MPTCP:
		return "mptcp"
	case unix.IPPROTO_RAW:
		return "raw"
	}
	return "ip-" + strconv.Itoa(int(number))
}

// renameFlags are those of renameat2(2).
var renameFlags = []flagName{
	{unix.RENAME_NOREPLACE, "RENAME_NOREPLACE"},
	{unix.RENAME_EXCHANGE, "RENAME_EXCHANGE"},
	{unix.RENAME_WHITEOUT, "RENAME_WHITEOUT"},
}

// A flagName is what one or more bits are called.
type flagName struct {
	bits uint64
	name string
}

// flagNames spells flags, of which there is at least one; those without a name as a number.
func flagNames(flags uint64, names []flagName) string {
	var b []byte
	for _, f := range names {
		if flags&f.bits == f.bits {
			b = append(append(b, '|'), f.name...)
			flags &^= f.bits
		}
	}
	if flags != 0 {
		b = strconv.AppendUint(append(b, "|0x"...), flags, 16)
	}
	return string(b[1:])
}

// openFlags spells the flags of open(2), access mode first.
func openFlags(flags uint64) string {
	access := [...]string{"O_RDONLY", "O_WRONLY", "O_RDWR", "O_ACCMODE"}[flags&unix.O_ACCMODE]
	if flags &^= unix.O_ACCMODE | largeFile; flags == 0 {
		return access
	}
	return access + "|" + flagNames(flags, openFlagNames)
}

// openFlagNames has flags that contain another one before it.
var openFlagNames = []flagName{
	{unix.O_CREAT, "O_CREAT"},
	{unix.O_EXCL, "O_EXCL"},
	{unix.O_TRUNC, "O_TRUNC"},
	{unix.O_APPEND, "O_APPEND"},
	{unix.O_TMPFILE, "O_TMPFILE"},
	{unix.O_DIRECTORY, "O_DIRECTORY"},
	{unix.O_NOFOLLOW, "O_NOFOLLOW"},
	{unix.O_PATH, "O_PATH"},
	{unix.O_CLOEXEC, "O_CLOEXEC"},
	{unix.O_NONBLOCK, "O_NONBLOCK"},
	{unix.O_SYNC, "O_SYNC"},
	{unix.O_DSYNC, "O_DSYNC"},
	{unix.O_ASYNC, "O_ASYNC"},
	{unix.O_DIRECT, "O_DIRECT"},
	{unix.O_NOATIME, "O_NOATIME"},
	{unix.O_NOCTTY, "O_NOCTTY"},
}

// cString returns what comes before the first NUL.
func cString(b []byte) []byte {
	if i := bytes.IndexByte(b, 0); i >= 0 {
		return b[:i]
	}
	return b
}
