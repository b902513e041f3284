//go:build linux && (amd64 || arm64)

package main

import (
	"encoding/binary"
	"reflect"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// testRecord builds a record as the kernel side lays it out.
type testRecord struct {
	probeEvent
	tail []byte
}

func (r *testRecord) section(tag probeTag, flags probeSectionFlag, data string) *testRecord {
	r.tail = append(r.tail, byte(tag), byte(flags))
	r.tail = binary.NativeEndian.AppendUint16(r.tail, uint16(len(data)))
	r.tail = append(r.tail, data...)
	for len(r.tail)%4 != 0 {
		r.tail = append(r.tail, 0xee) // padding is never cleared
	}
	return r
}

func (r *testRecord) bytes() []byte {
	r.Len = uint16(len(r.tail))
	header := unsafe.Slice((*byte)(unsafe.Pointer(&r.probeEvent)), headerLen)
	return append(append([]byte{}, header...), append(r.tail, "rounded"...)...)
}

// rec returns a record of that kind by a process 42 whose comm is "me".
func rec(kind probeKind, ret int64, values ...uint64) *testRecord {
	r := &testRecord{probeEvent: probeEvent{Kind: uint16(kind), Ret: ret, Pid: 42, Tid: 42, Ppid: 7}}
	copy(r.Comm[:], "me\x00left over")
	copy(r.Value[:], values)
	return r
}

func sockaddr4(port uint16, addr ...byte) string {
	b := binary.NativeEndian.AppendUint16(nil, unix.AF_INET)
	return string(append(binary.BigEndian.AppendUint16(b, port), addr...))
}

func sockaddr6(port uint16, addr ...byte) string {
	b := binary.NativeEndian.AppendUint16(nil, unix.AF_INET6)
	b = append(binary.BigEndian.AppendUint16(b, port), 0, 0, 0, 0)
	return string(append(append(b, make([]byte, 16-len(addr))...), addr...))
}

func TestKernelEvent(t *testing.T) {
	const (
		path, name, dir   = probeTagTAG_PATH, probeTagTAG_NAME, probeTagTAG_DIR
		name2, dir2, argv = probeTagTAG_NAME2, probeTagTAG_DIR2, probeTagTAG_ARGV
		addr              = probeTagTAG_ADDR
		cut, unreadable   = probeSectionFlagSECTION_CUT, probeSectionFlagSECTION_UNREADABLE
		enoent, echild    = -int64(unix.ENOENT), -int64(unix.ECHILD)
	)
	script := rec(probeKindKIND_EXEC, 0, 4)
	script.Flags = uint16(probeEventFlagEVENT_SCRIPT)
	nested := rec(probeKindKIND_EXEC, 0, 6)
	nested.Flags = uint16(probeEventFlagEVENT_SCRIPT)
	pipe := rec(probeKindKIND_OPEN, 3, 0, 0, 77)
	pipe.Flags = unix.S_IFIFO | 0o600
	memfd := rec(probeKindKIND_EXEC, 0, 1)
	memfd.Flags = uint16(probeEventFlagEVENT_FILELESS)
	for name_, tt := range map[string]struct {
		rec  *testRecord
		want fields // besides pid and comm; nil if there is to be no event
	}{
		"open": {rec(probeKindKIND_OPEN, 3, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC, 254<<20|3, 99).section(path, 0, "passwd\x00etc\x00").section(name, 0, "/etc/passwd"),
			fields{"type": "file_open", "path": "/etc/passwd", "flags": "O_WRONLY|O_CREAT|O_TRUNC", "dev": "254:3"}},
		"open through a link": {rec(probeKindKIND_OPEN, 3, unix.O_RDONLY|unix.O_CLOEXEC).section(path, 0, "shadow\x00etc\x00").section(name, 0, "../link"),
			fields{"type": "file_open", "path": "/etc/shadow", "requested": "../link", "flags": "O_RDONLY|O_CLOEXEC"}},
		"open of the root": {rec(probeKindKIND_OPEN, 3, unix.O_RDWR|unix.O_TMPFILE).section(path, 0, "").section(name, 0, "/"),
			fields{"type": "file_open", "path": "/", "flags": "O_RDWR|O_TMPFILE"}},
		"open by handle": {rec(probeKindKIND_OPEN, 3, unix.O_PATH|1<<30|1<<40).section(path, 0, "x\x00"),
			fields{"type": "file_open", "path": "/x", "flags": "O_RDONLY|O_PATH|0x40000000"}},
		"failed open": {rec(probeKindKIND_OPEN, enoent, 0).section(name, 0, ".//a/./../b/").section(dir, 0, "c\x00home\x00"),
			fields{"type": "file_open", "path": "/home/c/a/../b", "requested": ".//a/./../b/", "flags": "O_RDONLY", "errno": "ENOENT"}},
		"failed open in a chroot": {rec(probeKindKIND_OPEN, enoent, 0).section(name, 0, "/etc/x").section(dir, 0, "jail\x00srv\x00"),
			fields{"type": "file_open", "path": "/srv/jail/etc/x", "requested": "/etc/x", "flags": "O_RDONLY", "errno": "ENOENT"}},
		"failed open, name on a bad page": {rec(probeKindKIND_OPEN, -int64(unix.EFAULT), 0).section(name, unreadable, "").section(dir, 0, "home\x00"),
			fields{"type": "file_open", "path": "", "flags": "O_RDONLY", "errno": "EFAULT"}},
		"interrupted open": {rec(probeKindKIND_OPEN, -512, 0).section(name, 0, "/fifo").section(dir, 0, ""),
			fields{"type": "file_open", "path": "/fifo", "flags": "O_RDONLY", "errno": "EINTR"}},
		"an error without a name": {rec(probeKindKIND_OPEN, -4000, 0).section(name, 0, "/x").section(dir, 0, ""),
			fields{"type": "file_open", "path": "/x", "flags": "O_RDONLY", "errno": "4000"}},
		"path cut": {rec(probeKindKIND_OPEN, 3, 0).section(path, cut, "z\x00y\x00"),
			fields{"type": "file_open", "path": "/y/z", "flags": "O_RDONLY", "truncated": true}},
		"delete": {rec(probeKindKIND_DELETE, 0).section(name, 0, "f").section(dir, 0, "tmp\x00"),
			fields{"type": "file_delete", "path": "/tmp/f", "requested": "f"}},
		"mkdir": {rec(probeKindKIND_MKDIR, 0).section(name, 0, "/tmp/d").section(dir, 0, ""),
			fields{"type": "file_mkdir", "path": "/tmp/d"}},
		"rename": {rec(probeKindKIND_RENAME, 0).section(name, 0, "a").section(dir, 0, "x\x00").section(name2, 0, "/y/b").section(dir2, 0, ""),
			fields{"type": "file_rename", "path": "/y/b", "old_path": "/x/a", "old_requested": "a"}},
		"link": {rec(probeKindKIND_LINK, 0).section(name, 0, "").section(dir, 0, "7\x00fd\x00").section(name2, 0, "b").section(dir2, 0, "y\x00"),
			fields{"type": "file_link", "path": "/y/b", "requested": "b", "old_path": "/fd/7", "old_requested": ""}},
		"symlink": {rec(probeKindKIND_SYMLINK, 0).section(name, 0, "/l").section(dir, 0, "").section(name2, 0, "../to"),
			fields{"type": "file_symlink", "path": "/l", "target": "../to"}},
		"chmod": {rec(probeKindKIND_CHMOD, 0, 0o104755).section(name, 0, "/f").section(dir, 0, ""),
			fields{"type": "chmod", "path": "/f", "mode": "4755"}},
		"fchmod": {rec(probeKindKIND_CHMOD, 0, 0).section(path, 0, "f\x00"),
			fields{"type": "chmod", "path": "/f", "mode": "0"}},
		"exec": {rec(probeKindKIND_EXEC, 0, 3).section(path, 0, "dash\x00bin\x00usr\x00").section(name, 0, "/bin/sh").section(dir, 0, "").section(argv, 0, "/bin/sh\x00-c\x00\x00"),
			fields{"type": "exec", "argv": []any{"/bin/sh", "-c", ""}, "exe": "/usr/bin/dash", "path": "/bin/sh"}},
		"exec under another name": {rec(probeKindKIND_EXEC, 0, 1).section(path, 0, "x\x00tmp\x00").section(name, 0, "./x").section(dir, 0, "tmp\x00").section(argv, 0, "[kworker]\x00"),
			fields{"type": "exec", "argv": []any{"/tmp/x"}, "exe": "/tmp/x", "path": "/tmp/x", "requested": "./x", "argv0": "[kworker]"}},
		"exec with no arguments at all": {rec(probeKindKIND_EXEC, 0, 0).section(path, 0, "x\x00").section(name, 0, "/x").section(dir, 0, "").section(argv, 0, ""),
			fields{"type": "exec", "argv": []any{"/x"}, "exe": "/x", "path": "/x"}},
		"script": {script.section(path, 0, "dash\x00").section(name, 0, "/s").section(dir, 0, "").section(argv, 0, "/bin/sh\x00-e\x00/s\x00arg\x00"),
			fields{"type": "exec", "argv": []any{"/s", "arg"}, "exe": "/dash", "path": "/s"}},
		"script of a script": {nested.section(path, 0, "dash\x00").section(name, 0, "s").section(dir, 0, "d\x00").section(argv, 0, "/bin/sh\x00-e\x00/i\x00-x\x00s\x00arg\x00"),
			fields{"type": "exec", "argv": []any{"/d/s", "arg"}, "exe": "/dash", "path": "/d/s", "requested": "s"}},
		"memfd": {memfd.section(path, 0, "memfd:x\x00").section(name, 0, "/dev/fd/5").section(dir, 0, "").section(argv, 0, "sh\x00"),
			fields{"type": "exec", "argv": []any{"/memfd:x"}, "exe": "/memfd:x", "path": "/memfd:x", "argv0": "sh", "requested": "/dev/fd/5", "fileless": true}},
		"exec with too many arguments": {rec(probeKindKIND_EXEC, 0, 900).section(path, 0, "x\x00").section(name, 0, "/x").section(dir, 0, "").section(argv, cut, "/x\x00a\x00bcd"),
			fields{"type": "exec", "argv": []any{"/x", "a", "bcd"}, "exe": "/x", "path": "/x", "truncated": true, "argc": 900.0}},
		"exec of a deep program": {rec(probeKindKIND_EXEC, 0, 1).section(path, cut, "x\x00d\x00").section(name, 0, "/x").section(dir, 0, "").section(argv, 0, "/x\x00"),
			fields{"type": "exec", "argv": []any{"/x"}, "exe": "/d/x", "path": "/x", "truncated": true}},
		"exec whose arguments are gone": {rec(probeKindKIND_EXEC, 0, 3).section(path, 0, "x\x00").section(name, 0, "/x").section(dir, 0, "").section(argv, unreadable, ""),
			fields{"type": "exec", "argv": []any{"/x"}, "exe": "/x", "path": "/x", "truncated": true, "argc": 3.0}},
		"failed exec, too late": {rec(probeKindKIND_EXEC_FAILED, -int64(unix.EFAULT)),
			fields{"type": "exec_failed", "path": "", "errno": "EFAULT"}},
		"open of a pipe": {pipe.section(path, 0, "\x00").section(name, 0, "/proc/self/fd/5"),
			fields{"type": "file_open", "path": "pipe:[77]", "requested": "/proc/self/fd/5", "flags": "O_RDONLY"}},
		"open of a namespace": {rec(probeKindKIND_OPEN, 3, 0, 0, 78).section(path, 0, "/\x00").section(name, 0, "/proc/self/ns/net"),
			fields{"type": "file_open", "path": "inode:[78]", "requested": "/proc/self/ns/net", "flags": "O_RDONLY"}},
		"failed delete above a root": {rec(probeKindKIND_DELETE, enoent).section(name, 0, "/../.././etc/../x").section(dir, 0, "jail\x00"),
			fields{"type": "file_delete", "path": "/jail/etc/../x", "requested": "/../.././etc/../x", "errno": "ENOENT"}},
		"failed exec": {rec(probeKindKIND_EXEC_FAILED, enoent).section(name, 0, "/bin/nope").section(dir, 0, ""),
			fields{"type": "exec_failed", "path": "/bin/nope", "errno": "ENOENT"}},
		"spawn":                   {rec(probeKindKIND_SPAWN, 0, 43), fields{"type": "process_spawn", "child_pid": 43.0}},
		"failed spawn":            {rec(probeKindKIND_SPAWN, -int64(unix.EAGAIN), unix.CLONE_VFORK), fields{"type": "process_spawn", "errno": "EAGAIN"}},
		"a thread that failed":    {rec(probeKindKIND_SPAWN, -int64(unix.EAGAIN), unix.CLONE_THREAD), nil},
		"connect":                 {rec(probeKindKIND_CONNECT, 0, unix.IPPROTO_TCP).section(addr, 0, sockaddr4(443, 127, 66, 0, 9)), fields{"type": "connect", "proto": "tcp", "dst": "127.66.0.9:443"}},
		"connect over IPv6":       {rec(probeKindKIND_CONNECT, 0, unix.IPPROTO_UDP).section(addr, 0, sockaddr6(53, 1)), fields{"type": "connect", "proto": "udp", "dst": "[::1]:53"}},
		"connect to a mapped one": {rec(probeKindKIND_CONNECT, 0, unix.IPPROTO_TCP).section(addr, 0, sockaddr6(80, 255, 255, 127, 0, 0, 1)), fields{"type": "connect", "proto": "tcp", "dst": "127.0.0.1:80"}},
		"failed connect":          {rec(probeKindKIND_CONNECT, -int64(unix.EBADF), 0).section(addr, 0, sockaddr4(1, 1, 2, 3, 4)), fields{"type": "connect", "dst": "1.2.3.4:1", "errno": "EBADF"}},
		"connect to garbage":      {rec(probeKindKIND_CONNECT, -int64(unix.EINVAL), unix.IPPROTO_ICMP).section(addr, unreadable, ""), fields{"type": "connect", "proto": "icmp", "errno": "EINVAL"}},
		"a rare protocol":         {rec(probeKindKIND_CONNECT, 0, 89).section(addr, 0, sockaddr4(0, 1, 2, 3, 4)), fields{"type": "connect", "proto": "ip-89", "dst": "1.2.3.4:0"}},
		"bind":                    {rec(probeKindKIND_BIND, 0, unix.IPPROTO_TCP, 5).section(addr, 0, sockaddr4(8080, 0, 0, 0, 0)), fields{"type": "bind", "proto": "tcp", "dst": "0.0.0.0:8080", "fd": 5.0}},
		"listen":                  {rec(probeKindKIND_LISTEN, 0, unix.IPPROTO_TCP, 5, 0xffffffff).section(addr, 0, sockaddr6(8080)), fields{"type": "listen", "proto": "tcp", "dst": "[::]:8080", "fd": 5.0, "backlog": -1.0}},
		"ptrace":                  {rec(probeKindKIND_PTRACE, -int64(unix.EPERM), unix.PTRACE_ATTACH, 1), fields{"type": "ptrace", "request": 16.0, "request_name": "PTRACE_ATTACH", "target_pid": 1.0, "errno": "EPERM"}},
		"some ptrace":             {rec(probeKindKIND_PTRACE, echild, 99, 0xffffffff), fields{"type": "ptrace", "request": 99.0, "target_pid": -1.0, "errno": "ECHILD"}},
	} {
		t.Run(name_, func(t *testing.T) {
			var e kernelEvent
			if err := e.decode(rec(probeKindKIND_PTRACE, 0).section(path, cut, "of the last record").bytes()); err != nil {
				t.Fatal(err)
			}
			if err := e.decode(tt.rec.bytes()); err != nil {
				t.Fatal(err)
			}
			if tt.want == nil {
				if e.typ() != "" {
					t.Errorf("there is an event of type %q", e.typ())
				}
				return
			}
			var l line
			l.begin(e.typ())
			e.append(&l)
			got := decodeLine(t, l.end())
			tt.want["pid"], tt.want["ppid"], tt.want["comm"] = 42.0, 7.0, "me"
			if tt.want["type"] == "file_open" && tt.rec.Ret >= 0 {
				tt.want["ino"] = float64(tt.rec.Value[2])
				if tt.want["dev"] == nil {
					tt.want["dev"] = "0:0"
				}
			}
			if !reflect.DeepEqual(got, map[string]any(tt.want)) {
				t.Errorf("got  %v\nwant %v", got, tt.want)
			}
		})
	}
}

func TestDecodeRejects(t *testing.T) {
	whole := rec(probeKindKIND_OPEN, 3).section(probeTagTAG_PATH, 0, "abc\x00").bytes()
	tooLong := append([]byte{}, whole...)
	binary.NativeEndian.PutUint16(tooLong[unsafe.Offsetof(probeEvent{}.Len):], 60000)
	for name, tt := range map[string]struct {
		raw []byte
		err string
	}{
		"empty":           {nil, "shorter than its header"},
		"half a header":   {whole[:headerLen/2], "shorter than its header"},
		"half a tail":     {whole[:headerLen+2], "tail of 2 bytes"},
		"absurd length":   {tooLong, "instead of 60000"},
		"unknown tag":     {rec(probeKindKIND_OPEN, 3).section(200, 0, "").bytes(), "unknown tag 200"},
		"tag zero":        {rec(probeKindKIND_OPEN, 3).section(0, 0, "").bytes(), "unknown tag 0"},
		"section too big": {(&testRecord{tail: []byte{1, 0, 255, 255, 1, 2, 3, 4}}).bytes(), "has 4 of 65535 bytes"},
		"odd bytes":       {(&testRecord{tail: []byte{1, 0}}).bytes(), "2 bytes after the last section"},
	} {
		t.Run(name, func(t *testing.T) {
			if err := new(kernelEvent).decode(tt.raw); err == nil || !strings.Contains(err.Error(), tt.err) {
				t.Errorf("error is %v, want %q", err, tt.err)
			}
		})
	}
}

// TestSyscallShapes checks that the table is filled in for real: a composite
// literal that forgets a field would read argument 0.
func TestSyscallShapes(t *testing.T) {
	table := syscallShapes()
	kinds := map[uint8]int{}
	for abi := range table {
		for number, s := range table[abi] {
			if s.Kind == 0 {
				if s != (probeShape{}) {
					t.Errorf("abi %d, number %d: a shape without a kind: %+v", abi, number, s)
				}
				continue
			}
			kinds[s.Kind]++
			for _, arg := range []uint8{s.Dir, s.Name, s.Dir2, s.Name2, s.Value[0], s.Value[1]} {
				if arg > none {
					t.Errorf("abi %d, number %d: argument %d", abi, number, arg)
				}
			}
		}
	}
	for kind := probeKindKIND_EXEC_FAILED; kind <= probeKindKIND_PTRACE; kind++ {
		if kinds[uint8(kind)] == 0 {
			t.Errorf("no system call is of kind %d", kind)
		}
	}
	spec, err := loadSpec()
	if err != nil {
		t.Fatal(err)
	}
	if size := int(spec.Variables[probeVarShapes].Size()); size != int(unsafe.Sizeof(table)) {
		t.Errorf("the kernel side's table has %d bytes, ours %d", size, unsafe.Sizeof(table))
	}
	if size := int(spec.Variables[probeVarLosses].Size()); size != int(unsafe.Sizeof(ebpfBackend{}.reported)) {
		t.Errorf("the kernel side's losses have %d bytes, ours %d", size, unsafe.Sizeof(ebpfBackend{}.reported))
	}
}

func FuzzDecode(f *testing.F) {
	for _, r := range []*testRecord{
		rec(probeKindKIND_OPEN, -2, 0).section(probeTagTAG_NAME, 0, "./a").section(probeTagTAG_DIR, 0, "b\x00"),
		rec(probeKindKIND_EXEC, 0, 1).section(probeTagTAG_PATH, 0, "x\x00").section(probeTagTAG_NAME, 0, "/x").section(probeTagTAG_ARGV, 0, "a\x00"),
		rec(probeKindKIND_CONNECT, 0, 6).section(probeTagTAG_ADDR, 0, sockaddr6(1, 1)),
		rec(probeKindKIND_RENAME, 0).section(probeTagTAG_NAME2, 0, "\xff").section(probeTagTAG_DIR2, 0, "\x00\x00"),
	} {
		f.Add(r.bytes())
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		var e kernelEvent
		if e.decode(raw) != nil || e.typ() == "" {
			return
		}
		var l line
		l.begin(e.typ())
		e.append(&l)
		decodeLine(t, l.end())
	})
}
