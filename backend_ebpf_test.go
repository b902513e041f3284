//go:build linux && (amd64 || arm64)

package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ebpfOrSkip returns the eBPF backend. It skips the test only where the kernel or
// the privilege is truly missing, and not if PROBE_REQUIRE_BPF is set.
func ebpfOrSkip(t testing.TB, ringSize int) backend {
	t.Helper()
	b, err := newEBPFBackend(ringSize)
	if errors.As(err, new(unavailable)) && os.Getenv("PROBE_REQUIRE_BPF") == "" {
		t.Skip(err)
	}
	if err != nil {
		t.Fatalf("%+v", err)
	}
	return b
}

func startEBPF(t *testing.T) *testSession {
	t.Helper()
	return startSession(t, ebpfOrSkip(t, 1<<20), 0)
}

// startScoped starts a session whose scope is a new actor's process group.
func startScoped(t *testing.T) (*testSession, *actor) {
	t.Helper()
	s := startEBPF(t)
	a := startActor(t)
	if l := s.scope(a.pid()); l[len(l)-1]["processes"] != 1.0 {
		t.Fatalf("the scope has not just the actor: %v", l[len(l)-1])
	}
	return s, a
}

// events returns what is an event among lines, in the call of that id (or in none,
// if it is empty).
func events(lines []outLine, callID string) []outLine {
	var got []outLine
	for _, l := range lines {
		if l["type"] != "status" && l.str("call_id") == callID {
			got = append(got, l)
		}
	}
	return got
}

// checkEvents compares events with what is wanted of them, one for one. Fields
// that the test does not name must be absent, but for pid, comm, bucket, call_id
// and ts_ns, which are checked here.
func checkEvents(t *testing.T, got []outLine, pid int, want ...fields) {
	t.Helper()
	for i, l := range got {
		if i >= len(want) {
			t.Errorf("there is one event too many: %.600s", fmt.Sprint(l))
			continue
		}
		w := map[string]any{"pid": float64(pid), "ppid": l["ppid"], "exe": l["exe"], "comm": l["comm"], "bucket": l["bucket"], "call_id": l["call_id"], "ts_ns": l["ts_ns"]}
		if l["type"] == "file_open" && l["errno"] == nil {
			w["dev"], w["ino"] = l["dev"], l["ino"]
			var stat unix.Stat_t
			if path := l.str("path"); unix.Stat(path, &stat) == nil && (l["ino"] != float64(stat.Ino) || l["dev"] != fmt.Sprintf("%d:%d", unix.Major(stat.Dev), unix.Minor(stat.Dev))) {
				t.Errorf("%s is inode %v on %v, want %d on %d:%d", path, l["ino"], l["dev"], stat.Ino, unix.Major(stat.Dev), unix.Minor(stat.Dev))
			}
		}
		for k, v := range want[i] {
			w[k] = v
		}
		if !reflect.DeepEqual(map[string]any(l), w) {
			t.Errorf("event %d\ngot  %.600s\nwant %.600s", i, fmt.Sprint(l), fmt.Sprint(want[i]))
		}
		if l.str("comm") == "" || l["ppid"] == nil || !filepath.IsAbs(l.str("exe")) {
			t.Errorf("event %d does not say who it is: %v", i, l)
		}
		if ts := int64(l["ts_ns"].(float64)); time.Since(time.Unix(0, ts)).Abs() > time.Minute {
			t.Errorf("event %d happened at %v", i, time.Unix(0, ts))
		}
	}
	for _, w := range want[min(len(got), len(want)):] {
		t.Errorf("there is no event %v", w)
	}
}

// sockaddr returns a struct sockaddr_in or sockaddr_in6.
func sockaddr(addr string, port int) []byte {
	ip := net.ParseIP(addr)
	if ip4 := ip.To4(); ip4 != nil && !strings.Contains(addr, ":") {
		return append([]byte(sockaddr4(uint16(port), ip4...)), make([]byte, 8)...)
	}
	return append([]byte(sockaddr6(uint16(port), ip...)), make([]byte, 4)...)
}

// A callRow is a system call to make, and what is to come of it.
type callRow struct {
	name string
	call int
	args []any
	ret  int // negative: that error; positive: any success
	want []fields
}

