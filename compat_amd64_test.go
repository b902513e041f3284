//go:build linux

package main

import (
	"debug/elf"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

func init() {
	compatCalls["int80"] = func(number int, args [6]uintptr) int { return int80(number, args) }
	compatCalls["socketcall"] = func(number int, args [6]uintptr) int {
		var words []byte
		for _, a := range args {
			words = binary.NativeEndian.AppendUint32(words, uint32(a))
		}
		return int80(numbers32["socketcall"], [6]uintptr{uintptr(number), low(words)})
	}
	var page []byte
	low = func(b []byte) uintptr {
		if len(page) < len(b) {
			var err error
			if page, err = unix.Mmap(-1, 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE|unix.MAP_32BIT); err != nil {
				panic(err)
			}
		}
		at := uintptr(unsafe.Pointer(&page[0]))
		page = page[copy(page, b):]
		return at
	}
}

// runCode calls machine code with rdx at its own address and the words behind it.
func runCode(code []byte, words *[9]uintptr) {
	page, err := unix.Mmap(-1, 0, unix.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE|unix.PROT_EXEC, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		panic(err)
	}
	defer unix.Munmap(page)
	copy(page, code)
	words[0] = uintptr(unsafe.Pointer(&page[0]))
	closure := unsafe.Pointer(words)
	(*(*func())(unsafe.Pointer(&closure)))()
}

// int80 makes a system call as 32-bit programs do.
func int80(number int, args [6]uintptr) int {
	f := [9]uintptr{1: uintptr(number), 2: args[0], args[1], args[2], args[3], args[4], args[5]}
	runCode([]byte{
		0x55,             // push rbp
		0x53,             // push rbx
		0x49, 0x89, 0xd4, // mov r12, rdx: the closure, which is f above
		0x41, 0x8b, 0x44, 0x24, 0x08, // mov eax, [r12+8]
		0x41, 0x8b, 0x5c, 0x24, 0x10, // mov ebx, [r12+16]
		0x41, 0x8b, 0x4c, 0x24, 0x18, // mov ecx, [r12+24]
		0x41, 0x8b, 0x54, 0x24, 0x20, // mov edx, [r12+32]
		0x41, 0x8b, 0x74, 0x24, 0x28, // mov esi, [r12+40]
		0x41, 0x8b, 0x7c, 0x24, 0x30, // mov edi, [r12+48]
		0x41, 0x8b, 0x6c, 0x24, 0x38, // mov ebp, [r12+56]
		0xcd, 0x80, // int 0x80
		0x49, 0x89, 0x44, 0x24, 0x40, // mov [r12+64], rax
		0x5b, // pop rbx
		0x5d, // pop rbp
		0xc3, // ret
	}, &f)
	return int(int32(f[8]))
}

// exitCode ends a process.
const exitCode, exitMachine = "\x31\xff\xb8\x3c\x00\x00\x00\x0f\x05", elf.EM_X86_64 // xor edi, edi; mov eax, SYS_EXIT; syscall

// archForks are the spellings of a fork that arm64 does not have or, for lack of
// forkInPlace, the tests do not.
var archForks = []forkRow{
	{"fork", unix.SYS_FORK, 0},
	{"vfork", unix.SYS_VFORK, unix.CLONE_VM},
	{"clone as posix_spawn has it", unix.SYS_CLONE, unix.CLONE_VM | unix.CLONE_VFORK},
}

// forkInPlace is forkAndOpen for a child that runs on its parent's stack: nothing is
// pushed between the fork and the child's end.
func forkInPlace(path *byte, number, flags uintptr) int {
	f := [9]uintptr{1: number, 2: flags, 3: unix.SYS_OPEN, 4: uintptr(unsafe.Pointer(path))}
	runCode([]byte{
		0x49, 0x89, 0xd4, // mov r12, rdx
		0x49, 0x8b, 0x44, 0x24, 0x08, // mov rax, [r12+8]
		0x49, 0x8b, 0x7c, 0x24, 0x10, // mov rdi, [r12+16]
		0x31, 0xf6, // xor esi, esi
		0x31, 0xd2, // xor edx, edx
		0x45, 0x31, 0xd2, // xor r10d, r10d
		0x45, 0x31, 0xc0, // xor r8d, r8d
		0x0f, 0x05, // syscall
		0x48, 0x85, 0xc0, // test rax, rax
		0x75, 0x19, // jnz to the parent's mov
		0x49, 0x8b, 0x44, 0x24, 0x18, // mov rax, [r12+24]
		0x49, 0x8b, 0x7c, 0x24, 0x20, // mov rdi, [r12+32]
		0x31, 0xf6, // xor esi, esi
		0x31, 0xd2, // xor edx, edx
		0x0f, 0x05, // syscall
		0xb8, unix.SYS_EXIT, 0x00, 0x00, 0x00, // mov eax, SYS_EXIT
		0x31, 0xff, // xor edi, edi
		0x0f, 0x05, // syscall
		0x49, 0x89, 0x44, 0x24, 0x28, // mov [r12+40], rax
		0xc3, // ret
	}, &f)
	return int(f[5])
}

func init() {
	// messages32 sends a message to each of three addresses, with a sendmsg and a
	// sendmmsg of 32-bit programs, whose structs are narrower.
	actorDeeds["messages32"] = func(argv []string) (int, error) {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
		if err != nil {
			return 0, err
		}
		words := func(w ...uintptr) (b []byte) {
			for _, x := range w {
				b = binary.NativeEndian.AppendUint32(b, uint32(x))
			}
			return b
		}
		message := func(last byte) []byte {
			name := low([]byte(sockaddr4(uint16(mustAtoi(argv[0])), 127, 66, 0, last) + "\x00\x00\x00\x00\x00\x00\x00\x00"))
			return words(name, 16, low(words(low([]byte("x")), 1)), 1, 0, 0, 0)
		}
		if ret := int80(numbers32["sendmsg"], [6]uintptr{uintptr(fd), low(message(1))}); ret != 1 {
			return 0, fmt.Errorf("sendmsg returns %d", ret)
		}
		both := append(append(append(message(2), 0, 0, 0, 0), message(3)...), 0, 0, 0, 0)
		if ret := int80(numbers32["sendmmsg"], [6]uintptr{uintptr(fd), low(both), 2}); ret != 2 {
			return 0, fmt.Errorf("sendmmsg returns %d", ret)
		}
		return 0, nil
	}
}

// compatSystemCalls makes the calls of callRows again by 32-bit system
// calls, of their own and, for sockets, through socketcall(2).
func compatSystemCalls(t *testing.T) {
	names := map[int]string{}
	for name, number := range nativeNumbers {
		names[number] = name
	}
	sockets := map[string]int{}
	for number, name := range socketcalls {
		sockets[name] = number
	}
	for abi, numbers := range map[string]map[string]int{"int80": numbers32, "socketcall": sockets} {
		t.Run(abi, func(t *testing.T) {
			s, a := startScoped(t)
			if ret := a.callABI("int80", 20); ret != a.pid() { // getpid
				t.Skipf("this kernel has no 32-bit system calls: getpid gives %d", ret)
			}
			seen := map[string]bool{}
			for _, r := range callRows(t, a) {
				name := names[r.call]
				if number, ok := numbers[name]; ok {
					seen[name] = true
					r.run(t, s, a, func() int { return a.callABI(abi, number, r.args...) })
				}
			}
			for _, name := range slices.Sorted(maps.Keys(numbers)) {
				if !seen[name] {
					t.Logf("not tried: %s", name)
				}
			}
			port := freePort(t)
			s.begin("messages", "")
			a.do("messages32", strconv.Itoa(port))
			checkEvents(t, events(s.end("messages"), "messages"), a.pid(),
				fields{"type": "connect", "proto": "udp", "dst": fmt.Sprintf("127.66.0.1:%d", port)},
				fields{"type": "connect", "proto": "udp", "dst": fmt.Sprintf("127.66.0.2:%d", port)},
				fields{"type": "connect", "proto": "udp", "dst": fmt.Sprintf("127.66.0.3:%d", port)})
			if len(seen) < 4 {
				t.Errorf("only %v were tried", seen)
			}
		})
	}
	t.Run("a 32-bit program", func(t *testing.T) {
		s, a := startScoped(t)
		if ret := a.callABI("int80", 20); ret != a.pid() { // getpid
			t.Skipf("this kernel has no 32-bit system calls: getpid gives %d", ret)
		}
		const base, headers = 0x08048000, 52 + 32
		code := "\xb8\x05\x00\x00\x00" + // mov eax, 5: open
			"\xbb\x73\x80\x04\x08" + // mov ebx, the name behind the code
			"\x31\xc9\x31\xd2\xcd\x80" + // xor ecx, ecx; xor edx, edx; int 0x80
			"\xb8\x01\x00\x00\x00\x31\xdb\xcd\x80" + // mov eax, 1: exit; xor ebx, ebx; int 0x80
			"\x90\x90\x90\x90\x90\x90/thirty-two\x00"
		size := uint32(headers + len(code))
		program := writeProgram(t, "program32", elf.Header32{
			Ident: [elf.EI_NIDENT]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS32), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
			Type:  uint16(elf.ET_EXEC), Machine: uint16(elf.EM_386), Version: uint32(elf.EV_CURRENT),
			Entry: base + headers, Phoff: 52, Ehsize: 52, Phentsize: 32, Phnum: 1,
		}, elf.Prog32{
			Type: uint32(elf.PT_LOAD), Flags: uint32(elf.PF_R | elf.PF_X), Vaddr: base, Paddr: base,
			Filesz: size, Memsz: size, Align: 0x1000,
		}, []byte(code))
		child := 0
		got := during(s.client, func() { child = a.do("spawn", program) })
		checkEvents(t, got, child, fields{"type": "process_spawn", "pid": float64(a.pid()), "child_pid": float64(child)},
			fields{"type": "exec", "argv": []any{program}, "exe": program, "path": program, "ppid": float64(a.pid())},
			fields{"type": "file_open", "path": "/thirty-two", "flags": "O_RDONLY", "errno": "ENOENT"})
	})
}
