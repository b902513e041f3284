/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * What the programs keep: who is in scope, what each task is doing, which window it
 * is, and what was lost.
 */
#ifndef __STATE_BPF_H__
#define __STATE_BPF_H__

#include "record.bpf.h"

#define AT_FDCWD (-100)
#define PF_IO_WORKER 0x00000010

/*
 * A record under construction. The tail is longer than TAIL_LEN by the longest
 * single write, since only its start is masked.
 */
struct scratch {
	struct event event;
	u8 tail[TAIL_LEN + ARGV_LEN]; /* goes out with the event: nothing in between */
	u64 early[2];		      /* of the task */
};

/* A task in scope, and the system call that it is in (call.kind zero: none). */
struct task {
	u64 ts_ns;
	u64 window;
	u64 origin;
	u64 args[ARGS];
	u64 entry[2];	/* the first of them at entry, before a socketcall(2) is unwrapped */
	u32 generation; /* of the scope that it belongs to; in scope from the current one on */
	u32 pid;
	u32 tid;
	u32 exe; /* number of the program that it runs; zero: not told yet */
	struct shape call;
	u8 dialed;     /* the connection of this system call is already reported */
	u8 forked;     /* the child of this system call is already reported */
	u8 entered;    /* a sys_enter was seen since the task came into scope */
	u8 closed;     /* the exit from this system call was seen by a copy before */
	u8 watched;    /* not in scope itself, but what it starts before a scope is set is */
	u8 restarts;   /* a signal has interrupted the last system call, to go on afterwards */
	u16 number;    /* of the system call, as in struct event */
	u64 early[2];  /* checksums of the names or the address at entry; zero: not there yet */
	u64 mm;	       /* at entry: an exec that fails late comes out with another one */
	u64 signalled; /* the task to which a signal of this system call is already reported */
	u64 bprm;      /* of the exec in this system call that is already reported */
	u64 submitted; /* the io_uring request that an earlier copy has reported */
};

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
const volatile struct shape uring_ops[URING_OPS]; /* by operation of io_uring */
const volatile u64 ring_size;			  /* bytes in the ring */
const volatile u64 ring_headroom; /* of them, kept free of events so that a mark always fits */

/* The window and scope generation in force; changed by mark alone. */
u64 current_window;
u32 current_generation;

/*
 * Whether something in scope has talked to a server of names. Until then, reads and
 * writes are not looked at.
 */
bool dns_in_use;

/* How many requests to close a descriptor there were to io_uring. */
u32 uring_closes;

/* The last number that a program has got; each exec gives one. */
u32 last_exe;

/* The sidecar itself; filled in by introduce. */
u32 self_tgid; /* in the initial namespace */
u32 self_level;
u32 self_mnt_ns; /* inum */
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
u32 taken_uid;	   /* of one in the group itself */

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

/* Where the messages of one system call go. */
#define DESTINATIONS 8
struct destinations {
	u64 count;
	struct sockaddr address[DESTINATIONS];
};

/*
 * Where the messages of a task go, as the kernel has it: from its entry into a system
 * call that sends some, to its exit. Tasks are addresses here, since cgroup programs
 * have no task storage; one that leaves the scope meanwhile leaves its entry behind.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024);
	__type(key, u64);
	__type(value, struct destinations);
} sending SEC(".maps");

/* Whether on_udp4 and on_udp6 are attached. */
bool udp_hooked;

/* One for each copy, CPU and hook: programs can interrupt each other, though not themselves. */
enum hook {
	HOOK_ENTER,
	HOOK_EXIT,
	HOOK_EXEC,
	HOOK_FORK,
	HOOK_STATE,
	HOOK_SIGNAL,
	HOOK_URING,
	HOOK_PATH,
	HOOKS
};
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

static __always_inline void count_losses(u64 window, u32 reason, u64 count)
{
	u64 age = (READ_ONCE(current_window) >> 1) - (window >> 1);
	u32 slot = age < LOSS_SLOTS / 2 ? (window >> 1) & (LOSS_SLOTS - 1) : LOSS_SLOTS;

	__sync_fetch_and_add(&losses[slot * LOSSES + reason], count);
	__sync_fetch_and_add(&losses_total, count);
}

static __always_inline void count_loss(u64 window, u32 reason)
{
	count_losses(window, reason, 1);
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

/*
 * The current task if it is in scope, or for a thread of the kernel's that works for
 * io_uring (PF_IO_WORKER), the leader of the process that it is part of. It is made
 * without the hook on forks.
 */
static __always_inline struct task *owner_in_scope(bool *worker)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct task *t;

	*worker = task->flags & PF_IO_WORKER;
	if (*worker)
		task = task->group_leader;
	t = bpf_task_storage_get(&tasks, task, 0, 0);
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
	if (shape->kind == KIND_DNS && !READ_ONCE(dns_in_use))
		return NULL;
	return shape->kind ? shape : NULL;
}

static __always_inline u64 number_of(struct pt_regs *regs)
{
#if defined(__TARGET_ARCH_x86)
	return (u32)regs->orig_ax; /* the kernel, too, looks at this half only */
#else
	return (u32)regs->syscallno;
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
	t->args[0] = regs->orig_x0; /* regs[0] is the result at exit */
	t->args[1] = regs->regs[1];
	t->args[2] = regs->regs[2];
	t->args[3] = regs->regs[3];
	t->args[4] = regs->regs[4];
	t->args[5] = regs->regs[5];
#endif
}

/*
 * Stamps the task with the system call that it goes into. One that goes on after a
 * signal handler enters again, and is still the one that it was.
 */
static __always_inline void call_begin(struct task *t, struct pt_regs *regs,
				       const volatile struct shape *shape)
{
	bool again = t->restarts;

	read_args(t, regs);
	again = again && t->entry[0] == t->args[0] && t->entry[1] == t->args[1];
	t->entry[0] = t->args[0];
	t->entry[1] = t->args[1];
	t->restarts = false;
	if (!again) {
		t->window = READ_ONCE(current_window);
		t->ts_ns = bpf_ktime_get_boot_ns();
		t->dialed = false;
	}
	t->args[ARG_CWD] = AT_FDCWD;
	t->args[ARG_NONE] = 0;
	t->mm = (u64)BPF_CORE_READ(bpf_get_current_task_btf(), mm);
	t->bprm = 0;
	t->signalled = 0;
	t->number = number_of(regs) | (current_abi() ? CALL_32 : 0);
	t->forked = false;
	t->closed = false;
	__builtin_memcpy(&t->call, (const void *)shape, sizeof(t->call));
}

/* Whether a system call is given a socket and an address, or may be. */
static __always_inline bool is_on_socket(u8 how)
{
	return (how >= HOW_CONNECT && how <= HOW_SENDMMSG) || how == HOW_SOCKETCALL;
}

static __always_inline u64 arg(struct task *t, u8 index)
{
	return t->args[index & (ARGS - 1)];
}

#endif