// callRows prepares an actor and a folder for a list of system calls.
func callRows(t *testing.T, a *actor) []callRow {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	file, link := filepath.Join(dir, "file"), filepath.Join(dir, "link")
	for _, err := range []error{
		os.WriteFile(file, nil, 0o600),
		os.Symlink("file", link),
		os.Mkdir(filepath.Join(dir, "d"), 0o700),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	in := func(name string) string { return filepath.Join(dir, name) }
	a.must(unix.SYS_CHDIR, dir)
	dirfd := a.must(unix.SYS_OPENAT, unix.AT_FDCWD, dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	openHow := binary.NativeEndian.AppendUint64(nil, unix.O_RDWR|unix.O_APPEND)
	openHow = append(openHow, make([]byte, 16)...)
	port := freePort(t)
	newUDP := func() int { return a.must(unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_DGRAM, 0) }
	connected, udp, bound := newUDP(), newUDP(), newUDP()
	raw := a.must(unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_RAW, 253)
	longest := ("/no" + strings.Repeat("/such", 819))[:4095]
	connected6 := a.must(unix.SYS_SOCKET, unix.AF_INET6, unix.SOCK_DGRAM, 0)
	a.must(unix.SYS_CONNECT, connected6, sockaddr("::1", port), 28)
	udp6 := a.must(unix.SYS_SOCKET, unix.AF_INET6, unix.SOCK_DGRAM, 0)
	tcp := func() int { return a.must(unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_STREAM, 0) }
	tcp6 := func() int { return a.must(unix.SYS_SOCKET, unix.AF_INET6, unix.SOCK_STREAM, 0) }
	dst := fmt.Sprintf("127.66.0.9:%d", port)
	unixDatagram := a.must(unix.SYS_SOCKET, unix.AF_UNIX, unix.SOCK_DGRAM, 0)
	filefd := a.must(unix.SYS_OPENAT, unix.AT_FDCWD, file, unix.O_RDWR, 0)
	pidfd := a.must(unix.SYS_PIDFD_OPEN, a.pid(), 0)
	unixSocket := a.must(unix.SYS_SOCKET, unix.AF_UNIX, unix.SOCK_STREAM, 0)

	return append(archRows(dir), []callRow{
		{"openat, relative", unix.SYS_OPENAT, []any{unix.AT_FDCWD, "./file", unix.O_RDONLY, 0}, 1,
			[]fields{{"type": "file_open", "path": file, "requested": "./file", "flags": "O_RDONLY"}}},
		{"openat, dirfd and link", unix.SYS_OPENAT, []any{dirfd, "d/../link", unix.O_WRONLY | unix.O_TRUNC, 0}, 1,
			[]fields{{"type": "file_open", "path": file, "requested": "d/../link", "flags": "O_WRONLY|O_TRUNC"}}},
		{"openat, through /proc", unix.SYS_OPENAT, []any{unix.AT_FDCWD, "/proc/self/cwd/file", unix.O_RDONLY, 0}, 1,
			[]fields{{"type": "file_open", "path": file, "requested": "/proc/self/cwd/file", "flags": "O_RDONLY"}}},
		{"openat, fails", unix.SYS_OPENAT, []any{dirfd, "no/such", unix.O_RDONLY | unix.O_CLOEXEC, 0}, -int(unix.ENOENT),
			[]fields{{"type": "file_open", "path": in("no/such"), "requested": "no/such", "flags": "O_RDONLY|O_CLOEXEC", "errno": "ENOENT"}}},
		{"openat, bad directory", unix.SYS_OPENAT, []any{999, "x", unix.O_RDONLY, 0}, -int(unix.EBADF),
			[]fields{{"type": "file_open", "path": "x", "flags": "O_RDONLY", "errno": "EBADF"}}},
		{"openat, bad address", unix.SYS_OPENAT, []any{unix.AT_FDCWD, 1, unix.O_RDONLY, 0}, -int(unix.EFAULT),
			[]fields{{"type": "file_open", "path": "", "flags": "O_RDONLY", "errno": "EFAULT"}}},
		{"openat2", unix.SYS_OPENAT2, []any{dirfd, "file", openHow, len(openHow)}, 1,
			[]fields{{"type": "file_open", "path": file, "requested": "file", "flags": "O_RDWR|O_APPEND"}}},
		{"O_TMPFILE", unix.SYS_OPENAT, []any{unix.AT_FDCWD, dir, unix.O_RDWR | unix.O_TMPFILE, 0o600}, 1, nil},
		{"mkdirat", unix.SYS_MKDIRAT, []any{dirfd, "m", 0o700}, 0,
			[]fields{{"type": "file_mkdir", "path": in("m"), "requested": "m"}}},
		{"mkdirat, exists", unix.SYS_MKDIRAT, []any{unix.AT_FDCWD, in("m"), 0o700}, -int(unix.EEXIST),
			[]fields{{"type": "file_mkdir", "path": in("m"), "errno": "EEXIST"}}},
		{"renameat2", unix.SYS_RENAMEAT2, []any{dirfd, "m", unix.AT_FDCWD, in("n"), unix.RENAME_NOREPLACE}, 0,
			[]fields{{"flags": "RENAME_NOREPLACE", "type": "file_rename", "path": in("n"), "old_path": in("m"), "old_requested": "m"}}},
		{"unlinkat of a directory", unix.SYS_UNLINKAT, []any{dirfd, "n/", unix.AT_REMOVEDIR}, 0,
			[]fields{{"type": "file_delete", "path": in("n"), "requested": "n/"}}},
		{"symlinkat", unix.SYS_SYMLINKAT, []any{"../to", dirfd, "s"}, 0,
			[]fields{{"type": "file_symlink", "path": in("s"), "requested": "s", "target": "../to"}}},
		{"linkat", unix.SYS_LINKAT, []any{unix.AT_FDCWD, "file", dirfd, "hard", 0}, 0,
			[]fields{{"type": "file_link", "path": in("hard"), "requested": "hard", "old_path": file, "old_requested": "file"}}},
		{"unlinkat", unix.SYS_UNLINKAT, []any{unix.AT_FDCWD, in("hard"), 0}, 0,
			[]fields{{"type": "file_delete", "path": in("hard")}}},
		{"unlinkat, fails", unix.SYS_UNLINKAT, []any{unix.AT_FDCWD, in("hard"), 0}, -int(unix.ENOENT),
			[]fields{{"type": "file_delete", "path": in("hard"), "errno": "ENOENT"}}},
		{"fchmodat", unix.SYS_FCHMODAT, []any{dirfd, "file", 0o4755}, 0,
			[]fields{{"type": "chmod", "path": file, "requested": "file", "mode": "4755"}}},
		{"fchmod", unix.SYS_FCHMOD, []any{dirfd, 0o700}, 0,
			[]fields{{"type": "chmod", "path": dir, "mode": "700"}}},
		{"fchmod, bad descriptor", unix.SYS_FCHMOD, []any{999, 0o700}, -int(unix.EBADF),
			[]fields{{"type": "chmod", "path": "", "mode": "700", "errno": "EBADF"}}},
		{"execve, fails", unix.SYS_EXECVE, []any{"./nope", 0, 0}, -int(unix.ENOENT),
			[]fields{{"type": "exec_failed", "path": in("nope"), "requested": "./nope", "errno": "ENOENT"}}},
		{"execveat, fails", unix.SYS_EXECVEAT, []any{dirfd, "d", 0, 0, 0}, -int(unix.EACCES),
			[]fields{{"type": "exec_failed", "path": in("d"), "requested": "d", "errno": "EACCES"}}},
		{"ptrace", unix.SYS_PTRACE, []any{unix.PTRACE_ATTACH, 0x7ffffffe, 0, 0}, -int(unix.ESRCH),
			[]fields{{"type": "ptrace", "request": 16.0, "request_name": "PTRACE_ATTACH", "target_pid": float64(0x7ffffffe), "errno": "ESRCH"}}},

		{"TCP connect, refused", unix.SYS_CONNECT, []any{tcp(), sockaddr("127.66.0.9", port), 16}, -int(unix.ECONNREFUSED),
			[]fields{{"type": "connect", "proto": "tcp", "dst": dst}}},
		{"TCP connect to ::1", unix.SYS_CONNECT, []any{tcp6(), sockaddr("::1", port), 28}, -int(unix.ECONNREFUSED),
			[]fields{{"type": "connect", "proto": "tcp", "dst": fmt.Sprintf("[::1]:%d", port)}}},
		{"TCP connect to a mapped one", unix.SYS_CONNECT, []any{tcp6(), sockaddr("::ffff:127.66.0.9", port), 28}, -int(unix.ECONNREFUSED),
			[]fields{{"type": "connect", "proto": "tcp", "dst": dst}}},
		{"TCP fast open", unix.SYS_SENDTO, []any{tcp(), "x", 1, unix.MSG_FASTOPEN, sockaddr("127.66.0.9", port), 16}, -int(unix.ECONNREFUSED),
			[]fields{{"type": "connect", "proto": "tcp", "dst": dst}}},
		{"UDP connect", unix.SYS_CONNECT, []any{connected, sockaddr("127.66.0.9", port), 16}, 0,
			[]fields{{"type": "connect", "proto": "udp", "dst": dst}}},
		{"send on a connected socket", unix.SYS_SENDTO, []any{connected, "x", 1, 0, 0, 0}, 1, nil},
		{"disconnect", unix.SYS_CONNECT, []any{connected, []byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, 16}, 0, nil},
		{"sendto", unix.SYS_SENDTO, []any{udp, "x", 1, 0, sockaddr("127.66.0.9", port), 16}, 1,
			[]fields{{"type": "connect", "proto": "udp", "dst": dst}}},
		{"sendto ::1", unix.SYS_SENDTO, []any{udp6, "x", 1, 0, sockaddr("::1", port), 28}, 1,
			[]fields{{"type": "connect", "proto": "udp", "dst": fmt.Sprintf("[::1]:%d", port)}}},
		{"connect, not a socket", unix.SYS_CONNECT, []any{dirfd, sockaddr("127.66.0.9", port), 16}, -int(unix.ENOTSOCK),
			[]fields{{"type": "connect", "dst": dst, "errno": "ENOTSOCK"}}},
		{"connect, wrong family", unix.SYS_CONNECT, []any{udp, sockaddr("::1", port), 28}, -int(unix.EAFNOSUPPORT),
			[]fields{{"type": "connect", "proto": "udp", "dst": fmt.Sprintf("[::1]:%d", port), "errno": "EAFNOSUPPORT"}}},
		{"connect to a UNIX socket", unix.SYS_CONNECT, []any{unixSocket, append([]byte{1, 0}, "/nope\x00"...), 8}, -int(unix.ENOENT),
			[]fields{{"type": "unix_connect", "path": "/nope", "errno": "ENOENT"}}},
		{"connect to an abstract one", unix.SYS_CONNECT, []any{unixSocket, append([]byte{1, 0}, "\x00no\x00pe"...), 8}, -int(unix.ECONNREFUSED),
			[]fields{{"type": "unix_connect", "path": "@no\x00pe", "errno": "ECONNREFUSED"}}},
		{"send to a UNIX socket", unix.SYS_SENDTO, []any{unixDatagram, "x", 1, 0, append([]byte{1, 0}, "nope"...), 6}, -int(unix.ENOENT),
			[]fields{{"type": "unix_connect", "path": in("nope"), "errno": "ENOENT"}}},
		{"truncate", unix.SYS_TRUNCATE, []any{"file", 5}, 0,
			[]fields{{"type": "file_truncate", "path": file, "requested": "file", "length": 5.0}}},
		{"ftruncate", unix.SYS_FTRUNCATE, []any{filefd, 7}, 0,
			[]fields{{"type": "file_truncate", "path": file, "length": 7.0}}},
		{"fchownat", unix.SYS_FCHOWNAT, []any{dirfd, "file", 0, -1, 0}, 0,
			[]fields{{"type": "file_chown", "path": file, "requested": "file", "owner": 0.0, "group": -1.0}}},
		{"fchown", unix.SYS_FCHOWN, []any{filefd, -1, 0}, 0,
			[]fields{{"type": "file_chown", "path": file, "owner": -1.0, "group": 0.0}}},
		{"lremovexattr", unix.SYS_LREMOVEXATTR, []any{"file", "trusted.none"}, -int(unix.ENODATA),
			[]fields{{"type": "file_xattr", "call": "lremovexattr", "path": file, "requested": "file", "name": "trusted.none", "errno": "ENODATA"}}},
		{"fsetxattr", unix.SYS_FSETXATTR, []any{999, "user.x", "y", 1, 0}, -int(unix.EBADF),
			[]fields{{"type": "file_xattr", "call": "fsetxattr", "path": "", "name": "user.x", "errno": "EBADF"}}},
		{"mknodat", unix.SYS_MKNODAT, []any{dirfd, "fifo", unix.S_IFIFO | 0o600, 0}, 0,
			[]fields{{"type": "mknod", "path": in("fifo"), "requested": "fifo", "mode": "10600", "device": "0:0"}}},
		{"mount", unix.SYS_MOUNT, []any{"source", "/no/such", "none", unix.MS_BIND, 0}, -int(unix.ENOENT),
			[]fields{{"type": "mount", "call": "mount", "path": "/no/such", "source": "source", "errno": "ENOENT"}}},
		{"umount2", unix.SYS_UMOUNT2, []any{"no/such", 0}, -int(unix.ENOENT),
			[]fields{{"type": "mount", "call": "umount2", "path": in("no/such"), "requested": "no/such", "errno": "ENOENT"}}},
		{"memfd_create", unix.SYS_MEMFD_CREATE, []any{"hello", 0}, 1,
			[]fields{{"type": "memfd_create", "name": "hello"}}},
		{"process_vm_writev", unix.SYS_PROCESS_VM_WRITEV, []any{0x7ffffffe, 0, 0, 0, 0, 0}, 0,
			[]fields{{"type": "process_vm_write", "target_pid": float64(0x7ffffffe)}}},
		{"pidfd_getfd", unix.SYS_PIDFD_GETFD, []any{pidfd, 0, 0}, 1,
			[]fields{{"type": "pidfd_getfd", "target_pid": float64(a.pid()), "target_fd": 0.0}}},
		{"kill somebody else", unix.SYS_KILL, []any{os.Getpid(), int(unix.SIGWINCH)}, 0,
			[]fields{{"type": "signal", "signal": "SIGWINCH", "target_pid": float64(os.Getpid())}}},
		{"kill nobody", unix.SYS_KILL, []any{0x7ffffffe, int(unix.SIGKILL)}, -int(unix.ESRCH),
			[]fields{{"type": "signal", "signal": "SIGKILL", "target_pid": float64(0x7ffffffe), "errno": "ESRCH"}}},
		{"kill itself", unix.SYS_KILL, []any{a.pid(), int(unix.SIGWINCH)}, 0, nil},
		{"setresgid", unix.SYS_SETRESGID, []any{-1, 0, -1}, 0,
			[]fields{{"type": "setuid", "call": "setresgid", "id": 0.0}}},
		{"unshare", unix.SYS_UNSHARE, []any{unix.CLONE_NEWNET | 1}, -int(unix.EINVAL),
			[]fields{{"type": "namespace", "call": "unshare", "flags": "CLONE_NEWNET|0x1", "errno": "EINVAL"}}},
		{"setns", unix.SYS_SETNS, []any{999, unix.CLONE_NEWNS}, -int(unix.EBADF),
			[]fields{{"type": "namespace", "call": "setns", "path": "", "flags": "CLONE_NEWNS", "errno": "EBADF"}}},
		{"bpf", unix.SYS_BPF, []any{9999, 0, 0}, -int(unix.EINVAL),
			[]fields{{"type": "bpf", "cmd": 9999.0, "errno": "EINVAL"}}},
		{"bind", unix.SYS_BIND, []any{bound, sockaddr("127.0.0.1", port), 16}, 0,
			[]fields{{"type": "bind", "proto": "udp", "dst": fmt.Sprintf("127.0.0.1:%d", port), "fd": float64(bound)}}},
		{"bind, fails", unix.SYS_BIND, []any{bound, sockaddr("127.0.0.1", port), 16}, -int(unix.EINVAL),
			[]fields{{"type": "bind", "proto": "udp", "dst": fmt.Sprintf("127.0.0.1:%d", port), "fd": float64(bound), "errno": "EINVAL"}}},
		{"listen, fails", unix.SYS_LISTEN, []any{bound, 7}, -int(unix.EOPNOTSUPP),
			[]fields{{"type": "listen", "proto": "udp", "dst": fmt.Sprintf("127.0.0.1:%d", port), "fd": float64(bound), "backlog": 7.0, "errno": "EOPNOTSUPP"}}},
		{"disconnect over IPv6", unix.SYS_CONNECT, []any{connected6, make([]byte, 28), 28}, 0, nil},
		{"sendto without a family", unix.SYS_SENDTO, []any{udp, "x", 1, 0, append([]byte{0, 0}, sockaddr("127.66.0.9", port)[2:]...), 16}, 1,
			[]fields{{"type": "connect", "proto": "udp", "dst": dst}}},
		{"sendto nowhere, which is here", unix.SYS_SENDTO, []any{udp, "x", 1, 0, sockaddr("0.0.0.0", port), 16}, 1,
			[]fields{{"type": "connect", "proto": "udp", "dst": fmt.Sprintf("0.0.0.0:%d", port)}}},
		{"bind of a raw socket", unix.SYS_BIND, []any{raw, sockaddr("127.0.0.1", 77), 16}, 0,
			[]fields{{"type": "bind", "proto": "ip-253", "dst": "127.0.0.1:0", "fd": float64(raw)}}},
		{"garbage beside the number", unix.SYS_UNLINKAT | 1<<32, []any{unix.AT_FDCWD, "/no/such", 0}, -int(unix.ENOENT),
			[]fields{{"type": "file_delete", "path": "/no/such", "errno": "ENOENT"}}},
		{"garbage beside arguments", unix.SYS_OPENAT, []any{0x7eadbeef_ffffff9c, "file", 0x7eadbeef_00000000, 0}, 1,
			[]fields{{"type": "file_open", "path": file, "requested": "file", "flags": "O_RDONLY"}}},
		{"a name of the greatest length", unix.SYS_UNLINKAT, []any{unix.AT_FDCWD, longest, 0}, -int(unix.ENOENT),
			[]fields{{"type": "file_delete", "path": longest, "errno": "ENOENT"}}},
		{"a name that is too long", unix.SYS_UNLINKAT, []any{unix.AT_FDCWD, longest + "xy", 0}, -int(unix.ENAMETOOLONG),
			[]fields{{"type": "file_delete", "path": longest + "x", "errno": "ENAMETOOLONG", "truncated": true}}},
		{"recvfrom of nothing", unix.SYS_RECVFROM, []any{udp, make([]byte, 8), 8, unix.MSG_DONTWAIT, 0, 0}, -int(unix.EAGAIN), nil},
		{"something else", unix.SYS_GETPPID, nil, 1, nil},
	}...)
}

var rowNumber int // each row's call has an id of its own

// run makes the row's call in a call of its own and compares all that comes of it.
func (r *callRow) run(t *testing.T, s *testSession, a *actor, call func() int) {
	t.Run(r.name, func(t *testing.T) {
		rowNumber++
		id := strconv.Itoa(rowNumber)
		s.begin(id, r.name)
		ret := call()
		if ret != r.ret && (r.ret <= 0 || ret <= 0) {
			t.Errorf("the call returns %d (%v)", ret, syscall.Errno(-ret))
		}
		got := events(s.end(id), id)
		if r.name == "O_TMPFILE" {
			if len(got) != 1 || !strings.HasPrefix(got[0].str("path"), r.args[1].(string)+"/") || got[0]["requested"] != r.args[1] || got[0].str("flags") != "O_RDWR|O_TMPFILE" {
				t.Errorf("got %v", got)
			}
			return
		}
		checkEvents(t, got, a.pid(), r.want...)
	})
}

// evasion is the row of evasions.md that the call is a spelling of, or zero.
func (r *callRow) evasion() int {
	switch r.call {
	case unix.SYS_CONNECT, unix.SYS_SENDTO, unix.SYS_BIND, unix.SYS_LISTEN:
		if len(r.want) > 0 && r.want[0]["type"] == "unix_connect" {
			return 12
		}
		return 11
	case unix.SYS_PIDFD_GETFD:
		return 13
	case unix.SYS_PTRACE, unix.SYS_PROCESS_VM_WRITEV:
		return 14
	case unix.SYS_FCHOWNAT, unix.SYS_FCHOWN, unix.SYS_LREMOVEXATTR, unix.SYS_FSETXATTR, unix.SYS_MOUNT, unix.SYS_UMOUNT2,
		unix.SYS_MEMFD_CREATE, unix.SYS_KILL, unix.SYS_SETRESGID, unix.SYS_UNSHARE, unix.SYS_SETNS, unix.SYS_BPF, unix.SYS_GETPPID:
		return 0
	}
	return 8
}

// runCallRows makes the calls of that evasion, each in a call of its own.
func runCallRows(t *testing.T, s *testSession, a *actor, evasion int) {
	for _, r := range callRows(t, a) {
		if r.evasion() == evasion {
			r.run(t, s, a, func() int { return a.call(r.call, r.args...) })
		}
	}
}

// TestEBPFSystemCalls makes each system call that is no evasion in a call of its own
// and compares all events that come of it. TestEBPFEvasions makes the others.
func TestEBPFSystemCalls(t *testing.T) {
	s, a := startScoped(t)
	runCallRows(t, s, a, 0)
	port := freePort(t)
	dst := fmt.Sprintf("127.66.0.9:%d", port)
	tcp := func() int { return a.must(unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_STREAM, 0) }
	t.Run("bind and listen on any port", func(t *testing.T) {
		fd := tcp()
		s.begin("any", "")
		a.must(unix.SYS_BIND, fd, sockaddr("127.0.0.1", 0), 16)
		a.must(unix.SYS_LISTEN, fd, 3)
		got := events(s.end("any"), "any")
		if len(got) != 2 {
			t.Fatalf("got %v", got)
		}
		bound := got[0].str("dst")
		if !strings.HasPrefix(bound, "127.0.0.1:") || bound == "127.0.0.1:0" {
			t.Errorf("bound to %q, want the port that the kernel chose", bound)
		}
		checkEvents(t, got, a.pid(),
			fields{"type": "bind", "proto": "tcp", "dst": bound, "fd": float64(fd)},
			fields{"type": "listen", "proto": "tcp", "dst": bound, "fd": float64(fd), "backlog": 3.0})
	})
	t.Run("accept", func(t *testing.T) {
		l := tcp()
		a.must(unix.SYS_BIND, l, sockaddr("127.66.0.9", port), 16)
		a.must(unix.SYS_LISTEN, l, 1)
		c, err := net.Dial("tcp", dst)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		s.begin("accept", "")
		fd := a.must(unix.SYS_ACCEPT4, l, 0, 0, 0)
		checkEvents(t, events(s.end("accept"), "accept"), a.pid(), fields{"type": "accept", "proto": "tcp", "src": c.LocalAddr().String(), "fd": float64(l)})
		a.must(unix.SYS_CLOSE, fd)
		a.must(unix.SYS_CLOSE, l)
	})
	t.Run("refused by seccomp", func(t *testing.T) {
		s.begin("seccomp", "")
		pid := a.do("part", "seccomp")
		lines := s.end("seccomp")
		got := filter(events(lines, "seccomp"), fields{"type": "file_delete"})
		for _, l := range got {
			delete(l, "tid") // whichever of its threads it was
		}
		checkEvents(t, got, pid, fields{"type": "file_delete", "path": "/nobody/may", "errno": "EPERM"})
		if lost := filter(lines, fields{"type": "drop"}); len(lost) > 0 {
			t.Errorf("something is said to be lost: %v", lost)
		}
	})
}

// freePort returns a port that nobody listens on just now.
func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

func init() {
	// interrupted connects to a port, and interrupts itself while it waits.
	testParts["interrupted"] = func(args []string) error {
		runtime.LockOSThread()
		tid := unix.Gettid()
		handled := make(chan os.Signal, 1)
		signal.Notify(handled, unix.SIGUSR1)
		go func() {
			for range 5 {
				time.Sleep(20 * time.Millisecond)
				unix.Tgkill(os.Getpid(), tid, unix.SIGUSR1)
				<-handled
			}
			say("interrupted")
		}()
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
		if err != nil {
			return err
		}
		unix.Connect(fd, &unix.SockaddrInet4{Port: mustAtoi(args[0]), Addr: [4]byte{127, 66, 0, 9}})
		return nil
	}
	// mounts opens etc/hostname in a mount that is in no namespace, and then in a
	// namespace of its own.
	testParts["mounts"] = func([]string) error {
		runtime.LockOSThread()
		dir, err := os.MkdirTemp("", "mounts")
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, "hostname"), nil, 0o600); err != nil {
			return err
		}
		for _, own := range []bool{false, true} {
			var tree int
			if own {
				if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
					return err
				}
				tree, err = unix.Open(dir, unix.O_PATH, 0)
			} else {
				tree, err = unix.OpenTree(unix.AT_FDCWD, dir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
			}
			if err != nil {
				return err
			}
			fd, err := unix.Openat(tree, "hostname", unix.O_RDONLY, 0)
			if err != nil {
				return err
			}
			unix.Close(fd)
		}
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
		say("done")
		return nil
	}
	// seccomp forbids itself to delete anything, and tries.
	testParts["seccomp"] = func([]string) error {
		runtime.LockOSThread()
		filter := []unix.SockFilter{
			{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}, // the number
			{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_UNLINKAT, Jf: 1},
			{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)},
			{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
		}
		prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return err
		}
		if err := unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&prog)), 0, 0); err != nil {
			return err
		}
		if err := unix.Unlinkat(unix.AT_FDCWD, "/nobody/may", 0); err != unix.EPERM {
			return fmt.Errorf("it deletes with %v", err)
		}
		say("done")
		return nil
	}
	testParts["sendmsg"] = func(args []string) error {
		port, _ := strconv.Atoi(args[0])
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
		if err != nil {
			return err
		}
		to := func(last byte) unix.Sockaddr { return &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 66, 0, last}} }
		if err := unix.Sendmsg(fd, []byte("x"), nil, to(1), 0); err != nil {
			return err
		}
		if err := sendMany(fd, []byte("x"), sockaddr("127.66.0.2", port), sockaddr("127.66.0.3", port)); err != nil {
			return err
		}
		if err := unix.Connect(fd, to(5)); err != nil {
			return err
		}
		if err := unix.Sendmsg(fd, []byte("x"), nil, nil, 0); err != nil && err != unix.ECONNREFUSED {
			return err
		}
		say("done")
		return nil
	}
	testParts["sendmmsg"] = func(args []string) error {
		port, _ := strconv.Atoi(args[0])
		n, _ := strconv.Atoi(args[1])
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
		if err != nil {
			return err
		}
		var to [][]byte
		for i := range n {
			to = append(to, sockaddr(fmt.Sprintf("127.66.%d.%d", i>>8, i&0xff), port))
		}
		if err := sendMany(fd, []byte("x"), to...); err != nil {
			return err
		}
		say("done")
		return nil
	}
}

