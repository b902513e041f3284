//go:build linux

package main

import (
	"path/filepath"

	"golang.org/x/sys/unix"
)

// archRows makes the system calls that arm64 does not have.
func archRows(dir string) []callRow {
	in := func(name string) string { return filepath.Join(dir, name) }
	return []callRow{
		{"open", unix.SYS_OPEN, []any{"file", unix.O_RDONLY, 0}, 1,
			[]fields{{"type": "file_open", "path": in("file"), "requested": "file", "flags": "O_RDONLY"}}},
		{"creat", unix.SYS_CREAT, []any{"made", 0o600}, 1,
			[]fields{{"type": "file_open", "path": in("made"), "requested": "made", "flags": "O_WRONLY|O_CREAT|O_TRUNC"}}},
		{"chmod", unix.SYS_CHMOD, []any{"made", 0o755}, 0,
			[]fields{{"type": "chmod", "path": in("made"), "requested": "made", "mode": "755"}}},
		{"rename", unix.SYS_RENAME, []any{"made", "./renamed"}, 0,
			[]fields{{"type": "file_rename", "path": in("renamed"), "requested": "./renamed", "old_path": in("made"), "old_requested": "made"}}},
		{"link", unix.SYS_LINK, []any{"renamed", "linked"}, 0,
			[]fields{{"type": "file_link", "path": in("linked"), "requested": "linked", "old_path": in("renamed"), "old_requested": "renamed"}}},
		{"symlink", unix.SYS_SYMLINK, []any{"renamed", "symlinked"}, 0,
			[]fields{{"type": "file_symlink", "path": in("symlinked"), "requested": "symlinked", "target": "renamed"}}},
		{"unlink", unix.SYS_UNLINK, []any{in("linked")}, 0,
			[]fields{{"type": "file_delete", "path": in("linked")}}},
		{"mkdir", unix.SYS_MKDIR, []any{"dir", 0o700}, 0,
			[]fields{{"type": "file_mkdir", "path": in("dir"), "requested": "dir"}}},
		{"rmdir", unix.SYS_RMDIR, []any{"dir"}, 0,
			[]fields{{"type": "file_delete", "path": in("dir"), "requested": "dir"}}},
	}
}
