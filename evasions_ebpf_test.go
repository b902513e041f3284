//go:build linux && (amd64 || arm64)

package main

import (
	"bufio"
	"bytes"
	"debug/elf"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
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
	"sync"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"
	"unsafe"

	"golang.org/x/sys/unix"
)

// TestEBPFEvasions runs, by the numbers that they have there, the ways past a probe that evasions.md lists.
func TestEBPFEvasions(t *testing.T) {
	for _, e := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"01 leaves the scope", leavers},
		{"02 forks", forks},
		{"03 exec from a thread", execFromThread},
		{"04 reused pids", reusedPIDs},
		{"05 pid and user namespaces", namespaces},
		{"06 named like the probe", namesakes},
		{"07 many children", manyChildren},
		{"08 every spelling", everySpelling},
		{"09 32-bit system calls", compatSystemCalls},
		{"11 every way to send", everyDestination},
		{"12 UNIX sockets", unixSockets},
		{"13 descriptors from elsewhere", foreignDescriptors},
		{"14 acts in another process", otherProcesses},
		{"15 acts of a daemon", daemons},
		{"17 misleading paths", misleadingPaths},
		{"18 long paths", longPaths},
		{"19 misleading arguments", programs},
		{"20 strings never touched", untouchedStrings},
		{"21 bytes of every kind", everyByte},
		{"22 a million opens", aMillionOpens},
		{"23 a busy neighbour", busyNeighbour},
		{"24 a reader that stops", stoppedReader},
		{"25 a probe that is stopped", stoppedProbe},
		{"26 calls that overlap", overlappingCalls},
		{"27 work that goes on", workGoesOn},
		{"28 bad control lines", badControlLines},
		{"29 the client is gone", endings},
	} {
		t.Run(e.name, e.run)
	}
}

// during returns the events of a call in which act is all that happens.
func during(c *client, act func()) []outLine {
	c.t.Helper()
	rowNumber++
	id := "row " + strconv.Itoa(rowNumber)
	c.begin(id, "")
	act()
	c.end(id)
	c.mu.Lock()
	defer c.mu.Unlock()
	return events(c.all, id)
}

