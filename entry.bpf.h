/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* What is kept of a system call from its entry, for the exit to compare with and to use. */
#ifndef __ENTRY_BPF_H__
#define __ENTRY_BPF_H__

#include "socket.bpf.h"

/* The address that a system call on a socket is given. */
static __always_inline u32 put_given_addr(struct scratch *s, struct task *t)
{
	struct message m = {};

	switch (t->call.how) {
	case HOW_CONNECT:
	case HOW_BIND:
		return put_user_addr(s, 0, arg(t, 1), arg(t, 2));
	case HOW_SENDTO:
		return arg(t, 4) ? put_user_addr(s, 0, arg(t, 4), arg(t, 5)) : 0;
	case HOW_SENDMSG:
	case HOW_SENDMMSG:
		read_message(&m, arg(t, 1));
		return m.name ? put_user_addr(s, 0, m.name, m.namelen) : 0;
	}
	return 0;
}

/* Keeps checksums of what the task gives the kernel, and awaits where its messages go. */
__noinline int remember(struct scratch *s, struct task *t)
{
	struct destinations d = {};
	u64 task;

	if (!s || !t)
		return 0;
	t->early[0] = t->early[1] = 0;
	switch (t->call.how) {
	case HOW_SENDTO:
	case HOW_SENDMSG:
	case HOW_SENDMMSG:
	case HOW_SOCKETCALL:
		task = (u64)bpf_get_current_task();
		if (udp_hooked)
			bpf_map_update_elem(&sending, &task, &d, 0);
		/* fallthrough */
	case HOW_CONNECT:
	case HOW_BIND:
		if (put_given_addr(s, t))
			t->early[0] = checksum_of(s, 0);
		return 0;
	case HOW_OPEN: /* the file that was opened has its path */
	case HOW_OPENAT2:
	case HOW_CREAT:
		return 0;
	}
	if (t->call.name != ARG_NONE) {
		put_string(s, 0, arg(t, t->call.name), TAG_NAME);
		t->early[0] = checksum_of(s, 0);
	}
	if (t->call.name2 != ARG_NONE) {
		put_string(s, 0, arg(t, t->call.name2), TAG_NAME2);
		t->early[1] = checksum_of(s, 0);
	}
	return 0;
}

static __always_inline void forget(void)
{
	u64 task = (u64)bpf_get_current_task();

	if (udp_hooked)
		bpf_map_delete_elem(&sending, &task);
}

#endif
