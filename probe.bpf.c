//go:build ignore
// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * The kernel side: what is in scope, what it did, and in which window it began.
 *
 * A task in scope carries a struct task (task storage, so that it lives and dies
 * with the kernel's own task: no pid to be reused, no map to fill up). sys_enter
 * stamps it with the window and the arguments, sys_exit turns it into a record
 * once the kernel has decided. Two operations have a better witness than their
 * exit: a program that was started (sched_process_exec) and a TCP connection
 * that was begun (inet_sock_set_state).
 */
#include "vmlinux.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>

#define COMM_LEN 16
#define ABIS 2	     /* the machine's own, and the 32-bit one beside it */
#define SYSCALLS 512 /* numbers per ABI; the highest in use is below 480 */
#define ARGS 8	     /* six of the system call, and two constants: see enum arg */
#define PATH_LEN 4096
#define NAME_LEN 256	  /* NAME_MAX and a NUL */
#define ARGV_LEN 16384	  /* bytes of arguments that an exec record holds */
#define PATH_STEPS 4096	  /* directories and mounts from a file to the root */
#define PATH_STEPS_OLD 64 /* where there is no bpf_loop */
#define TAIL_LEN 32768	  /* a power of two: offsets are masked with it */
#define LOSS_SLOTS 2048
#define SENDMMSG_MAX 1024   /* UIO_MAXIOV: sendmmsg(2) sends no more at once */
#define SENDMMSG_MAX_OLD 64 /* where there is no bpf_loop */

#define AF_INET 2
#define AF_INET6 10
#define AT_FDCWD (-100)
#define O_WRONLY 01
#define O_CREAT 0100
#define O_TRUNC 01000
#define EINPROGRESS 115
#define EALREADY 114
#define EAGAIN 11
#define IPPROTO_TCP 6
#define IPPROTO_MPTCP 262
#define MSG_FASTOPEN 0x20000000
#define PF_KTHREAD 0x00200000
#define SOCKFS_MAGIC 0x534F434B
#define TCP_SYN_SENT 2
#define TCP_CLOSE 7

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
	HOW_ELSEWHERE = 10, /* success is seen by another hook, failure here */
	HOW_CLONE3 = 11,    /* the same, with the flags in memory */
	HOW_SYMLINK = 12,   /* a name, and a target that is just a string */
	HOW_CREAT = 13,	    /* HOW_OPEN, with the flags that creat(2) stands for */
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
	u8 dir2;
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
	TAG_ARGV = 6, /* the new program's arguments, each with a NUL */
	TAG_ADDR = 7, /* a struct sockaddr */
};

enum section_flag {
	SECTION_CUT = 1,	/* longer than what fits */
	SECTION_UNREADABLE = 2, /* the memory could not be read */
};

enum event_flag {
	EVENT_SCRIPT = 1,   /* the kernel ran an interpreter for the program */
	EVENT_FILELESS = 2, /* the program's file has no name in any directory */
};

struct section {
	u8 tag;
	u8 flags;
	u16 len;
};

/* One wire record; its tail of sections follows. Widest first: no holes. */
struct event {
	u64 ts_ns;  /* CLOCK_BOOTTIME at entry to the kernel */
	u64 window; /* that was current at entry */
	u64 origin; /* in which the process (or the ancestor that began it) was forked */
	s64 ret;    /* what the system call returned */
	u64 value[3];
	u32 pid; /* tgid, in the pid namespace of the sidecar, as every pid here */
	u32 tid;
	u16 kind; /* enum kind */
	u16 flags;
	u32 len; /* of the tail */
	u8 comm[COMM_LEN];
};
_Static_assert(sizeof(struct event) == 88, "hole in struct event");

/*
 * A record under construction. The tail is longer than TAIL_LEN by the longest
 * single write, since only its start is masked.
 */
struct scratch {
	struct event event;
	u8 tail[TAIL_LEN + ARGV_LEN];
};

/* A task in scope, and the system call that it is in (call.kind zero: none). */
struct task {
	u64 ts_ns;
	u64 window;
	u64 origin;
	u64 args[ARGS];
	u32 generation; /* of the scope that it belongs to; in scope from the current one on */
	u32 pid;
	u32 tid;
	struct shape call;
	u8 dialed;  /* the connection of this system call is already reported */
	u8 forked;  /* the child of this system call is already reported */
	u8 entered; /* a sys_enter was seen since the task came into scope */
	u8 closed;  /* the exit from this system call was seen by a copy before */
	u8 watched; /* not in scope itself, but what it starts before a scope is set is */
	u8 _pad[3];
	u64 bprm; /* of the exec in this system call that is already reported */
};

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

/*
 * A program that a task is in is not run for another task on the same CPU. Where
 * the kernel can preempt the first task there, since Linux 7, that happens all the
 * time. So each hook has copies of its program: the next one acts if the one before
 * it was skipped, which the state of the task tells.
 */