func leavers(t *testing.T) {
	s, a := startScoped(t)
	stranger := startActor(t)
	leave := func(t *testing.T, how string, forks int) {
		path := "/left-" + strings.ReplaceAll(how, " ", "-")
		got := during(s.client, func() {
			a.do("part", "leave", how, strconv.Itoa(forks), strconv.Itoa(stranger.pid()), "0", path)
			s.until(func(l outLine) bool { return l["path"] == path })
		})
		acts := filter(got, fields{"path": path})
		if len(acts) != 1 {
			t.Fatalf("its act is seen %d times: %v", len(acts), acts)
		}
		for typ, key := range map[string]string{"process_spawn": "child_pid", "exec": "pid"} {
			if got := filter(got, fields{"type": typ, key: acts[0]["pid"]}); len(got) != 1 {
				t.Errorf("its %s is seen %d times: %v", typ, len(got), got)
			}
		}
		if got := filter(got, fields{"type": "exec"}); len(got) != forks+1 {
			t.Errorf("%d programs on the way, want %d: %v", len(got), forks+1, got)
		}
	}
	for how, forks := range map[string]int{
		"stays": 1, "setsid": 1, "setpgid": 1, "another group": 1, "orphan": 1, "double fork": 2, "daemon": 2, "five forks": 5,
	} {
		t.Run(how, func(t *testing.T) { leave(t, how, forks) })
	}
	a.must(unix.SYS_PRCTL, unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
	t.Run("orphan of a subreaper", func(t *testing.T) { leave(t, "orphan", 1) })
}

// A forkRow is a spelling of a fork.
type forkRow struct {
	name   string
	number int
	flags  uint64
}

// fork has the actor make a child that opens path with its first instructions and
// ends. Unless tid is zero, that is to be its pid. It returns the child's pid, or a
// negative errno.
func (a *actor) fork(r forkRow, path string, tid int) int {
	a.t.Helper()
	return a.do("fork", strconv.Itoa(r.number), strconv.FormatUint(r.flags, 10), path, strconv.Itoa(tid))
}

// forkEvents are the events of a fork whose child opens path, which does not exist.
func forkEvents(parent, child int, path string) []fields {
	return []fields{
		{"type": "process_spawn", "pid": float64(parent), "child_pid": float64(child)},
		{"type": "file_open", "pid": float64(child), "path": path, "flags": "O_RDONLY", "errno": "ENOENT"},
	}
}

func forks(t *testing.T) {
	s, a := startScoped(t)
	for _, r := range append([]forkRow{
		{"clone", unix.SYS_CLONE, 0},
		{"clone that waits", unix.SYS_CLONE, unix.CLONE_VFORK},
		{"clone, untraced", unix.SYS_CLONE, unix.CLONE_UNTRACED},
		{"clone for the parent", unix.SYS_CLONE, unix.CLONE_PARENT},
		{"clone with all that can be shared", unix.SYS_CLONE, unix.CLONE_FS | unix.CLONE_FILES | unix.CLONE_IO | unix.CLONE_SYSVSEM},
		{"clone3", unix.SYS_CLONE3, 0},
		{"clone3 that waits", unix.SYS_CLONE3, unix.CLONE_VFORK},
		{"clone3, untraced", unix.SYS_CLONE3, unix.CLONE_UNTRACED},
		{"clone3 for the parent", unix.SYS_CLONE3, unix.CLONE_PARENT},
	}, archForks...) {
		t.Run(r.name, func(t *testing.T) {
			child := 0
			got := during(s.client, func() {
				child = a.fork(r, "/forked", 0)
				if r.flags&unix.CLONE_PARENT != 0 {
					if _, err := unix.Wait4(child, nil, unix.WALL, nil); err != nil {
						t.Errorf("the child %d is not ours: %v", child, err)
					}
				}
			})
			checkEvents(t, got, a.pid(), forkEvents(a.pid(), child, "/forked")...)
		})
	}
	t.Run("posix_spawn", func(t *testing.T) {
		program := smallProgram(t, "program")
		child := 0
		got := during(s.client, func() { child = a.do("spawn", program, "x") })
		checkEvents(t, got, child, fields{"type": "process_spawn", "pid": float64(a.pid()), "child_pid": float64(child)},
			fields{"type": "exec", "argv": []any{program, "x"}, "exe": program, "path": program, "ppid": float64(a.pid())})
	})
}

// folder returns a temporary one, by the name that the kernel has for it.
func folder(t *testing.T) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// smallProgram returns a program that ends at once, and does nothing else.
func smallProgram(t *testing.T, name string) string {
	t.Helper()
	const base, headers = 0x400000, 64 + 56
	size := uint64(headers + len(exitCode))
	return writeProgram(t, name, elf.Header64{
		Ident: [elf.EI_NIDENT]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
		Type:  uint16(elf.ET_EXEC), Machine: uint16(exitMachine), Version: uint32(elf.EV_CURRENT),
		Entry: base + headers, Phoff: 64, Ehsize: 64, Phentsize: 56, Phnum: 1,
	}, elf.Prog64{
		Type: uint32(elf.PT_LOAD), Flags: uint32(elf.PF_R | elf.PF_X), Vaddr: base, Paddr: base,
		Filesz: size, Memsz: size, Align: 0x10000,
	}, []byte(exitCode))
}

// writeProgram returns the path of a program of those parts.
func writeProgram(t *testing.T, name string, parts ...any) string {
	t.Helper()
	path := filepath.Join(folder(t), name)
	var b bytes.Buffer
	for _, part := range parts {
		if err := binary.Write(&b, binary.LittleEndian, part); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(path, b.Bytes(), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func execFromThread(t *testing.T) {
	s, a := startScoped(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	s.begin("thread", "")
	pid := a.do("part", "exec-thread")
	execs := filter(events(s.end("thread"), "thread"), fields{"type": "exec", "pid": float64(pid)})
	if len(execs) != 2 || !reflect.DeepEqual(execs[1]["argv"], []any{self, "done"}) {
		t.Fatalf("got %v, want the part's exec and then its thread's", execs)
	}
	// It is still in scope.
	s.begin("after", "")
	if err := os.WriteFile(fifoOf(pid), []byte("x"), 0); err != nil {
		t.Fatal(err)
	}
	waitGone(t, pid)
	if got := filter(events(s.end("after"), "after"), fields{"type": "file_open", "path": "/etc/hostname-of-" + strconv.Itoa(pid)}); len(got) != 1 || got[0]["pid"] != float64(pid) || got[0]["errno"] != "ENOENT" {
		t.Errorf("after the exec: %v", got)
	}
}

func reusedPIDs(t *testing.T) {
	t.Run("as chosen", func(t *testing.T) {
		s, a := startScoped(t)
		stranger := startActor(t)
		clone3 := forkRow{number: unix.SYS_CLONE3}
		// Somebody else on this machine can take the pid in between: then it is tried again.
		for try := range 10 {
			var pid, strange, again int
			got := during(s.client, func() {
				pid = a.fork(clone3, "/member", 0)
				strange = stranger.fork(clone3, "/stranger", pid)
				again = a.fork(clone3, "/member-again", pid)
			})
			later := during(s.client, func() { stranger.fork(clone3, "/stranger", pid) })
			if again == -int(unix.EEXIST) || strange == -int(unix.EEXIST) {
				t.Logf("try %d: pid %d is in use", try, pid)
				continue
			}
			if strange != pid || again != pid {
				t.Fatalf("the pids are %d, %d and %d", pid, strange, again)
			}
			checkEvents(t, got, a.pid(), append(forkEvents(a.pid(), pid, "/member"), forkEvents(a.pid(), pid, "/member-again")...)...)
			checkEvents(t, later, a.pid())
			return
		}
		t.Error("no pid could be used again")
	})
	t.Run("as they come round", func(t *testing.T) {
		var uts unix.Utsname
		var major, minor int
		if err := unix.Uname(&uts); err != nil {
			t.Fatal(err)
		}
		if fmt.Sscanf(unix.ByteSliceToString(uts.Release[:]), "%d.%d", &major, &minor); major < 6 || major == 6 && minor < 14 {
			t.Skipf("Linux %d.%d has one pid_max for all namespaces", major, minor)
		}
		inNamespaces(t, "TestInSmallPIDNamespace")
	})
}

func TestInSmallPIDNamespace(t *testing.T) {
	skipOutOfNamespaces(t)
	s, a := startScoped(t)
	stranger := startActor(t)
	// The kernel goes on from 300 when it has come to the end. There has to be room for
	// the threads that the Go runtime starts.
	if err := os.WriteFile("/proc/sys/kernel/pid_max", []byte("364"), 0); err != nil {
		t.Fatal(err)
	}
	const rounds = 250
	clone3 := forkRow{number: unix.SYS_CLONE3}
	var want []fields
	members, strangers := map[int]bool{}, map[int]bool{}
	got := during(s.client, func() {
		for i := range rounds {
			pid := a.fork(clone3, "/member", 0)
			want = append(want, forkEvents(a.pid(), pid, "/member")...)
			members[pid] = true
			for range i % 4 { // not in step with the pids
				strangers[stranger.fork(clone3, "/stranger", 0)] = true
			}
		}
	})
	checkEvents(t, got, a.pid(), want...)
	both := 0
	for pid := range members {
		if strangers[pid] {
			both++
		}
	}
	if both < 20 {
		t.Errorf("only %d pids were those of a member and of a stranger", both)
	}
}

func namespaces(t *testing.T) {
	s, a := startScoped(t)
	for name, flags := range map[string]uint64{
		"pid":             unix.CLONE_NEWPID,
		"user":            unix.CLONE_NEWUSER,
		"pid and user":    unix.CLONE_NEWPID | unix.CLONE_NEWUSER,
		"all that exists": unix.CLONE_NEWPID | unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP,
	} {
		for _, number := range []int{unix.SYS_CLONE, unix.SYS_CLONE3} {
			t.Run(fmt.Sprintf("%s, call %d", name, number), func(t *testing.T) {
				child := 0
				got := during(s.client, func() { child = a.fork(forkRow{number: number, flags: flags}, "/inside", 0) })
				if child == -int(unix.EINVAL) {
					t.Skip("this kernel does not have them")
				}
				for _, l := range got {
					delete(l, "mnt_ns") // that of the root directory, if it is a new one
				}
				checkEvents(t, got, a.pid(), forkEvents(a.pid(), child, "/inside")...)
			})
		}
	}
	t.Run("entered", func(t *testing.T) {
		pid := 0
		got := during(s.client, func() { pid = a.do("play", "enters-namespaces") })
		inside := filter(got, fields{"type": "file_open", "path": "/inside"})
		if len(inside) != 1 {
			t.Fatalf("its act is seen %d times: %v", len(inside), inside)
		}
		child := inside[0]["pid"]
		for _, want := range []fields{
			{"type": "process_spawn", "pid": float64(pid), "child_pid": child},
			{"type": "exec", "pid": child, "ppid": float64(pid)},
		} {
			if got := filter(got, want); len(got) != 1 {
				t.Errorf("there are %d events %v", len(got), want)
			}
		}
	})
	t.Run("the sidecar in one", func(t *testing.T) { inNamespaces(t, "TestInPIDNamespace") })
}

func namesakes(t *testing.T) {
	ebpfOrSkip(t, minRingSize).Close()
	p := startProbe(t)
	a := startActor(t)
	p.scope(a.pid())
	comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", p.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{strings.TrimSuffix(string(comm), "\n"), "mcpfz-probe"} {
		t.Run(name, func(t *testing.T) {
			a.do("comm", name)
			got := during(p.client, func() { a.call(unix.SYS_OPENAT, unix.AT_FDCWD, "/namesake", unix.O_RDONLY, 0) })
			checkEvents(t, got, a.pid(), fields{"type": "file_open", "comm": name, "path": "/namesake", "flags": "O_RDONLY", "errno": "ENOENT"})
		})
	}
	t.Run("a program of that name", func(t *testing.T) {
		program, child := smallProgram(t, "mcpfz-probe"), 0
		got := during(p.client, func() { child = a.do("spawn", program) })
		checkEvents(t, filter(got, fields{"type": "exec"}), child, fields{"type": "exec", "comm": "mcpfz-probe", "argv": []any{program}, "exe": program, "path": program, "ppid": float64(a.pid())})
	})
	t.Run("the very program", func(t *testing.T) {
		child := 0
		got := during(p.client, func() { child = a.do("play", "probe", "--ring-size", "1M") })
		if got := filter(got, fields{"type": "exec", "pid": float64(child)}); len(got) != 1 || got[0]["exe"] != p.cmd.Path {
			t.Errorf("its exec: %v", got)
		}
		if got := filter(got, fields{"type": "bpf", "pid": float64(child)}); len(got) < 7 {
			t.Errorf("it loads its programs by %d calls of bpf", len(got))
		}
	})
}

// skipped returns how many events are lost since the kernel did not run a program, which
// it may where it preempts: on emulated CPUs even three copies can be busy. Any other
// loss is an error.
func skipped(t *testing.T, lines []outLine) (n int) {
	t.Helper()
	for _, l := range filter(lines, fields{"type": "drop"}) {
		if copies, err := hookCopies(); err != nil || copies == 1 || l["reason"] != "program_skipped" {
			t.Fatalf("some were lost: %v", l)
		}
		n += int(l["count"].(float64))
	}
	return n
}

func manyChildren(t *testing.T) {
	n := 10_000
	if testing.Short() {
		n = 300
	}
	s := startSession(t, ebpfOrSkip(t, 16<<20), 0)
	a := startActor(t)
	s.scope(a.pid())
	program := smallProgram(t, "program")
	got := during(s.client, func() { a.do("part", "breed", strconv.Itoa(n), program) })
	dropped := skipped(t, got)
	spawns, execs := map[any]int{}, map[string]int{} // of a pid, which can come twice; of a child
	for _, l := range filter(got, fields{"type": "process_spawn"}) {
		spawns[l["child_pid"]]++
	}
	unspawned := 0
	for _, l := range filter(got, fields{"type": "exec", "exe": program}) {
		execs[fmt.Sprint(l["argv"])]++
		if spawns[l["pid"]]--; spawns[l["pid"]] < 0 {
			unspawned++
		}
	}
	missing := 0
	for i := range n {
		switch times := execs[fmt.Sprintf("[%s %d]", program, i)]; times {
		case 0:
			missing++
		case 1:
		default:
			t.Errorf("the exec of child %d is seen %d times", i, times)
		}
	}
	if missing > dropped || unspawned > dropped || len(execs)+missing != n {
		t.Errorf("of %d children, %d are not seen and %d not when they were spawned; %d events were dropped", n, missing, unspawned, dropped)
	}
}

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
	tmpfile := a.must(unix.SYS_OPENAT, dirfd, ".", unix.O_TMPFILE|unix.O_RDWR, 0o600)
	inRoot := make([]byte, 24) // struct open_how
	binary.NativeEndian.PutUint64(inRoot[16:], unix.RESOLVE_IN_ROOT)
	for _, r := range []callRow{
		{"renameat", unix.SYS_RENAMEAT, []any{dirfd, "c", unix.AT_FDCWD, "d"}, 0,
			[]fields{{"type": "file_rename", "path": in("d"), "requested": "d", "old_path": in("c"), "old_requested": "c"}}},
		{"rename over another", unix.SYS_RENAMEAT2, []any{dirfd, "d", dirfd, "b", 0}, 0,
			[]fields{{"type": "file_rename", "path": in("b"), "requested": "b", "old_path": in("d"), "old_requested": "d"}}},
		{"exchange of names", unix.SYS_RENAMEAT2, []any{dirfd, "a", dirfd, "b", unix.RENAME_EXCHANGE}, 0,
			[]fields{{"type": "file_rename", "path": in("b"), "requested": "b", "old_path": in("a"), "old_requested": "a"}}},
		{"link of a descriptor", unix.SYS_LINKAT, []any{filefd, "", unix.AT_FDCWD, in("e"), unix.AT_EMPTY_PATH}, 0,
			[]fields{{"type": "file_link", "path": in("e"), "old_path": in("b"), "old_requested": ""}}},
		{"link of a nameless file", unix.SYS_LINKAT, []any{tmpfile, "", dirfd, "f", unix.AT_EMPTY_PATH}, 0, nil},
		{"link through /proc", unix.SYS_LINKAT, []any{unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", filefd), dirfd, "g", unix.AT_SYMLINK_FOLLOW}, 0,
			[]fields{{"type": "file_link", "path": in("g"), "requested": "g", "old_path": fmt.Sprintf("/proc/self/fd/%d", filefd)}}},
		{"fchmodat2", unix.SYS_FCHMODAT2, []any{dirfd, "a", 0o755, unix.AT_SYMLINK_NOFOLLOW}, 0,
			[]fields{{"type": "chmod", "path": in("a"), "requested": "a", "mode": "755"}}},
		{"fchmodat2 of a descriptor", unix.SYS_FCHMODAT2, []any{filefd, "", 0o711, unix.AT_EMPTY_PATH}, 0,
			[]fields{{"type": "chmod", "path": in("b"), "requested": "", "mode": "711"}}},
		{"openat2, the folder for its root", unix.SYS_OPENAT2, []any{dirfd, "/a", inRoot, len(inRoot)}, 1,
			[]fields{{"type": "file_open", "path": in("a"), "requested": "/a", "flags": "O_RDONLY"}}},
		{"open without rights", unix.SYS_OPENAT, []any{unix.AT_FDCWD, "a", unix.O_PATH, 0}, 1,
			[]fields{{"type": "file_open", "path": in("a"), "requested": "a", "flags": "O_RDONLY|O_PATH"}}},
		{"open that cuts off", unix.SYS_OPENAT, []any{unix.AT_FDCWD, in("a"), unix.O_WRONLY | unix.O_TRUNC, 0}, 1,
			[]fields{{"type": "file_open", "path": in("a"), "flags": "O_WRONLY|O_TRUNC"}}},
	} {
		if r.call == unix.SYS_FCHMODAT2 && a.call(unix.SYS_FCHMODAT2, -1, "", 0, 0) == -int(unix.ENOSYS) {
			continue // it came with 6.6
		}
		if r.want == nil { // the name that an O_TMPFILE has in no folder
			stat, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", a.pid(), tmpfile))
			if err != nil {
				t.Fatal(err)
			}
			r.want = []fields{{"type": "file_link", "path": in("f"), "requested": "f", "old_path": strings.TrimSuffix(stat, " (deleted)"), "old_requested": ""}}
		}
		r.run(t, s, a, func() int { return a.call(r.call, r.args...) })
	}
	program := smallProgram(t, "program")
	for how, want := range map[string]fields{
		"execve":                   {"path": program},
		"execveat":                 {"path": program},
		"execveat of a descriptor": {"path": program},
		"execve through /proc":     {"argv0": "x"},
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
			if len(execs) != 2 || len(filter(execs[1:], want)) != 1 || !reflect.DeepEqual(execs[1]["argv"], []any{execs[1]["path"], "y"}) {
				t.Errorf("got  %.900s\nwant %v", fmt.Sprint(execs), want)
			}
		})
	}
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

func unixSockets(t *testing.T) {
	s, a := startScoped(t)
	runCallRows(t, s, a, 12)
	dir := folder(t)
	a.must(unix.SYS_CHDIR, dir)
	for name, tt := range map[string]struct {
		typ  int
		bind string // of the peer
		addr string // of the caller's
		path string
	}{
		"a path":                {unix.SOCK_STREAM, dir + "/1", dir + "/1\x00", dir + "/1"},
		"a path without NUL":    {unix.SOCK_STREAM, dir + "/2", dir + "/2", dir + "/2"},
		"a relative path":       {unix.SOCK_STREAM, dir + "/3", "3\x00garbage", dir + "/3"},
		"an abstract name":      {unix.SOCK_STREAM, "@probe-test", "\x00probe-test", "@probe-test"},
		"a name with NULs":      {unix.SOCK_STREAM, "@probe\x00test\x00", "\x00probe\x00test\x00", "@probe\x00test\x00"},
		"sequenced packets":     {unix.SOCK_SEQPACKET, dir + "/4", "4", dir + "/4"},
		"datagrams":             {unix.SOCK_DGRAM, dir + "/5", "5", dir + "/5"},
		"datagrams, abstractly": {unix.SOCK_DGRAM, "@probe-test-2", "\x00probe-test-2", "@probe-test-2"},
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
}

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
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: "@probe-test-rights", Net: "unix"})
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
		dirfd := a.do("receive", "@probe-test-rights") // the other one is next to it
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

func daemons(t *testing.T) {
	s, a := startScoped(t)
	dir := folder(t)
	for name, addr := range map[string]string{"docker.sock": dir + "/docker.sock", "systemd": "@/org/probe/test/systemd"} {
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

func misleadingPaths(t *testing.T) {
	t.Run("mounts and links", func(t *testing.T) { inNamespaces(t, "TestInMountNamespace") })
	s, a := startScoped(t)
	t.Run("open of a pipe", func(t *testing.T) {
		s.begin("pipe", "")
		a.must(unix.SYS_OPENAT, unix.AT_FDCWD, "/proc/self/fd/0", unix.O_RDONLY|unix.O_NONBLOCK, 0)
		got := events(s.end("pipe"), "pipe")
		if want, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/0", a.pid())); err != nil || len(got) != 1 || got[0]["path"] != want {
			t.Errorf("got %v, want a path %q (%v)", got, want, err)
		}
	})
	t.Run("another mount namespace", func(t *testing.T) {
		s.begin("mounts", "")
		pid := a.do("part", "mounts")
		lines := s.end("mounts")
		if got := filter(lines, fields{"type": "file_open", "pid": float64(pid), "requested": "hostname"}); len(got) != 2 || got[0]["detached_mount"] != true || got[1]["mnt_ns"] == nil || got[0]["mnt_ns"] != nil {
			t.Errorf("got %v", got)
		}
	})
}

func TestInMountNamespace(t *testing.T) {
	skipOutOfNamespaces(t)
	s, a := startScoped(t)
	b := startActorIn(t, a.pid())
	s.scope(a.pid())
	dir := folder(t)
	in := func(name string) string { return filepath.Join(dir, name) }
	for _, name := range []string{"real/inner", "bound", "private", "merged", "upper", "work", "gone"} {
		if err := os.MkdirAll(in(name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, err := range []error{
		os.WriteFile(in("other"), nil, 0o600),
		os.WriteFile(in("real/file"), nil, 0o600),
		os.Symlink("real/file", in("link")),
		os.Symlink("link", in("link to a link")),
		os.Symlink("real/inner", in("dirlink")),
		os.Symlink("nowhere", in("dangling")),
		unix.Mount(in("real"), in("bound"), "", unix.MS_BIND, ""),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { unix.Unmount(in("bound"), unix.MNT_DETACH) })
	a.must(unix.SYS_CHDIR, in("real"))
	dirfd := a.must(unix.SYS_OPENAT, unix.AT_FDCWD, dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	filefd := a.must(unix.SYS_OPENAT, unix.AT_FDCWD, in("other"), unix.O_RDONLY, 0)
	type row struct {
		name, path, want string
		dirfd            int // zero: AT_FDCWD
	}
	look := func(t *testing.T, a *actor, r row, more fields) {
		t.Run(r.name, func(t *testing.T) {
			if r.dirfd == 0 {
				r.dirfd = unix.AT_FDCWD
			}
			ret := 0
			got := during(s.client, func() { ret = a.call(unix.SYS_OPENAT, r.dirfd, r.path, unix.O_RDONLY, 0) })
			want := fields{"type": "file_open", "path": r.want, "flags": "O_RDONLY"}
			if r.path != r.want {
				want["requested"] = r.path
			}
			if ret < 0 {
				want["errno"] = "ENOENT"
			}
			if exists := !strings.Contains(r.want, "nope") && !strings.HasSuffix(r.path, "dangling"); exists != (ret >= 0) {
				t.Errorf("the open returns %v", syscall.Errno(-ret))
			}
			for k, v := range more {
				want[k] = v
			}
			checkEvents(t, got, a.pid(), want)
		})
	}
	rows := []row{
		{"a link", in("link"), in("real/file"), 0},
		{"a link to a link", in("link to a link"), in("real/file"), 0},
		{"a link to nothing", in("dangling"), in("dangling"), 0},
		{"beside what is linked to", dir + "/dirlink/../file", in("real/file"), 0},
		{"nothing beside what is linked to", dir + "/dirlink/../nope", dir + "/dirlink/../nope", 0},
		{"relative", "./file", in("real/file"), 0},
		{"relative, nothing", "./nope", in("real/nope"), 0},
		{"relative, up", "../other", in("other"), 0},
		{"relative, up to nothing", "../nope", in("real") + "/../nope", 0},
		{"a folder's", "real//file", in("real/file"), dirfd},
		{"a folder's, nothing", "real//nope", in("real/nope"), dirfd},
		{"beyond the root", "/../../" + in("other"), in("other"), 0},
		{"/proc/self/root", "/proc/self/root" + in("other"), in("other"), 0},
		{"/proc/self/cwd", "/proc/self/cwd/file", in("real/file"), 0},
		{"/proc/self/cwd, nothing", "/proc/self/cwd/nope", "/proc/self/cwd/nope", 0},
		{"/proc/thread-self/cwd", "/proc/thread-self/cwd/file", in("real/file"), 0},
		{"/proc/self/fd", fmt.Sprintf("/proc/self/fd/%d", filefd), in("other"), 0},
		{"/proc/self/fd of a folder", fmt.Sprintf("/proc/self/fd/%d/other", dirfd), in("other"), 0},
		{"a mount", in("bound/file"), in("bound/file"), 0},
		{"a mount, up", dir + "/bound/inner/../../other", in("other"), 0},
		{"a mount, nothing", in("bound/nope"), in("bound/nope"), 0},
	}
	if _, err := os.Stat("/dev/fd"); err == nil {
		rows = append(rows, row{"/dev/fd", fmt.Sprintf("/dev/fd/%d", filefd), in("other"), 0})
	}
	for _, r := range rows {
		look(t, a, r, nil)
	}
	t.Run("overlay", func(t *testing.T) {
		data := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", in("real"), in("upper"), in("work"))
		if err := unix.Mount("overlay", in("merged"), "overlay", 0, data); err == unix.ENODEV || err == unix.EINVAL {
			t.Skipf("there are no overlays here: %v", err)
		} else if err != nil {
			t.Fatal(err)
		}
		defer unix.Unmount(in("merged"), unix.MNT_DETACH)
		look(t, a, row{"below", in("merged/file"), in("merged/file"), 0}, nil)
		if err := os.WriteFile(in("merged/new"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		look(t, a, row{"above", in("merged/new"), in("merged/new"), 0}, nil)
	})
	t.Run("another mount namespace", func(t *testing.T) {
		b.must(unix.SYS_UNSHARE, unix.CLONE_NEWNS)
		b.must(unix.SYS_MOUNT, 0, "/", 0, unix.MS_REC|unix.MS_PRIVATE, 0)
		b.must(unix.SYS_MOUNT, in("real"), in("private"), 0, unix.MS_BIND, 0)
		var stat unix.Stat_t
		if err := unix.Stat(fmt.Sprintf("/proc/%d/ns/mnt", b.pid()), &stat); err != nil {
			t.Fatal(err)
		}
		look(t, b, row{"a mount of its own", in("private/file"), in("private/file"), 0}, fields{"mnt_ns": float64(stat.Ino)})
		look(t, b, row{"nothing in it", in("private/nope"), in("private/nope"), 0}, fields{"mnt_ns": float64(stat.Ino)})
	})
	t.Run("chroot", func(t *testing.T) {
		a.must(unix.SYS_CHDIR, dir)
		a.must(unix.SYS_CHROOT, in("real"))
		for _, r := range []row{
			{"a file", "/file", in("real/file"), 0},
			{"nothing", "/nope", in("real/nope"), 0},
			{"up from the root", "/../file", in("real/file"), 0},
			{"up from the root, nothing", "/../nope", in("real/nope"), 0},
			{"outside of it", "other", in("other"), 0},
			{"outside of it, by a folder", "other", in("other"), dirfd},
			{"outside of it, nothing", "nope", in("nope"), 0},
		} {
			look(t, a, r, nil)
		}
	})
	t.Run("a folder that is gone", func(t *testing.T) {
		b.must(unix.SYS_CHDIR, in("gone"))
		if err := os.Remove(in("gone")); err != nil {
			t.Fatal(err)
		}
		got := during(s.client, func() { b.call(unix.SYS_OPENAT, unix.AT_FDCWD, "nope", unix.O_RDONLY, 0) })
		if len(got) != 1 || got[0]["path"] != in("gone/nope") || got[0]["errno"] != "ENOENT" {
			t.Errorf("got %v", got)
		}
	})
}

func longPaths(t *testing.T) {
	s, a := startScoped(t)
	dir := folder(t)
	// deepen goes down from dir by names until the path is that long, and returns it.
	deepen := func(name string, length int) string {
		path := dir
		a.must(unix.SYS_CHDIR, dir)
		for len(path) < length {
			part := name
			if room := length - len(path) - 1; len(part) > room {
				part = part[:room]
			} else if room-len(part) == 1 { // no room for a slash and a name
				part = part[:len(part)-1]
			}
			a.must(unix.SYS_MKDIRAT, unix.AT_FDCWD, part, 0o700)
			a.must(unix.SYS_CHDIR, part)
			path += "/" + part
		}
		return path
	}
	program := smallProgram(t, "program")
	// use makes and uses a file in a folder, and returns the events less their number.
	use := func(t *testing.T, folder, name string, truncated bool) {
		path := folder + "/" + name
		requested := path
		if len(path) > 4095 { // it cannot be named as a whole; the actor is in its folder
			requested = name
		}
		act := func(what string, act func() int, want fields) {
			t.Helper()
			ret := 0
			got := during(s.client, func() { ret = act() })
			if ret < 0 || len(got) == 0 {
				t.Fatalf("%s returns %v: %v", what, syscall.Errno(-ret), got)
			}
			l := got[len(got)-1] // an exec comes after a spawn
			if l["type"] != want["type"] || l["truncated"] != want["truncated"] {
				t.Errorf("%s: got %.300s, truncated %v, want %v", what, fmt.Sprint(l), l["truncated"], want["truncated"])
			}
			for key, value := range want {
				text, isText := value.(string)
				switch got := l.str(key); {
				case !isText || got == text:
				case !truncated || len(got) < 3800 || !strings.HasSuffix(text, got):
					t.Errorf("%s: the %s has %d bytes, want %d: %.300s", what, key, len(got), len(text), got)
				}
			}
		}
		var cut any
		if truncated {
			cut = true
		}
		act("open", func() int {
			fd := a.call(unix.SYS_OPENAT, unix.AT_FDCWD, requested, unix.O_RDWR|unix.O_CREAT, 0o700)
			a.call(unix.SYS_CLOSE, fd)
			return fd
		}, fields{"type": "file_open", "path": path, "truncated": cut})
		act("chmod", func() int { return a.call(unix.SYS_FCHMODAT, unix.AT_FDCWD, requested, 0o700) },
			fields{"type": "chmod", "path": path, "truncated": cut})
		act("rename", func() int {
			return a.call(unix.SYS_RENAMEAT2, unix.AT_FDCWD, requested, unix.AT_FDCWD, requested, 0)
		}, fields{"type": "file_rename", "path": path, "old_path": path, "truncated": cut})
		if err := copyInto(a, program, requested); err != nil {
			t.Fatal(err)
		}
		act("exec", func() int { return a.do("spawn", requested, "x") }, fields{"type": "exec", "path": path, "exe": path, "truncated": cut})
		act("delete", func() int { return a.call(unix.SYS_UNLINKAT, unix.AT_FDCWD, requested, 0) },
			fields{"type": "file_delete", "path": path, "truncated": cut})
	}
	n := strings.Repeat("n", 255)
	t.Run("60 folders", func(t *testing.T) { use(t, deepen("ten bytes.", len(dir)+60*11), "file", false) })
	t.Run("a name of 255 bytes", func(t *testing.T) { use(t, deepen(n, len(dir)+256), n, false) })
	t.Run("4092 bytes", func(t *testing.T) { use(t, deepen(strings.Repeat("p", 255), 4092-5), "file", false) })
	t.Run("60 folders of 255 bytes", func(t *testing.T) { use(t, deepen(strings.Repeat("m", 255), len(dir)+60*256), "file", true) })
	t.Run("2000 folders", func(t *testing.T) { use(t, deepen("o", len(dir)+2000*2), "file", len(dir)+2000*2+5 > 4096) })
	t.Run("a target of 4095 bytes", func(t *testing.T) {
		target := strings.Repeat("t", 4095)
		link := filepath.Join(dir, "link")
		got := during(s.client, func() { a.must(unix.SYS_SYMLINKAT, target, unix.AT_FDCWD, link) })
		checkEvents(t, got, a.pid(), fields{"type": "file_symlink", "path": link, "target": target})
	})
}

// copyInto has the actor fill the file that it calls name, out of any call.
func copyInto(a *actor, from, name string) error {
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	fd := a.must(unix.SYS_OPENAT, unix.AT_FDCWD, name, unix.O_WRONLY, 0)
	a.must(unix.SYS_WRITE, fd, b, len(b))
	a.must(unix.SYS_CLOSE, fd)
	return nil
}

func untouchedStrings(t *testing.T) {
	for _, how := range []string{"untouched", "untouched, across pages", "dropped"} {
		t.Run(how, func(t *testing.T) {
			s, a := startScoped(t)
			a.callABI(how, unix.SYS_GETPPID, "makes a file for the strings")
			for _, r := range callRows(t, a) {
				r.run(t, s, a, func() int { return a.callABI(how, r.call, r.args...) })
			}
		})
	}
}

func init() {
	page := unix.Getpagesize()
	var file *os.File
	var end int64
	// place puts b, by way of a file, into memory that this process has not touched.
	place := func(b []byte, shift int) []byte {
		var err error
		if file == nil {
			if file, err = os.CreateTemp("", "untouched"); err != nil {
				panic(err)
			}
			os.Remove(file.Name())
		}
		size := (shift+len(b)+page-1)/page*page + page
		if _, err := file.WriteAt(append(b, make([]byte, size-shift-len(b))...), end+int64(shift)); err != nil {
			panic(err)
		}
		memory, err := unix.Mmap(int(file.Fd()), end, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE)
		if err != nil {
			panic(err)
		}
		end += int64(size)
		return memory
	}
	compatMemory["untouched"] = func(b []byte) uintptr { return uintptr(unsafe.Pointer(&place(b, 0)[0])) }
	compatMemory["untouched, across pages"] = func(b []byte) uintptr {
		shift := page - max(1, len(b)/2)%page
		return uintptr(unsafe.Pointer(&place(b, shift)[0])) + uintptr(shift)
	}
	compatMemory["dropped"] = func(b []byte) uintptr {
		memory := place(b, 0)
		copy(make([]byte, len(memory)), memory)
		if err := unix.Madvise(memory, unix.MADV_DONTNEED); err != nil {
			panic(err)
		}
		return uintptr(unsafe.Pointer(&memory[0]))
	}
	for how := range compatMemory {
		compatCalls[how] = func(number int, a [6]uintptr) int {
			ret, _, errno := unix.Syscall6(uintptr(number), a[0], a[1], a[2], a[3], a[4], a[5])
			if errno != 0 {
				return -int(errno)
			}
			return int(ret)
		}
	}
}

// rawText returns the very bytes of a field's text, which is UTF-8 unless <key>_raw is
// there.
func rawText(t *testing.T, l outLine, key string) string {
	t.Helper()
	text := l.str(key)
	encoded, ok := l[key+"_raw"].(string)
	if !ok {
		return text
	}
	raw, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil || utf8.Valid(raw) || !strings.Contains(text, "\uFFFD") {
		t.Errorf("%s is %q and %q (%v)", key, text, encoded, err)
	}
	return string(raw)
}

func everyByte(t *testing.T) {
	s, a := startScoped(t)
	dir := folder(t)
	program := smallProgram(t, "program")
	a.must(unix.SYS_CHDIR, dir)
	all := ""
	for c := 1; c < 256; c++ {
		all += string([]byte{byte(c)})
	}
	forged := "\n" + `{"type":"status","message":"end","call_id":"x","bucket":"call"}` + "\n"
	texts := map[string]string{
		"first half": all[:127], "second half": all[127:], "a line": forged, "quotes": `"\",'` + "`", "the end of a string": `x","pid":1,"y":"\`,
		"escapes": "\x1b[2J\x1b]0;title\a\x9b31m\r\b", "separators": "\u2028\u2029\u0085", "half a rune": "\xe2\x82", "too long a form": "\xc0\xaf",
		"a surrogate": "\xed\xa0\x80", "beyond Unicode": "\xf4\x90\x80\x80", "a replacement": "\uFFFD", "emoji": "👩\u200d🚀", "right to left": "\u202etxt.exe",
	}
	for c := 1; c < 256; c++ {
		texts[fmt.Sprintf("byte %#02x", c)] = "<" + string([]byte{byte(c)}) + ">"
	}
	for name, text := range texts {
		file := strings.ReplaceAll(text, "/", "|") // as a file's name
		got := during(s.client, func() {
			a.call(unix.SYS_OPENAT, unix.AT_FDCWD, file, unix.O_RDONLY, 0)
			a.call(unix.SYS_SYMLINKAT, text, unix.AT_FDCWD, file)
			a.call(unix.SYS_LINKAT, unix.AT_FDCWD, file, unix.AT_FDCWD, "to "+file, 0)
			a.call(unix.SYS_UNLINKAT, unix.AT_FDCWD, file, 0)
			a.call(unix.SYS_MEMFD_CREATE, text, 0)
			a.do("spawn quoted", program, strconv.Quote(text), strconv.Quote(""))
		})
		if len(got) != 7 {
			t.Errorf("%s: there are %d events: %q", name, len(got), got)
			continue
		}
		for i, want := range []fields{
			{"type": "file_open", "path": dir + "/" + file, "requested": file},
			{"type": "file_symlink", "path": dir + "/" + file, "target": text},
			{"type": "file_link", "path": dir + "/to " + file, "old_path": dir + "/" + file, "requested": "to " + file},
			{"type": "file_delete", "path": dir + "/" + file},
			{"type": "memfd_create", "name": text},
		} {
			for key, value := range want {
				if got := rawText(t, got[i], key); got != value {
					t.Errorf("%s: the %s of event %d is %q, want %q", name, key, i, got, value)
				}
			}
		}
		args := []string{program, text, ""}
		if encoded, ok := got[6]["argv_raw"].([]any); ok == utf8.ValidString(text) {
			t.Errorf("%s: argv_raw is %v", name, encoded)
		} else if !ok && !reflect.DeepEqual(got[6]["argv"], anys(args)) {
			t.Errorf("%s: argv is %q, want %q", name, got[6]["argv"], args)
		} else if ok {
			for i := range args {
				if i >= len(encoded) || encoded[i] != base64.StdEncoding.EncodeToString([]byte(args[i])) {
					t.Errorf("%s: argument %d of %v is not %q", name, i, encoded, args[i])
				}
			}
		}
	}
	for name, text := range texts {
		text = text[:min(len(text), 15)]
		if strings.HasSuffix(text, "\n") {
			text += "." // the kernel takes one newline off
		}
		text = text[:min(len(text), 15)]
		a.must(unix.SYS_PRCTL, unix.PR_SET_NAME, text, 0, 0, 0)
		got := during(s.client, func() { a.call(unix.SYS_UNLINKAT, unix.AT_FDCWD, "nope", 0) })
		if len(got) != 1 || rawText(t, got[0], "comm") != text {
			t.Errorf("%s: the comm is %q, want %q", name, got, text)
		}
	}
	// Call ids and names of tools are JSON strings already: what is no UTF-8 there comes
	// from a client that is broken, and is replaced.
	for name, text := range texts {
		if strings.Contains(text, "\xff") || !utf8.ValidString(text) {
			continue
		}
		id, err := json.Marshal(text)
		if err != nil {
			t.Fatal(err)
		}
		s.send(fmt.Sprintf(`{"op":"mark","phase":"begin","call_id":%s,"tool":%s}`, id, id))
		if l := s.next(); l["message"] != "begin" || l["call_id"] != text || l["tool"] != text {
			t.Errorf("%s: begin is answered by %q", name, l)
		}
		a.call(unix.SYS_UNLINKAT, unix.AT_FDCWD, "nope", 0)
		s.send(fmt.Sprintf(`{"op":"mark","phase":"end","call_id":%s}`, id))
		if l := s.next(); l["type"] != "file_delete" || l["call_id"] != text {
			t.Errorf("%s: the event is %q", name, l)
		}
		if l := s.next(); l["message"] != "end" || l["call_id"] != text {
			t.Errorf("%s: end is answered by %q", name, l)
		}
	}
}

func aMillionOpens(t *testing.T) {
	ebpfOrSkip(t, minRingSize).Close()
	n := 1_000_000
	if testing.Short() {
		n = 50_000
	}
	t.Run("ring of 16M", func(t *testing.T) { manyOpens(t, "16M", n) })
	t.Run("ring of 1M", func(t *testing.T) { manyOpens(t, "1M", n/10) })
}

// manyOpens makes opens beside an exec.
func manyOpens(t *testing.T, ring string, n int) {
	a := startActor(t)
	b := startActorIn(t, a.pid())
	program := smallProgram(t, "program")
	p := benchProbe(t, "--ring-size", ring)
	p.command(fmt.Sprintf(`{"op":"scope","pgid":%d,"generation":1}`, a.pid()))
	p.command(`{"op":"mark","phase":"begin","call_id":"a"}`)
	counts := map[string]int{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			l := p.line()
			typ, _, _ := bytes.Cut(bytes.TrimPrefix(l, []byte(`{"type":"`)), []byte(`"`))
			if counts["drop"] += droppedIn(t, l); string(typ) != "drop" {
				counts[string(typ)]++
			}
			if string(typ) == "status" {
				return
			}
		}
	}()
	a.ask(actorCommand{Do: "opens", Argv: []string{"/dev/null", strconv.Itoa(n)}})
	b.do("spawn", program)
	a.answer()
	io.WriteString(p.in, `{"op":"mark","phase":"end","call_id":"a"}`+"\n")
	<-done
	sum := 0
	for _, typ := range []string{"file_open", "process_spawn", "exec", "drop"} {
		sum += counts[typ]
	}
	if sum != n+2 || counts["file_open"] > n || counts["process_spawn"] > 1 || counts["exec"] > 1 || counts["status"] != 1 {
		t.Errorf("%d events: %v; want %d opens, a spawn and an exec", sum, counts, n)
	}
}

func busyNeighbour(t *testing.T) {
	s, a := startScoped(t)
	for range 2 {
		cmd := partCommand("neighbour")
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		startFor(t, cmd)
		if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
			t.Fatalf("the neighbour does not start: %v", err)
		}
	}
	rounds := 1000
	if testing.Short() {
		rounds = 100
	}
	program := smallProgram(t, "program")
	var want []fields
	got := during(s.client, func() {
		for i := range rounds {
			path := "/in-scope-" + strconv.Itoa(i)
			a.call(unix.SYS_OPENAT, unix.AT_FDCWD, path, unix.O_RDONLY, 0)
			child := float64(a.do("spawn", program))
			want = append(want, fields{"type": "file_open", "path": path, "flags": "O_RDONLY", "errno": "ENOENT"},
				fields{"type": "process_spawn", "child_pid": child},
				fields{"type": "exec", "pid": child, "argv": []any{program}, "exe": program, "path": program, "ppid": float64(a.pid())})
		}
	})
	if n := skipped(t, got); n == 0 {
		checkEvents(t, got, a.pid(), want...)
	} else if seen := len(got) - len(filter(got, fields{"type": "drop"})); seen+n != len(want) {
		t.Errorf("%d events are seen and %d lost, of %d", seen, n, len(want))
	}
}

// exactSum has an actor open files for a time in which the probe or its reader is
// stopped, and checks that each open is delivered or counted.
func exactSum(t *testing.T, p *testProbe, a *actor, stop func(), d time.Duration, goOn func()) {
	t.Helper()
	n := 0
	p.begin("stopped", "")
	stop()
	for start := time.Now(); time.Since(start) < d; {
		n += a.do("opens", "/dev/null", "20000")
	}
	p.sendEnd("stopped")
	goOn()
	got := events(p.untilStatus("end", "stopped"), "stopped")
	delivered, dropped := len(filter(got, fields{"type": "file_open", "path": "/dev/null"})), 0
	for _, l := range filter(got, fields{"type": "drop"}) {
		dropped += int(l["count"].(float64))
	}
	if delivered+dropped != n || delivered == 0 || dropped == 0 {
		t.Errorf("%d are delivered and %d dropped, of %d", delivered, dropped, n)
	}
	got = during(p.client, func() { a.do("opens", "/dev/null", "10") })
	if len(got) != 10 || len(filter(got, fields{"type": "file_open"})) != 10 {
		t.Errorf("afterwards, of 10: %v", got)
	}
}

func stoppedReader(t *testing.T) {
	ebpfOrSkip(t, minRingSize).Close()
	d := 5 * time.Second
	if testing.Short() {
		d = 2 * time.Second
	}
	p := startProbe(t, "--ring-size", "1M")
	a := startActor(t)
	p.scope(a.pid())
	a.do("opens", "/dev/null", "20000") // whatever that takes, it has
	during(p.client, func() {})
	before := residentKiB(t, p.cmd.Process.Pid)
	exactSum(t, p, a, p.gate.Lock, d, func() {
		if after := residentKiB(t, p.cmd.Process.Pid); after > before+16<<10 {
			t.Errorf("the probe has grown from %d to %d KiB", before, after)
		}
		p.gate.Unlock()
	})
}

// residentKiB returns what a process has in memory.
func residentKiB(t *testing.T, pid int) (n int) {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(status), "VmRSS:")
	if _, err := fmt.Sscan(after, &n); err != nil {
		t.Fatal(err)
	}
	return n
}

func stoppedProbe(t *testing.T) {
	ebpfOrSkip(t, minRingSize).Close()
	p := startProbe(t, "--ring-size", "1M")
	a := startActor(t)
	p.scope(a.pid())
	exactSum(t, p, a, func() { p.cmd.Process.Signal(unix.SIGSTOP) }, 3*time.Second, func() { p.cmd.Process.Signal(unix.SIGCONT) })
}

func overlappingCalls(t *testing.T) {
	t.Run("marks are ordered", marksAreOrdered)
	t.Run("overlap", overlap)
	s, a := startScoped(t)
	open := func(path string) { a.call(unix.SYS_OPENAT, unix.AT_FDCWD, path, unix.O_RDONLY, 0) }
	check := func(t *testing.T, want map[string]string) {
		t.Helper()
		for path, want := range want {
			if got := filter(s.all, fields{"path": path}); len(got) != 1 || brief(got[0]) != want {
				t.Errorf("%s is %q, want %q", path, briefs(got), want)
			}
		}
	}
	t.Run("an end without begin", func(t *testing.T) {
		open("/before-end")
		if l := s.end("never"); l[len(l)-1].str("error") == "" {
			t.Errorf("it is answered by %v", l)
		}
		open("/after-end")
		s.begin("next", "")
		s.end("never")
		open("/in-next")
		s.end("next")
		check(t, map[string]string{"/before-end": "file_open ambient", "/after-end": "file_open ambient", "/in-next": "file_open call next"})
	})
	t.Run("the same id twice", func(t *testing.T) {
		for _, path := range []string{"/first", "/second"} {
			s.begin("twice", "")
			open(path)
		}
		s.end("twice")
		open("/third")
		if l := s.end("twice"); l[len(l)-1].str("error") == "" {
			t.Errorf("the second end is answered by %v", l)
		}
		s.begin("twice", "")
		open("/fourth")
		s.end("twice")
		check(t, map[string]string{"/first": "file_open call twice", "/second": "file_open call twice", "/third": "file_open ambient", "/fourth": "file_open call twice"})
	})
	t.Run("a begin before what was done is read", func(t *testing.T) {
		s.gate.Lock()
		for i := range 1000 {
			open("/unread-" + strconv.Itoa(i))
		}
		s.sendBegin("late", "")
		s.gate.Unlock()
		s.untilStatus("begin", "late")
		open("/in-late")
		s.end("late")
		check(t, map[string]string{"/unread-0": "file_open ambient", "/unread-999": "file_open ambient", "/in-late": "file_open call late"})
		if got := events(s.all, "late"); len(got) != 1 {
			t.Errorf("got %q", briefs(got))
		}
	})
}

func workGoesOn(t *testing.T) {
	t.Run("stamp at entry", stampAtEntry)
	t.Run("lineage", lineage)
}

func badControlLines(t *testing.T) {
	s, a := startScoped(t)
	goesOn := func(t *testing.T) {
		t.Helper()
		got := during(s.client, func() { a.call(unix.SYS_UNLINKAT, unix.AT_FDCWD, "/nope", 0) })
		checkEvents(t, got, a.pid(), fields{"type": "file_delete", "path": "/nope", "errno": "ENOENT"})
	}
	for name, line := range map[string]string{
		"10 MB":                     strings.Repeat("x", 10<<20),
		"an id of 10 MB":            `{"op":"mark","phase":"begin","call_id":"` + strings.Repeat("x", 10<<20) + `"}`,
		"cut off":                   `{"op":"mark","phase":"begin","call_`,
		"two in one":                `{"op":"shutdown"}{"op":"shutdown"}`,
		"no object":                 `["shutdown"]`,
		"null":                      `null`,
		"deep":                      strings.Repeat("[", 30_000) + strings.Repeat("]", 30_000),
		"NULs":                      strings.Repeat("\x00", 1000),
		"NULs before it":            "\x00\x00" + `{"op":"shutdown"}`,
		"a NUL in a string":         "{\"op\":\"shut\x00down\"}",
		"a byte order mark":         "\ufeff" + `{"op":"shutdown"}`,
		"UTF-16":                    "{\x00\"\x00o\x00p\x00\"\x00:\x00",
		"no UTF-8":                  "{\"op\":\"\xff\xfe\"}",
		"unknown op":                `{"op":"reboot"}`,
		"no op":                     `{"pgid":1}`,
		"op in upper case":          `{"op":"SHUTDOWN"}`,
		"op of another type":        `{"op":["shutdown"]}`,
		"unknown phase":             `{"op":"mark","phase":"middle","call_id":"a"}`,
		"no id":                     `{"op":"mark","phase":"end"}`,
		"a number for an id":        `{"op":"mark","phase":"begin","call_id":7}`,
		"no group":                  `{"op":"scope"}`,
		"group 0":                   `{"op":"scope","pgid":0}`,
		"group -1":                  `{"op":"scope","pgid":-1}`,
		"group 2^31":                `{"op":"scope","pgid":2147483648}`,
		"group 2^32 and that of us": fmt.Sprintf(`{"op":"scope","pgid":%d}`, 1<<32+os.Getpid()),
		"group 2^64":                `{"op":"scope","pgid":18446744073709551616}`,
		"group 1e400":               `{"op":"scope","pgid":1e400}`,
		"half a group":              `{"op":"scope","pgid":1.5}`,
		"generation 2^63":           `{"op":"scope","pgid":1,"generation":9223372036854775808}`,
	} {
		t.Run(name, func(t *testing.T) {
			s.send(line)
			if l := s.next(); l["message"] != "parse_error" || l.str("error") == "" || len(l.str("error")) > 300 {
				t.Errorf("it is answered by %.500s", fmt.Sprint(l))
			}
			goesOn(t)
		})
	}
	t.Run("a group that does not exist", func(t *testing.T) {
		for _, pgid := range []int{1<<31 - 1, 1 << 22, 0x7ffffffe} {
			l := s.scope(pgid)
			if last := l[len(l)-1]; last["processes"] != 0.0 || last.str("error") == "" || last["pgid"] != float64(pgid) {
				t.Errorf("it is answered by %v", last)
			}
			if got := during(s.client, func() { a.call(unix.SYS_UNLINKAT, unix.AT_FDCWD, "/nope", 0) }); len(got) != 0 {
				t.Errorf("out of it: %v", got)
			}
		}
		s.scope(a.pid())
		goesOn(t)
	})
	t.Run("empty lines", func(t *testing.T) {
		s.send("\n \r\n\t")
		goesOn(t)
	})
}

func init() {
	testParts["leave"] = func(args []string) error {
		how, forks, group, parent, path := args[0], mustAtoi(args[1]), mustAtoi(args[2]), mustAtoi(args[3]), args[4]
		if forks == 0 {
			for end := time.Now().Add(patience); how != "stays" && os.Getppid() == parent && time.Now().Before(end); {
				time.Sleep(time.Millisecond)
			}
			os.ReadFile(path)
			return nil
		}
		cmd := partCommand("leave", how, strconv.Itoa(forks-1), args[2], strconv.Itoa(os.Getpid()), path)
		cmd.Stderr = nil
		switch how {
		case "setsid", "daemon":
			cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		case "setpgid":
			cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		case "another group":
			cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pgid: group}
		}
		err := cmd.Start()
		say("gone")
		return err
	}
	testParts["breed"] = func(args []string) error {
		// Whoever is busy beside them makes the kernel preempt, also in our programs.
		for range 2 {
			busy := partCommand("busy")
			if err := busy.Start(); err != nil {
				return err
			}
			defer busy.Process.Kill()
		}
		jobs := make(chan int)
		var wg sync.WaitGroup
		var failed error
		for range 16 {
			wg.Go(func() {
				for i := range jobs {
					if _, err := spawn([]string{args[1], strconv.Itoa(i)}); err != nil {
						failed = err
					}
				}
			})
		}
		for i := range mustAtoi(args[0]) {
			jobs <- i
		}
		close(jobs)
		wg.Wait()
		if failed != nil {
			return failed
		}
		say("done")
		return nil
	}
	// neighbour makes system calls, watched and unwatched ones, without end.
	testParts["neighbour"] = func([]string) error {
		path, _ := unix.BytePtrFromString("/neighbour")
		say("busy")
		for end := time.Now().Add(5 * time.Minute); time.Now().Before(end); {
			for range 1000 {
				unix.RawSyscall(unix.SYS_GETPPID, 0, 0, 0)
				unix.RawSyscall6(unix.SYS_OPENAT, atFDCWD, uintptr(unsafe.Pointer(path)), unix.O_RDONLY, 0, 0, 0)
			}
		}
		return nil
	}
	// enters-namespaces has a child in the namespaces of another one.
	testParts["enters-namespaces"] = func(args []string) error {
		if len(args) > 0 {
			os.ReadFile("/inside")
			return nil
		}
		runtime.LockOSThread()
		host := partCommand("actor")
		host.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNET}
		in, err := host.StdinPipe()
		if err != nil {
			return err
		}
		if err := host.Start(); err != nil {
			return err
		}
		pidfd, err := unix.PidfdOpen(host.Process.Pid, 0)
		if err != nil {
			return err
		}
		if err := unix.Setns(pidfd, unix.CLONE_NEWPID|unix.CLONE_NEWNET); err != nil {
			return err
		}
		err = partCommand("enters-namespaces", "inside").Run()
		in.Close()
		return errors.Join(err, host.Wait())
	}
	actorDeeds["fork"] = func(argv []string) (int, error) {
		number, flags, tid := uintptr(mustAtoi(argv[0])), uint64(mustAtoi(argv[1])), uint64(mustAtoi(argv[3]))
		path, err := unix.BytePtrFromString(argv[2])
		if err != nil {
			return 0, err
		}
		args := &cloneArgs{flags: flags, exitSignal: uint64(unix.SIGCHLD)}
		if flags&unix.CLONE_PARENT != 0 {
			args.exitSignal = 0 // it is the parent's
		}
		if tid != 0 {
			args.setTID, args.setTIDSize = &tid, 1
		}
		pid := 0
		switch {
		case flags&unix.CLONE_VM != 0:
			pid = forkInPlace(path, number, uintptr(flags)|uintptr(unix.SIGCHLD))
		case number == unix.SYS_CLONE3:
			pid = forkAndOpen(path, number, uintptr(unsafe.Pointer(args)), unsafe.Sizeof(*args))
		default:
			pid = forkAndOpen(path, number, uintptr(flags)|uintptr(unix.SIGCHLD), 0)
		}
		runtime.KeepAlive(path)
		runtime.KeepAlive(args)
		if pid > 0 && flags&unix.CLONE_PARENT == 0 {
			_, err = unix.Wait4(pid, nil, unix.WALL, nil)
		}
		return pid, err
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
		number, arg := uintptr(unix.SYS_EXECVEAT), []uintptr{uintptr(dirfd), uintptr(unsafe.Pointer(path)), uintptr(unsafe.Pointer(&argv[0])), 0, uintptr(flags)}
		if dirfd == unix.AT_FDCWD {
			number, arg = unix.SYS_EXECVE, append(arg[1:4], 0, 0)
		}
		_, _, errno := unix.Syscall6(number, arg[0], arg[1], arg[2], arg[3], arg[4], 0)
		runtime.KeepAlive(path)
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
	// spawn runs a program to its end by the system calls of posix_spawn(3) alone.
	actorDeeds["spawn"] = spawn
	actorDeeds["spawn quoted"] = func(argv []string) (_ int, err error) {
		for i := 1; i < len(argv) && err == nil; i++ {
			argv[i], err = strconv.Unquote(argv[i])
		}
		if err != nil {
			return 0, err
		}
		return spawn(argv)
	}
	// play runs this binary in another part to its end.
	actorDeeds["play"] = func(argv []string) (int, error) {
		cmd := partCommand(argv[0], argv[1:]...)
		err := cmd.Run()
		if cmd.Process == nil {
			return 0, err
		}
		return cmd.Process.Pid, err
	}
}

func spawn(argv []string) (int, error) {
	pid, err := syscall.ForkExec(argv[0], argv, &syscall.ProcAttr{})
	if err != nil {
		return 0, err
	}
	_, err = unix.Wait4(pid, nil, 0, nil)
	return pid, err
}

// cloneArgs is struct clone_args.
type cloneArgs struct {
	flags, pidfd, childTID, parentTID, exitSignal, stack, stackSize, tls uint64
	setTID                                                               *uint64
	setTIDSize, cgroup                                                   uint64
}

// forkAndOpen makes a system call that forks, and has the child open path. The child
// has this thread alone, and can do nothing that needs the Go runtime.
//
//go:norace
func forkAndOpen(path *byte, number, arg0, arg1 uintptr) int {
	pid, _, errno := unix.RawSyscall6(number, arg0, arg1, 0, 0, 0, 0)
	if errno != 0 {
		return -int(errno)
	}
	if pid == 0 {
		unix.RawSyscall6(unix.SYS_OPENAT, atFDCWD, uintptr(unsafe.Pointer(path)), unix.O_RDONLY, 0, 0, 0)
		for {
			unix.RawSyscall(unix.SYS_EXIT, 0, 0, 0)
		}
	}
	return int(pid)
}
