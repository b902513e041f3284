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
#include "state.bpf.h"
#include "path.bpf.h"
#include "entry.bpf.h"
#include "dns.bpf.h"
#include "uring.bpf.h"
#include "security.bpf.h"

#define O_WRONLY 01
#define O_CREAT 0100
#define O_TRUNC 01000
#define RESOLVE_IN_ROOT 0x10 /* include/uapi/linux/openat2.h */
#define EINPROGRESS 115
#define EAGAIN 11
#define ERESTARTSYS 512 /* this to the next are the kernel's own: include/linux/errno.h */
#define ERESTARTNOINTR 513
#define ERESTARTNOHAND 514
#define PF_KTHREAD 0x00200000

/* ---- programs: system calls ---- */

SEC("tp_btf/sys_enter")
int BPF_PROG(on_sys_enter, struct pt_regs *regs, long number)
{
	const volatile struct shape *shape = shape_of(number);
	struct scratch *s;
	struct task *t;

	if (!shape)
		return 0;
	t = current_in_scope();
	if (!t)
		return 0;
	if (t->call.kind) {
		if (copy)
			return 0; /* an earlier copy has it */
		/* Its exit never came; a tracer can arrange that for a fork. */
		if (t->call.kind != KIND_SPAWN || !t->forked)
			count_loss(t->window, LOSS_SKIPPED);
	}
	call_begin(t, regs, shape);
	t->entered = true;
	s = scratch_of(HOOK_ENTER);
	if (!s)
		return 0;
	if (!t->exe)
		tell_exe(s, t);
	if (shape->name != ARG_NONE || shape->name2 != ARG_NONE || is_on_socket(shape->how))
		remember(s, t);
	return 0;
}

/* Fills in and sends the record of a system call on a socket. */
__noinline int emit_socket(struct scratch *s, struct task *t, long ret)
{
	struct sock *sk;
	u32 off = 0, told;
	s32 fd;

	if (!s || !t)
		return 0;
	fd = arg(t, 0);
	sk = sock_of(fd);
	if (t->call.how == HOW_ACCEPT)
		sk = ret < 0 ? NULL : sock_of(ret); /* nobody has come: that is no event */
	if (sk ? !is_inet(sk) && t->call.kind != KIND_CONNECT : t->call.how == HOW_ACCEPT)
		return 0;
	put_protocol(s, sk);
	s->event.value[1] = (u32)fd;
	switch (t->call.how) {
	case HOW_ACCEPT:
		off = put_sock_addr(s, off, (u64)sk, true);
		break;
	case HOW_CONNECT:
		if (t->dialed || connects_nowhere(sk, ret))
			return 0;
		if (sk && is_inet(sk) && (ret == 0 || ret == -EINPROGRESS))
			off = put_sock_addr(s, off, (u64)sk, true);
		else
			off = put_destination(s, arg(t, 1), arg(t, 2));
		if (!off)
			return 0;
		break;
	case HOW_BIND:
		if (sk && ret == 0)
			off = put_sock_addr(s, off, (u64)sk, false);
		else {
			off = put_user_addr(s, off, arg(t, 1), arg(t, 2));
			compare_early(s, 0, 0);
		}
		break;
	case HOW_LISTEN:
		s->event.value[2] = arg(t, 1);
		if (sk)
			off = put_sock_addr(s, off, (u64)sk, false);
		break;
	case HOW_SENDTO:
		if (t->dialed || emit_destinations(s, (u64)sk) || !arg(t, 4) ||
		    !sends_to_address(sk, arg(t, 3)))
			return 0;
		off = put_destination(s, arg(t, 4), arg(t, 5));
		if (!off)
			return 0;
		break;
	case HOW_SENDMSG:
		if (!t->dialed && !emit_destinations(s, (u64)sk) && sends_to_address(sk, arg(t, 2)))
			emit_messages(s, arg(t, 1), 0, 1);
		return 0;
	case HOW_SENDMMSG:
		if (t->dialed || !sends_to_address(sk, arg(t, 3)))
			return 0;
		told = emit_destinations(s, (u64)sk);
		if (told)
			s->early[0] = 0; /* that is of the first message */
		if (!told || told >= DESTINATIONS)
			emit_messages(s, arg(t, 1), told, ret > 0 ? ret : 0);
		return 0;
	}
	event_end(s, off);
	return 0;
}

