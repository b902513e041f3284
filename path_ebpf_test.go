//go:build linux && (amd64 || arm64)

package main

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// knowsPaths tells whether the kernel lets the backend look into its checks of paths.
func knowsPaths(b backend) bool {
	paths := b.(*ebpfBackend).objs.paths
	return paths[len(paths)-1] != nil
}

// resolvedPaths acts on names that lead through a symbolic link and back out
// of what it points to. What is told is where that leads, if the kernel says so, and
// else the way that the caller gave.
func resolvedPaths(t *testing.T) {
	b := ebpfOrSkip(t, 1<<20)
	if os.Getenv("PROBE_REQUIRE_FENTRY") == "1" && !knowsPaths(b) {
		t.Fatal("the kernel does not tell paths, and PROBE_REQUIRE_FENTRY is set")
	}
	s := startSession(t, b, 0)
	a := startActor(t)
	s.scope(a.pid())
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(dir+"/there/sub", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("there/sub", dir+"/link"); err != nil {
		t.Fatal(err)
	}
	way := func(name string) string { return dir + "/link/../" + name }
	if err := os.WriteFile(dir+"/there/f", []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	at := unix.AT_FDCWD & 0xffffffff
	for _, tt := range []struct {
		typ, name, old string
		call           int
		args           []any
		more           fields
	}{
		{"chmod", "f", "", unix.SYS_FCHMODAT, []any{at, way("f"), 0o640}, fields{"mode": "640"}},
		{"file_chown", "f", "", unix.SYS_FCHOWNAT, []any{at, way("f"), 0, 0, 0}, fields{"owner": 0.0, "group": 0.0}},
		{"file_truncate", "f", "", unix.SYS_TRUNCATE, []any{way("f"), 0}, fields{"length": 0.0}},
		{"file_link", "g", "f", unix.SYS_LINKAT, []any{at, way("f"), at, way("g"), 0}, nil},
		{"file_rename", "h", "g", unix.SYS_RENAMEAT2, []any{at, way("g"), at, way("h"), 0}, nil},
		{"file_symlink", "s", "", unix.SYS_SYMLINKAT, []any{"x", at, way("s")}, fields{"target": "x"}},
		{"file_mkdir", "d", "", unix.SYS_MKDIRAT, []any{at, way("d"), 0o700}, nil},
		{"mknod", "p", "", unix.SYS_MKNODAT, []any{at, way("p"), unix.S_IFIFO | 0o600, 0}, fields{"mode": "10600", "device": "0:0"}},
		{"file_delete", "h", "", unix.SYS_UNLINKAT, []any{at, way("h"), 0}, nil},
		{"file_delete", "d", "", unix.SYS_UNLINKAT, []any{at, way("d"), unix.AT_REMOVEDIR}, nil},
	} {
		t.Run(tt.typ, func(t *testing.T) {
			s.begin(tt.typ, "")
			a.must(tt.call, tt.args...)
			want := fields{"type": tt.typ, "path": way(tt.name)}
			if tt.old != "" {
				want["old_path"] = way(tt.old)
			}
			if knowsPaths(b) {
				want["path"], want["requested"] = dir+"/there/"+tt.name, way(tt.name)
				if tt.old != "" {
					want["old_path"], want["old_requested"] = dir+"/there/"+tt.old, way(tt.old)
				}
			}
			for k, v := range tt.more {
				want[k] = v
			}
			checkEvents(t, events(s.end(tt.typ), tt.typ), a.pid(), want)
		})
	}
}

// TestToldPaths checks which events get the paths that their thread has told before.
func TestToldPaths(t *testing.T) {
	record := func(kind probeKind, ts uint64) *testRecord {
		r := rec(kind, 0)
		r.TsNs = ts
		return r
	}
	told := func(ts uint64) *testRecord {
		return record(probeKindKIND_PATH, ts).section(probeTagTAG_PATH, 0, "told\x00")
	}
	deleted := func(ts uint64) *testRecord {
		return record(probeKindKIND_DELETE, ts).section(probeTagTAG_NAME, 0, "/given").section(probeTagTAG_DIR, 0, "")
	}
	ofRequest := deleted(1)
	ofRequest.Call = probeCallUring
	for _, tt := range []struct {
		name    string
		records []*testRecord
		want    string
	}{
		{"of the same call", []*testRecord{told(1), deleted(1)}, "/told"},
		{"none", []*testRecord{deleted(1)}, "/given"},
		{"of a call whose own record was lost", []*testRecord{told(1), deleted(2)}, "/given"},
		{"of a call before it", []*testRecord{told(1), deleted(1), deleted(1)}, "/given"},
		{"with a mark in between", []*testRecord{told(1), record(probeKindKIND_MARK, 1), deleted(1)}, "/told"},
		{"of a descriptor's file", []*testRecord{told(1), record(probeKindKIND_CHMOD, 1).section(probeTagTAG_PATH, 0, "open\x00")}, "/open"},
		{"of a request", []*testRecord{told(1), ofRequest}, "/given"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var p toldPaths
			var e kernelEvent
			for _, r := range tt.records {
				if err := e.decode(r.bytes()); err != nil {
					t.Fatal(err)
				}
				p.join(&e, r.bytes())
			}
			var l line
			l.begin("x")
			e.append(&l)
			if got := decodeLine(t, l.end())["path"]; got != tt.want {
				t.Errorf("the path is %v, want %q", got, tt.want)
			}
		})
	}
	var p toldPaths
	for tid := range uint32(3 * maxToldPaths) {
		r := told(1)
		r.Tid = tid
		var e kernelEvent
		if err := e.decode(r.bytes()); err != nil {
			t.Fatal(err)
		}
		p.join(&e, r.bytes())
	}
	if len(p) > maxToldPaths {
		t.Errorf("the paths of %d threads are kept, want at most %d", len(p), maxToldPaths)
	}
}
