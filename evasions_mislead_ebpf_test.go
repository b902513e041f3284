//go:build linux && (amd64 || arm64)

package main

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"unicode/utf8"
	"unsafe"

	"golang.org/x/sys/unix"
)

// misleadingPaths are names that say something else than where they lead.
func misleadingPaths(t *testing.T) {
	t.Run("mounts and links", func(t *testing.T) { inNamespaces(t, "TestInMountNamespace") })
	t.Run("out of a link again", resolvedPaths)
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

// TestInMountNamespace looks at names that lead through links, mounts and roots.
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

// longPaths do not fit: what is cut off must be said to be.
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
	// use makes a file in a folder and does all that can be done to it.
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
		act("exec", func() int { return a.do("spawn", requested, "x") },
			fields{"type": "exec", "path": path, "exe": path, "truncated": cut})
		act("delete", func() int { return a.call(unix.SYS_UNLINKAT, unix.AT_FDCWD, requested, 0) },
			fields{"type": "file_delete", "path": path, "truncated": cut})
	}
	n := strings.Repeat("n", 255)
	t.Run("60 folders", func(t *testing.T) { use(t, deepen("ten bytes.", len(dir)+60*11), "file", false) })
	t.Run("a name of 255 bytes", func(t *testing.T) { use(t, deepen(n, len(dir)+256), n, false) })
	t.Run("4092 bytes", func(t *testing.T) { use(t, deepen(strings.Repeat("p", 255), 4092-5), "file", false) })
	t.Run("4095 bytes", func(t *testing.T) { use(t, deepen(strings.Repeat("q", 255), 4095-5), "file", false) })
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

// untouchedStrings are where a probe cannot read them when the system call begins.
func untouchedStrings(t *testing.T) {
	for _, how := range []string{"untouched", "untouched, across pages", "dropped"} {
		t.Run(how, func(t *testing.T) {
			s, a := startScoped(t)
			a.callABI(how, unix.SYS_GETPPID, "makes a file for the strings")
			for _, r := range callRows(t, a) {
				if r.name == "fsetxattr" {
					continue // no kernel need look at a name for a descriptor that is none
				}
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

// everyByte has programs write what they like into what clients read.
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
		"first half": all[:127], "second half": all[127:], "a line": forged,
		"quotes": `"\",'` + "`", "the end of a string": `x","pid":1,"y":"\`,
		"escapes": "\x1b[2J\x1b]0;title\a\x9b31m\r\b", "separators": "\u2028\u2029\u0085",
		"half a rune": "\xe2\x82", "too long a form": "\xc0\xaf", "a surrogate": "\xed\xa0\x80",
		"beyond Unicode": "\xf4\x90\x80\x80", "a replacement": "\uFFFD", "emoji": "👩\u200d🚀", "right to left": "\u202etxt.exe",
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
