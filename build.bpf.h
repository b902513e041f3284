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