// sendMany sends the same to each address with one sendmmsg; nil is for none.
func sendMany(fd int, payload []byte, to ...[]byte) error {
	type mmsghdr struct {
		unix.Msghdr
		len uint32
		_   uint32
	}
	messages := make([]mmsghdr, len(to))
	iov := unix.Iovec{Base: &payload[0], Len: uint64(len(payload))}
	for i := range to {
		messages[i].Name, messages[i].Namelen = unsafe.SliceData(to[i]), uint32(len(to[i]))
		messages[i].Iov, messages[i].Iovlen = &iov, 1
	}
	n, _, errno := unix.Syscall6(unix.SYS_SENDMMSG, uintptr(fd), uintptr(unsafe.Pointer(&messages[0])), uintptr(len(messages)), 0, 0, 0)
	runtime.KeepAlive(to)
	if errno != 0 || int(n) != len(to) {
		return fmt.Errorf("sendmmsg sent %d of %d: %v", n, len(to), errno)
	}
	return nil
}

// programs looks at programs that are started in different ways.
func programs(t *testing.T) {
	s, a := startScoped(t)
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	prog := filepath.Join(dir, "prog")
	script, nested := filepath.Join(dir, "script"), filepath.Join(dir, "nested")
	for _, err := range []error{
		os.Symlink(self, prog),
		os.WriteFile(script, []byte("#!"+prog+" -test.run=none extra\n"), 0o700),
		os.WriteFile(nested, []byte("#! "+script+"\n"), 0o700),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	a.must(unix.SYS_CHDIR, dir)
	a.do("run", prog, prog, "-test.run=none") // the first time, the runtime starts a process to see what the kernel can do
	long := strings.Repeat("x", 100_000)
	many := make([]string, 200)
	for i := range many {
		many[i] = "argument " + strconv.Itoa(i)
	}
	none := "-test.run=none"
	for name, tt := range map[string]struct {
		argv []string // argv[0], the program, arguments
		want fields
	}{
		"through a link": {[]string{prog, prog, none, "a b", ""}, fields{"argv": []any{prog, none, "a b", ""}, "exe": self, "path": prog}},
		"relative":       {[]string{"./prog", "./prog", none}, fields{"argv": []any{prog, none}, "exe": self, "path": prog, "argv0": "./prog", "requested": "./prog"}},
		"false argv[0]":  {[]string{"[kthreadd]", prog, none}, fields{"argv": []any{prog, none}, "exe": self, "path": prog, "argv0": "[kthreadd]"}},
		"script":         {[]string{"s", script, "x"}, fields{"argv": []any{script, "x"}, "exe": self, "path": script}},
		"nested script":  {[]string{"s", nested, "y"}, fields{"argv": []any{nested, "y"}, "exe": self, "path": nested}},
		"200 arguments":  {append([]string{prog, prog, none}, many...), fields{"argv": anys(append([]string{prog, none}, many...)), "exe": self, "path": prog}},
		"a long one":     {[]string{prog, prog, none, long, "secret"}, fields{"argv": []any{prog, none, long[:16384-len(prog)-len(none)-2]}, "exe": self, "path": prog, "truncated": true, "argc": 4.0}},
	} {
		t.Run(name, func(t *testing.T) {
			s.begin(name, "")
			pid := a.do("run", tt.argv...)
			got := events(s.end(name), name)
			tt.want["type"], tt.want["ppid"] = "exec", float64(a.pid())
			checkEvents(t, filter(got, fields{"type": "exec"}), pid, tt.want)
			checkEvents(t, filter(got, fields{"type": "process_spawn"}), a.pid(), fields{"type": "process_spawn", "child_pid": float64(pid)})
		})
	}
}

func anys(s []string) []any {
	a := make([]any, len(s))
	for i := range s {
		a[i] = s[i]
	}
	return a
}

// fifoOf is where a part waits until its test writes something.
func fifoOf(pid int) string { return filepath.Join(os.TempDir(), fmt.Sprintf("probe-test-%d", pid)) }

// waitAtFifo says that this part is ready and calls f whenever its test has written
// something to its fifo, as often as told.
func waitAtFifo(times int, f func() error) error {
	path := fifoOf(os.Getpid())
	if err := unix.Mkfifo(path, 0o600); err != nil {
		return err
	}
	defer os.Remove(path)
	say("ready")
	for range times {
		if _, err := os.ReadFile(path); err != nil {
			return err
		}
		if err := f(); err != nil {
			return err
		}
	}
	return nil
}

func waitGone(t *testing.T, pid int) {
	t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if unix.Kill(pid, 0) == unix.ESRCH {
			return
		}
	}
	t.Fatalf("process %d does not end", pid)
}

