/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * Building a record: begun with who did it, ended by sending it, with sections
 * appended in between.
 */
#ifndef __BUILD_BPF_H__
#define __BUILD_BPF_H__

#include "state.bpf.h"

static __always_inline struct scratch *scratch_of(enum hook hook)
{
	u32 index = (bpf_get_smp_processor_id() * copies + copy) * HOOKS + hook;

	return bpf_map_lookup_elem(&scratches, &index);
}

static __always_inline void event_begin(struct scratch *s, struct task *t, u32 kind)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct event *e = &s->event;

	/* Scratch memory is reused: what is not set below must not be the last record's. */
	__builtin_memset(e, 0, sizeof(*e));
	e->kind = kind;
	e->pid = t->pid;
	e->tid = t->tid;
	e->ppid = tgid_of(BPF_CORE_READ(task, real_parent));
	e->exe = t->exe;
	e->origin = t->origin;
	e->uid = bpf_get_current_uid_gid();
	if (t->call.kind) {
		e->call = t->number;
		e->ts_ns = t->ts_ns;
		e->window = t->window;
	} else {
		e->ts_ns = bpf_ktime_get_boot_ns();
		e->window = READ_ONCE(current_window);
	}
	bpf_get_current_comm(e->comm, sizeof(e->comm));
}

/*
 * Makes of the record of a process's leader one of a thread of the kernel's that
 * works for it, which is in no system call.
 */
static __always_inline void event_of_worker(struct scratch *s)
{
	struct task_struct *leader = BPF_CORE_READ(bpf_get_current_task_btf(), group_leader);
	struct event *e = &s->event;

	e->ts_ns = bpf_ktime_get_boot_ns();
	e->window = READ_ONCE(current_window);
	bpf_core_read(e->comm, sizeof(e->comm), &leader->comm);
}

/* Sends the record; returns whether there was room for it. */
static __always_inline bool event_send(struct scratch *s, u32 len)
{
	u64 size;

	/* bpf_ringbuf_output takes no length that the verifier cannot bound. */
	asm volatile("%0 &= 0x7fff" : "+r"(len));
	s->event.len = len;
	size = sizeof(struct event) + len;
	return bpf_ringbuf_query(&events, BPF_RB_AVAIL_DATA) + size + ring_headroom <= ring_size &&
	       !bpf_ringbuf_output(&events, s, size, 0);
}

static __always_inline void event_end(struct scratch *s, u32 len)
{
	if (!event_send(s, len))
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

#endif