const volatile u32 copies;
const volatile u32 copy; /* from 0 */

/* Set before load, too. */
const volatile struct shape shapes[ABIS][SYSCALLS];
const volatile u64 ring_size;	  /* bytes in the ring */
const volatile u64 ring_headroom; /* of them, kept free of events so that a mark always fits */

/* The window and scope generation in force; changed by mark alone. */
u64 current_window;
u32 current_generation;

/* The sidecar itself; filled in by introduce. */
u32 self_tgid; /* in the initial namespace */
u32 self_level;
struct pid_namespace *self_pid_ns;

/*
 * What take_in is to look for (with no generation: windows), and the number of tasks
 * that it newly took.
 */
u32 wanted_pid;
u32 wanted_generation;
u32 taken_tasks;
u32 taken_processes;
u32 refused_tasks; /* no memory for them */

/*
 * Losses by window and reason. A window has the slot of its sequence number for
 * LOSS_SLOTS / 2 windows, which leaves Go as many to report what is in it before
 * another one has it; whatever is older than that goes into the last slot.
 */
u64 losses[(LOSS_SLOTS + 1) * LOSSES];
u64 losses_total;

/* Records on their way to user space, in the order in which they were completed. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 24); /* --ring-size */
	__type(value, struct event);
} events SEC(".maps");

/* The tasks in scope (and, before a scope is set, the sidecar's parent). */
struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct task);
} tasks SEC(".maps");

/* One for each copy, CPU and hook: programs can interrupt each other, though not themselves. */
enum hook { HOOK_EXIT, HOOK_EXEC, HOOK_FORK, HOOK_STATE, HOOKS };
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, HOOKS); /* times the numbers of CPUs and copies */
	__type(key, u32);
	__type(value, struct scratch);
} scratches SEC(".maps");

/* Read-once access for what another CPU may change at any time. */
#define READ_ONCE(x) (*(volatile typeof(x) *)&(x))
#define WRITE_ONCE(x, v) (*(volatile typeof(x) *)&(x) = (v))

/* ---- losses ---- */

static __always_inline void count_loss(u64 window, u32 reason)
{
	u64 age = (READ_ONCE(current_window) >> 1) - (window >> 1);
	u32 slot = age < LOSS_SLOTS / 2 ? (window >> 1) & (LOSS_SLOTS - 1) : LOSS_SLOTS;

	__sync_fetch_and_add(&losses[slot * LOSSES + reason], 1);
	__sync_fetch_and_add(&losses_total, 1);
}

/* ---- pids ---- */

/* The number of pid in the sidecar's pid namespace, or zero if it has none there. */
static __always_inline u32 pid_number(struct pid *pid)
{
	struct upid upid = {};

	if (!pid || BPF_CORE_READ(pid, level) < self_level)
		return 0;
	bpf_core_read(&upid.nr, sizeof(upid.nr), &pid->numbers[self_level].nr);
	bpf_core_read(&upid.ns, sizeof(upid.ns), &pid->numbers[self_level].ns);
	return upid.ns == self_pid_ns ? upid.nr : 0;
}

static __always_inline u32 tgid_of(struct task_struct *task)
{
	return pid_number(BPF_CORE_READ(task, signal, pids[PIDTYPE_TGID]));
}

/* ---- scope ---- */

static __always_inline bool in_scope(struct task *t)
{
	return t && t->generation && t->generation >= READ_ONCE(current_generation);
}

/* The current task if it is in scope. */
static __always_inline struct task *current_in_scope(void)
{
	struct task *t = bpf_task_storage_get(&tasks, bpf_get_current_task_btf(), 0, 0);

	return in_scope(t) ? t : NULL;
}

/* Whether the current system call is of the 32-bit ABI, however it was made. */
static __always_inline u32 current_abi(void)
{
	struct task_struct *task = bpf_get_current_task_btf();

#if defined(__TARGET_ARCH_x86)
	return !!(task->thread_info.status & 2); /* TS_COMPAT */
#else
	return !!(task->thread_info.flags & (1 << 22)); /* TIF_32BIT */
#endif
}

/* What the system call means, or NULL if it is not watched. */
static __always_inline const volatile struct shape *shape_of(u64 number)
{
	const volatile struct shape *shape;

	if (number >= SYSCALLS)
		return NULL;
	/* Most calls are not watched under either ABI; the ABI costs a load more. */
	if (!shapes[0][number].kind && !shapes[1][number].kind)
		return NULL;
	shape = &shapes[current_abi()][number];
	return shape->kind ? shape : NULL;
}

static __always_inline u64 number_of(struct pt_regs *regs)
{
#if defined(__TARGET_ARCH_x86)
	return regs->orig_ax;
#else
	return regs->syscallno;
#endif
}

