//go:build linux && (amd64 || arm64)

package main

// abiNative and abi32 index the table of shapes: the machine's own system call
// numbers, and those of the 32-bit ABI beside it.
const (
	abiNative = 0
	abi32     = 1
)

// syscallMeanings says what the system calls that the probe watches mean to it, by
// the name that they have in syscalls(2). Arguments count from zero, as there.
var syscallMeanings = map[string]probeShape{
	"open":              open(cwd, 0, 1, 2),
	"openat":            open(0, 1, 2, 3),
	"openat2":           how(open(0, 1, none, none), probeHowHOW_OPENAT2),
	"creat":             how(open(cwd, 0, none, 1), probeHowHOW_CREAT),
	"open_by_handle_at": open(none, none, 2, none),
	"unlink":            name(probeKindKIND_DELETE, cwd, 0, none),
	"unlinkat":          name(probeKindKIND_DELETE, 0, 1, 2),
	"rmdir":             name(probeKindKIND_DELETE, cwd, 0, none),
	"mkdir":             name(probeKindKIND_MKDIR, cwd, 0, 1),
	"mkdirat":           name(probeKindKIND_MKDIR, 0, 1, 2),
	"rename":            names(probeKindKIND_RENAME, cwd, 0, cwd, 1, none),
	"renameat":          names(probeKindKIND_RENAME, 0, 1, 2, 3, none),
	"renameat2":         names(probeKindKIND_RENAME, 0, 1, 2, 3, 4),
	"link":              names(probeKindKIND_LINK, cwd, 0, cwd, 1, none),
	"linkat":            names(probeKindKIND_LINK, 0, 1, 2, 3, 4),
	"symlink":           symlink(cwd, 1, 0),
	"symlinkat":         symlink(1, 2, 0),
	"chmod":             name(probeKindKIND_CHMOD, cwd, 0, 1),
	"fchmod":            how(name(probeKindKIND_CHMOD, 0, none, 1), probeHowHOW_FD),
	"fchmodat":          name(probeKindKIND_CHMOD, 0, 1, 2),
	"fchmodat2":         name(probeKindKIND_CHMOD, 0, 1, 2),

	"execve":   how(name(probeKindKIND_EXEC_FAILED, cwd, 0, none), probeHowHOW_ELSEWHERE),
	"execveat": how(name(probeKindKIND_EXEC_FAILED, 0, 1, none), probeHowHOW_ELSEWHERE),
	"fork":     how(values(probeKindKIND_SPAWN, none, none), probeHowHOW_ELSEWHERE),
	"vfork":    how(values(probeKindKIND_SPAWN, none, none), probeHowHOW_ELSEWHERE),
	"clone":    how(values(probeKindKIND_SPAWN, 0, none), probeHowHOW_ELSEWHERE),
	"clone3":   how(values(probeKindKIND_SPAWN, none, none), probeHowHOW_CLONE3),
	"ptrace":   values(probeKindKIND_PTRACE, 0, 1),

	"truncate":      name(probeKindKIND_TRUNCATE, cwd, 0, 1),
	"ftruncate":     how(name(probeKindKIND_TRUNCATE, 0, none, 1), probeHowHOW_FD),
	"truncate64":    named(values(probeKindKIND_TRUNCATE, 1, 2), cwd, 0), // two halves
	"ftruncate64":   how(named(values(probeKindKIND_TRUNCATE, 1, 2), 0, none), probeHowHOW_FD),
	"chown":         named(values(probeKindKIND_CHOWN, 1, 2), cwd, 0),
	"lchown":        named(values(probeKindKIND_CHOWN, 1, 2), cwd, 0),
	"fchown":        how(named(values(probeKindKIND_CHOWN, 1, 2), 0, none), probeHowHOW_FD),
	"fchownat":      named(values(probeKindKIND_CHOWN, 2, 3), 0, 1),
	"chown32":       named(values(probeKindKIND_CHOWN, 1, 2), cwd, 0),
	"lchown32":      named(values(probeKindKIND_CHOWN, 1, 2), cwd, 0),
	"fchown32":      how(named(values(probeKindKIND_CHOWN, 1, 2), 0, none), probeHowHOW_FD),
	"setxattr":      text(name(probeKindKIND_XATTR, cwd, 0, none), 1),
	"lsetxattr":     text(name(probeKindKIND_XATTR, cwd, 0, none), 1),
	"fsetxattr":     how(text(name(probeKindKIND_XATTR, 0, none, none), 1), probeHowHOW_FD),
	"setxattrat":    text(name(probeKindKIND_XATTR, 0, 1, none), 3),
	"removexattr":   text(name(probeKindKIND_XATTR, cwd, 0, none), 1),
	"lremovexattr":  text(name(probeKindKIND_XATTR, cwd, 0, none), 1),
	"fremovexattr":  how(text(name(probeKindKIND_XATTR, 0, none, none), 1), probeHowHOW_FD),
	"removexattrat": text(name(probeKindKIND_XATTR, 0, 1, none), 3),
	"mknod":         named(values(probeKindKIND_MKNOD, 1, 2), cwd, 0),
	"mknodat":       named(values(probeKindKIND_MKNOD, 2, 3), 0, 1),
	"mount":         text(name(probeKindKIND_MOUNT, cwd, 1, 3), 0),
	"umount2":       name(probeKindKIND_MOUNT, cwd, 0, 1),
	"move_mount":    names(probeKindKIND_MOUNT, 0, 1, 2, 3, 4),
	"pivot_root":    names(probeKindKIND_MOUNT, cwd, 0, cwd, 1, none),
	"memfd_create":  text(values(probeKindKIND_MEMFD, 1, none), 0),
	"unshare":       values(probeKindKIND_NAMESPACE, 0, none),
	"setns":         how(name(probeKindKIND_NAMESPACE, 0, none, 1), probeHowHOW_FD),
	"init_module":   values(probeKindKIND_MODULE, none, none),
	"finit_module":  how(name(probeKindKIND_MODULE, 0, none, none), probeHowHOW_FD),
	"delete_module": text(values(probeKindKIND_MODULE, none, none), 0),
	"bpf":           values(probeKindKIND_BPF, 0, none),
	"setuid":        values(probeKindKIND_SETUID, 0, none),
	"setgid":        values(probeKindKIND_SETUID, 0, none),
	"setreuid":      values(probeKindKIND_SETUID, 1, 0),
	"setregid":      values(probeKindKIND_SETUID, 1, 0),
	"setresuid":     values(probeKindKIND_SETUID, 1, 0),
	"setresgid":     values(probeKindKIND_SETUID, 1, 0),
	"setuid32":      values(probeKindKIND_SETUID, 0, none),
	"setgid32":      values(probeKindKIND_SETUID, 0, none),
	"setreuid32":    values(probeKindKIND_SETUID, 1, 0),
	"setregid32":    values(probeKindKIND_SETUID, 1, 0),
	"setresuid32":   values(probeKindKIND_SETUID, 1, 0),
	"setresgid32":   values(probeKindKIND_SETUID, 1, 0),

	"process_vm_writev": values(probeKindKIND_VM_WRITE, 0, none),
	"pidfd_getfd":       how(name(probeKindKIND_PIDFD_GETFD, 0, none, 1), probeHowHOW_PIDFD),
	"kill":              how(values(probeKindKIND_SIGNAL, 0, 1), probeHowHOW_ELSEWHERE),
	"tkill":             how(values(probeKindKIND_SIGNAL, 0, 1), probeHowHOW_ELSEWHERE),
	"tgkill":            how(values(probeKindKIND_SIGNAL, 0, 2), probeHowHOW_ELSEWHERE),
	"rt_sigqueueinfo":   how(values(probeKindKIND_SIGNAL, 0, 1), probeHowHOW_ELSEWHERE),
	"rt_tgsigqueueinfo": how(values(probeKindKIND_SIGNAL, 0, 2), probeHowHOW_ELSEWHERE),
	"pidfd_send_signal": how(values(probeKindKIND_SIGNAL, none, 1), probeHowHOW_ELSEWHERE),

	"connect":  how(values(probeKindKIND_CONNECT, none, none), probeHowHOW_CONNECT),
	"bind":     how(values(probeKindKIND_BIND, none, none), probeHowHOW_BIND),
	"listen":   how(values(probeKindKIND_LISTEN, none, none), probeHowHOW_LISTEN),
	"accept":   how(values(probeKindKIND_ACCEPT, none, none), probeHowHOW_ACCEPT),
	"accept4":  how(values(probeKindKIND_ACCEPT, none, none), probeHowHOW_ACCEPT),
	"sendto":   how(values(probeKindKIND_CONNECT, none, none), probeHowHOW_SENDTO),
	"sendmsg":  how(values(probeKindKIND_CONNECT, none, none), probeHowHOW_SENDMSG),
	"sendmmsg": how(values(probeKindKIND_CONNECT, none, none), probeHowHOW_SENDMMSG),
	// What goes to and comes from servers of names.
	"read":     how(values(probeKindKIND_DNS, none, none), probeHowHOW_RECV),
	"write":    how(values(probeKindKIND_DNS, none, none), probeHowHOW_WRITE),
	"readv":    how(values(probeKindKIND_DNS, none, none), probeHowHOW_READV),
	"writev":   how(values(probeKindKIND_DNS, none, none), probeHowHOW_WRITEV),
	"recvfrom": how(values(probeKindKIND_DNS, 4, none), probeHowHOW_RECV), // with an address
	"recvmsg":  how(values(probeKindKIND_DNS, none, none), probeHowHOW_RECVMSG),
	"recvmmsg": how(values(probeKindKIND_DNS, none, none), probeHowHOW_RECVMMSG),

	"io_uring_enter": how(values(probeKindKIND_URING_ENTER, none, none), probeHowHOW_STAMP),

	"socketcall": how(values(probeKindKIND_CONNECT, none, none), probeHowHOW_SOCKETCALL),
}

