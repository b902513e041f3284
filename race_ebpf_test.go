//go:build linux && (amd64 || arm64)

package main

import (
	"fmt"
	"net"
	"os"
	"runtime"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// race makes rounds of act while another thread turns the contents of memory from one
// to the other and back without end. Only the last byte differs, so that there is
// never anything else in it.
func race(rounds int, one, other []byte, act func(address unsafe.Pointer) error) error {
	memory := make([]byte, len(one)+8)
	copy(memory, one)
	last := len(one) - 1
	for one[last] == other[last] {
		last--
	}
	var over atomic.Bool
	done := make(chan struct{})
	// A word of its own is changed at once.
	word := (*uint32)(unsafe.Pointer(uintptr(unsafe.Pointer(&memory[last])) &^ 3))
	a := atomic.LoadUint32(word)
	memory[last] = other[last]
	b := atomic.LoadUint32(word)
	var turns atomic.Int64
	go func() {
		defer close(done)
		for !over.Load() {
			for range 1000 {
				atomic.StoreUint32(word, a)
				atomic.StoreUint32(word, b)
			}
			if turns.Add(1)%2 == 0 {
				atomic.StoreUint32(word, a) // what it is left at is not always the same
			}
			runtime.Gosched() // nothing else would stop it for the garbage collector
		}
	}()
	defer func() { over.Store(true); <-done }()
	for i := range rounds {
		// On a busy machine the other thread may get no CPU for longer than all rounds take.
		for seen := turns.Load(); i%100 == 0 && turns.Load() == seen; {
			time.Sleep(50 * time.Microsecond)
		}
		if err := act(unsafe.Pointer(&memory[0])); err != nil {
			return err
		}
	}
	return nil
}

func init() {
	// race-open opens one file or the other, and changes the mode of what it has opened.
	actorDeeds["race-open"] = func(argv []string) (int, error) {
		n, _ := strconv.Atoi(argv[0])
		return 0, race(n, uringText(argv[1]), uringText(argv[2]), func(path unsafe.Pointer) error {
			fd, _, errno := syscall.Syscall6(unix.SYS_OPENAT, unix.AT_FDCWD&0xffffffff, uintptr(path), unix.O_RDONLY, 0, 0, 0)
			if errno != 0 {
				return errno
			}
			defer syscall.Close(int(fd))
			return syscall.Fchmod(int(fd), 0o600)
		})
	}
	// race-send sends a datagram to one address or the other.
	actorDeeds["race-send"] = func(argv []string) (int, error) {
		n, _ := strconv.Atoi(argv[0])
		port, _ := strconv.Atoi(argv[3])
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
		if err != nil {
			return 0, err
		}
		defer unix.Close(fd)
		payload := []byte("x")
		return 0, race(n, sockaddr(argv[1], port), sockaddr(argv[2], port), func(addr unsafe.Pointer) error {
			_, _, errno := syscall.Syscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(&payload[0])), 1, 0, uintptr(addr), 16)
			if errno != 0 && errno != unix.ECONNREFUSED {
				return errno
			}
			return nil
		})
	}
	// race-name sends a datagram with an address, whose length another thread sets to
	// zero and back; without one it is an error.
	actorDeeds["race-name"] = func(argv []string) (int, error) {
		n, _ := strconv.Atoi(argv[0])
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
		if err != nil {
			return 0, err
		}
		defer unix.Close(fd)
		name, payload := sockaddr(argv[1], mustAtoi(argv[2])), []byte("x")
		iov := &unix.Iovec{Base: &payload[0], Len: 1}
		msg := unix.Msghdr{Name: &name[0], Namelen: 16, Iov: iov, Iovlen: 1}
		named := append([]byte(nil), unsafe.Slice((*byte)(unsafe.Pointer(&msg)), unsafe.Sizeof(msg))...)
		msg.Namelen = 0
		nameless := append([]byte(nil), unsafe.Slice((*byte)(unsafe.Pointer(&msg)), unsafe.Sizeof(msg))...)
		sent := 0
		err = race(n, named, nameless, func(msg unsafe.Pointer) error {
			_, _, errno := syscall.Syscall(unix.SYS_SENDMSG, uintptr(fd), uintptr(msg), 0)
			if errno == 0 {
				sent++
			} else if errno != unix.EDESTADDRREQ {
				return errno
			}
			return nil
		})
		runtime.KeepAlive(name)
		runtime.KeepAlive(iov)
		return sent, err
	}
	// race-connect connects to one address or the other, at which somebody listens.
	actorDeeds["race-connect"] = func(argv []string) (int, error) {
		n, _ := strconv.Atoi(argv[0])
		port, _ := strconv.Atoi(argv[3])
		return 0, race(n, sockaddr(argv[1], port), sockaddr(argv[2], port), func(addr unsafe.Pointer) error {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
			_, _, errno := syscall.Syscall(unix.SYS_CONNECT, uintptr(fd), uintptr(addr), 16)
			if errno != 0 {
				return errno
			}
			return nil
		})
	}
	// race-delete deletes one of two links or the other, and makes both again.
	actorDeeds["race-delete"] = func(argv []string) (int, error) {
		n, _ := strconv.Atoi(argv[0])
		return 0, race(n, uringText(argv[1]), uringText(argv[2]), func(path unsafe.Pointer) error {
			_, _, errno := syscall.Syscall6(unix.SYS_UNLINKAT, unix.AT_FDCWD&0xffffffff, uintptr(path), 0, 0, 0, 0)
			if errno != 0 {
				return errno
			}
			for _, link := range argv[1:] {
				if err := unix.Symlinkat("/", unix.AT_FDCWD, link); err != nil && err != unix.EEXIST {
					return err
				}
			}
			return nil
		})
	}
}

