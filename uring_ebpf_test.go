//go:build linux && (amd64 || arm64)

package main

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A uringRequest is a request to io_uring with its pointers as contents; see struct
// io_uring_sqe in include/uapi/linux/io_uring.h.
type uringRequest struct {
	Op        uint8
	Flags     uint8 // IOSQE_…
	FD        int32
	Off       uint64
	Addr2     []byte // instead of Off
	Addr      []byte
	Msg       []byte // instead of Addr, a struct msghdr with this name and a byte to send
	Len       uint32
	OpFlags   uint32
	FileIndex uint32 // or the length of the address in Addr2
}

const (
	uringAsync       = 1 << 4 // IOSQE_ASYNC
	uringSkipSuccess = 1 << 6 // IOSQE_CQE_SKIP_SUCCESS
)

// A uring is a ring of io_uring with a handful of entries.
type uring struct {
	fd             int
	params         uringParams
	queue, entries []byte
	polled         bool
}

// uringParams is struct io_uring_params.
type uringParams struct {
	sqEntries, cqEntries, flags, threadCPU, threadIdle, features, wqFD uint32
	_                                                                  [3]uint32
	sq                                                                 struct {
		head, tail, ringMask, ringEntries, flags, dropped, array, _ uint32
		_                                                           uint64
	}
	cq struct {
		head, tail, ringMask, ringEntries, overflow, cqes, flags, _ uint32
		_                                                           uint64
	}
}