static __always_inline void read_args(struct task *t, struct pt_regs *regs)
{
#if defined(__TARGET_ARCH_x86)
	if (current_abi()) {
		t->args[0] = (u32)regs->bx;
		t->args[1] = (u32)regs->cx;
		t->args[2] = (u32)regs->dx;
		t->args[3] = (u32)regs->si;
		t->args[4] = (u32)regs->di;
		t->args[5] = (u32)regs->bp;
		return;
	}
	t->args[0] = regs->di;
	t->args[1] = regs->si;
	t->args[2] = regs->dx;
	t->args[3] = regs->r10;
	t->args[4] = regs->r8;
	t->args[5] = regs->r9;
#else
	t->args[0] = regs->regs[0];
	t->args[1] = regs->regs[1];
	t->args[2] = regs->regs[2];
	t->args[3] = regs->regs[3];
	t->args[4] = regs->regs[4];
	t->args[5] = regs->regs[5];
#endif
}

static __always_inline u64 arg(struct task *t, u8 index)
{
	return t->args[index & (ARGS - 1)];
}

/* ---- files ---- */

/* The current process's open file with that descriptor, or NULL. */
static __always_inline struct file *file_of(s32 fd)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct fdtable *fdt = BPF_CORE_READ(task, files, fdt);
	struct file **fds, *file = NULL;

	if (!fdt || (u32)fd >= BPF_CORE_READ(fdt, max_fds))
		return NULL;
	fds = BPF_CORE_READ(fdt, fd);
	bpf_probe_read_kernel(&file, sizeof(file), &fds[(u32)fd]);
	return file;
}

/* The socket behind a descriptor, or NULL if there is none. */
static __always_inline struct sock *sock_of(s32 fd)
{
	struct file *file = file_of(fd);
	struct socket *socket;

	/* Every socket's inode lives in sockfs, and nothing else does. */
	if (!file || BPF_CORE_READ(file, f_inode, i_sb, s_magic) != SOCKFS_MAGIC)
		return NULL;
	socket = BPF_CORE_READ(file, private_data);
	return BPF_CORE_READ(socket, sk);
}

/* ---- records ---- */

static __always_inline struct scratch *scratch_of(enum hook hook)
{
	u32 index = (bpf_get_smp_processor_id() * copies + copy) * HOOKS + hook;

	return bpf_map_lookup_elem(&scratches, &index);
}

static __always_inline void event_begin(struct scratch *s, struct task *t, u32 kind)
{
	struct event *e = &s->event;

	/* Scratch memory is reused: what is not set below must not be the last record's. */
	__builtin_memset(e, 0, sizeof(*e));
	e->kind = kind;
	e->pid = t->pid;
	e->tid = t->tid;
	e->origin = t->origin;
	if (t->call.kind) {
		e->ts_ns = t->ts_ns;
		e->window = t->window;
	} else {
		e->ts_ns = bpf_ktime_get_boot_ns();
		e->window = READ_ONCE(current_window);
	}
	bpf_get_current_comm(e->comm, sizeof(e->comm));
}

static __always_inline void event_end(struct scratch *s, u32 len)
{
	u64 size;

	/* bpf_ringbuf_output takes no length that the verifier cannot bound. */
	asm volatile("%0 &= 0x7fff" : "+r"(len));
	s->event.len = len;
	size = sizeof(struct event) + len;
	if (bpf_ringbuf_query(&events, BPF_RB_AVAIL_DATA) + size + ring_headroom > ring_size ||
	    bpf_ringbuf_output(&events, s, size, 0))
		count_loss(s->event.window, LOSS_RING_FULL);
}

/*
 * Sections are appended at off, a multiple of four; each function returns the
 * next one. The mask is in assembly, since the compiler would leave it out where
 * it can see that it does nothing, and the verifier cannot see that.
 */
static __always_inline u8 *tail_at(struct scratch *s, u32 off)
{
	asm volatile("%0 &= 0x7fff" : "+r"(off));
	return s->tail + off;
}

static __always_inline u32 section_end(struct scratch *s, u32 off, u32 len, u8 tag, u8 flags)
{
	struct section *section = (struct section *)tail_at(s, off & ~3);

	section->tag = tag;
	section->flags = flags;
	section->len = len;
	return (off + sizeof(struct section) + len + 3) & ~3;
}

/* A walk from a file up to the root, and where its next name goes. */
struct walk {
	struct scratch *s;
	struct dentry *dentry;
	struct dentry *mnt_root; /* of mnt */
	struct mount *mnt;
	u32 at;
	u32 end; /* of the section */
	u8 flags;
};

/*
 * Takes one step, to the parent directory or mount; returns whether it was the last.
 * Pointers are copied out of w, or CO-RE would look for struct walk in the kernel.
 */