func init() {
	testParts["memfd"] = func([]string) error {
		self, err := os.ReadFile("/proc/self/exe")
		if err != nil {
			return err
		}
		fd, err := unix.MemfdCreate("probe", 0)
		if err != nil {
			return err
		}
		if _, err := unix.Write(fd, self); err != nil {
			return err
		}
		cmd := exec.Command(fmt.Sprintf("/proc/self/fd/%d", fd), "-test.run=none")
		cmd.Args[0] = "innocent"
		if err := cmd.Run(); err != nil {
			return err
		}
		say("done")
		return nil
	}
	testParts["exec-thread"] = func(args []string) error {
		if len(args) > 0 { // the program that the thread has started
			return waitAtFifo(1, func() error {
				os.ReadFile(fmt.Sprintf("/etc/hostname-of-%d", os.Getpid()))
				return nil
			})
		}
		self, err := os.Executable()
		if err != nil {
			return err
		}
		failed := make(chan error)
		go func() {
			runtime.LockOSThread()
			if unix.Gettid() == os.Getpid() {
				runtime.LockOSThread() // keep the first thread busy, and take another
				go func() {
					runtime.LockOSThread()
					failed <- unix.Exec(self, []string{self, "done"}, append(os.Environ(), "PROBE_TEST_PART=exec-thread"))
				}()
				select {}
			}
			failed <- unix.Exec(self, []string{self, "done"}, append(os.Environ(), "PROBE_TEST_PART=exec-thread"))
		}()
		return <-failed
	}
}

