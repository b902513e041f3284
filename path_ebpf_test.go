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