static long walk_step(u32 step, struct walk *w)
{
	struct dentry *dentry = w->dentry, *parent;
	struct mount *mnt = w->mnt, *mnt_parent;
	long n;

	if (dentry == w->mnt_root) {
		mnt_parent = BPF_CORE_READ(mnt, mnt_parent);
		if (mnt_parent == mnt || !mnt_parent) {
			w->flags = 0;
			return 1;
		}
		w->dentry = BPF_CORE_READ(mnt, mnt_mountpoint);
		w->mnt = mnt_parent;
		w->mnt_root = BPF_CORE_READ(mnt_parent, mnt.mnt_root);
		return 0;
	}
	n = bpf_probe_read_kernel_str(tail_at(w->s, w->at), NAME_LEN,
				      BPF_CORE_READ(dentry, d_name.name));
	if (n <= 0) {
		w->flags = SECTION_UNREADABLE;
		return 1;
	}
	w->at += n;
	parent = BPF_CORE_READ(dentry, d_parent);
	if (parent == dentry || !parent) {
		w->flags = 0; /* in no directory: a memfd, a pipe */
		return 1;
	}
	w->dentry = parent;
	return w->at > w->end;
}

/*
 * Appends the names from dentry up to the root of its mount namespace. The walk
 * goes from mount to mount as d_path does, but does not stop at the root of a
 * process that is in a chroot, since its reader is not.
 */
__noinline u32 put_path(struct scratch *s, u32 off, u64 dentry_address, u64 mnt_address, u32 tag)
{
	struct walk w = {
	    .s = s,
	    .dentry = (struct dentry *)dentry_address,
	    .at = off + sizeof(struct section),
	    .end = off + PATH_LEN,
	    .flags = SECTION_CUT,
	};
	struct mount *mnt;

	if (!s)
		return off;
	if (!dentry_address || !mnt_address)
		return section_end(s, off, 0, tag, SECTION_UNREADABLE);
	mnt = (struct mount *)(mnt_address - bpf_core_field_offset(struct mount, mnt));
	w.mnt = mnt;
	w.mnt_root = BPF_CORE_READ(mnt, mnt.mnt_root);
	/* bpf_loop came with 5.17; the verifier walks a plain loop step by step. */
	if (bpf_core_enum_value_exists(enum bpf_func_id, BPF_FUNC_loop)) {
		bpf_loop(PATH_STEPS, walk_step, &w, 0);
	} else {
		for (u32 i = 0; i < PATH_STEPS_OLD; i++)
			if (walk_step(i, &w))
				break;
	}
	return section_end(s, off, w.at - off - sizeof(struct section), tag, w.flags);
}

static __always_inline u32 put_file(struct scratch *s, u32 off, struct file *file, u32 tag)
{
	return put_path(s, off, (u64)BPF_CORE_READ(file, f_path.dentry),
			(u64)BPF_CORE_READ(file, f_path.mnt), tag);
}

/* Appends a string of the caller's. */
__noinline u32 put_string(struct scratch *s, u32 off, u64 address, u32 tag)
{
	long n;

	if (!s)
		return off;
	n = bpf_probe_read_user_str(tail_at(s, off + sizeof(struct section)), PATH_LEN,
				    (void *)address);
	if (n <= 0)
		return section_end(s, off, 0, tag, SECTION_UNREADABLE);
	return section_end(s, off, n - 1, tag, n == PATH_LEN ? SECTION_CUT : 0);
}

/*
 * Appends the directory that a name with that first character starts from: for an
 * absolute one the process's own root, which is not the namespace's in a chroot.
 */
static __always_inline u32 put_start(struct scratch *s, u32 off, u8 first, s32 dirfd, u32 tag)
{
	struct task_struct *task = bpf_get_current_task_btf();

	if (first == '/')
		return put_path(s, off, (u64)BPF_CORE_READ(task, fs, root.dentry),
				(u64)BPF_CORE_READ(task, fs, root.mnt), tag);
	if (dirfd == AT_FDCWD)
		return put_path(s, off, (u64)BPF_CORE_READ(task, fs, pwd.dentry),
				(u64)BPF_CORE_READ(task, fs, pwd.mnt), tag);
	return put_file(s, off, file_of(dirfd), tag);
}

/* Appends a name of the caller's and, under the next tag, where it starts. */
__noinline u32 put_name(struct scratch *s, u32 off, s32 dirfd, u64 address, u32 tag)
{
	u32 next;

	if (!s)
		return off;
	next = put_string(s, off, address, tag);
	return put_start(s, next, *tail_at(s, off + sizeof(struct section)), dirfd, tag + 1);
}

/* ---- addresses ---- */

static __always_inline bool is_inet(struct sock *sk)
{
	u16 family = BPF_CORE_READ(sk, __sk_common.skc_family);

	return family == AF_INET || family == AF_INET6;
}