// stampAtEntry is rules 1 and 3: an operation belongs to the call in which
// it entered the kernel, and to none once that call has ended.
func stampAtEntry(t *testing.T) {
	s, a := startScoped(t)
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	openFifo := func() { a.ask(actorCommand{Call: unix.SYS_OPENAT, Args: []any{unix.AT_FDCWD, fifo, unix.O_RDONLY, 0}}) }
	release := func() {
		w, err := os.OpenFile(fifo, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		a.answer()
		w.Close()
	}
	opened := fields{"type": "file_open"}

	s.begin("a", "")
	openFifo()
	waitInOpen(t, a.pid())
	if got := filter(s.end("a"), opened); len(got) != 0 {
		t.Errorf("before it was decided: %v", got)
	}
	s.begin("b", "")
	release()
	got := filter(s.end("b"), opened)
	if len(got) != 1 || brief(got[0]) != "file_open ambient a" {
		t.Errorf("got %v, want one event that comes from a", briefs(got))
	}

	// Begun before any call.
	openFifo()
	waitInOpen(t, a.pid())
	s.begin("c", "")
	release()
	if got := filter(s.end("c"), opened); len(got) != 1 || brief(got[0]) != "file_open ambient" {
		t.Errorf("got %v, want one event that belongs to no call", briefs(got))
	}

	// Begun and completed in the same call, with another one begun and ended in between.
	s.begin("d", "")
	openFifo()
	waitInOpen(t, a.pid())
	s.begin("e", "")
	s.end("e")
	release()
	if got := filter(s.end("d"), opened); len(got) != 1 || brief(got[0]) != "file_open call d" {
		t.Errorf("got %v, want one event of d", briefs(got))
	}
}

// waitInOpen waits until the process sleeps in an open.
func waitInOpen(t *testing.T, pid int) {
	t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(time.Millisecond) {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/syscall", pid))
		if err != nil {
			t.Skipf("cannot see what the actor does: %v", err)
		}
		if number, _, _ := strings.Cut(string(b), " "); number == strconv.Itoa(unix.SYS_OPENAT) {
			return
		}
	}
	t.Fatal("the actor does not come to its open")
}

// marksAreOrdered is rule 2: when an end is acknowledged, all that the call
// did is out, and what was done before a begin is never charged to it. Nothing
// waits between the steps.
func marksAreOrdered(t *testing.T) {
	s, a := startScoped(t)
	n := 300
	if testing.Short() {
		n = 50
	}
	open := func(path string) { a.call(unix.SYS_OPENAT, unix.AT_FDCWD, path, unix.O_RDONLY, 0) }
	for i := range n {
		id := strconv.Itoa(i)
		open("/between-" + id)
		lines := s.begin(id, "")
		open("/in-" + id)
		lines = append(lines, s.end(id)...)
		got := events(lines, id)
		if len(got) != 1 || got[0]["path"] != "/in-"+id {
			t.Fatalf("call %d has %v", i, got)
		}
		if between := filter(lines, fields{"path": "/between-" + id}); len(between) != 1 || brief(between[0]) != "file_open ambient" {
			t.Fatalf("before call %d: %v", i, between)
		}
	}

	// Marks sent without waiting: each end is acknowledged, and no event is charged
	// to a call that did not contain it. The actor's opens lie between two pairs.
	for i := range n {
		id := strconv.Itoa(i)
		s.sendBegin("x"+id, "")
		s.sendEnd("x" + id)
		s.sendBegin("y"+id, "")
		s.untilStatus("begin", "y"+id)
		open("/y-" + id)
		s.sendEnd("y" + id)
		s.sendBegin("z"+id, "")
		lines := s.untilStatus("begin", "z"+id)
		if got := filter(lines, fields{"path": "/y-" + id}); len(got) != 1 || got[0].str("call_id") != "y"+id {
			t.Fatalf("round %d: %v", i, got)
		}
		s.end("z" + id)
	}
}

// overlap is rule 3 for calls that overlap.
func overlap(t *testing.T) {
	s, a := startScoped(t)
	open := func(path string) { a.call(unix.SYS_OPENAT, unix.AT_FDCWD, path, unix.O_RDONLY, 0) }
	s.begin("a", "")
	open("/1")
	s.begin("b", "")
	open("/2")
	s.end("a")
	open("/3")
	s.end("b")
	open("/4")
	s.shutdown()
	for path, want := range map[string]string{
		"/1": "file_open call a",
		"/2": "file_open ambient [a b]",
		"/3": "file_open call b",
		"/4": "file_open ambient",
	} {
		if got := filter(s.all, fields{"path": path}); len(got) != 1 || brief(got[0]) != want {
			t.Errorf("%s is %q, want %q", path, briefs(got), want)
		}
	}
}

// lineage is rule 4: what a process does outside of the call that it was
// forked in says where it comes from, and so does what its children do.
func lineage(t *testing.T) {
	s, a := startScoped(t)
	s.begin("a", "")
	pid := a.do("part", "lineage")
	if got := filter(events(s.end("a"), "a"), fields{"type": "exec", "pid": float64(pid)}); len(got) != 1 || got[0]["origin_call_id"] != nil {
		t.Errorf("in its call: %v", got)
	}
	poke := func() []outLine {
		if err := os.WriteFile(fifoOf(pid), []byte("x"), 0); err != nil {
			t.Fatal(err)
		}
		return s.until(func(l outLine) bool { return l["path"] == "/lineage-child" })
	}
	check := func(when string, lines []outLine, want string) {
		t.Helper()
		for _, path := range []string{"/lineage", "/lineage-child"} {
			if got := filter(lines, fields{"path": path}); len(got) != 1 || brief(got[0]) != want {
				t.Errorf("%s: %s is %q, want %q", when, path, briefs(got), want)
			}
		}
	}
	check("later", poke(), "file_open ambient a")
	s.begin("b", "")
	check("in another call", poke(), "file_open call b a")
	// So many calls later that all others are forgotten.
	for i := range 3 * pruneInterval {
		id := strconv.Itoa(i)
		s.sendBegin(id, "")
		s.sendEnd(id)
		s.untilStatus("end", id)
	}
	s.session.attr.mu.Lock()
	if n := len(s.session.attr.windows); n > 2*pruneInterval {
		t.Errorf("%d windows are kept", n)
	}
	s.session.attr.mu.Unlock()
	check("much later", poke(), "file_open call b a")
	// The actor itself is older than any call.
	a.call(unix.SYS_OPENAT, unix.AT_FDCWD, "/actor", unix.O_RDONLY, 0)
	if got := filter(s.end("b"), fields{"path": "/actor"}); len(got) != 1 || brief(got[0]) != "file_open call b" {
		t.Errorf("the actor: %q", briefs(got))
	}
	waitGone(t, pid)
}

func init() {
	// lineage opens something, and has a child do so, whenever it is poked.
	testParts["lineage"] = func(args []string) error {
		if len(args) > 0 {
			os.ReadFile("/lineage-child")
			return nil
		}
		return waitAtFifo(3, func() error {
			os.ReadFile("/lineage")
			return partCommand("lineage", "child").Run()
		})
	}
}

// busyListener returns a socket that listens on 127.66.0.9 at the port that it
// returns, too, and takes no notice of connections, since its queue is full.
func busyListener(t *testing.T) (fd, port int) {
	t.Helper()
	l, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(unix.Bind(l, &unix.SockaddrInet4{Addr: [4]byte{127, 66, 0, 9}}), unix.Listen(l, 0)); err != nil {
		t.Fatal(err)
	}
	sa, err := unix.Getsockname(l)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(fd) })
		unix.Connect(fd, sa)
	}
	return l, sa.(*unix.SockaddrInet4).Port
}