__noinline int emit_call(struct scratch *s, struct task *t, long ret)
{
	u32 off = 0, next, tag = TAG_NAME;

	if (!s || !t)
		return 0;
	if (t->call.how == HOW_SOCKETCALL && !unwrap_socketcall(t))
		return 0;
	if (t->call.kind == KIND_DNS)
		return 0; /* emit_dns_call looks into it */
	s->early[0] = t->early[0];
	s->early[1] = t->early[1];
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
	case HOW_ACCEPT:
		emit_socket(s, t, ret);
		return 0;
	case HOW_CLONE3:
		/* struct clone_args starts with the flags. */
		bpf_probe_read_user(&s->event.value, 8, (void *)arg(t, 0));
		/* fallthrough */
	case HOW_ELSEWHERE:
		if (ret < 0)
			break;
		/* on_exec would have ended this call, and on_fork have left word. */
		if (t->call.kind == KIND_EXEC_FAILED || (t->call.kind == KIND_SPAWN && !t->forked))
			count_loss(t->window, LOSS_SKIPPED);
		return 0;
	case HOW_STAMP:
		return 0;
	case HOW_FD:
		off = put_file(s, off, file_at(arg(t, t->call.dir)), TAG_PATH);
		break;
	case HOW_PIDFD:
		s->event.value[2] = pid_number(pid_of(arg(t, t->call.dir)));
		break;
	case HOW_OPENAT2:
		/* struct open_how has the flags, the mode and how to resolve. */
		bpf_probe_read_user(&s->event.value, 24, (void *)arg(t, 2));
		if (s->event.value[2] & RESOLVE_IN_ROOT)
			tag |= IN_ROOT;
		/* fallthrough */
	case HOW_OPEN:
	case HOW_CREAT:
		if (t->call.how == HOW_CREAT)
			s->event.value[0] = O_CREAT | O_WRONLY | O_TRUNC;
		if (ret >= 0) {
			/* The kernel's path says it all; the caller's name is beside it. */
			struct file *file = file_of(ret);

			s->event.flags = BPF_CORE_READ(file, f_inode, i_mode);
			s->event.value[1] = BPF_CORE_READ(file, f_inode, i_sb, s_dev);
			s->event.value[2] = BPF_CORE_READ(file, f_inode, i_ino);
			off = put_file(s, off, (u64)file, TAG_PATH);
			if (t->call.name != ARG_NONE)
				off = put_string(s, off, arg(t, t->call.name), TAG_NAME);
			event_end(s, off);
			return 0;
		}
		break;
	}
	/* After an exec that failed too late, the name's address is in another program. */
	if (t->call.name != ARG_NONE && t->mm == (u64)BPF_CORE_READ(bpf_get_current_task_btf(), mm))
		off = put_name(s, off, arg(t, t->call.dir), arg(t, t->call.name), tag);
	if (t->call.dir2 == ARG_NONE && t->call.name2 != ARG_NONE) {
		next = put_string(s, off, arg(t, t->call.name2), TAG_NAME2);
		compare_early(s, off, 1);
		off = next;
	} else if (t->call.name2 != ARG_NONE) {
		off = put_name(s, off, arg(t, t->call.dir2), arg(t, t->call.name2), TAG_NAME2);
	}
	event_end(s, off);
	return 0;
}

