/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * What both sides know: records, marks and the table of system calls. Go gets its
 * twin of each type from here (generate.go).
 */
#ifndef __RECORD_BPF_H__
#define __RECORD_BPF_H__

#define COMM_LEN 16
#define ABIS 2		    /* the machine's own, and the 32-bit one beside it */
#define SYSCALLS 512	    /* numbers per ABI; the highest in use is below 480 */
#define SOCKETCALL_BASE 480 /* where the 32-bit table has the calls of socketcall(2) */
#define ARGS 8		    /* six of the system call, and two constants: see enum arg */
#define PATH_LEN 4096
#define NAME_LEN 256	   /* NAME_MAX and a NUL */
#define ARGV_LEN 16384	   /* bytes of arguments that an exec record holds */
#define PATH_STEPS 4096	   /* directories and mounts from a file to the root */
#define PATH_STEPS_OLD 64  /* where there is no bpf_loop */
#define TAIL_LEN 32768	   /* a power of two: offsets are masked with it */
#define DNS_LEN 2048	   /* bytes of a message that are looked at */
#define DNS_MESSAGES 64	   /* of those that are sent at once */
#define DNS_MESSAGES_OLD 8 /* where there is no bpf_loop */
#define URING_OPS 64	   /* io_uring has fewer operations */
#define LOSS_SLOTS 2048
#define SENDMMSG_MAX 1024   /* UIO_MAXIOV: sendmmsg(2) sends no more at once */
#define SENDMMSG_MAX_OLD 64 /* where there is no bpf_loop */

/* What a record tells of. Wire numbers: append only, zero is never valid. */
enum kind {
	KIND_MARK = 1,
	KIND_EXEC = 2,
	KIND_EXEC_FAILED = 3,
	KIND_SPAWN = 4,
	KIND_CONNECT = 5,
	KIND_BIND = 6,
	KIND_LISTEN = 7,
	KIND_OPEN = 8,
	KIND_DELETE = 9,
	KIND_MKDIR = 10,
	KIND_RENAME = 11,
	KIND_SYMLINK = 12,
	KIND_LINK = 13,
	KIND_CHMOD = 14,
	KIND_PTRACE = 15,
	KIND_TRUNCATE = 16,
	KIND_CHOWN = 17,
	KIND_XATTR = 18,
	KIND_MKNOD = 19,
	KIND_MOUNT = 20,
	KIND_MEMFD = 21,
	KIND_VM_WRITE = 22,
	KIND_PIDFD_GETFD = 23,
	KIND_SIGNAL = 24,
	KIND_SETUID = 25,
	KIND_NAMESPACE = 26,
	KIND_MODULE = 27,
	KIND_BPF = 28,
	KIND_UNIX_CONNECT = 29,
	KIND_ACCEPT = 30,
	KIND_URING_ENTER = 31,	  /* no event: stamps what is submitted in it */
	KIND_URING_DONE = 32,	  /* what came of the request whose record was held */
	KIND_EXE = 33,		  /* no event: the path of the program with that number */
	KIND_DNS = 34,		  /* a message to or from a server of names */
	KIND_SOCKET_CONNECT = 35, /* of another family than IP and UNIX */
	KIND_PATH = 36,		  /* no event: the paths that the thread's system call is about */
	KIND_URING_CLOSE = 37,	  /* no event: an open's descriptor may be gone before it is told */
};

/* How on_sys_exit gathers what a system call leaves behind. */
enum how {
	HOW_NAMES = 0, /* up to two names, each relative to a directory */
	HOW_OPEN = 1,  /* a name, and the file behind the new descriptor */
	HOW_OPENAT2 = 2,
	HOW_FD = 3, /* the file behind a descriptor */
	HOW_CONNECT = 4,
	HOW_BIND = 5,
	HOW_LISTEN = 6,
	HOW_SENDTO = 7,
	HOW_SENDMSG = 8,
	HOW_SENDMMSG = 9,
	HOW_ELSEWHERE = 10,  /* success is seen by another hook, failure here */
	HOW_CLONE3 = 11,     /* the same, with the flags in memory */
	HOW_PIDFD = 12,	     /* the process behind a descriptor */
	HOW_CREAT = 13,	     /* HOW_OPEN, with the flags that creat(2) stands for */
	HOW_SOCKETCALL = 14, /* whatever the first argument says, with arguments in memory */
	HOW_ACCEPT = 15,     /* who is behind the new socket */
	HOW_STAMP = 16,	     /* not at all: for what is done in it by other means */
	HOW_RECV = 17,	     /* this to the last: a message, if from or to a server of names */
	HOW_RECVMSG = 18,
	HOW_RECVMMSG = 19,
	HOW_READV = 20,
	HOW_WRITE = 21,
	HOW_WRITEV = 22,
};