// socketcalls names the calls that socketcall(2) makes, by its first argument
// (linux/net.h). The 32-bit table has them from socketcallBase on, where no system
// call has its number.
var socketcalls = map[int]string{
	2: "bind", 3: "connect", 4: "listen", 5: "accept", 11: "sendto", 12: "recvfrom", 16: "sendmsg", 17: "recvmsg", 18: "accept4", 19: "recvmmsg", 20: "sendmmsg",
}

// uringOperations are the operations of io_uring that are watched
// (include/uapi/linux/io_uring.h), with the meaning of a system call; what is where in
// a request, the kernel side knows.
var uringOperations = map[int]probeShape{
	9:  how(values(probeKindKIND_CONNECT, none, none), probeHowHOW_SENDMSG),
	16: how(values(probeKindKIND_CONNECT, none, none), probeHowHOW_CONNECT),
	18: values(probeKindKIND_OPEN, none, none),
	19: values(probeKindKIND_URING_CLOSE, none, none),
	26: how(values(probeKindKIND_CONNECT, none, none), probeHowHOW_SENDTO),
	28: values(probeKindKIND_OPEN, none, none), // openat2
	35: values(probeKindKIND_RENAME, none, none),
	36: values(probeKindKIND_DELETE, none, none),
	37: values(probeKindKIND_MKDIR, none, none),
	38: values(probeKindKIND_SYMLINK, none, none),
	39: values(probeKindKIND_LINK, none, none),
	47: how(values(probeKindKIND_CONNECT, none, none), probeHowHOW_SENDTO),  // without copying
	48: how(values(probeKindKIND_CONNECT, none, none), probeHowHOW_SENDMSG), // the same
	55: values(probeKindKIND_TRUNCATE, none, none),
	56: values(probeKindKIND_BIND, none, none),
	57: values(probeKindKIND_LISTEN, none, none),
}