// TestEBPFConnectIsSeenAtOnce is rule 5: a connection to a host that does not
// answer is an event of its call, although it is still under way when that ends.
func TestEBPFConnectIsSeenAtOnce(t *testing.T) {
	s, a := startScoped(t)
	l, port := busyListener(t)
	defer unix.Close(l)
	fd := a.must(unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_STREAM, 0)
	s.begin("a", "")
	a.ask(actorCommand{Call: unix.SYS_CONNECT, Args: []any{fd, sockaddr("127.66.0.9", port), 16}})
	got := s.until(func(l outLine) bool { return l["type"] == "connect" })
	checkEvents(t, events(got, "a"), a.pid(), fields{"type": "connect", "proto": "tcp", "dst": fmt.Sprintf("127.66.0.9:%d", port)})
	if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/syscall", a.pid())); err == nil && !strings.HasPrefix(string(b), strconv.Itoa(unix.SYS_CONNECT)+" ") && string(b) != "running\n" {
		t.Errorf("the connect is over: %s", b)
	}
	s.end("a")
	unix.Kill(a.pid(), unix.SIGKILL)
}

// TestEBPFLossesAreExact is rule 6: what was done is what was delivered and what
// is said to be lost, to the last one, by call, although nobody reads for a while.
func TestEBPFLossesAreExact(t *testing.T) {
	for _, deed := range []string{"opens", "uring-opens"} {
		t.Run(deed, func(t *testing.T) { exactLosses(t, deed) })
	}
}