/* The layout of struct sockaddr_in and struct sockaddr_in6. */
struct sockaddr {
	u16 family;
	__be16 port;
	union {
		__be32 v4;
		struct {
			u32 flowinfo;
			u8 v6[16];
			u32 scope_id;
		};
	};
};

/* Appends the address that the socket is bound to or, if peer, connected to. */
static __always_inline u32 put_sock_addr(struct scratch *s, u32 off, struct sock *sk, bool peer)
{
	struct sockaddr addr = {};
	u16 port;

	addr.family = BPF_CORE_READ(sk, __sk_common.skc_family);
	if (peer) {
		addr.port = BPF_CORE_READ(sk, __sk_common.skc_dport);
	} else {
		port = BPF_CORE_READ(sk, __sk_common.skc_num);
		addr.port = __builtin_bswap16(port);
	}
	if (addr.family == AF_INET)
		addr.v4 = peer ? BPF_CORE_READ(sk, __sk_common.skc_daddr)
			       : BPF_CORE_READ(sk, __sk_common.skc_rcv_saddr);
	else if (peer)
		BPF_CORE_READ_INTO(&addr.v6, sk, __sk_common.skc_v6_daddr);
	else
		BPF_CORE_READ_INTO(&addr.v6, sk, __sk_common.skc_v6_rcv_saddr);
	__builtin_memcpy(tail_at(s, off + sizeof(struct section)), &addr, sizeof(addr));
	return section_end(s, off, sizeof(addr), TAG_ADDR, 0);
}

/* Appends an address of the caller's; longer ones than sockaddr_un do not exist. */
static __always_inline u32 put_user_addr(struct scratch *s, u32 off, u64 address, u32 len)
{
	u8 flags = 0;

	if (len > 128)
		len = 128; /* struct sockaddr_storage */
	if (bpf_probe_read_user(tail_at(s, off + sizeof(struct section)), len, (void *)address)) {
		flags = SECTION_UNREADABLE;
		len = 0;
	}
	return section_end(s, off, len, TAG_ADDR, flags);
}

static __always_inline void put_protocol(struct scratch *s, struct sock *sk)
{
	if (sk)
		s->event.value[0] = BPF_CORE_READ(sk, sk_protocol) |
				    (u64)BPF_CORE_READ(sk, sk_type) << 16 |
				    (u64)BPF_CORE_READ(sk, __sk_common.skc_family) << 32;
}

/* Whether a message to an address on that socket goes to the address. */
static __always_inline bool sends_to_address(struct sock *sk, u64 flags)
{
	u16 protocol;

	if (!sk)
		return true; /* a failed attempt: the address is all there is */
	protocol = BPF_CORE_READ(sk, sk_protocol);
	/* Without MSG_FASTOPEN, TCP takes no notice of it. */
	return protocol != IPPROTO_TCP && protocol != IPPROTO_MPTCP ? is_inet(sk)
								    : flags & MSG_FASTOPEN;
}

/* The messages of a sendmmsg, of which the first sent ones have left. */
struct messages {
	struct scratch *s;
	u64 address;
	u32 sent;
};

/* Sends the record of a message; a struct mmsghdr starts with the address that it is for. */
static long emit_message(u32 i, struct messages *m)
{
	struct {
		u64 name;
		s32 namelen;
	} msg = {};

	if (i && i >= m->sent)
		return 1; /* the first one is of interest even if it failed */
	bpf_probe_read_user(&msg, 12, (void *)(m->address + i * 64));
	if (msg.name && msg.namelen > 0)
		event_end(m->s, put_user_addr(m->s, 0, msg.name, msg.namelen));
	return 0;
}

__noinline int emit_messages(struct scratch *s, u64 address, u32 sent)
{
	struct messages m = {.s = s, .address = address, .sent = sent};

	if (!s)
		return 0;
	if (bpf_core_enum_value_exists(enum bpf_func_id, BPF_FUNC_loop)) {
		bpf_loop(SENDMMSG_MAX, emit_message, &m, 0);
	} else {
		for (u32 i = 0; i < SENDMMSG_MAX_OLD; i++)
			if (emit_message(i, &m))
				return 0;
		for (u32 i = SENDMMSG_MAX_OLD; i < SENDMMSG_MAX && i < sent; i++)
			count_loss(s->event.window, LOSS_SKIPPED);
	}
	return 0;
}

/* ---- programs: system calls ---- */

SEC("tp_btf/sys_enter")
int BPF_PROG(on_sys_enter, struct pt_regs *regs, long number)
{
	const volatile struct shape *shape = shape_of(number);
	struct task *t;

	if (!shape)
		return 0;
	t = current_in_scope();
	if (!t)
		return 0;
	if (t->call.kind) {
		if (copy)
			return 0;		     /* an earlier copy has it */
		count_loss(t->window, LOSS_SKIPPED); /* its exit never came */
	}
	t->window = READ_ONCE(current_window);
	t->ts_ns = bpf_ktime_get_boot_ns();
	read_args(t, regs);
	t->args[ARG_CWD] = AT_FDCWD;
	t->args[ARG_NONE] = 0;
	t->dialed = false;
	t->forked = false;
	t->closed = false;
	t->bprm = 0;
	t->entered = true;
	__builtin_memcpy(&t->call, (const void *)shape, sizeof(t->call));
	return 0;
}