// destinations counts connections by where they go.
func destinations(lines []outLine) map[string]int {
	counts := map[string]int{}
	for _, l := range filter(lines, fields{"type": "connect"}) {
		counts[l.str("dst")]++
	}
	return counts
}

// races has another thread change a path or an address all the time, and
// compares what is told with what has happened.
func races(t *testing.T) {
	b := ebpfOrSkip(t, 32<<20) // none of so many events may be lost
	s := startSession(t, b, 0)
	a := startActor(t)
	s.scope(a.pid())
	rounds := 10_000
	if testing.Short() {
		rounds = 500
	}
	n := strconv.Itoa(rounds)
	const one, other = "127.66.0.1", "127.66.0.2"
	// both checks that neither side of the race has won every time, which takes rounds
	// and two CPUs.
	both := func(t *testing.T, counts map[string]int, keys ...string) {
		t.Helper()
		if testing.Short() {
			return
		}
		for _, key := range keys {
			if counts[key] == 0 {
				t.Errorf("%s was never used: %v", key, counts)
			}
		}
	}
	t.Run("open", func(t *testing.T) {
		dir := t.TempDir()
		paths := []string{dir + "/A", dir + "/B"}
		for _, path := range paths {
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		s.begin("open", "")
		a.do("race-open", n, paths[0], paths[1])
		got := events(s.end("open"), "open")
		counts := map[string]int{}
		for i := 0; i+1 < len(got); i += 2 {
			if got[i]["type"] != "file_open" || got[i+1]["type"] != "chmod" || got[i]["path"] != got[i+1]["path"] {
				t.Fatalf("events %d and the next are %v", i, got[i:i+2])
			}
			counts[got[i].str("path")]++
		}
		if len(got) != 2*rounds {
			t.Errorf("%d events, want %d", len(got), 2*rounds)
		}
		both(t, counts, paths...)
	})
	t.Run("datagrams", func(t *testing.T) {
		if cgroup, err := cgroupRoot(); err != nil || cgroup == "" {
			t.Skip("there is no cgroup v2 to attach to: ", err)
		}
		port := freePort(t)
		received := map[string]chan int{}
		for _, ip := range []string{one, other} {
			c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.ParseIP(ip), Port: port})
			if err != nil {
				t.Fatal(err)
			}
			c.SetReadBuffer(32 << 20)
			count := make(chan int, 1)
			received[fmt.Sprintf("%s:%d", ip, port)] = count
			go func() {
				n := 0
				for b := make([]byte, 8); ; n++ {
					if m, err := c.Read(b); err != nil || m != 1 {
						break // the last one is longer
					}
				}
				c.Close()
				count <- n
			}()
		}
		s.begin("send", "")
		a.do("race-send", n, one, other, strconv.Itoa(port))
		counts := destinations(events(s.end("send"), "send"))
		for dst, count := range received {
			c, err := net.Dial("udp", dst)
			if err != nil {
				t.Fatal(err)
			}
			c.Write([]byte("over"))
			c.Close()
			if n := <-count; n != counts[dst] {
				t.Errorf("%d datagrams have come to %s, and %d are told of", n, dst, counts[dst])
			}
		}
		both(t, counts, fmt.Sprintf("%s:%d", one, port), fmt.Sprintf("%s:%d", other, port))
	})
	t.Run("connect", func(t *testing.T) {
		port := freePort(t)
		var accepted [2]atomic.Int64
		for i, ip := range []string{one, other} {
			l, err := net.Listen("tcp4", fmt.Sprintf("%s:%d", ip, port))
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			go func() {
				for {
					c, err := l.Accept()
					if err != nil {
						return
					}
					accepted[i].Add(1)
					c.Close()
				}
			}()
		}
		s.begin("connect", "")
		a.do("race-connect", n, one, other, strconv.Itoa(port))
		counts := destinations(events(s.end("connect"), "connect"))
		dsts := []string{fmt.Sprintf("%s:%d", one, port), fmt.Sprintf("%s:%d", other, port)}
		if told := counts[dsts[0]] + counts[dsts[1]]; told != rounds || len(counts) > 2 {
			t.Errorf("%d connections are told of, want %d: %v", told, rounds, counts)
		}
		for i, dst := range dsts {
			for range 1000 {
				if accepted[i].Load() >= int64(counts[dst]) {
					break
				}
				time.Sleep(10 * time.Millisecond) // they are still being accepted
			}
			if got := accepted[i].Load(); got != int64(counts[dst]) {
				t.Errorf("%d connections have come to %s, and %d are told of", got, dst, counts[dst])
			}
		}
		both(t, counts, dsts...)
	})
	t.Run("an address that comes and goes", func(t *testing.T) {
		if cgroup, err := cgroupRoot(); err != nil || cgroup == "" {
			t.Skip("there is no cgroup v2 to attach to: ", err)
		}
		c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.ParseIP(one)})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close() // nobody need read what comes
		s.begin("name", "")
		sent := a.do("race-name", n, one, strconv.Itoa(c.LocalAddr().(*net.UDPAddr).Port))
		told := filter(events(s.end("name"), "name"), fields{"type": "connect", "dst": c.LocalAddr().String(), "errno": nil})
		if len(told) != sent {
			t.Errorf("%d datagrams are sent, and %d told of", sent, len(told))
		}
		if !testing.Short() && (sent == 0 || sent == rounds) {
			t.Errorf("of %d datagrams %d had an address", rounds, sent)
		}
	})
	t.Run("delete", func(t *testing.T) {
		dir := t.TempDir()
		paths := []string{dir + "/A", dir + "/B"}
		for _, path := range paths {
			if err := os.Symlink("/", path); err != nil {
				t.Fatal(err)
			}
		}
		s.begin("delete", "")
		a.do("race-delete", n, paths[0], paths[1])
		got := events(s.end("delete"), "delete")
		deleted, wrong, raced := "", 0, 0
		for i := len(got) - 1; i >= 0; i-- {
			switch l := got[i]; l["type"] {
			case "file_symlink":
				if l["errno"] == nil {
					deleted = l.str("path") // this one is made anew, so it was not there
				}
			case "file_delete":
				if l["raced"] != nil {
					raced++
				} else if l["path"] != deleted {
					wrong++
				}
			}
		}
		// Without a hook that has the kernel's own name, a path that was changed twice
		// goes unnoticed.
		if knowsPaths(b) && (raced > 0 || wrong > 0) {
			t.Errorf("of %d deletes %d are wrong and %d doubtful, though the kernel knows", rounds, wrong, raced)
		} else if !knowsPaths(b) && raced == 0 && !testing.Short() {
			t.Errorf("of %d deletes %d are wrong and none is known to be doubtful", rounds, wrong)
		}
		t.Logf("of %d deletes, %d are doubtful, and of the others %d are wrong", rounds, raced, wrong)
	})
}