const socketcallBase = 480 // SOCKETCALL_BASE in record.bpf.h

const (
	cwd  = uint8(probeArgARG_CWD)
	none = uint8(probeArgARG_NONE)
)

// values is a call of which the probe takes numbers only.
func values(kind probeKind, first, second uint8) probeShape {
	return probeShape{
		Kind: uint8(kind), Dir: none, Name: none, Dir2: none, Name2: none,
		Value: [2]uint8{first, second},
	}
}

// named is a call on a name besides, relative to the directory dir; or, without a
// name, on the descriptor dir.
func named(s probeShape, dir, name uint8) probeShape {
	s.Dir, s.Name = dir, name
	return s
}

// name is a call on one name and a value.
func name(kind probeKind, dir, name, value uint8) probeShape {
	return named(values(kind, value, none), dir, name)
}

// text is a call with a string besides that is not the name of a file.
func text(s probeShape, arg uint8) probeShape {
	s.Dir2, s.Name2 = none, arg
	return s
}

// names is a call on an old and a new name.
func names(kind probeKind, dir, name1, dir2, name2, value uint8) probeShape {
	s := name(kind, dir, name1, value)
	s.Dir2, s.Name2 = dir2, name2
	return s
}

// symlink is a call that makes a name for a target, which is just a string.
func symlink(dir, link, target uint8) probeShape {
	return text(name(probeKindKIND_SYMLINK, dir, link, none), target)
}

// open is a call that returns a descriptor of a file.
func open(dir, path, flags, mode uint8) probeShape {
	s := how(name(probeKindKIND_OPEN, dir, path, flags), probeHowHOW_OPEN)
	s.Value[1] = mode
	return s
}

func how(s probeShape, h probeHow) probeShape {
	s.How = uint8(h)
	return s
}

// syscallShapes is the table that the kernel side looks system calls up in, by
// ABI and number. It is the one place that ties a number to a meaning.
func syscallShapes() [2][512]probeShape {
	var table [2][512]probeShape
	for abi, numbers := range []map[string]int{abiNative: nativeNumbers, abi32: numbers32} {
		for name, number := range numbers {
			table[abi][number] = syscallMeanings[name]
		}
	}
	if _, ok := numbers32["socketcall"]; ok {
		for call, name := range socketcalls {
			table[abi32][socketcallBase+call] = syscallMeanings[name]
		}
	}
	return table
}

// uringShapes is the table that the kernel side looks operations of io_uring up in.
func uringShapes() (table [64]probeShape) {
	for op, shape := range uringOperations {
		table[op] = shape
	}
	return table
}

// syscallName names the system call of a record.
func syscallName(call uint16) string {
	numbers := nativeNumbers
	if call&probeCall32 != 0 {
		numbers = numbers32
	}
	for name, number := range numbers {
		if number == int(call&^probeCall32) {
			return name
		}
	}
	return ""
}

// CALL_32 and CALL_URING in record.bpf.h.
const (
	probeCall32    = 0x8000
	probeCallUring = 0x4000
)