/* Fills in and sends the record of an inet system call. */
static __always_inline void emit_inet(struct scratch *s, struct task *t, long ret)
{
	s32 fd = arg(t, 0);
	struct sock *sk = sock_of(fd);
	u32 off = 0;

	if (sk && !is_inet(sk))
		return;
	put_protocol(s, sk);
	s->event.value[1] = (u32)fd;
	switch (t->call.how) {
	case HOW_CONNECT:
		/* A second call on a connection that is under way makes no new one. */
		if (t->dialed || ret == -EALREADY)
			return;
		if (sk && (ret == 0 || ret == -EINPROGRESS))
			off = put_sock_addr(s, off, sk, true);
		else
			off = put_user_addr(s, off, arg(t, 1), arg(t, 2));
		break;
	case HOW_BIND:
		if (sk && ret == 0)
			off = put_sock_addr(s, off, sk, false);
		else
			off = put_user_addr(s, off, arg(t, 1), arg(t, 2));
		break;
	case HOW_LISTEN:
		s->event.value[2] = arg(t, 1);
		if (sk)
			off = put_sock_addr(s, off, sk, false);
		break;
	case HOW_SENDTO:
		if (t->dialed || !arg(t, 4) || !sends_to_address(sk, arg(t, 3)))
			return;
		off = put_user_addr(s, off, arg(t, 4), arg(t, 5));
		break;
	case HOW_SENDMSG:
		if (!t->dialed && sends_to_address(sk, arg(t, 2)))
			emit_messages(s, arg(t, 1), 1);
		return;
	case HOW_SENDMMSG:
		if (t->dialed || !sends_to_address(sk, arg(t, 3)))
			return;
		emit_messages(s, arg(t, 1), ret > 0 ? ret : 0);
		return;
	}
	event_end(s, off);
}

static __always_inline void emit_call(struct scratch *s, struct task *t, long ret)
{
	u32 off = 0;

	event_begin(s, t, t->call.kind);
	s->event.ret = ret;
	s->event.value[0] = arg(t, t->call.value[0]);
	s->event.value[1] = arg(t, t->call.value[1]);
	switch (t->call.how) {
	case HOW_CONNECT:
	case HOW_BIND:
	case HOW_LISTEN:
	case HOW_SENDTO:
	case HOW_SENDMSG:
	case HOW_SENDMMSG:
		emit_inet(s, t, ret);
		return;
	case HOW_CLONE3:
		/* struct clone_args starts with the flags. */
		bpf_probe_read_user(&s->event.value, 8, (void *)arg(t, 0));
		/* fallthrough */
	case HOW_ELSEWHERE:
		if (ret < 0)
			break;
		/* on_exec would have ended this call, and on_fork have left word. */
		if (t->call.kind != KIND_SPAWN || !t->forked)
			count_loss(t->window, LOSS_SKIPPED);
		return;
	case HOW_FD:
		off = put_file(s, off, file_of(arg(t, t->call.dir)), TAG_PATH);
		break;
	case HOW_OPENAT2:
		/* struct open_how starts with the flags and the mode. */
		bpf_probe_read_user(&s->event.value, 16, (void *)arg(t, 2));
		/* fallthrough */
	case HOW_OPEN:
	case HOW_CREAT:
		if (t->call.how == HOW_CREAT)
			s->event.value[0] = O_CREAT | O_WRONLY | O_TRUNC;
		if (ret >= 0) {
			/* The kernel's path says it all; the caller's name is beside it. */
			off = put_file(s, off, file_of(ret), TAG_PATH);
			if (t->call.name != ARG_NONE)
				off = put_string(s, off, arg(t, t->call.name), TAG_NAME);
			event_end(s, off);
			return;
		}
		break;
	}
	if (t->call.name != ARG_NONE)
		off = put_name(s, off, arg(t, t->call.dir), arg(t, t->call.name), TAG_NAME);
	if (t->call.how == HOW_SYMLINK)
		off = put_string(s, off, arg(t, t->call.name2), TAG_NAME2);
	else if (t->call.name2 != ARG_NONE)
		off = put_name(s, off, arg(t, t->call.dir2), arg(t, t->call.name2), TAG_NAME2);
	event_end(s, off);
}

