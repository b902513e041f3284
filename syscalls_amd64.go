//go:build linux

package main

import "golang.org/x/sys/unix"

// nativeNumbers are the numbers of the system calls in syscallMeanings that there are.
var nativeNumbers = map[string]int{
	"open":              unix.SYS_OPEN,
	"openat":            unix.SYS_OPENAT,
	"openat2":           unix.SYS_OPENAT2,
	"creat":             unix.SYS_CREAT,
	"open_by_handle_at": unix.SYS_OPEN_BY_HANDLE_AT,
	"unlink":            unix.SYS_UNLINK,
	"unlinkat":          unix.SYS_UNLINKAT,
	"rmdir":             unix.SYS_RMDIR,
	"mkdir":             unix.SYS_MKDIR,
	"mkdirat":           unix.SYS_MKDIRAT,
	"rename":            unix.SYS_RENAME,
	"renameat":          unix.SYS_RENAMEAT,
	"renameat2":         unix.SYS_RENAMEAT2,
	"link":              unix.SYS_LINK,
	"linkat":            unix.SYS_LINKAT,
	"symlink":           unix.SYS_SYMLINK,
	"symlinkat":         unix.SYS_SYMLINKAT,
	"chmod":             unix.SYS_CHMOD,
	"fchmod":            unix.SYS_FCHMOD,
	"fchmodat":          unix.SYS_FCHMODAT,
	"fchmodat2":         unix.SYS_FCHMODAT2,
	"execve":            unix.SYS_EXECVE,
	"execveat":          unix.SYS_EXECVEAT,
	"fork":              unix.SYS_FORK,
	"vfork":             unix.SYS_VFORK,
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

// numbers32 are those of i386, which 64-bit programs, too, can call (int $0x80). A test compares them with
// golang.org/x/sys/unix, which has them for programs of that kind only.
var numbers32 = map[string]int{
	"open":              5,
	"openat":            295,
	"openat2":           437,
	"creat":             8,
	"open_by_handle_at": 342,
	"unlink":            10,
	"unlinkat":          301,
	"rmdir":             40,
	"mkdir":             39,
	"mkdirat":           296,
	"rename":            38,
	"renameat":          302,
	"renameat2":         353,
	"link":              9,
	"linkat":            303,
	"symlink":           83,
	"symlinkat":         304,
	"chmod":             15,
	"fchmod":            94,
	"fchmodat":          306,
	"fchmodat2":         452,
	"execve":            11,
	"execveat":          358,
	"fork":              2,
	"vfork":             190,
	"clone":             120,
	"clone3":            435,
	"ptrace":            26,
	"connect":           362,
	"bind":              361,
	"listen":            363,
	"sendto":            369,
	"sendmsg":           370,
	"sendmmsg":          345,
	"socketcall":        102,
}

// arch32 is what Go calls that ABI.
const arch32 = "386"

// largeFile is O_LARGEFILE, which 64-bit kernels add by themselves.
const largeFile = 0o100000
