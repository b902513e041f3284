/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * Messages to and from servers of names (port 53), as they are in the memory of the
 * one who asks: once sent, or once received.
 */
#ifndef __DNS_BPF_H__
#define __DNS_BPF_H__

#include "socket.bpf.h"

/*
 * Pieces that a message is gathered from. A system call can have a million of them, and
 * nothing else runs on the CPU meanwhile: what is behind these is cut.
 */
#define DNS_PIECES 64
#define DNS_PIECES_OLD 16 /* where there is no bpf_loop */

/* Puts len bytes at a place in the tail; returns how many are there, all or none. */
__noinline u32 put_bytes(struct scratch *s, u32 at, u64 from, u32 len)
{
	if (!s || len > DNS_LEN)
		return 0;
	return bpf_probe_read_user(tail_at(s, at), len, (void *)from) ? 0 : len;
}

/* A message that is gathered from pieces. */
struct gathering {
	struct scratch *s;
	u64 from;
	u32 pieces;
	u32 at;
	u32 left;
};

static long gather_piece(u32 i, struct gathering *g)
{
	u32 n;

	if (i >= g->pieces || !g->left)
		return 1;
	n = user_word(g->from, 2 * i + 1);
	if (n > g->left)
		n = g->left;
	n = put_bytes(g->s, g->at, user_word(g->from, 2 * i), n);
	g->at += n;
	g->left -= n;
	return 0;
}

/* Appends len bytes from a buffer, or if pieces is not zero, from as many struct iovec. */
__noinline u32 put_data(struct scratch *s, u32 off, u64 from, u32 pieces, u64 len)
{
	u32 start = off + sizeof(struct section);
	struct gathering g = {.s = s,
			      .from = from,
			      .pieces = pieces,
			      .at = start,
			      .left = len > DNS_LEN ? DNS_LEN : len};

	if (!s)
		return off;
	if (!pieces) {
		g.at += put_bytes(s, start, from, g.left);
	} else if (bpf_core_enum_value_exists(enum bpf_func_id, BPF_FUNC_loop)) {
		bpf_loop(DNS_PIECES, gather_piece, &g, 0);
	} else {
		for (u32 i = 0; i < DNS_PIECES_OLD; i++)
			if (gather_piece(i, &g))
				break;
	}
	return section_end(s, off, g.at - start, TAG_DATA, g.at - start < len ? SECTION_CUT : 0);
}

/* Appends the address of a server, of which no more may be mapped than one of IPv4 takes. */
static __always_inline u32 put_server(struct scratch *s, u64 address, u32 len)
{
	u32 off = put_user_addr(s, 0, address, len);

	if (((struct section *)s->tail)->flags & SECTION_UNREADABLE)
		off = put_user_addr(s, 0, address, 16);
	return off;
}

/*
 * Sends the record of one message of len bytes, if its other end is a server of
 * names: the one that the socket is connected to, or the one in the address. Returns
 * whether it is.
 */
__noinline int emit_dns(struct scratch *s, struct task *t, u64 sock, struct message *m, u64 len)
{
	struct sock *sk = (struct sock *)sock;
	u32 off;

	if (!s || !t || !m)
		return 0;
	event_begin(s, t, KIND_DNS);
	put_protocol(s, sk);
	s->event.value[1] = t->call.how >= HOW_RECV && t->call.how <= HOW_READV; /* received */
	if (BPF_CORE_READ(sk, __sk_common.skc_dport))
		off = put_sock_addr(s, 0, sock, true);
	else if (m->name)
		off = put_server(s, m->name, m->namelen);
	else
		return 0;
	if (((u16 *)tail_at(s, sizeof(struct section)))[1] != DNS_PORT)
		return 0;
	off = put_data(s, off, m->iov, m->pieces, len);
	event_end(s, off);
	return 1;
}

/* The messages of a sendmmsg or recvmmsg. */
struct dns_messages {
	struct scratch *s;
	struct task *t;
	u64 sock;
	u64 address;
	u32 count;
	u32 told;
};

static long emit_dns_message(u32 i, struct dns_messages *d)
{
	u64 address = mmsghdr_at(d->address, i);
	struct message m;
	u32 len = 0;

	if (i >= d->count)
		return 1;
	read_message(&m, address);
	bpf_probe_read_user(&len, 4, (void *)(address + (current_abi() ? 28 : 56)));
	d->told += emit_dns(d->s, d->t, d->sock, &m, len);
	return 0;
}

/* Counts the messages that were not looked at, if there is one for a server of names among the
 * others. */
static __always_inline void count_skipped(struct dns_messages *d, u32 seen)
{
	if (d->told && d->count > seen)
		count_losses(d->t->window, LOSS_SKIPPED, d->count - seen);
}

/* Whether a system call sends or receives. */
static __always_inline bool carries_messages(u8 how)
{
	return (how >= HOW_SENDTO && how <= HOW_SENDMMSG) || how >= HOW_RECV;
}

/* Sends the records of the messages of a system call that went well. */
__noinline int emit_dns_call(struct scratch *s, struct task *t, long ret)
{
	struct dns_messages d = {};
	struct message m = {};
	struct sock *sk;

	if (!s || !t || ret <= 0)
		return 0;
	sk = sock_of(arg(t, 0));
	if (!sk || !is_inet(sk))
		return 0;
	switch (t->call.how) {
	case HOW_SENDTO:
	case HOW_RECV:
	case HOW_WRITE:
		m.iov = arg(t, 1);
		m.name = arg(t, t->call.how == HOW_SENDTO ? 4 : t->call.value[0]);
		m.namelen = sizeof(struct sockaddr);
		break;
	case HOW_SENDMSG:
	case HOW_RECVMSG:
		read_message(&m, arg(t, 1));
		break;
	case HOW_READV:
	case HOW_WRITEV:
		m.iov = arg(t, 1);
		m.pieces = arg(t, 2);
		break;
	case HOW_SENDMMSG:
	case HOW_RECVMMSG:
		d.s = s;
		d.t = t;
		d.sock = (u64)sk;
		d.address = arg(t, 1);
		d.count = ret;
		if (bpf_core_enum_value_exists(enum bpf_func_id, BPF_FUNC_loop)) {
			bpf_loop(DNS_MESSAGES, emit_dns_message, &d, 0);
			count_skipped(&d, DNS_MESSAGES);
			return 0;
		}
		for (u32 i = 0; i < DNS_MESSAGES_OLD; i++)
			emit_dns_message(i, &d);
		count_skipped(&d, DNS_MESSAGES_OLD);
		return 0;
	default:
		return 0;
	}
	emit_dns(s, t, (u64)sk, &m, ret);
	return 0;
}

#endif