/* Where an argument of struct shape is: 0 to 5 in the system call, or constant. */
enum arg {
	ARG_CWD = 6,  /* AT_FDCWD */
	ARG_NONE = 7, /* zero */
};

/*
 * What one system call number of one ABI means. Go fills the table of them
 * (syscalls.go), so nothing here knows a number.
 */
struct shape {
	u8 kind; /* enum kind; zero: not watched */
	u8 how;
	u8 dir; /* this and the rest: enum arg */
	u8 name;
	u8 dir2; /* ARG_NONE: name2 is not a file's */
	u8 name2;
	u8 value[2];
};

/* A section of a record's tail: a header, len bytes, and padding to four. */
enum tag {
	TAG_PATH = 1,  /* names from the object up to the root, each with a NUL */
	TAG_NAME = 2,  /* a string as the caller gave it */
	TAG_DIR = 3,   /* where TAG_NAME starts if it is relative; a path */
	TAG_NAME2 = 4, /* the second string: the new name, or a symlink's target */
	TAG_DIR2 = 5,
	TAG_ARGV = 6,  /* the new program's arguments, each with a NUL */
	TAG_ADDR = 7,  /* a struct sockaddr */
	TAG_DATA = 8,  /* of a message */
	TAG_PATH2 = 9, /* what TAG_PATH was before; a path */
};

enum section_flag {
	SECTION_CUT = 1,	/* longer than what fits */
	SECTION_UNREADABLE = 2, /* the memory could not be read */
};

enum event_flag {
	EVENT_SCRIPT = 1,   /* the kernel ran an interpreter for the program */
	EVENT_FILELESS = 2, /* the program's file has no name in any directory */
	EVENT_HELD = 4,	    /* ret is the request's token until a KIND_URING_DONE has the result */
	EVENT_RACED = 8,    /* a name or address was another one at the exit than at the entry */
	EVENT_PENDING = 16, /* it is not known what came of the request, and will not be */
};

struct section {
	u8 tag;
	u8 flags;
	u16 len;
};

#define CALL_32 0x8000
#define CALL_URING 0x4000
#define MNT_NS_ANON 0xEFFFFFF7 /* the kernel's number for those that are none, since 6.18 */
#define MNT_NS_NONE 1	       /* a mount that is in no namespace, as open_tree(2) makes it */

/* One wire record; its tail of sections follows. Widest first: no holes. */
struct event {
	u64 ts_ns;  /* CLOCK_BOOTTIME at entry to the kernel */
	u64 window; /* that was current at entry */
	u64 origin; /* in which the process (or the ancestor that began it) was forked */
	s64 ret;    /* what the system call returned */
	u64 value[3];
	u32 pid; /* tgid, in the pid namespace of the sidecar, as every pid here */
	u32 tid;
	u32 ppid;
	u32 exe;    /* number of the program that runs, told by a KIND_EXE or KIND_EXEC before */
	u32 uid;    /* in the initial user namespace */
	u32 mnt_ns; /* of a path that is not in the sidecar's: its number, or MNT_NS_NONE */
	u16 kind;   /* enum kind */
	u16 flags;  /* enum event_flag; of an opened file, its mode with the type */
	u16 call; /* number of the system call, or with CALL_URING of the operation; with CALL_32 of
		     that ABI */
	u16 len;  /* of the tail */
	u8 comm[COMM_LEN];
};
_Static_assert(sizeof(struct event) == 104, "hole in struct event");

/* Why something is missing. Order and number are shared with Go. */
enum loss {
	LOSS_RING_FULL = 0,
	LOSS_NO_MEMORY = 1, /* for a new task's storage: it and its children are out of scope */
	LOSS_SKIPPED = 2,   /* the kernel did not run a program of ours (recursion) */
	LOSSES = 3,
};

/* What a mark does; Go's side of it is in backend_ebpf.go. */
enum mark_op {
	MARK_NOTE = 0, /* nothing: it only travels */
	MARK_BEGIN = 1,
	MARK_END = 2,
	MARK_SCOPE = 3,
};

struct mark_request {
	u64 window;
	u64 token; /* comes back in the record */
	u32 op;	   /* enum mark_op */
	u32 generation;
};

/* Bit 0 of a window's number: a call was open in it. The rest counts up. */
#define WINDOW_IN_CALL 1

/* Named here so that bpf2go finds them; nothing uses the pointers. */
enum kind *kind_type;
enum how *how_type;
enum arg *arg_type;
enum tag *tag_type;
enum section_flag *section_flag_type;
enum event_flag *event_flag_type;
enum loss *loss_type;
enum mark_op *mark_op_type;
struct mark_request *mark_request_type;
struct section *section_type;

#endif