func newUring(polled bool) (*uring, error) {
	u := &uring{polled: polled}
	if polled {
		u.params.flags = 1 << 1 // IORING_SETUP_SQPOLL
		u.params.threadIdle = 1000
	}
	fd, _, errno := syscall.Syscall(unix.SYS_IO_URING_SETUP, 8, uintptr(unsafe.Pointer(&u.params)), 0)
	if errno != 0 {
		return nil, errno
	}
	u.fd = int(fd)
	var err error
	// Both queues are in one mapping (IORING_FEAT_SINGLE_MMAP), the requests in another.
	size := max(u.params.sq.array+4*u.params.sqEntries, u.params.cq.cqes+16*u.params.cqEntries)
	if u.queue, err = unix.Mmap(u.fd, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE); err != nil {
		return nil, err
	}
	u.entries, err = unix.Mmap(u.fd, 0x10000000, int(64*u.params.sqEntries), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	return u, err
}

func (u *uring) close() {
	unix.Munmap(u.queue)
	unix.Munmap(u.entries)
	unix.Close(u.fd)
}

func (u *uring) word(at uint32) *uint32 { return (*uint32)(unsafe.Pointer(&u.queue[at])) }

// do makes requests at once and returns the result that comes last; zero for one that
// says nothing when it succeeds.
func (u *uring) do(requests ...*uringRequest) (int, error) {
	var pin runtime.Pinner
	defer pin.Unpin()
	answers := 0
	for _, r := range requests {
		u.push(r, &pin)
		if r.Flags&uringSkipSuccess == 0 {
			answers++
		}
	}
	submit, flags := len(requests), uintptr(1) // IORING_ENTER_GETEVENTS
	if u.polled {
		submit, flags = 0, flags|2 // IORING_ENTER_SQ_WAKEUP
	}
	res := 0
	for {
		_, _, errno := syscall.Syscall6(unix.SYS_IO_URING_ENTER, uintptr(u.fd), uintptr(submit), uintptr(answers), flags, 0, 0)
		if errno != 0 && errno != syscall.EINTR {
			return 0, errno
		}
		submit = 0
		head := u.word(u.params.cq.head)
		for *head != atomic.LoadUint32(u.word(u.params.cq.tail)) {
			res = int(int32(*u.word(u.params.cq.cqes + 16*(*head&*u.word(u.params.cq.ringMask)) + 8)))
			atomic.StoreUint32(head, *head+1)
			answers--
		}
		if answers <= 0 {
			return res, nil
		}
	}
}

// push puts a request into the queue, with its memory pinned.
func (u *uring) push(r *uringRequest, pin *runtime.Pinner) {
	address := func(b []byte) uint64 {
		if len(b) == 0 {
			return 0
		}
		pin.Pin(&b[0])
		return uint64(uintptr(unsafe.Pointer(&b[0])))
	}
	addr, off := address(r.Addr), r.Off
	if r.Addr2 != nil {
		off = address(r.Addr2)
	}
	if r.Msg != nil {
		payload := []byte{1}
		iov := &unix.Iovec{Base: &payload[0], Len: 1}
		msg := &unix.Msghdr{Name: &r.Msg[0], Namelen: uint32(len(r.Msg)), Iov: iov, Iovlen: 1}
		pin.Pin(&r.Msg[0])
		pin.Pin(&payload[0])
		pin.Pin(iov)
		pin.Pin(msg)
		addr = uint64(uintptr(unsafe.Pointer(msg)))
	}
	tail := u.word(u.params.sq.tail)
	slot := *tail & *u.word(u.params.sq.ringMask)
	e := u.entries[64*slot:][:64]
	clear(e)
	e[0], e[1] = r.Op, r.Flags
	binary.NativeEndian.PutUint32(e[4:], uint32(r.FD))
	binary.NativeEndian.PutUint64(e[8:], off)
	binary.NativeEndian.PutUint64(e[16:], addr)
	binary.NativeEndian.PutUint32(e[24:], r.Len)
	binary.NativeEndian.PutUint32(e[28:], r.OpFlags)
	binary.NativeEndian.PutUint32(e[44:], r.FileIndex)
	*u.word(u.params.sq.array + 4*slot) = slot
	atomic.StoreUint32(tail, *tail+1)
}

// urings are the actor's own, made when they are first wanted.
var urings = map[string]*uring{}

func init() {
	// uring-opens opens a file through io_uring as often as told, one after the other.
	actorDeeds["uring-opens"] = func(argv []string) (int, error) {
		u, err := newUring(false)
		if err != nil {
			return 0, err
		}
		defer u.close()
		n := mustAtoi(argv[1])
		for range n {
			fd, err := u.do(&uringRequest{Op: 18, FD: -100, Addr: uringText(argv[0])})
			if err != nil {
				return 0, err
			} else if fd < 0 {
				return 0, syscall.Errno(-fd)
			}
			syscall.Close(fd)
		}
		return n, nil
	}
	// uring makes requests at once, on the ring of that name ("polled" or another).
	actorDeeds["uring"] = func(argv []string) (int, error) {
		u := urings[argv[0]]
		if u == nil {
			var err error
			if u, err = newUring(argv[0] == "polled"); err != nil {
				return 0, err
			}
			urings[argv[0]] = u
		}
		var requests []*uringRequest
		for _, told := range argv[1:] {
			r := new(uringRequest)
			if err := json.Unmarshal([]byte(told), r); err != nil {
				return 0, err
			}
			requests = append(requests, r)
		}
		return u.do(requests...)
	}
}

// requestUring has the actor make requests at once.
func requestUring(a *actor, ring string, requests ...uringRequest) int {
	a.t.Helper()
	argv := []string{ring}
	for _, r := range requests {
		told, err := json.Marshal(r)
		if err != nil {
			a.t.Fatal(err)
		}
		argv = append(argv, string(told))
	}
	return a.do("uring", argv...)
}

func uringText(s string) []byte { return append([]byte(s), 0) }

// uringRequests makes each operation of io_uring that changes or contacts something:
// at once, by a worker of the kernel's, and through a thread of the kernel's that polls
// the ring.
func uringRequests(t *testing.T) {
	s, a := startScoped(t)
	for _, way := range []struct {
		name, ring string
		flags      uint8
	}{
		{"at once", "plain", 0},
		{"by a worker", "plain", uringAsync},
		{"polled", "polled", 0},
	} {
		t.Run(way.name, func(t *testing.T) {
			dir := t.TempDir()
			at := func(name string) []byte { return uringText(dir + "/" + name) }
			port, listenPort := freePort(t), freePort(t)
			dst := fmt.Sprintf("127.66.0.9:%d", port)
			udp := int32(a.must(unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_DGRAM, 0))
			tcp := int32(a.must(unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_STREAM, 0))
			server := int32(a.must(unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_STREAM, 0))
			file := int32(a.must(unix.SYS_OPENAT, unix.AT_FDCWD&0xffffffff, dir+"/cut", unix.O_CREAT|unix.O_RDWR, 0o600))
			how := make([]byte, 24)
			binary.NativeEndian.PutUint64(how, unix.O_WRONLY)
			dirFD := int32(a.must(unix.SYS_OPENAT, unix.AT_FDCWD&0xffffffff, dir, unix.O_RDONLY|unix.O_DIRECTORY))
			if err := os.Symlink(dir, dir+"/self"); err != nil {
				t.Fatal(err)
			}
			for _, r := range []struct {
				name    string
				request uringRequest
				ret     int // negative: that error; positive: any success
				want    []fields
			}{
				{"mkdirat", uringRequest{Op: 37, FD: dirFD, Addr: uringText("sub"), Len: 0o700}, 0,
					[]fields{{"type": "file_mkdir", "path": dir + "/sub", "requested": "sub"}}},
				{"openat", uringRequest{Op: 18, FD: dirFD, Addr: uringText("self/file"), Len: 0o600, OpFlags: unix.O_CREAT | unix.O_RDWR}, 1,
					[]fields{{"type": "file_open", "path": dir + "/file", "requested": "self/file", "flags": "O_RDWR|O_CREAT"}}},
				{"openat2", uringRequest{Op: 28, FD: -100, Addr: at("file"), Addr2: how, Len: 24}, 1,
					[]fields{{"type": "file_open", "path": dir + "/file", "flags": "O_WRONLY"}}},
				{"openat of nothing", uringRequest{Op: 18, FD: -100, Addr: at("none")}, -int(unix.ENOENT),
					[]fields{{"type": "file_open", "path": dir + "/none", "flags": "O_RDONLY", "errno": "ENOENT"}}},
				{"ftruncate", uringRequest{Op: 55, FD: file, Off: 5}, 0,
					[]fields{{"type": "file_truncate", "path": dir + "/cut", "length": 5.0}}},
				{"linkat", uringRequest{Op: 39, FD: -100, Addr: at("file"), Len: uint32(dirFD), Addr2: uringText("hard")}, 0,
					[]fields{{"type": "file_link", "path": dir + "/hard", "requested": "hard", "old_path": dir + "/file"}}},
				{"symlinkat", uringRequest{Op: 38, FD: -100, Addr: uringText("../secret"), Addr2: at("soft")}, 0,
					[]fields{{"type": "file_symlink", "path": dir + "/soft", "target": "../secret"}}},
				{"renameat", uringRequest{Op: 35, FD: dirFD, Addr: uringText("hard"), Len: uint32(dirFD), Addr2: uringText("new")}, 0,
					[]fields{{"type": "file_rename", "path": dir + "/new", "requested": "new", "old_path": dir + "/hard", "old_requested": "hard"}}},
				{"unlinkat", uringRequest{Op: 36, FD: -100, Addr: at("new")}, 0,
					[]fields{{"type": "file_delete", "path": dir + "/new"}}},
				{"unlinkat of a directory", uringRequest{Op: 36, FD: -100, Addr: at("sub"), OpFlags: unix.AT_REMOVEDIR}, 0,
					[]fields{{"type": "file_delete", "path": dir + "/sub"}}},
				{"unlinkat of nothing", uringRequest{Op: 36, FD: -100, Addr: at("new")}, -int(unix.ENOENT),
					[]fields{{"type": "file_delete", "path": dir + "/new", "errno": "ENOENT"}}},
				{"send to an address", uringRequest{Op: 26, FD: udp, Addr: []byte("x"), Len: 1, Addr2: sockaddr("127.66.0.9", port), FileIndex: 16}, 1,
					[]fields{{"type": "connect", "proto": "udp", "dst": dst}}},
				{"sendmsg", uringRequest{Op: 9, FD: udp, Msg: sockaddr("127.66.0.9", port), Len: 1}, 1,
					[]fields{{"type": "connect", "proto": "udp", "dst": dst}}},
				{"connect", uringRequest{Op: 16, FD: tcp, Addr: sockaddr("127.66.0.9", port), Off: 16}, -int(unix.ECONNREFUSED),
					[]fields{{"type": "connect", "proto": "tcp", "dst": dst, "errno": "ECONNREFUSED"}}},
				{"connect of UDP", uringRequest{Op: 16, FD: udp, Addr: sockaddr("127.66.0.9", port), Off: 16}, 0,
					[]fields{{"type": "connect", "proto": "udp", "dst": dst}}},
				{"send", uringRequest{Op: 26, FD: udp, Addr: []byte("x"), Len: 1}, 1, nil},
				{"bind", uringRequest{Op: 56, FD: server, Addr: sockaddr("127.66.0.9", listenPort), Off: 16}, 0,
					[]fields{{"type": "bind", "proto": "tcp", "dst": fmt.Sprintf("127.66.0.9:%d", listenPort), "fd": float64(server)}}},
				{"listen", uringRequest{Op: 57, FD: server, Len: 3}, 0,
					[]fields{{"type": "listen", "proto": "tcp", "dst": fmt.Sprintf("127.66.0.9:%d", listenPort), "fd": float64(server), "backlog": 3.0}}},
			} {
				t.Run(r.name, func(t *testing.T) {
					r.request.Flags |= way.flags
					s.begin(r.name, "")
					ret := requestUring(a, way.ring, r.request)
					got := events(s.end(r.name), r.name)
					if ret == -int(unix.EINVAL) && r.ret != ret && (r.request.Op >= 55 || r.request.FileIndex != 0) {
						t.Skip("this kernel does not have the operation")
					}
					if ret != r.ret && (r.ret <= 0 || ret < 0) {
						t.Errorf("the request returns %d (%v)", ret, syscall.Errno(-ret))
					}
					for i := range r.want {
						r.want[i]["io_uring"] = true
					}
					checkEvents(t, got, a.pid(), r.want...)
				})
			}
		})
	}
	t.Run("a descriptor that is another file's when all is done", func(t *testing.T) {
		dir := folder(t)
		for _, name := range []string{"secret", "harmless"} {
			if err := os.WriteFile(dir+"/"+name, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Symlink("secret", dir+"/link"); err != nil {
			t.Fatal(err)
		}
		inode := func(name string) float64 {
			var st unix.Stat_t
			if err := unix.Stat(dir+"/"+name, &st); err != nil {
				t.Fatal(err)
			}
			return float64(st.Ino)
		}
		requestUring(a, "plain", uringRequest{Op: 22, FD: -1}) // the ring is there
		// The kernel may hand an open to another thread, and so change the order of the
		// requests. Whatever it does, nothing wrong may be told.
		raced := false
		for try := 0; try < 50 && !raced; try++ {
			fd := a.must(unix.SYS_OPENAT, unix.AT_FDCWD&0xffffffff, "/dev/null", 0)
			a.must(unix.SYS_CLOSE, fd) // the next one gets the same number
			s.begin("batch", "")
			ret := requestUring(a, "plain", uringRequest{Op: 18, FD: -100, Addr: uringText(dir + "/link")},
				uringRequest{Op: 19, FD: int32(fd)}, uringRequest{Op: 18, FD: -100, Addr: uringText(dir + "/harmless")})
			got := events(s.end("batch"), "batch")
			if ret < 0 || len(got) != 2 {
				t.Fatalf("the last open returns %d; events %v", ret, got)
			}
			for _, ev := range got {
				switch {
				case ev["raced"] == true && ev["ino"] == nil && ev["path"] == dir+"/link":
					raced = true
				case ev["raced"] == nil && ev["requested"] == dir+"/link" && ev["path"] == dir+"/secret" && ev["ino"] == inode("secret"):
				case ev["raced"] == nil && ev["requested"] == nil && ev["path"] == dir+"/harmless" && ev["ino"] == inode("harmless"):
				default:
					t.Errorf("an open is told as %v", ev)
				}
			}
			a.must(unix.SYS_CLOSE, ret)
		}
		if !raced {
			t.Error("no open was found to be raced")
		}
	})
	t.Run("without a word of success", func(t *testing.T) {
		dir := t.TempDir()
		s.begin("quiet", "")
		requestUring(a, "plain", uringRequest{Op: 37, FD: -100, Flags: uringSkipSuccess, Addr: uringText(dir + "/sub"), Len: 0o700})
		for i := 0; ; i++ {
			if _, err := os.Stat(dir + "/sub"); err == nil {
				break
			} else if i == 1000 {
				t.Fatal(err)
			}
			time.Sleep(10 * time.Millisecond)
		}
		// The kernel may use the same request for what fails before it has begun.
		for range 8 {
			if ret := requestUring(a, "plain", uringRequest{Op: 37, FD: -100, Len: 0o700}); ret != -int(unix.EFAULT) {
				t.Fatalf("a folder without a name: %d", ret)
			}
		}
		checkEvents(t, events(s.end("quiet"), "quiet"), a.pid(), fields{"type": "file_mkdir", "path": dir + "/sub", "io_uring": true, "pending": true})
	})
}

// TestHeldRequests checks that whatever is held comes out once, and that it is bounded.
func TestHeldRequests(t *testing.T) {
	var h heldRequests
	out := func() (got []string) {
		for raw := h.next(); raw != nil; raw = h.next() {
			got = append(got, string(raw))
		}
		return got
	}
	h.hold(1, []byte("one"))
	h.hold(2, []byte("two"))
	h.hold(1, []byte("one again"))
	if got := fmt.Sprint(out()); got != "[one]" {
		t.Errorf("a token that is used again gives out %s", got)
	}
	if got := string(h.take(2)); got != "two" || h.take(2) != nil {
		t.Errorf("token 2 has %q", got)
	}
	for range 10 * maxHeld { // one after the other, as a busy program has them
		h.hold(3, []byte("three"))
		if h.take(3) == nil {
			t.Fatal("what is held is not there")
		}
	}
	if got := out(); got != nil || len(h.order) > 2*maxHeld {
		t.Errorf("%d have come out, and %d tokens are there", len(got), len(h.order))
	}
	h.giveOut([]byte("mark"))
	if got := fmt.Sprint(out()); got != "[one again mark]" {
		t.Errorf("before a mark comes %s", got)
	}
	for i := range uint64(3 * maxHeld) {
		h.hold(i, []byte("many"))
		if i%2 == 0 {
			h.take(i)
		}
	}
	if len(h.records) > maxHeld || len(h.order) > 2*maxHeld {
		t.Errorf("%d records are held, and %d tokens", len(h.records), len(h.order))
	}
	h.giveOut([]byte("mark"))
	if got := len(out()); got != 3*maxHeld/2+1 {
		t.Errorf("%d records have come out, want %d", got, 3*maxHeld/2+1)
	}
}