SEC("tp_btf/sys_exit")
int BPF_PROG(on_sys_exit, struct pt_regs *regs, long ret)
{
	const volatile struct shape *shape = shape_of(number_of(regs));
	struct scratch *s;
	struct task *t;

	if (!shape)
		return 0;
	t = current_in_scope();
	if (!t)
		return 0;
	if (t->call.kind) {
		s = scratch_of(HOOK_EXIT);
		if (s)
			emit_call(s, t, ret);
		t->call.kind = 0;
		t->closed = true;
	} else if (copy == copies - 1 && !t->closed && t->entered && shape->how != HOW_ELSEWHERE &&
		   shape->how != HOW_CLONE3) {
		/*
		 * No copy has seen the entry. (A new process comes out of a fork that it
		 * never went into, a new program out of an exec that on_exec has ended,
		 * and a task may have been in the call when it came into scope.)
		 */
		count_loss(READ_ONCE(current_window), LOSS_SKIPPED);
	}
	if (copy == copies - 1)
		t->closed = false; /* what comes next is another call */
	return 0;
}

/* ---- programs: processes ---- */

SEC("tp_btf/sched_process_fork")
int BPF_PROG(on_fork, struct task_struct *parent, struct task_struct *child)
{
	struct task *t = bpf_task_storage_get(&tasks, parent, 0, 0), *new;
	bool process = child->pid == child->tgid;
	u32 generation;
	struct scratch *s;
	u64 window;

	if (!t)
		return 0;
	if (t->watched) {
		/* Before a scope is set: what the sidecar's parent starts, its threads aside. */
		if (READ_ONCE(current_generation) != 1)
			return 0;
		generation = process ? 1 : 0;
		window = READ_ONCE(current_window);
	} else {
		if (!in_scope(t))
			return 0;
		generation = t->generation;
		window = t->call.kind ? t->window : READ_ONCE(current_window);
	}
	if (copy && bpf_task_storage_get(&tasks, child, 0, 0))
		return 0; /* an earlier copy has it */
	t->forked = true;
	/* The child does not run before this returns, so it is in scope from its first step. */
	new = bpf_task_storage_get(&tasks, child, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!new) {
		count_loss(window, LOSS_NO_MEMORY);
	} else {
		new->pid = tgid_of(child);
		new->tid = pid_number(BPF_CORE_READ(child, thread_pid));
		new->origin = t->origin;
		if (process && !new->origin && (window & WINDOW_IN_CALL))
			new->origin = window;
		new->generation = generation;
		new->watched = t->watched && !process;
	}
	if (!process || t->watched)
		return 0;
	s = scratch_of(HOOK_FORK);
	if (!s)
		return 0;
	event_begin(s, t, KIND_SPAWN);
	s->event.value[0] = tgid_of(child);
	event_end(s, 0);
	return 0;
}

SEC("tp_btf/sched_process_exec")
int BPF_PROG(on_exec, struct task_struct *task, pid_t old_pid, struct linux_binprm *bprm)
{
	struct task *t = bpf_task_storage_get(&tasks, task, 0, 0);
	u64 start, len;
	struct scratch *s;
	const char *name;
	u32 off = 0, name_off;
	u8 flags = 0;
	long n;

	if (!in_scope(t))
		return 0;
	if (t->bprm == (u64)bprm)
		return 0; /* an earlier copy has it */
	t->bprm = (u64)bprm;
	/* A thread that execs takes over the leader's pid; its storage stays with it. */
	t->tid = t->pid;
	s = scratch_of(HOOK_EXEC);
	if (!s)
		return 0;
	event_begin(s, t, KIND_EXEC);
	t->call.kind = 0;
	s->event.value[0] = BPF_CORE_READ(bprm, argc);
	s->event.value[1] = tgid_of(BPF_CORE_READ(task, real_parent));
	name = BPF_CORE_READ(bprm, filename);
	if (BPF_CORE_READ(bprm, interp) != name)
		s->event.flags |= EVENT_SCRIPT;
	if (!BPF_CORE_READ(bprm, file, f_inode, i_nlink))
		s->event.flags |= EVENT_FILELESS;
	off = put_file(s, off, BPF_CORE_READ(bprm, file), TAG_PATH);

	name_off = off;
	n = bpf_probe_read_kernel_str(tail_at(s, off + sizeof(struct section)), PATH_LEN, name);
	off = section_end(s, off, n > 0 ? n - 1 : 0, TAG_NAME, n > 0 ? 0 : SECTION_UNREADABLE);
	off = put_start(s, off, *tail_at(s, name_off + sizeof(struct section)), AT_FDCWD, TAG_DIR);

	start = BPF_CORE_READ(task, mm, arg_start);
	len = BPF_CORE_READ(task, mm, arg_end) - start;
	if (len > ARGV_LEN) {
		len = ARGV_LEN;
		flags = SECTION_CUT;
	}
	if (bpf_probe_read_user(tail_at(s, off + sizeof(struct section)), len, (void *)start)) {
		flags = SECTION_UNREADABLE;
		len = 0;
	}
	off = section_end(s, off, len, TAG_ARGV, flags);
	event_end(s, off);
	return 0;
}

