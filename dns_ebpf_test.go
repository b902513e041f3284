//go:build linux && (amd64 || arm64)

package main

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

func init() {
	// resolve asks a server for the addresses of a name, as Go's own resolver does.
	actorDeeds["resolve"] = func(argv []string) (int, error) {
		r := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, argv[0], argv[1])
		}}
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		addrs, err := r.LookupNetIP(ctx, "ip4", argv[2])
		if err == nil && (len(addrs) != 1 || addrs[0].String() != argv[3]) {
			err = fmt.Errorf("the addresses are %v", addrs)
		}
		return 0, err
	}
}

func init() {
	server := &unix.SockaddrInet4{Addr: [4]byte{127, 66, 0, 53}, Port: 53}
	open := func() (int, error) { return unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0) }
	unquote := func(s string) []byte {
		text, err := strconv.Unquote(s)
		if err != nil {
			panic(err)
		}
		return []byte(text)
	}
	// dns-pieces sends one message that is in as many pieces as told.
	actorDeeds["dns-pieces"] = func(argv []string) (int, error) {
		fd, err := open()
		if err != nil {
			return 0, err
		}
		defer unix.Close(fd)
		var pieces [][]byte
		for _, piece := range argv {
			pieces = append(pieces, unquote(piece))
		}
		return unix.SendmsgBuffers(fd, pieces, nil, server, 0)
	}
	// dns-many sends a message several times with one system call.
	actorDeeds["dns-many"] = func(argv []string) (int, error) {
		fd, err := open()
		if err != nil {
			return 0, err
		}
		defer unix.Close(fd)
		port := 53
		if len(argv) > 2 {
			port = mustAtoi(string(unquote(argv[2])))
		}
		var to [][]byte
		for range mustAtoi(string(unquote(argv[1]))) {
			to = append(to, sockaddr("127.66.0.53", port))
		}
		return 0, sendMany(fd, unquote(argv[0]), to...)
	}
	// dns-edge sends a message to an address behind which no memory is.
	actorDeeds["dns-edge"] = func(argv []string) (int, error) {
		fd, err := open()
		if err != nil {
			return 0, err
		}
		defer unix.Close(fd)
		page := unix.Getpagesize()
		memory, err := unix.Mmap(-1, 0, 2*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
		if err != nil {
			return 0, err
		}
		defer unix.Munmap(memory)
		addr := memory[page-16:]
		copy(addr, sockaddr("127.66.0.53", 53))
		if err := unix.Mprotect(memory[page:], unix.PROT_NONE); err != nil {
			return 0, err
		}
		query := unquote(argv[0])
		_, _, errno := syscall.Syscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(&query[0])), uintptr(len(query)), 0, uintptr(unsafe.Pointer(&addr[0])), 16)
		if errno != 0 {
			return 0, errno
		}
		return 0, nil
	}
}

// nameServer answers each question for an address with the one given, on port 53 of
// loopback, by UDP and TCP.
func nameServer(t *testing.T, addr netip.Addr) (server string) {
	t.Helper()
	server = "127.66.0.53:53"
	answer := func(query []byte) []byte {
		reply := append([]byte(nil), query[:12]...)
		reply[2] |= 0x80
		copy(reply[6:12], []byte{0, 1, 0, 0, 0, 0}) // one answer, and no record besides
		end := 12
		for query[end] != 0 {
			end += 1 + int(query[end])
		}
		reply = append(reply, query[12:end+5]...)
		return append(append(reply, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4), addr.AsSlice()...)
	}
	udp, err := net.ListenPacket("udp", server)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { udp.Close() })
	go func() {
		for b := make([]byte, 1500); ; {
			n, from, err := udp.ReadFrom(b)
			if err != nil {
				return
			}
			if n > 17 {
				udp.WriteTo(answer(b[:n]), from)
			}
		}
	}()
	tcp, err := net.Listen("tcp", server)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tcp.Close() })
	go func() {
		for {
			c, err := tcp.Accept()
			if err != nil {
				return
			}
			b := make([]byte, 1500)
			if n, err := c.Read(b); err == nil && n > 14 {
				reply := answer(b[2:n])
				c.Write(append([]byte{0, byte(len(reply))}, reply...))
			}
			c.Close()
		}
	}()
	return server
}

