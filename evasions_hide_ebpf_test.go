//go:build linux && (amd64 || arm64)

package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// everySpelling makes the same acts by all the system calls that there are for them.
func everySpelling(t *testing.T) {
	s, a := startScoped(t)
	runCallRows(t, s, a, 8)
	dir := folder(t)
	in := func(name string) string { return filepath.Join(dir, name) }
	for _, name := range []string{"a", "b", "c"} {
		if err := os.WriteFile(in(name), []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	a.must(unix.SYS_CHDIR, dir)
	dirfd := a.must(unix.SYS_OPENAT, unix.AT_FDCWD, dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	filefd := a.must(unix.SYS_OPENAT, dirfd, "a", unix.O_RDONLY, 0)
	fdPath := fmt.Sprintf("/proc/self/fd/%d", filefd)
	throughProc := fields{"type": "file_link", "path": in("g"), "requested": "g", "old_path": fdPath}
	if knowsPaths(s.session.backend) {
		throughProc["old_path"], throughProc["old_requested"] = in("b"), fdPath
	}
	tmpfile := a.must(unix.SYS_OPENAT, dirfd, ".", unix.O_TMPFILE|unix.O_RDWR, 0o600)
	inRoot := make([]byte, 24) // struct open_how
	binary.NativeEndian.PutUint64(inRoot[16:], unix.RESOLVE_IN_ROOT)
	for _, r := range []callRow{
		{"renameat", unix.SYS_RENAMEAT, []any{dirfd, "c", unix.AT_FDCWD, "d"}, 0,
			[]fields{{"type": "file_rename", "path": in("d"), "requested": "d", "old_path": in("c"), "old_requested": "c"}}},
		{"rename over another", unix.SYS_RENAMEAT2, []any{dirfd, "d", dirfd, "b", 0}, 0,
			[]fields{{"type": "file_rename", "path": in("b"), "requested": "b", "old_path": in("d"), "old_requested": "d"}}},
		{"exchange of names", unix.SYS_RENAMEAT2, []any{dirfd, "a", dirfd, "b", unix.RENAME_EXCHANGE}, 0,
			[]fields{{"type": "file_rename", "flags": "RENAME_EXCHANGE", "path": in("b"), "requested": "b", "old_path": in("a"), "old_requested": "a"}}},
		{"link of a descriptor", unix.SYS_LINKAT, []any{filefd, "", unix.AT_FDCWD, in("e"), unix.AT_EMPTY_PATH}, 0,
			[]fields{{"type": "file_link", "path": in("e"), "old_path": in("b"), "old_requested": ""}}},
		{"link of a nameless file", unix.SYS_LINKAT, []any{tmpfile, "", dirfd, "f", unix.AT_EMPTY_PATH}, 0, nil},
		{"link through /proc", unix.SYS_LINKAT, []any{unix.AT_FDCWD, fdPath, dirfd, "g", unix.AT_SYMLINK_FOLLOW}, 0,
			[]fields{throughProc}},
		{"fchmodat2", unix.SYS_FCHMODAT2, []any{dirfd, "a", 0o755, unix.AT_SYMLINK_NOFOLLOW}, 0,
			[]fields{{"type": "chmod", "path": in("a"), "requested": "a", "mode": "755"}}},
		{"fchmodat2 of a descriptor", unix.SYS_FCHMODAT2, []any{filefd, "", 0o711, unix.AT_EMPTY_PATH}, 0,
			[]fields{{"type": "chmod", "path": in("b"), "requested": "", "mode": "711"}}},
		{"openat2, the folder for its root", unix.SYS_OPENAT2, []any{dirfd, "/a", inRoot, len(inRoot)}, 1,
			[]fields{{"type": "file_open", "path": in("a"), "requested": "/a", "flags": "O_RDONLY"}}},
		{"openat2 of nothing, the folder for its root", unix.SYS_OPENAT2, []any{dirfd, "/nope", inRoot, len(inRoot)}, -int(unix.ENOENT),
			[]fields{{"type": "file_open", "path": in("nope"), "requested": "/nope", "flags": "O_RDONLY", "errno": "ENOENT"}}},
		{"open without rights", unix.SYS_OPENAT, []any{unix.AT_FDCWD, "a", unix.O_PATH, 0}, 1,
			[]fields{{"type": "file_open", "path": in("a"), "requested": "a", "flags": "O_RDONLY|O_PATH"}}},
		{"open that cuts off", unix.SYS_OPENAT, []any{unix.AT_FDCWD, in("a"), unix.O_WRONLY | unix.O_TRUNC, 0}, 1,
			[]fields{{"type": "file_open", "path": in("a"), "flags": "O_WRONLY|O_TRUNC"}}},
	} {
		if r.call == unix.SYS_FCHMODAT2 && a.call(unix.SYS_FCHMODAT2, -1, "", 0, 0) == -int(unix.ENOSYS) {
			continue // it came with 6.6
		}
		if r.want == nil { // the name that an O_TMPFILE has in no folder
			link, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", a.pid(), tmpfile))
			if err != nil {
				t.Fatal(err)
			}
			r.want = []fields{{"type": "file_link", "path": in("f"), "requested": "f",
				"old_path": strings.TrimSuffix(link, " (deleted)"), "old_requested": ""}}
		}
		r.run(t, s, a, func() int { return a.call(r.call, r.args...) })
	}
	program := smallProgram(t, "program")
	for how, want := range map[string]fields{
		"execve":                   {"path": program},
		"execveat":                 {"path": program},
		"execveat of a descriptor": {"path": program},
		"execve through /proc":     {},
		"a deleted file":           {"path": program, "fileless": true},
		"a memfd":                  {"path": "/memfd:hidden", "exe": "/memfd:hidden", "fileless": true},
		"a memfd to be closed":     {"path": "/memfd:hidden", "exe": "/memfd:hidden", "fileless": true},
	} {
		t.Run(how, func(t *testing.T) {
			file := program
			if how == "a deleted file" {
				file = smallProgram(t, "deleted")
				want["path"] = file
			}
			if want["exe"] == nil {
				want["exe"] = file
			}
			pid := 0
			got := during(s.client, func() { pid = a.do("play", "exec-by", how, file) })
			execs := filter(got, fields{"type": "exec", "pid": float64(pid)}) // first the part's own
			want["argv0"], want["ppid"] = "x", float64(a.pid())
			if len(execs) != 2 || len(filter(execs[1:], want)) != 1 ||
				!reflect.DeepEqual(execs[1]["argv"], []any{execs[1]["path"], "y"}) {
				t.Errorf("got  %.900s\nwant %v", fmt.Sprint(execs), want)
			}
		})
	}
	t.Run("execveat of a script", func(t *testing.T) {
		script := filepath.Join(folder(t), "script")
		if err := os.WriteFile(script, []byte("#!"+program+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
		pid := 0
		got := during(s.client, func() { pid = a.do("play", "exec-by", "execveat", script) })
		execs := filter(got, fields{"type": "exec", "pid": float64(pid)}) // first the part's own
		if len(execs) != 2 || execs[1]["path"] != script || execs[1]["exe"] != program {
			t.Errorf("got %.900s", fmt.Sprint(execs))
		}
	})
	t.Run("open by handle", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		handle, _, err := unix.NameToHandleAt(unix.AT_FDCWD, file, 0)
		if err != nil {
			t.Skipf("no handles on this file system: %v", err)
		}
		dirfd := a.must(unix.SYS_OPENAT, unix.AT_FDCWD, filepath.Dir(file), unix.O_RDONLY, 0)
		raw := binary.NativeEndian.AppendUint32(nil, uint32(handle.Size()))
		raw = binary.NativeEndian.AppendUint32(raw, uint32(handle.Type()))
		s.begin("handle", "")
		ret := a.call(unix.SYS_OPEN_BY_HANDLE_AT, dirfd, append(raw, handle.Bytes()...), unix.O_RDONLY)
		if ret < 0 {
			t.Skipf("no handles on this file system: %v", syscall.Errno(-ret))
		}
		checkEvents(t, events(s.end("handle"), "handle"), a.pid(), fields{"type": "file_open", "path": file, "flags": "O_RDONLY"})
	})
	t.Run("from memory", func(t *testing.T) {
		s.begin("memfd", "")
		pid := a.do("part", "memfd")
		got := filter(events(s.end("memfd"), "memfd"), fields{"type": "exec", "fileless": true})
		if len(got) != 1 || got[0]["pid"] == float64(pid) || got[0]["exe"] != "/memfd:probe" || got[0]["argv0"] != "innocent" || !strings.HasPrefix(got[0].str("path"), "/proc/self/fd/") {
			t.Errorf("got %v", got)
		}
	})
}

// everyDestination sends to an address from sockets of all kinds, by all calls.
func everyDestination(t *testing.T) {
	s, a := startScoped(t)
	runCallRows(t, s, a, 11)
	port := freePort(t)
	dst := fmt.Sprintf("127.66.0.9:%d", port)
	const echo = "\x08\x00\xf7\xff\x00\x00\x00\x00" // ICMP, the same for ICMPv6 as far as the kernel cares
	packet := "\x45\x00\x00\x1c\x00\x00\x00\x00\x40\x01\x00\x00\x00\x00\x00\x00\x7f\x42\x00\x09" + echo
	for _, r := range []struct {
		name               string
		family, typ, proto int
		call               int
		addr, payload      string
		wantProto, wantDst string
	}{
		{"UDP to a mapped address", unix.AF_INET6, unix.SOCK_DGRAM, 0, unix.SYS_SENDTO, "::ffff:127.66.0.9", "x", "udp", dst},
		{"UDP connect to a mapped address", unix.AF_INET6, unix.SOCK_DGRAM, 0, unix.SYS_CONNECT, "::ffff:127.66.0.9", "", "udp", dst},
		{"UDP connect over IPv6", unix.AF_INET6, unix.SOCK_DGRAM, 0, unix.SYS_CONNECT, "::1", "", "udp", fmt.Sprintf("[::1]:%d", port)},
		{"UDP-Lite", unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_UDPLITE, unix.SYS_SENDTO, "127.66.0.9", "x", "udplite", dst},
		{"ICMP", unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP, unix.SYS_SENDTO, "127.66.0.9", echo, "icmp", dst},
		{"ICMP connect", unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP, unix.SYS_CONNECT, "127.66.0.9", "", "icmp", ""},
		{"ICMPv6", unix.AF_INET6, unix.SOCK_RAW, unix.IPPROTO_ICMPV6, unix.SYS_SENDTO, "::1", echo, "icmpv6", ""},
		{"a header of its own", unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_RAW, unix.SYS_SENDTO, "127.66.0.9", packet, "raw", dst},
		{"an unknown protocol", unix.AF_INET, unix.SOCK_RAW, 253, unix.SYS_SENDTO, "127.66.0.9", "x", "ip-253", dst},
	} {
		t.Run(r.name, func(t *testing.T) {
			fd := a.call(unix.SYS_SOCKET, r.family, r.typ, r.proto)
			if fd < 0 {
				t.Skipf("there is no such socket here: %v", syscall.Errno(-fd))
			}
			addr := sockaddr(r.addr, port)
			if r.wantDst == "" { // the address has no port here
				r.wantDst = net.JoinHostPort(r.addr, "0")
				copy(addr[2:], "\x00\x00")
			}
			ret := 0
			got := during(s.client, func() {
				if r.call == unix.SYS_CONNECT {
					ret = a.call(r.call, fd, addr, len(addr))
				} else {
					ret = a.call(r.call, fd, r.payload, len(r.payload), 0, addr, len(addr))
				}
			})
			if ret < 0 {
				t.Errorf("it returns %v", syscall.Errno(-ret))
			}
			checkEvents(t, got, a.pid(), fields{"type": "connect", "proto": r.wantProto, "dst": r.wantDst})
		})
	}
	t.Run("IPv6 messages of which one has no address", func(t *testing.T) {
		peer, err := net.ListenPacket("udp4", fmt.Sprintf("127.66.0.8:%d", port)) // or the second is refused
		if err != nil {
			t.Fatal(err)
		}
		defer peer.Close()
		got := during(s.client, func() { a.do("mapped messages", strconv.Itoa(port)) })
		checkEvents(t, got, a.pid(), fields{"type": "connect", "proto": "udp", "dst": fmt.Sprintf("127.66.0.8:%d", port)},
			fields{"type": "connect", "proto": "udp", "dst": dst})
	})
	t.Run("a connection with the first data", func(t *testing.T) {
		fd := a.must(unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_STREAM, 0)
		one := []byte{1, 0, 0, 0}
		a.must(unix.SYS_SETSOCKOPT, fd, unix.IPPROTO_TCP, unix.TCP_FASTOPEN_CONNECT, one, 4)
		a.must(unix.SYS_SETSOCKOPT, fd, unix.IPPROTO_TCP, unix.TCP_FASTOPEN_NO_COOKIE, one, 4)
		ret := 0
		got := during(s.client, func() {
			ret = a.call(unix.SYS_CONNECT, fd, sockaddr("127.66.0.9", port), 16)
			a.call(unix.SYS_SENDTO, fd, "x", 1, unix.MSG_NOSIGNAL, 0, 0)
		})
		if ret != 0 {
			t.Errorf("the connect is not put off: %v", syscall.Errno(-ret))
		}
		checkEvents(t, got, a.pid(), fields{"type": "connect", "proto": "tcp", "dst": dst})
	})
	t.Run("connect without blocking", func(t *testing.T) {
		l, err := net.Listen("tcp", "127.66.0.9:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		addr := sockaddr("127.66.0.9", l.Addr().(*net.TCPAddr).Port)
		fd := a.must(unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK, 0)
		s.begin("nonblock", "")
		rets := []int{a.call(unix.SYS_CONNECT, fd, addr, 16), a.call(unix.SYS_CONNECT, fd, addr, 16), a.call(unix.SYS_CONNECT, fd, addr, 16)}
		disconnect := a.call(unix.SYS_CONNECT, fd, make([]byte, 16), 16)
		if rets[0] != -int(unix.EINPROGRESS) || rets[2] != -int(unix.EISCONN) || disconnect != 0 {
			t.Errorf("the calls return %v and %d", rets, disconnect)
		}
		checkEvents(t, events(s.end("nonblock"), "nonblock"), a.pid(), fields{"type": "connect", "proto": "tcp", "dst": l.Addr().String()})
	})
	t.Run("connect that signals interrupt", func(t *testing.T) {
		l, busy := busyListener(t)
		s.begin("signals", "")
		a.ask(actorCommand{Do: "part", Argv: []string{"interrupted", strconv.Itoa(busy)}})
		pid := a.answer().Ret // the signals have come
		unix.Close(l)         // and now it is refused
		waitGone(t, pid)
		got := filter(events(s.end("signals"), "signals"), fields{"type": "connect"})
		for _, l := range got {
			delete(l, "tid")
		}
		checkEvents(t, got, pid, fields{"type": "connect", "proto": "tcp", "dst": fmt.Sprintf("127.66.0.9:%d", busy)})
	})
	t.Run("MPTCP", func(t *testing.T) {
		fd := a.call(unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_MPTCP)
		if fd < 0 {
			t.Skipf("this kernel has none: %v", syscall.Errno(-fd))
		}
		s.begin("mptcp", "")
		a.call(unix.SYS_CONNECT, fd, sockaddr("127.66.0.9", port), 16)
		checkEvents(t, events(s.end("mptcp"), "mptcp"), a.pid(), fields{"type": "connect", "proto": "mptcp", "dst": dst})
	})
	t.Run("sendmsg and sendmmsg", func(t *testing.T) {
		// The addresses that a struct msghdr points to must be in the actor's memory,
		// so a part of its own does this one.
		s.begin("msg", "")
		pid := a.do("part", "sendmsg", strconv.Itoa(port))
		got := filter(events(s.end("msg"), "msg"), fields{"type": "connect"})
		var dsts []string
		for _, l := range got {
			if l["pid"] != float64(pid) || l["proto"] != "udp" {
				t.Errorf("got %v", l)
			}
			dsts = append(dsts, strings.TrimSuffix(l.str("dst"), ":"+strconv.Itoa(port)))
		}
		if want := []string{"127.66.0.1", "127.66.0.2", "127.66.0.3", "127.66.0.5"}; !reflect.DeepEqual(dsts, want) {
			t.Errorf("went to %v, want %v", dsts, want)
		}
	})
	t.Run("sendmmsg of a thousand", func(t *testing.T) {
		s.begin("mmsg", "")
		a.do("part", "sendmmsg", strconv.Itoa(port), "1000")
		got := filter(events(s.end("mmsg"), "mmsg"), fields{"type": "connect"})
		if len(got) != 1000 {
			t.Fatalf("%d messages left, want 1000", len(got))
		}
		if dst := got[999].str("dst"); dst != fmt.Sprintf("127.66.3.231:%d", port) {
			t.Errorf("the last one goes to %s", dst)
		}
	})
	t.Run("ICMP without rights", func(t *testing.T) {
		a.must(unix.SYS_UNSHARE, unix.CLONE_NEWNET) // for a setting of its own; nothing can be reached there
		setting := a.must(unix.SYS_OPENAT, unix.AT_FDCWD, "/proc/sys/net/ipv4/ping_group_range", unix.O_WRONLY, 0)
		a.must(unix.SYS_WRITE, setting, "0 0", 3)
		fd := a.must(unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_ICMP)
		got := during(s.client, func() { a.call(unix.SYS_SENDTO, fd, echo, len(echo), 0, sockaddr("127.66.0.9", port), 16) })
		checkEvents(t, got, a.pid(), fields{"type": "connect", "proto": "icmp", "dst": dst, "errno": "ENETUNREACH"})
	})
}

// otherFamilies are how programs ask others on the machine to act.
func otherFamilies(t *testing.T) {
	s, a := startScoped(t)
	t.Run("netlink and vsock", func(t *testing.T) { netlinkAndVsock(t, s, a) })
	runCallRows(t, s, a, 12)
	dir := folder(t)
	a.must(unix.SYS_CHDIR, dir)
	abstract := fmt.Sprintf("probe-test-%d", os.Getpid())
	for name, tt := range map[string]struct {
		typ  int
		bind string // of the peer
		addr string // of the caller's
		path string
	}{
		"a path":                {unix.SOCK_STREAM, dir + "/1", dir + "/1\x00", dir + "/1"},
		"a path without NUL":    {unix.SOCK_STREAM, dir + "/2", dir + "/2", dir + "/2"},
		"a relative path":       {unix.SOCK_STREAM, dir + "/3", "3\x00garbage", dir + "/3"},
		"an abstract name":      {unix.SOCK_STREAM, "@" + abstract, "\x00" + abstract, "@" + abstract},
		"a name with NULs":      {unix.SOCK_STREAM, "@\x00" + abstract + "\x00", "\x00\x00" + abstract + "\x00", "@\x00" + abstract + "\x00"},
		"sequenced packets":     {unix.SOCK_SEQPACKET, dir + "/4", "4", dir + "/4"},
		"datagrams":             {unix.SOCK_DGRAM, dir + "/5", "5", dir + "/5"},
		"datagrams, abstractly": {unix.SOCK_DGRAM, "@2" + abstract, "\x002" + abstract, "@2" + abstract},
	} {
		peer, err := unix.Socket(unix.AF_UNIX, tt.typ|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(peer) })
		if err := unix.Bind(peer, &unix.SockaddrUnix{Name: tt.bind}); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		addr := append([]byte{unix.AF_UNIX, 0}, tt.addr...)
		want := fields{"type": "unix_connect", "path": tt.path}
		t.Run(name+", connect", func(t *testing.T) {
			if tt.typ != unix.SOCK_DGRAM {
				if err := unix.Listen(peer, 1); err != nil {
					t.Fatal(err)
				}
			}
			fd := a.must(unix.SYS_SOCKET, unix.AF_UNIX, tt.typ, 0)
			checkEvents(t, during(s.client, func() { a.must(unix.SYS_CONNECT, fd, addr, len(addr)) }), a.pid(), want)
			checkEvents(t, during(s.client, func() { a.must(unix.SYS_SENDTO, fd, "x", 1, 0, 0, 0) }), a.pid())
		})
		if tt.typ == unix.SOCK_DGRAM {
			t.Run(name+", sendto", func(t *testing.T) {
				fd := a.must(unix.SYS_SOCKET, unix.AF_UNIX, tt.typ, 0)
				checkEvents(t, during(s.client, func() { a.must(unix.SYS_SENDTO, fd, "x", 1, 0, addr, len(addr)) }), a.pid(), want)
			})
			t.Run(name+", sendmsg", func(t *testing.T) {
				checkEvents(t, during(s.client, func() { a.do("unix-message", tt.bind) }), a.pid(), want)
			})
		}
	}
	t.Run("a path in a chroot", func(t *testing.T) {
		peer, err := net.Listen("unix", dir+"/jailed")
		if err != nil {
			t.Fatal(err)
		}
		defer peer.Close()
		a.must(unix.SYS_CHROOT, dir)
		fd := a.must(unix.SYS_SOCKET, unix.AF_UNIX, unix.SOCK_STREAM, 0)
		addr := append([]byte{unix.AF_UNIX, 0}, "/jailed\x00"...)
		got := during(s.client, func() { a.must(unix.SYS_CONNECT, fd, addr, len(addr)) })
		if len(got) != 1 || got[0]["type"] != "unix_connect" || got[0]["path"] != dir+"/jailed" {
			t.Errorf("got %v", got)
		}
	})
}

// foreignDescriptors uses what it has not opened itself.
func foreignDescriptors(t *testing.T) {
	s, a := startScoped(t)
	runCallRows(t, s, a, 13)
	dir := folder(t)
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	use := func(t *testing.T, dirfd, filefd int) {
		for _, r := range []callRow{
			{"open", unix.SYS_OPENAT, []any{dirfd, "file", unix.O_RDONLY, 0}, 1,
				[]fields{{"type": "file_open", "path": file, "requested": "file", "flags": "O_RDONLY"}}},
			{"open of nothing", unix.SYS_OPENAT, []any{dirfd, "no/such", unix.O_RDONLY, 0}, -int(unix.ENOENT),
				[]fields{{"type": "file_open", "path": dir + "/no/such", "requested": "no/such", "flags": "O_RDONLY", "errno": "ENOENT"}}},
			{"chmod", unix.SYS_FCHMOD, []any{filefd, 0o644}, 0, []fields{{"type": "chmod", "path": file, "mode": "644"}}},
			{"truncate", unix.SYS_FTRUNCATE, []any{filefd, 3}, 0, []fields{{"type": "file_truncate", "path": file, "length": 3.0}}},
			{"write, which is not seen", unix.SYS_WRITE, []any{filefd, "x", 1}, 1, nil},
		} {
			r.run(t, s, a, func() int { return a.call(r.call, r.args...) })
		}
	}
	t.Run("SCM_RIGHTS", func(t *testing.T) {
		socket := filepath.Join(dir, "socket")
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		go func() {
			c, err := l.AcceptUnix()
			if err != nil {
				return
			}
			defer c.Close()
			d, err1 := os.Open(dir)
			f, err2 := os.OpenFile(file, os.O_RDWR, 0)
			if err := errors.Join(err1, err2); err != nil {
				t.Error(err)
				return
			}
			defer d.Close()
			defer f.Close()
			if _, _, err := c.WriteMsgUnix([]byte("x"), unix.UnixRights(int(d.Fd()), int(f.Fd())), nil); err != nil {
				t.Error(err)
			}
		}()
		dirfd := a.do("receive", socket) // the other one is next to it
		use(t, dirfd, dirfd+1)
	})
	t.Run("pidfd_getfd", func(t *testing.T) {
		stranger := startActor(t)
		theirs := []int{
			stranger.must(unix.SYS_OPENAT, unix.AT_FDCWD, dir, unix.O_RDONLY|unix.O_DIRECTORY, 0),
			stranger.must(unix.SYS_OPENAT, unix.AT_FDCWD, file, unix.O_RDWR, 0),
		}
		pidfd := a.must(unix.SYS_PIDFD_OPEN, stranger.pid(), 0)
		var ours []int
		got := during(s.client, func() {
			for _, fd := range theirs {
				ours = append(ours, a.must(unix.SYS_PIDFD_GETFD, pidfd, fd, 0))
			}
		})
		checkEvents(t, got, a.pid(),
			fields{"type": "pidfd_getfd", "target_pid": float64(stranger.pid()), "target_fd": float64(theirs[0])},
			fields{"type": "pidfd_getfd", "target_pid": float64(stranger.pid()), "target_fd": float64(theirs[1])})
		use(t, ours[0], ours[1])
	})
}

// otherProcesses has somebody else act, by writing to its memory.
func otherProcesses(t *testing.T) {
	s, a := startScoped(t)
	runCallRows(t, s, a, 14)
	stranger := startActor(t)
	t.Cleanup(func() { unix.Kill(a.pid(), unix.SIGKILL) }) // or only its tracer could reap the stranger
	target := float64(stranger.pid())
	memory := stranger.must(unix.SYS_MMAP, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON, -1, 0)
	mem := fmt.Sprintf("/proc/%d/mem", stranger.pid())
	memfd := a.must(unix.SYS_OPENAT, unix.AT_FDCWD, fmt.Sprintf("/proc/%d", stranger.pid()), unix.O_RDONLY|unix.O_DIRECTORY, 0)
	for _, tt := range []struct {
		name string
		act  func()
		want []fields
	}{
		{"process_vm_writev", func() { a.do("vm-write", strconv.Itoa(stranger.pid()), strconv.Itoa(memory)) },
			[]fields{{"type": "process_vm_write", "target_pid": target}}},
		{"/proc/PID/mem", func() {
			fd := a.must(unix.SYS_OPENAT, unix.AT_FDCWD, mem, unix.O_RDWR, 0)
			if got := a.must(unix.SYS_PWRITE64, fd, "x", 1, memory); got != 1 {
				t.Errorf("%d bytes are written", got)
			}
		}, []fields{{"type": "file_open", "path": mem, "flags": "O_RDWR"}}},
		{"/proc/PID/mem from the folder", func() { a.must(unix.SYS_OPENAT, memfd, "mem", unix.O_WRONLY, 0) },
			[]fields{{"type": "file_open", "path": mem, "requested": "mem", "flags": "O_WRONLY"}}},
		{"/proc/PID/mem of a thread", func() {
			a.must(unix.SYS_OPENAT, memfd, fmt.Sprintf("task/%d/mem", stranger.pid()), unix.O_WRONLY, 0)
		}, []fields{{"type": "file_open", "path": fmt.Sprintf("/proc/%[1]d/task/%[1]d/mem", stranger.pid()),
			"requested": fmt.Sprintf("task/%d/mem", stranger.pid()), "flags": "O_WRONLY"}}},
		{"PTRACE_ATTACH", func() { a.must(unix.SYS_PTRACE, unix.PTRACE_ATTACH, stranger.pid(), 0, 0) },
			[]fields{{"type": "ptrace", "request": float64(unix.PTRACE_ATTACH), "request_name": "PTRACE_ATTACH", "target_pid": target}}},
		{"PTRACE_POKEDATA", func() {
			a.must(unix.SYS_WAIT4, stranger.pid(), 0, unix.WALL, 0)
			a.must(unix.SYS_PTRACE, unix.PTRACE_POKEDATA, stranger.pid(), memory, 7)
		}, []fields{{"type": "ptrace", "request": float64(unix.PTRACE_POKEDATA), "request_name": "PTRACE_POKEDATA", "target_pid": target}}},
		{"PTRACE_DETACH", func() { a.must(unix.SYS_PTRACE, unix.PTRACE_DETACH, stranger.pid(), 0, 0) },
			[]fields{{"type": "ptrace", "request": float64(unix.PTRACE_DETACH), "target_pid": target}}},
		{"PTRACE_SEIZE", func() { a.must(unix.SYS_PTRACE, unix.PTRACE_SEIZE, stranger.pid(), 0, 0) },
			[]fields{{"type": "ptrace", "request": float64(unix.PTRACE_SEIZE), "request_name": "PTRACE_SEIZE", "target_pid": target}}},
	} {
		t.Run(tt.name, func(t *testing.T) { checkEvents(t, during(s.client, tt.act), a.pid(), tt.want...) })
	}
}

// daemons act for others. What they do is not seen; that they were asked is.
func daemons(t *testing.T) {
	s, a := startScoped(t)
	dir := folder(t)
	for name, addr := range map[string]string{"docker.sock": dir + "/docker.sock", "systemd": fmt.Sprintf("@/probe-test/%d", os.Getpid())} {
		t.Run(name, func(t *testing.T) {
			l, err := net.Listen("unix", addr)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			go func() {
				c, err := l.Accept()
				if err != nil {
					return
				}
				defer c.Close()
				io.ReadFull(c, make([]byte, 3))
				os.ReadFile("/act-of-the-daemon")
				c.Write([]byte("done"))
			}()
			fd := a.must(unix.SYS_SOCKET, unix.AF_UNIX, unix.SOCK_STREAM, 0)
			raw := append([]byte{unix.AF_UNIX, 0}, strings.Replace(addr, "@", "\x00", 1)...)
			got := during(s.client, func() {
				a.must(unix.SYS_CONNECT, fd, raw, len(raw))
				a.must(unix.SYS_WRITE, fd, "act", 3)
				a.must(unix.SYS_READ, fd, make([]byte, 4), 4) // it has
			})
			checkEvents(t, got, a.pid(), fields{"type": "unix_connect", "path": addr}) // what the daemon does is a limit
		})
	}
	t.Run("cron", func(t *testing.T) {
		tab := filepath.Join(dir, "crontab")
		got := during(s.client, func() { a.must(unix.SYS_OPENAT, unix.AT_FDCWD, tab, unix.O_WRONLY|unix.O_CREAT, 0o600) })
		checkEvents(t, got, a.pid(), fields{"type": "file_open", "path": tab, "flags": "O_WRONLY|O_CREAT"})
	})
	t.Run("at", func(t *testing.T) {
		a.must(unix.SYS_CHDIR, dir)
		got := during(s.client, func() {
			a.must(unix.SYS_LINKAT, unix.AT_FDCWD, "crontab", unix.AT_FDCWD, "a0000101c0ffee", 0)
			a.must(unix.SYS_FCHMODAT, unix.AT_FDCWD, "a0000101c0ffee", 0o700)
		})
		job := filepath.Join(dir, "a0000101c0ffee")
		checkEvents(t, got, a.pid(),
			fields{"type": "file_link", "path": job, "requested": "a0000101c0ffee", "old_path": dir + "/crontab", "old_requested": "crontab"},
			fields{"type": "chmod", "path": job, "requested": "a0000101c0ffee", "mode": "700"})
	})
}

func init() {
	// mapped messages connects to 127.66.0.8 as an IPv6 socket can, and sends a message
	// there and one to 127.66.0.9 with one system call. The kernel looks up where the
	// first one goes, too, though it has no address.
	actorDeeds["mapped messages"] = func(argv []string) (int, error) {
		port := mustAtoi(argv[0])
		fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM, 0)
		if err != nil {
			return 0, err
		}
		defer unix.Close(fd)
		to := func(addr string) []byte { return sockaddr("::ffff:"+addr, port) }
		if _, _, errno := syscall.Syscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&to("127.66.0.8")[0])), 28); errno != 0 {
			return 0, errno
		}
		return 0, sendMany(fd, []byte("x"), nil, to("127.66.0.9"))
	}
	// exec-by becomes a program, in one of the ways to do so.
	testParts["exec-by"] = func(args []string) error {
		how, program := args[0], args[1]
		fd, err := unix.Open(program, unix.O_PATH, 0)
		if err != nil {
			return err
		}
		dirfd, name, flags := unix.AT_FDCWD, program, 0
		switch how {
		case "execveat":
			if dirfd, err = unix.Open(filepath.Dir(program), unix.O_PATH, 0); err != nil {
				return err
			}
			name = filepath.Base(program)
		case "execveat of a descriptor":
			dirfd, name, flags = fd, "", unix.AT_EMPTY_PATH
		case "execve through /proc":
			name = fmt.Sprintf("/proc/self/fd/%d", fd)
		case "a deleted file":
			dirfd, name, flags = fd, "", unix.AT_EMPTY_PATH
			if err := os.Remove(program); err != nil {
				return err
			}
		case "a memfd", "a memfd to be closed":
			create := 0
			if how != "a memfd" {
				create = unix.MFD_CLOEXEC
			}
			b, err := os.ReadFile(program)
			if err != nil {
				return err
			}
			if dirfd, err = unix.MemfdCreate("hidden", create); err != nil {
				return err
			}
			if _, err := unix.Write(dirfd, b); err != nil {
				return err
			}
			name, flags = "", unix.AT_EMPTY_PATH
		}
		path, err := unix.BytePtrFromString(name)
		if err != nil {
			return err
		}
		argv, err := syscall.SlicePtrFromStrings([]string{"x", "y"})
		if err != nil {
			return err
		}
		pathAt, argvAt := uintptr(unsafe.Pointer(path)), uintptr(unsafe.Pointer(&argv[0]))
		var errno syscall.Errno
		if dirfd == unix.AT_FDCWD {
			_, _, errno = unix.Syscall(unix.SYS_EXECVE, pathAt, argvAt, 0)
		} else {
			_, _, errno = unix.Syscall6(unix.SYS_EXECVEAT, uintptr(dirfd), pathAt, argvAt, 0, uintptr(flags), 0)
		}
		runtime.KeepAlive(path)
		runtime.KeepAlive(argv)
		return errno
	}
	actorDeeds["unix-message"] = func(argv []string) (int, error) {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return 0, err
		}
		defer unix.Close(fd)
		return 0, unix.Sendmsg(fd, []byte("x"), nil, &unix.SockaddrUnix{Name: argv[0]}, 0)
	}
	// receive returns the first descriptor of those that it is given at a socket.
	actorDeeds["receive"] = func(argv []string) (int, error) {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return 0, err
		}
		if err := unix.Connect(fd, &unix.SockaddrUnix{Name: argv[0]}); err != nil {
			return 0, err
		}
		b := make([]byte, 64)
		_, n, _, _, err := unix.Recvmsg(fd, make([]byte, 1), b, 0)
		if err != nil {
			return 0, err
		}
		messages, err := unix.ParseSocketControlMessage(b[:n])
		if err != nil {
			return 0, err
		}
		fds, err := unix.ParseUnixRights(&messages[0])
		if err != nil || len(fds) != 2 || fds[1] != fds[0]+1 {
			return 0, fmt.Errorf("got descriptors %v (%w)", fds, err)
		}
		return fds[0], nil
	}
	actorDeeds["vm-write"] = func(argv []string) (int, error) {
		b := []byte("x")
		local := []unix.Iovec{{Base: &b[0], Len: 1}}
		return unix.ProcessVMWritev(mustAtoi(argv[0]), local, []unix.RemoteIovec{{Base: uintptr(mustAtoi(argv[1])), Len: 1}}, 0)
	}
}