SEC("tp_btf/sys_exit")
int BPF_PROG(on_sys_exit, struct pt_regs *regs, long ret)
{
	const volatile struct shape *shape = shape_of(number_of(regs));
	struct scratch *s;
	struct task *t;
	bool elsewhere, sends;

	if (!shape)
		return 0;
	/* No copy need see the entry into a read, as reads are not always looked at. */
	elsewhere =
	    shape->how == HOW_ELSEWHERE || shape->how == HOW_CLONE3 || shape->kind == KIND_DNS;
	t = current_in_scope();
	if (!t)
		return 0;
	if (!t->call.kind && copy == copies - 1 && !t->closed && t->entered && !elsewhere) {
		/*
		 * No copy has seen the entry. (A new process comes out of a fork that it
		 * never went into, a new program out of an exec that on_exec has ended,
		 * and a task may have been in the call when it came into scope.) A call
		 * that seccomp(2) or a tracer has refused was never entered: it is a
		 * failed attempt. If it succeeded, either such a one has made that up,
		 * or our program was skipped.
		 */
		if (ret < 0)
			call_begin(t, regs, shape);
		else if (copies > 1)
			count_loss(READ_ONCE(current_window), LOSS_SKIPPED);
	}
	if (t->call.kind) {
		s = scratch_of(HOOK_EXIT);
		sends = is_on_socket(t->call.how);
		/* A fork that a signal has kept from happening is always made again. */
		if (s && ret != -ERESTARTNOINTR)
			emit_call(s, t, ret);
		if (s && READ_ONCE(dns_in_use) && carries_messages(t->call.how))
			emit_dns_call(s, t, ret);
		if (sends)
			forget();
		t->call.kind = 0;
		t->closed = true;
		t->restarts = ret <= -ERESTARTSYS && ret >= -ERESTARTNOHAND;
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
		new->exe = t->exe;
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
	u32 off = 0, name_off, *start_of_name;
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
	t->exe = __sync_fetch_and_add(&last_exe, 1) + 1; /* this record tells what it is */
	event_begin(s, t, KIND_EXEC);
	t->call.kind = 0;
	s->event.value[0] = BPF_CORE_READ(bprm, argc);
	name = BPF_CORE_READ(bprm, filename);
	if (BPF_CORE_READ(bprm, interp) != name)
		s->event.flags |= EVENT_SCRIPT;
	if (!BPF_CORE_READ(bprm, file, f_inode, i_nlink))
		s->event.flags |= EVENT_FILELESS;
	off = put_file(s, off, (u64)BPF_CORE_READ(bprm, file), TAG_PATH);

	name_off = off;
	n = bpf_probe_read_kernel_str(tail_at(s, off + sizeof(struct section)), PATH_LEN, name);
	off = section_end(s, off, n > 0 ? n - 1 : 0, TAG_NAME, n > 0 ? 0 : SECTION_UNREADABLE);
	start_of_name = (u32 *)tail_at(s, name_off + sizeof(struct section));
	if (start_of_name[0] == 0x7665642f && start_of_name[1] == 0x2f64662f)
		/* "/dev/fd/" is what execveat(2) puts before the number of its directory. */
		off = put_start(s, off, 0, t->args[0], TAG_DIR);
	else
		off = put_start(s, off, *(u8 *)start_of_name, AT_FDCWD, TAG_DIR);

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
	if (!event_send(s, off)) {
		count_loss(s->event.window, LOSS_RING_FULL);
		t->exe = 0;
	}
	return 0;
}

/* ---- programs: connections ---- */

/* In the caller's own context a TCP connection leaves CLOSED with its destination set. */
SEC("tp_btf/inet_sock_set_state")
int BPF_PROG(on_set_state, struct sock *sk, int from, int to)
{
	struct sock *asked;
	struct scratch *s;
	struct task *t;
	u64 address;
	u32 off;

	/* MPTCP connects through a TCP socket of its own, and has no destination itself. */
	if (from != TCP_CLOSE || to != TCP_SYN_SENT || sk->sk_protocol == IPPROTO_MPTCP)
		return 0;
	t = current_in_scope();
	if (!t || (copy && (t->dialed || !t->call.kind)))
		return 0; /* not in scope, or an earlier copy has it */
	if (t->call.kind == KIND_URING_ENTER)
		return 0; /* on_uring_submit has it */
	s = scratch_of(HOOK_STATE);
	if (!s)
		return 0;
	event_begin(s, t, KIND_CONNECT);
	if (t->call.how == HOW_SOCKETCALL)
		unwrap_socketcall(t);
	asked = t->call.kind == KIND_CONNECT ? sock_of(arg(t, 0)) : NULL;
	put_protocol(s, asked && is_inet(asked) ? asked : sk);
	/* A trusted pointer is not to be had as a number otherwise. */
	bpf_probe_read_kernel(&address, sizeof(address), &sk);
	off = put_sock_addr(s, 0, address, true);
	event_end(s, off);
	t->dialed = true;
	return 0;
}

/* ---- programs: messages ---- */

/* Where a message goes that is on its way, in the context of its sender. */
static __always_inline int note_destination(struct bpf_sock_addr *ctx, bool v6)
{
	u64 task = (u64)bpf_get_current_task();
	struct destinations *d = bpf_map_lookup_elem(&sending, &task);
	struct sockaddr *addr;
	u32 next;

	if (!d)
		return 1; /* which allows it, as always */
	next = d->count;
	if (next >= DESTINATIONS)
		return 1;
	d->count = next + 1;
	addr = &d->address[next];
	addr->family = v6 ? AF_INET6 : AF_INET;
	addr->port = ctx->user_port;
	if (v6) {
		u32 *to = (u32 *)&addr->v6;

		to[0] = ctx->user_ip6[0];
		to[1] = ctx->user_ip6[1];
		to[2] = ctx->user_ip6[2];
		to[3] = ctx->user_ip6[3];
	} else {
		addr->v4 = ctx->user_ip4;
	}
	return 1;
}

SEC("cgroup/sendmsg4")
int on_udp4(struct bpf_sock_addr *ctx)
{
	return note_destination(ctx, false);
}

SEC("cgroup/sendmsg6")
int on_udp6(struct bpf_sock_addr *ctx)
{
	return note_destination(ctx, true);
}

/* ---- programs: io_uring ---- */

/*
 * The request is the first argument since Linux 6.0, the second before (48863ffd3e81).
 * The tracepoint was io_uring_submit_sqe before 6.4.
 */
SEC("raw_tp/io_uring_submit_req")
int BPF_PROG(on_uring_submit, u64 first, u64 second)
{
	u64 req = bpf_core_field_exists(struct io_kiocb, cmd) ? first : second;
	u8 op = BPF_CORE_READ((struct io_kiocb *)req, opcode);
	struct scratch *s;
	struct task *t;
	bool worker;

	if (op >= URING_OPS || !uring_ops[op].kind)
		return 0;
	t = owner_in_scope(&worker);
	if (!t)
		return 0;
	if (uring_ops[op].kind == KIND_URING_CLOSE) {
		__sync_fetch_and_add(&uring_closes, 1);
		return 0;
	}
	if (copy && t->submitted == req) {
		if (copy == copies - 1)
			t->submitted = 0;
		return 0; /* an earlier copy has it */
	}
	t->submitted = copy == copies - 1 ? 0 : req;
	s = scratch_of(HOOK_URING);
	if (!s)
		return 0;
	event_begin(s, t, uring_ops[op].kind);
	s->event.call = CALL_URING | op;
	if (worker)
		event_of_worker(s);
	/* One of which success is not told is not held: its request may be another one soon. */
	s->event.flags = BPF_CORE_READ((struct io_kiocb *)req, flags) & REQ_F_CQE_SKIP
			     ? EVENT_PENDING
			     : EVENT_HELD;
	s->event.ret = req;
	emit_request(s, req, uring_ops[op].how);
	return 0;
}

/* Before 5.19, where the request is not among the arguments, no result is known. */
SEC("raw_tp/io_uring_complete")
int BPF_PROG(on_uring_complete, u64 ctx_, u64 req)
{
	struct scratch *s;
	struct task *t;
	bool worker;
	u8 op;

	if (!req || !bpf_core_field_exists(struct io_kiocb, cqe))
		return 0;
	op = BPF_CORE_READ((struct io_kiocb *)req, opcode);
	if (op >= URING_OPS || !uring_ops[op].kind || uring_ops[op].kind == KIND_URING_CLOSE)
		return 0;
	t = owner_in_scope(&worker);
	if (!t)
		return 0;
	s = scratch_of(HOOK_URING);
	if (!s)
		return 0;
	event_begin(s, t, KIND_URING_DONE);
	s->event.call = CALL_URING | op;
	emit_done(s, req, uring_ops[op].kind);
	return 0;
}

/* ---- programs: signals ---- */

/* A signal to a process that is not in scope, from one that is and means it. */
SEC("tp_btf/signal_generate")
int BPF_PROG(on_signal, int signal, struct kernel_siginfo *info, struct task_struct *target)
{
	struct task *t = current_in_scope();
	struct scratch *s;

	/* SEND_SIG_PRIV is 1; what the kernel sends for an event has a code above 0. */
	if (!t || (u64)info == 1 || (info && BPF_CORE_READ(info, si_code) > 0))
		return 0;
	if (t->call.kind != KIND_SIGNAL || t->signalled == (u64)target)
		return 0; /* sent by the way, as SIGPIPE is; or an earlier copy has it */
	if (in_scope(bpf_task_storage_get(&tasks, target, 0, 0)))
		return 0;
	t->signalled = (u64)target;
	s = scratch_of(HOOK_SIGNAL);
	if (!s)
		return 0;
	event_begin(s, t, KIND_SIGNAL);
	s->event.value[0] = tgid_of(target);
	s->event.value[1] = signal;
	event_end(s, 0);
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
	self_mnt_ns = BPF_CORE_READ(task, nsproxy, mnt_ns, ns.inum);
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
 * Without a generation it writes, for each task in scope, what its next record can
 * name: the window of the system call that it is in, its origin, and its program.
 */
SEC("iter/task")
int take_in(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	u64 live[3];
	struct task *t;
	u32 pid;

	if (!task || (task->flags & (PF_KTHREAD | PF_IO_WORKER)) || task->tgid == self_tgid)
		return 0;
	if (!wanted_generation) {
		t = bpf_task_storage_get(&tasks, task, 0, 0);
		if (!in_scope(t))
			return 0;
		live[0] = t->call.kind ? t->window : 0;
		live[1] = t->origin;
		live[2] = t->exe;
		bpf_seq_write(ctx->meta->seq, live, sizeof(live));
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
	} else {
		taken_uid = BPF_CORE_READ(task, cred, uid.val);
	}
	t = bpf_task_storage_get(&tasks, task, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!t) {
		refused_tasks++;
		count_loss(READ_ONCE(current_window), LOSS_NO_MEMORY);
		return 0;
	}
	if (t->generation == wanted_generation)
		return 0;
	if (t->generation < READ_ONCE(current_generation)) {
		/* What is known of its system call is from before it left a scope. */
		t->call.kind = 0;
		t->entered = false;
	}
	t->pid = tgid_of(task);
	t->tid = pid_number(BPF_CORE_READ(task, thread_pid));
	t->watched = false;
	t->generation = wanted_generation;
	taken_tasks++;
	taken_processes += task->pid == task->tgid;
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