// exactLosses fills the ring with 40,000 opens.
func exactLosses(t *testing.T, deed string) {
	b := ebpfOrSkip(t, 1<<20)
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	c := newClient(t, inW, outR)
	sess := newSession(b, outW, 0)
	go sess.readControls(inR)
	done := make(chan error, 1)
	go func() { done <- sess.run(); b.Close(); outW.Close() }()
	a := startActor(t)
	c.untilStatus("ready", "")
	c.scope(a.pid())

	const n = 20_000
	c.begin("a", "")
	c.gate.Lock() // the reader stops
	a.do(deed, "/dev/null", strconv.Itoa(n))
	c.sendEnd("a") // it is acknowledged only when the reader goes on
	c.sendBegin("b", "")
	time.Sleep(50 * time.Millisecond)
	a.do(deed, "/dev/zero", strconv.Itoa(n))
	c.sendEnd("b")
	c.gate.Unlock()
	count := func(lines []outLine, id, path string) (delivered, dropped int) {
		for _, l := range events(lines, id) {
			switch {
			case l["type"] == "drop":
				if l["reason"] != "ring_buffer_full" {
					t.Errorf("lost for another reason: %v", l)
				}
				dropped += int(l["count"].(float64))
			case l["path"] == path:
				delivered++
			default:
				t.Errorf("another event: %v", l)
			}
		}
		return
	}
	delivered, dropped := count(c.untilStatus("end", "a"), "a", "/dev/null")
	if delivered+dropped != n || dropped == 0 || delivered == 0 {
		t.Errorf("in a, %d were delivered and %d dropped, of %d", delivered, dropped, n)
	}
	delivered, dropped = count(c.untilStatus("end", "b"), "b", "/dev/zero")
	if delivered+dropped != n || dropped == 0 {
		t.Errorf("in b, %d were delivered and %d dropped, of %d", delivered, dropped, n)
	}
	c.begin("c", "")
	a.do(deed, "/dev/null", "10")
	if delivered, dropped := count(c.end("c"), "c", "/dev/null"); delivered != 10 || dropped != 0 {
		t.Errorf("afterwards, %d were delivered and %d dropped, of 10", delivered, dropped)
	}
	c.shutdown()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestEBPFScope is rule 7.
func TestEBPFScope(t *testing.T) {
	t.Run("threads are in it", func(t *testing.T) {
		s, a := startScoped(t)
		s.begin("a", "")
		tid := a.do("thread", "/etc/thread")
		checkEvents(t, events(s.end("a"), "a"), a.pid(), fields{"type": "file_open", "tid": float64(tid), "path": "/etc/thread", "flags": "O_RDONLY", "errno": "ENOENT"})
		if tid == a.pid() {
			t.Errorf("the thread is %d, like its process", tid)
		}
	})
	t.Run("descendants that exist are taken in", func(t *testing.T) {
		s := startEBPF(t)
		a := startActor(t)
		a.do("part", "nest", "4") // four generations, the last two in groups of their own
		if l := s.scope(a.pid()); l[len(l)-1]["processes"] != 6.0 {
			t.Errorf("got %v, want 6 processes", l[len(l)-1])
		}
	})
	t.Run("another user's acts say so", func(t *testing.T) {
		s, a := startScoped(t)
		s.begin("a", "")
		a.do("part", "another-user")
		lines := s.end("a")
		if got := filter(lines, fields{"path": "/nobody", "uid": 65534.0}); len(got) != 1 {
			t.Errorf("got %v", filter(lines, fields{"path": "/nobody"}))
		}
		if got := filter(lines, fields{"path": "/somebody", "uid": nil}); len(got) != 1 {
			t.Errorf("got %v", filter(lines, fields{"path": "/somebody"}))
		}
	})
	t.Run("strangers are not", func(t *testing.T) {
		s, a := startScoped(t)
		stranger := startActor(t)
		s.begin("a", "")
		stranger.call(unix.SYS_OPENAT, unix.AT_FDCWD, "/stranger", unix.O_RDONLY, 0)
		os.ReadFile("/the-sidecar-itself")
		a.call(unix.SYS_OPENAT, unix.AT_FDCWD, "/actor", unix.O_RDONLY, 0)
		checkEvents(t, events(s.end("a"), "a"), a.pid(), fields{"type": "file_open", "path": "/actor", "flags": "O_RDONLY", "errno": "ENOENT"})
	})
	t.Run("a new scope replaces the old one", func(t *testing.T) {
		s, a := startScoped(t)
		b := startActor(t)
		s.scope(b.pid())
		a.call(unix.SYS_OPENAT, unix.AT_FDCWD, "/old", unix.O_RDONLY, 0)
		b.call(unix.SYS_OPENAT, unix.AT_FDCWD, "/new", unix.O_RDONLY, 0)
		s.scope(a.pid())
		a.call(unix.SYS_OPENAT, unix.AT_FDCWD, "/again", unix.O_RDONLY, 0)
		s.shutdown()
		lines := s.all
		for path, n := range map[string]int{"/old": 0, "/new": 1, "/again": 1} {
			if got := filter(lines, fields{"path": path}); len(got) != n {
				t.Errorf("%s is seen %d times, want %d", path, len(got), n)
			}
		}
	})
	t.Run("what was begun out of it is no loss", func(t *testing.T) {
		s, a := startScoped(t)
		b := startActor(t)
		fifo := filepath.Join(t.TempDir(), "fifo")
		if err := unix.Mkfifo(fifo, 0o600); err != nil {
			t.Fatal(err)
		}
		for _, in := range []bool{true, false} { // while the open begins; it ends in the other state
			if in {
				s.scope(a.pid())
			} else {
				s.scope(b.pid())
			}
			a.ask(actorCommand{Call: unix.SYS_OPENAT, Args: []any{unix.AT_FDCWD, fifo, unix.O_RDONLY, 0}})
			waitInOpen(t, a.pid())
			if in {
				s.scope(b.pid())
			} else {
				s.scope(a.pid())
			}
			w, err := os.OpenFile(fifo, os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			a.answer()
			w.Close()
			s.scope(a.pid())
			a.call(unix.SYS_OPENAT, unix.AT_FDCWD, "/next", unix.O_RDONLY, 0)
		}
		s.shutdown()
		if lost := filter(s.all, fields{"type": "drop"}); len(lost) > 0 {
			t.Errorf("something is said to be lost: %v", lost)
		}
		if next := filter(s.all, fields{"path": "/next"}); len(next) != 2 {
			t.Errorf("got %v", next)
		}
	})
	t.Run("a group that does not exist", func(t *testing.T) {
		s := startEBPF(t)
		l := s.scope(0x7ffffffe)
		if last := l[len(l)-1]; last["processes"] != 0.0 || last.str("error") == "" {
			t.Errorf("got %v", last)
		}
		s.begin("a", "")
		s.end("a")
	})
}

func init() {
	testParts["another-user"] = func([]string) error {
		os.ReadFile("/somebody")
		if err := syscall.Setuid(65534); err != nil {
			return err
		}
		os.ReadFile("/nobody")
		say("done")
		return nil
	}
	testParts["nest"] = func(args []string) error {
		n := mustAtoi(args[0])
		if n > 0 {
			cmd := partCommand("nest", strconv.Itoa(n-1))
			cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: n <= 2}
			cmd.Stdin = os.Stdin
			cmd.Stdout = os.Stdout // the last one says that all are there
			if err := cmd.Start(); err != nil {
				return err
			}
			return cmd.Wait()
		}
		say("nested")
		time.Sleep(2 * time.Second)
		return nil
	}
	testParts["busy"] = func([]string) error {
		for end := time.Now().Add(5 * time.Minute); time.Now().Before(end); {
		}
		return nil
	}
}

func mustAtoi(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		panic(err)
	}
	return n
}