// netlinkAndVsock contacts the kernel, and a port of this machine's own. Without such a
// device or family, it is an attempt all the same.
func netlinkAndVsock(t *testing.T, s *testSession, a *actor) {
	netlink := a.must(unix.SYS_SOCKET, unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE)
	to := func(family uint16, words ...uint32) []byte {
		b := binary.NativeEndian.AppendUint32(nil, uint32(family))
		for _, w := range words {
			b = binary.NativeEndian.AppendUint32(b, w)
		}
		return b
	}
	s.begin("families", "")
	a.must(unix.SYS_CONNECT, netlink, to(unix.AF_NETLINK, 0, 0), 12)
	a.call(unix.SYS_SENDTO, netlink, []byte("x"), 1, 0, to(unix.AF_NETLINK, 77, 0), 12)
	want := []fields{
		{"type": "socket_connect", "family": "netlink", "dst": "0"},
		{"type": "socket_connect", "family": "netlink", "dst": "77", "errno": "ECONNREFUSED"},
	}
	if fd := a.call(unix.SYS_SOCKET, unix.AF_VSOCK, unix.SOCK_STREAM, 0); fd >= 0 {
		ret := a.call(unix.SYS_CONNECT, fd, to(unix.AF_VSOCK, 22, 1, 0), 16)
		want = append(want, fields{"type": "socket_connect", "family": "vsock", "dst": "1:22", "errno": unix.ErrnoName(syscall.Errno(-ret))})
	}
	checkEvents(t, events(s.end("families"), "families"), a.pid(), want...)
}
