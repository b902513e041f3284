//go:build linux

package main

import "golang.org/x/sys/unix"

// nativeNumbers are the numbers of the system calls in syscallMeanings that there are.
var nativeNumbers = map[string]int{
	"openat":            unix.SYS_OPENAT,
	"openat2":           unix.SYS_OPENAT2,
	"open_by_handle_at": unix.SYS_OPEN_BY_HANDLE_AT,
	"unlinkat":          unix.SYS_UNLINKAT,
	"mkdirat":           unix.SYS_MKDIRAT,
	"renameat":          unix.SYS_RENAMEAT,
	"renameat2":         unix.SYS_RENAMEAT2,
	"linkat":            unix.SYS_LINKAT,
	"symlinkat":         unix.SYS_SYMLINKAT,
	"fchmod":            unix.SYS_FCHMOD,
	"fchmodat":          unix.SYS_FCHMODAT,
	"fchmodat2":         unix.SYS_FCHMODAT2,
	"execve":            unix.SYS_EXECVE,
	"execveat":          unix.SYS_EXECVEAT,
	"clone":             unix.SYS_CLONE,
	"clone3":            unix.SYS_CLONE3,
	"ptrace":            unix.SYS_PTRACE,
	"connect":           unix.SYS_CONNECT,
	"bind":              unix.SYS_BIND,
	"listen":            unix.SYS_LISTEN,
	"sendto":            unix.SYS_SENDTO,
	"sendmsg":           unix.SYS_SENDMSG,
	"sendmmsg":          unix.SYS_SENDMMSG,
}

// numbers32 are those of 32-bit ARM (EABI). A test compares them with
// golang.org/x/sys/unix, which has them for programs of that kind only.
var numbers32 = map[string]int{
	"open":              5,
	"openat":            322,
	"openat2":           437,
	"creat":             8,
	"open_by_handle_at": 371,
	"unlink":            10,
	"unlinkat":          328,
	"rmdir":             40,
	"mkdir":             39,
	"mkdirat":           323,
	"rename":            38,
	"renameat":          329,
	"renameat2":         382,
	"link":              9,
	"linkat":            330,
	"symlink":           83,
	"symlinkat":         331,
	"chmod":             15,
	"fchmod":            94,
	"fchmodat":          333,
	"fchmodat2":         452,
	"execve":            11,
	"execveat":          387,
	"fork":              2,
	"vfork":             190,
	"clone":             120,
	"clone3":            435,
	"ptrace":            26,
	"connect":           283,
	"bind":              282,
	"listen":            284,
	"sendto":            290,
	"sendmsg":           296,
	"sendmmsg":          374,
}

// arch32 is what Go calls that ABI.
const arch32 = "arm"

// largeFile is O_LARGEFILE, which 64-bit kernels add by themselves.
const largeFile = 0o400000