// TestEBPFNames asks for names in each way that resolvers have, and then contacts
// the address.
func TestEBPFNames(t *testing.T) {
	s, a := startScoped(t)
	addr := netip.MustParseAddr("127.66.0.77")
	server := nameServer(t, addr)
	port := freePort(t)
	query := []byte("\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x06secret\x07example\x00\x00\x01\x00\x01")
	to := sockaddr("127.66.0.53", 53)
	udp := func(connected bool) int {
		fd := a.must(unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_DGRAM, 0)
		if connected {
			a.must(unix.SYS_CONNECT, fd, to, 16)
		}
		return fd
	}
	buffer := make([]byte, 512)
	for _, tt := range []struct {
		name, host, proto string
		ask               func()
	}{
		{"Go by UDP", "go.udp.example", "udp", func() { a.do("resolve", "udp", server, "go.udp.example", addr.String()) }},
		{"Go by TCP", "go.tcp.example", "tcp", func() { a.do("resolve", "tcp", server, "go.tcp.example", addr.String()) }},
		{"sendto and recvfrom", "secret.example", "udp", func() {
			fd := udp(false)
			a.must(unix.SYS_SENDTO, fd, query, len(query), 0, to, 16)
			a.must(unix.SYS_RECVFROM, fd, buffer, len(buffer), 0, make([]byte, 16), []byte{16, 0, 0, 0})
		}},
		{"send and recv", "secret.example", "udp", func() {
			fd := udp(true)
			a.must(unix.SYS_SENDTO, fd, query, len(query), 0, 0, 0)
			a.must(unix.SYS_RECVFROM, fd, buffer, len(buffer), 0, 0, 0)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s.begin("ask", "")
			tt.ask()
			fd := udp(false)
			a.must(unix.SYS_CONNECT, fd, sockaddr(addr.String(), port), 16)
			lines := events(s.end("ask"), "ask")
			asked := filter(lines, fields{"type": "dns", "response": nil})
			answered := filter(lines, fields{"type": "dns", "response": true})
			if len(asked) != 1 || asked[0]["name"] != tt.host || asked[0]["query"] != "A" || asked[0]["dst"] != server || asked[0]["proto"] != tt.proto {
				t.Errorf("what was asked is %v", asked)
			}
			if len(answered) != 1 || answered[0]["name"] != tt.host || fmt.Sprint(answered[0]["answers"]) != "["+addr.String()+"]" || answered[0]["dst"] != server {
				t.Errorf("what was answered is %v", answered)
			}
			dst := fmt.Sprintf("%s:%d", addr, port)
			if got := filter(lines, fields{"type": "connect", "dst": dst}); len(got) != 1 || got[0]["host"] != tt.host {
				t.Errorf("the connection is %v", got)
			}
		})
	}
	// However a question is cut up, it is read; and what is none is told all the same.
	pieces := func(n int) (p []string) {
		for i := range query {
			if i%n == 0 {
				p = append(p, "")
			}
			p[len(p)-1] += string(query[i : i+1])
		}
		return p
	}
	for _, tt := range []struct {
		name, deed string
		argv       []string
		times      int
	}{
		{"a byte a piece", "dns-pieces", pieces(1), 1},
		{"empty pieces before it", "dns-pieces", append(make([]string, 20), pieces(len(query))...), 1},
		{"too many pieces", "dns-pieces", append(make([]string, 900), pieces(len(query))...), 1},
		{"many at once", "dns-many", []string{string(query), "12"}, 12},
		{"an address at the end of memory", "dns-edge", []string{string(query)}, 1},
		{"garbage", "dns-pieces", []string{"\x01"}, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			quoted := make([]string, len(tt.argv))
			for i := range tt.argv {
				quoted[i] = strconv.Quote(tt.argv[i])
			}
			s.begin("cut", "")
			a.do(tt.deed, quoted...)
			got := filter(events(s.end("cut"), "cut"), fields{"type": "dns"})
			want := fields{"name": "secret.example", "query": "A"}
			switch tt.name {
			case "garbage":
				want = fields{"name": nil, "undecoded": true}
			case "too many pieces":
				want = fields{"name": nil, "undecoded": true, "truncated": true}
			}
			if len(got) != tt.times || len(filter(got, want)) != tt.times {
				t.Errorf("got %d, want %d with %v: %v", len(got), tt.times, want, got)
			}
		})
	}
	t.Run("too many at once", func(t *testing.T) {
		s.begin("many", "")
		a.do("dns-many", strconv.Quote(string(query)), strconv.Quote("1000"))
		told, dropped := 0, 0
		for _, l := range events(s.end("many"), "many") {
			switch l["type"] {
			case "dns":
				told++
			case "drop":
				dropped += int(l["count"].(float64))
			}
		}
		if told == 0 || told+dropped != 1000 {
			t.Errorf("%d are told and %d counted as dropped, of 1000", told, dropped)
		}
		s.begin("others", "")
		a.do("dns-many", strconv.Quote("x"), strconv.Quote("1000"), strconv.Quote(strconv.Itoa(port)))
		if got := filter(events(s.end("others"), "others"), fields{"type": "drop"}); got != nil {
			t.Errorf("what no server of names gets is counted: %v", got)
		}
	})
	t.Run("hostile", func(t *testing.T) {
		s.begin("hostile", "")
		fd := udp(true)
		label := "\x00\n\"\x1b[31m\xff.\\\u202e"
		evil := strings.Replace(string(query), "\x06secret", string(rune(len(label)))+label, 1)
		a.must(unix.SYS_SENDTO, fd, []byte(evil), len(evil), 0, 0, 0)
		got := filter(events(s.end("hostile"), "hostile"), fields{"type": "dns"})
		if len(got) != 1 || got[0]["name_raw"] == nil || !strings.HasSuffix(got[0].str("name"), ".example") {
			t.Errorf("got %v", got)
		}
	})
}
