/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * What another thread may change while the kernel works with it: names and addresses
 * in the caller's memory. Where nothing tells which of them the kernel used, they
 * are read at the entry (entry.bpf.h) and at the exit, and compared.
 */
#ifndef __EARLY_BPF_H__
#define __EARLY_BPF_H__

#include "build.bpf.h"

/* A checksum under construction, over words in a tail. */
struct checksum {
	struct scratch *s;
	u32 at;
	u32 len;
	u64 sum;
};

static long checksum_step(u32 step, struct checksum *c)
{
	u32 word = *(u32 *)tail_at(c->s, c->at + 4 * step), left = c->len - 4 * step;

	if (left < 4)
		word &= (1 << 8 * left) - 1;
	c->sum = (c->sum ^ word) * 0x100000001b3; /* FNV-1a, a word at a time */
	return 0;
}

/* The checksum of the section at off, which is never zero; or zero if it could not be read. */
__noinline u64 checksum_of(struct scratch *s, u32 off)
{
	struct checksum c = {.s = s, .at = off + sizeof(struct section), .sum = 0xcbf29ce484222325};
	struct section *section;

	if (!s)
		return 0;
	section = (struct section *)tail_at(s, off & ~3);
	if (section->flags & SECTION_UNREADABLE)
		return 0;
	c.len = section->len;
	if (bpf_core_enum_value_exists(enum bpf_func_id, BPF_FUNC_loop)) {
		bpf_loop((c.len + 3) / 4, checksum_step, &c, 0);
	} else {
		for (u32 i = 0; i < PATH_STEPS_OLD && 4 * i < c.len; i++)
			checksum_step(i, &c);
	}
	return c.sum | 1;
}

/* Notes in the record if the section at off is not what it was at the entry. */
static __always_inline void compare_early(struct scratch *s, u32 off, u32 which)
{
	if (s->early[which] && checksum_of(s, off) != s->early[which])
		s->event.flags |= EVENT_RACED;
	s->early[which] = 0;
}

#endif