// TestEBPFIdentity checks who an event says it is of: a process that was there before
// the scope was set, and one that it starts.
func TestEBPFIdentity(t *testing.T) {
	b := ebpfOrSkip(t, 1<<20)
	s := startSession(t, b, 0)
	a := startActor(t)
	s.scope(a.pid())
	own, err := os.Readlink("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	program, err := filepath.EvalSymlinks("/bin/true")
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"first", "later"} {
		s.begin(id, "")
		a.call(unix.SYS_OPENAT, unix.AT_FDCWD&0xffffffff, "/none")
		child := a.do("run", "true", "/bin/true")
		lines := s.end(id)
		for _, tt := range []struct {
			want      fields
			ppid      int
			exe, what string
		}{
			{fields{"path": "/none"}, os.Getpid(), own, "the actor"},
			{fields{"type": "process_spawn"}, os.Getpid(), own, "the actor"},
			{fields{"type": "exec", "pid": float64(child)}, a.pid(), program, "its child"},
		} {
			got := filter(events(lines, id), tt.want)
			if len(got) == 0 {
				t.Errorf("%s: there is no %v", id, tt.want)
				continue
			}
			for _, l := range got {
				if l["ppid"] != float64(tt.ppid) || l["exe"] != tt.exe {
					t.Errorf("%s: %s has parent %v and program %v, want %d and %s: %v", id, tt.what, l["ppid"], l["exe"], tt.ppid, tt.exe, l)
				}
			}
		}
	}
}

// TestEBPFStartup is rule 8: until a scope is set, what the sidecar's parent starts
// after the ready line is watched, and nothing else.
func TestEBPFStartup(t *testing.T) {
	ebpfOrSkip(t, 1<<20).Close()
	stranger := startActor(t) // a child of the sidecar's parent, but an older one
	p := startProbe(t)
	child := startActor(t)
	child.call(unix.SYS_OPENAT, unix.AT_FDCWD, "/child", unix.O_RDONLY, 0)
	stranger.call(unix.SYS_OPENAT, unix.AT_FDCWD, "/stranger", unix.O_RDONLY, 0)
	os.ReadFile("/the-parent-itself")
	p.begin("a", "")
	child.call(unix.SYS_OPENAT, unix.AT_FDCWD, "/in-call", unix.O_RDONLY, 0)
	p.end("a")
	p.scope(stranger.pid())
	child.call(unix.SYS_OPENAT, unix.AT_FDCWD, "/child-after", unix.O_RDONLY, 0)
	stranger.call(unix.SYS_OPENAT, unix.AT_FDCWD, "/stranger-after", unix.O_RDONLY, 0)
	p.shutdown()
	lines := p.all
	for path, want := range map[string][]string{
		"/child":             {"file_open startup"},
		"/in-call":           {"file_open call a"},
		"/stranger":          nil,
		"/the-parent-itself": nil,
		"/child-after":       nil,
		"/stranger-after":    {"file_open ambient"},
	} {
		if got := briefs(filter(lines, fields{"path": path})); !reflect.DeepEqual(got, want) {
			t.Errorf("%s is %q, want %q", path, got, want)
		}
	}
	if got := filter(lines, fields{"type": "exec", "pid": float64(child.pid()), "bucket": "startup"}); len(got) != 1 {
		t.Errorf("the child's own start: %v", got)
	}
	for _, l := range lines {
		if pid := l["pid"]; pid == float64(p.cmd.Process.Pid) || pid == float64(os.Getpid()) {
			t.Errorf("the sidecar or its parent is watched: %v", l)
		}
	}
}

// A testProbe is a sidecar in a process of its own.
type testProbe struct {
	*client
	cmd   *exec.Cmd
	out   *os.File
	ended chan struct{}
	err   error
}

// wait waits for the sidecar's end.
func (p *testProbe) wait() error {
	<-p.ended
	return p.err
}

func startProbe(t *testing.T, args ...string) *testProbe {
	t.Helper()
	cmd := partCommand("probe", args...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	in, out := startPiped(t, cmd)
	p := &testProbe{client: newClient(t, in, out), cmd: cmd, out: out.(*os.File), ended: make(chan struct{})}
	go func() { p.err = cmd.Wait(); close(p.ended) }()
	t.Cleanup(func() {
		cmd.Process.Kill()
		p.wait()
		if t.Failed() {
			t.Logf("the sidecar says: %s", stderr.String())
		}
	})
	p.untilStatus("ready", "")
	return p
}