/* ---- programs: connections ---- */

/* In the caller's own context a TCP connection leaves CLOSED with its destination set. */
SEC("tp_btf/inet_sock_set_state")
int BPF_PROG(on_set_state, struct sock *sk, int from, int to)
{
	struct scratch *s;
	struct task *t;
	u32 off;

	if (from != TCP_CLOSE || to != TCP_SYN_SENT)
		return 0;
	t = current_in_scope();
	if (!t || (copy && (t->dialed || !t->call.kind)))
		return 0; /* not in scope, or an earlier copy has it */
	s = scratch_of(HOOK_STATE);
	if (!s)
		return 0;
	event_begin(s, t, KIND_CONNECT);
	put_protocol(s, sk);
	off = put_sock_addr(s, 0, sk, true);
	event_end(s, off);
	t->dialed = true;
	return 0;
}

/* ---- programs: the sidecar's own ---- */

/* Run once, by the sidecar: remembers who it is and what its pid namespace is. */
SEC("syscall")
int introduce(void *ctx)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct pid *pid = BPF_CORE_READ(task, thread_pid);
	u32 level = BPF_CORE_READ(pid, level);

	self_tgid = BPF_CORE_READ(task, tgid);
	bpf_core_read(&self_pid_ns, sizeof(self_pid_ns), &pid->numbers[level].ns);
	self_level = level;
	return 0;
}

/*
 * Moves to another window, with a record that says so. Order is all: with the
 * record of a begin in place first, no event of the new window can be read before
 * it; with the window changed before the record of an end, no operation that
 * starts after it can be charged to the call.
 *
 * Returns zero, or -EAGAIN when the ring is full: try again after a drain.
 */
SEC("syscall")
int mark(struct mark_request *ctx)
{
	u64 window = ctx->window, token = ctx->token;
	u32 op = ctx->op, generation = ctx->generation;
	struct event *e;

	if (op == MARK_END)
		WRITE_ONCE(current_window, window);
	e = bpf_ringbuf_reserve(&events, sizeof(*e), 0);
	if (!e)
		return -EAGAIN;
	__builtin_memset(e, 0, sizeof(*e));
	e->kind = KIND_MARK;
	e->ts_ns = bpf_ktime_get_boot_ns();
	e->window = window;
	e->value[0] = token;
	if (op == MARK_SCOPE)
		WRITE_ONCE(current_generation, generation);
	if (op == MARK_BEGIN || op == MARK_SCOPE)
		WRITE_ONCE(current_window, window);
	bpf_ringbuf_submit(e, BPF_RB_FORCE_WAKEUP);
	return 0;
}

/*
 * Takes the processes of a group into a scope, and whoever has a parent in it;
 * or, for the scope before the first one, watches the sidecar's parent. Go reads
 * the iterator until a pass takes in nobody new: a child that was forked by a
 * task before that task was taken in is found by the next pass.
 *
 * Without a generation it writes, for each task in scope, the windows that its next
 * record can name: that of the system call that it is in, and its origin.
 */
SEC("iter/task")
int take_in(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	u64 windows[2];
	struct task *t;
	u32 pid;

	if (!task || (task->flags & PF_KTHREAD) || task->tgid == self_tgid)
		return 0;
	if (!wanted_generation) {
		t = bpf_task_storage_get(&tasks, task, 0, 0);
		if (!in_scope(t))
			return 0;
		windows[0] = t->call.kind ? t->window : 0;
		windows[1] = t->origin;
		bpf_seq_write(ctx->meta->seq, windows, sizeof(windows));
		return 0;
	}
	if (wanted_generation == 1) {
		if (tgid_of(task) != wanted_pid)
			return 0;
		t = bpf_task_storage_get(&tasks, task, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
		if (!t) {
			refused_tasks++;
			return 0;
		}
		t->watched = true;
		taken_tasks++;
		return 0;
	}
	pid = pid_number(BPF_CORE_READ(task, signal, pids[PIDTYPE_PGID]));
	if (pid != wanted_pid) {
		t = bpf_task_storage_get(&tasks, task->real_parent, 0, 0);
		if (!t || t->generation != wanted_generation)
			return 0;
	}
	t = bpf_task_storage_get(&tasks, task, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!t) {
		refused_tasks++;
		count_loss(READ_ONCE(current_window), LOSS_NO_MEMORY);
		return 0;
	}
	if (t->generation == wanted_generation)
		return 0;
	t->pid = tgid_of(task);
	t->tid = pid_number(BPF_CORE_READ(task, thread_pid));
	t->watched = false;
	t->generation = wanted_generation;
	taken_tasks++;
	taken_processes += task->pid == task->tgid;
	return 0;
}

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

char LICENSE[] SEC("license") = "Dual MIT/GPL";
