/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * Sockets and addresses: where a connection goes, as the kernel has it or as the
 * caller says.
 */
#ifndef __SOCKET_BPF_H__
#define __SOCKET_BPF_H__

#include "path.bpf.h"

#define AF_UNIX 1
#define AF_INET 2
#define AF_INET6 10
#define IPPROTO_TCP 6
#define IPPROTO_MPTCP 262
#define MSG_FASTOPEN 0x20000000
#define EALREADY 114
#define SOCK_RAW 3
#define TCP_SYN_SENT 2
#define TCP_CLOSE 7
#define DNS_PORT __builtin_bswap16(53)
#define ADDR_LEN 128 /* struct sockaddr_storage */
#define SOCKFS_MAGIC 0x534F434B

/* The socket behind a file, or NULL if there is none. */
static __always_inline struct sock *sock_in(struct file *file)
{
	struct socket *socket;

	/* Every socket's inode lives in sockfs, and nothing else does. */
	if (!file || BPF_CORE_READ(file, f_inode, i_sb, s_magic) != SOCKFS_MAGIC)
		return NULL;
	socket = BPF_CORE_READ(file, private_data);
	return BPF_CORE_READ(socket, sk);
}

static __always_inline struct sock *sock_of(s32 fd)
{
	return sock_in(file_of(fd));
}

static __always_inline bool is_inet(struct sock *sk)
{
	u16 family = BPF_CORE_READ(sk, __sk_common.skc_family);

	return family == AF_INET || family == AF_INET6;
}

static __always_inline bool is_unix(struct sock *sk)
{
	return BPF_CORE_READ(sk, __sk_common.skc_family) == AF_UNIX;
}

/* Appends the address that the socket is bound to or, if peer, connected to. */
__noinline u32 put_sock_addr(struct scratch *s, u32 off, u64 sock_address, u32 peer)
{
	struct sock *sk = (struct sock *)sock_address;
	struct sockaddr addr = {};
	u16 port;

	if (!s)
		return off;
	addr.family = BPF_CORE_READ(sk, __sk_common.skc_family);
	if (peer) {
		addr.port = BPF_CORE_READ(sk, __sk_common.skc_dport);
	} else {
		port = BPF_CORE_READ(sk, __sk_common.skc_num);
		if (BPF_CORE_READ(sk, sk_type) != SOCK_RAW) /* there it is the protocol */
			addr.port = __builtin_bswap16(port);
	}
	if (addr.family == AF_INET)
		addr.v4 = peer ? BPF_CORE_READ(sk, __sk_common.skc_daddr)
			       : BPF_CORE_READ(sk, __sk_common.skc_rcv_saddr);
	else if (peer)
		BPF_CORE_READ_INTO(&addr.v6, sk, __sk_common.skc_v6_daddr);
	else
		BPF_CORE_READ_INTO(&addr.v6, sk, __sk_common.skc_v6_rcv_saddr);
	if (peer && addr.port == DNS_PORT)
		dns_in_use = true;
	__builtin_memcpy(tail_at(s, off + sizeof(struct section)), &addr, sizeof(addr));
	return section_end(s, off, sizeof(addr), TAG_ADDR, 0);
}

/* Ends the section of an address that was read with this result. */
static __always_inline u32 addr_end(struct scratch *s, u32 off, u32 len, long error)
{
	return section_end(s, off, error ? 0 : len, TAG_ADDR, error ? SECTION_UNREADABLE : 0);
}

/* Appends an address of the caller's; longer ones than sockaddr_storage do not exist. */
__noinline u32 put_user_addr(struct scratch *s, u32 off, u64 address, u32 len)
{
	if (!s)
		return off;
	if (len > ADDR_LEN)
		len = ADDR_LEN;
	return addr_end(
	    s, off, len,
	    bpf_probe_read_user(tail_at(s, off + sizeof(struct section)), len, (void *)address));
}

/* Appends an address that the kernel has taken over. */
__noinline u32 put_kernel_addr(struct scratch *s, u32 off, u64 address, u32 len)
{
	if (!s)
		return off;
	if (len > ADDR_LEN)
		len = ADDR_LEN;
	return addr_end(
	    s, off, len,
	    bpf_probe_read_kernel(tail_at(s, off + sizeof(struct section)), len, (void *)address));
}

/* The protocol, type and family of a socket, 16 bits each. */
static __always_inline u64 protocol_of(struct sock *sk)
{
	return BPF_CORE_READ(sk, sk_protocol) | (u64)BPF_CORE_READ(sk, sk_type) << 16 |
	       (u64)BPF_CORE_READ(sk, __sk_common.skc_family) << 32;
}

static __always_inline void put_protocol(struct scratch *s, struct sock *sk)
{
	if (sk)
		s->event.value[0] = protocol_of(sk);
}

/* Whether an address is the one that the socket is connected to. */
static __always_inline bool is_peer(struct sock *sk, struct sockaddr *addr)
{
	struct in6_addr peer;

	if (!sk || addr->port != BPF_CORE_READ(sk, __sk_common.skc_dport))
		return false;
	if (addr->family == AF_INET)
		return addr->v4 == BPF_CORE_READ(sk, __sk_common.skc_daddr);
	BPF_CORE_READ_INTO(&peer, sk, __sk_common.skc_v6_daddr);
	return !__builtin_memcmp(&peer, &addr->v6, sizeof(peer));
}

/* Sends the record of one of them, unless it is the peer of the socket, which has been told. */
__noinline int emit_destination(struct scratch *s, u64 sock, u32 i)
{
	u64 task = (u64)bpf_get_current_task();
	struct destinations *d = bpf_map_lookup_elem(&sending, &task);
	struct sockaddr *addr;

	if (!s || !d || i >= DESTINATIONS)
		return 0;
	addr = &d->address[i];
	if (addr->port == DNS_PORT)
		dns_in_use = true;
	if (is_peer((struct sock *)sock, addr))
		return 0;
	__builtin_memcpy(tail_at(s, sizeof(struct section)), addr, sizeof(*addr));
	event_end(s, section_end(s, 0, sizeof(*addr), TAG_ADDR, 0));
	return 0;
}

/*
 * Sends a record for each address to which the kernel has sent a message in this system
 * call. Returns how many there are, DESTINATIONS for that many or more.
 */
__noinline u32 emit_destinations(struct scratch *s, u64 sock)
{
	u64 task = (u64)bpf_get_current_task();
	struct destinations *d = bpf_map_lookup_elem(&sending, &task);
	u32 count;

	if (!s || !d)
		return 0;
	count = d->count;
	for (u32 i = 0; i < DESTINATIONS && i < count; i++)
		emit_destination(s, sock, i);
	return count;
}

/*
 * Makes of an address, which is the first section and ends at off, where a connection
 * or message goes, and returns the end of it; or zero for nowhere in particular. The
 * protocol of the socket must be there already.
 */
static __always_inline u32 settle_destination(struct scratch *s, u32 off, u32 len)
{
	u16 *family = (u16 *)tail_at(s, sizeof(struct section)), own = s->event.value[0] >> 32;
	u16 type = s->event.value[0] >> 16;

	/*
	 * IPv4, and raw IPv6, take an address without a family for one of their own
	 * (udp_sendmsg, raw_sendmsg, rawv6_sendmsg); UDP over IPv6 for the peer.
	 */
	if (len >= sizeof(*family) && *family == AF_UNIX) {
		s->event.kind = KIND_UNIX_CONNECT;
		return put_start(s, off, *tail_at(s, sizeof(struct section) + sizeof(*family)),
				 AT_FDCWD, TAG_DIR);
	}
	if (len >= sizeof(*family) && *family && *family != AF_INET && *family != AF_INET6)
		s->event.kind = KIND_SOCKET_CONNECT;
	else if (len >= 2 * sizeof(*family) && family[1] == DNS_PORT)
		dns_in_use = true;
	if (len >= sizeof(*family) && !*family) {
		if (own == AF_INET6 && type != SOCK_RAW)
			return 0;
		*family = own;
	}
	return off;
}

/* Appends where a connection or message goes that the caller has an address of. */
__noinline u32 put_destination(struct scratch *s, u64 address, u32 len)
{
	u32 off;

	if (!s)
		return 0;
	off = put_user_addr(s, 0, address, len);
	compare_early(s, 0, 0);
	return settle_destination(s, off, len);
}

/* Appends where a connection or message goes of which the kernel has taken over the address. */
__noinline u32 put_kernel_destination(struct scratch *s, u64 address, u32 len)
{
	if (!s)
		return 0;
	return settle_destination(s, put_kernel_addr(s, 0, address, len), len);
}

static __always_inline bool is_tcp(struct sock *sk)
{
	u16 protocol = BPF_CORE_READ(sk, sk_protocol);

	return protocol == IPPROTO_TCP || protocol == IPPROTO_MPTCP;
}

/*
 * Whether a connect that on_set_state has not seen makes no connection: it dissolves
 * one (AF_UNSPEC), or asks after one that is under way or made.
 */
static __always_inline bool connects_nowhere(struct sock *sk, long ret)
{
	bool closed;

	if (!sk || ret == -EALREADY)
		return sk != NULL;
	closed = BPF_CORE_READ(sk, __sk_common.skc_state) == TCP_CLOSE;
	if (is_tcp(sk))
		return !closed || ret == 0;
	return closed && ret == 0;
}

/* Whether a message to an address on that socket goes to the address. */
static __always_inline bool sends_to_address(struct sock *sk, u64 flags)
{
	if (!sk)
		return true; /* a failed attempt: the address is all there is */
	/* Without MSG_FASTOPEN, TCP takes no notice of it. */
	return is_tcp(sk) ? flags & MSG_FASTOPEN : true;
}

/* What a struct msghdr of the caller's starts with. */
struct message {
	u64 name;
	u64 namelen;
	u64 iov;
	u64 pieces;
};

/* A word of an array or structure of words in the caller's memory, in its ABI. */
__noinline u64 user_word(u64 address, u32 index)
{
	u64 word = 0;

	if (current_abi())
		bpf_probe_read_user(&word, 4, (void *)(address + 4 * index));
	else
		bpf_probe_read_user(&word, 8, (void *)(address + 8 * index));
	return word;
}

static __always_inline void read_message(struct message *m, u64 address)
{
	m->name = user_word(address, 0);
	m->namelen = (u32)user_word(address, 1);
	m->iov = user_word(address, 2);
	m->pieces = user_word(address, 3);
}

/* Where the i-th struct mmsghdr is: a struct msghdr of seven words, and the length of what has
 * gone. */
static __always_inline u64 mmsghdr_at(u64 address, u32 i)
{
	return address + i * (current_abi() ? 32 : 64);
}

/* The messages of a sendmmsg, of which the first sent ones have left. */
struct messages {
	struct scratch *s;
	u64 address;
	u32 first; /* those before are told already */
	u32 sent;
};

/* Sends the record of a message that is for an address. */
static long emit_message(u32 i, struct messages *m)
{
	struct message msg;
	u32 off;

	i += m->first;
	if (i && i >= m->sent)
		return 1; /* the first one is of interest even if it failed */
	read_message(&msg, mmsghdr_at(m->address, i));
	if (msg.name && (s32)msg.namelen > 0) {
		off = put_destination(m->s, msg.name, msg.namelen);
		if (off)
			event_end(m->s, off);
	} else if (!i && m->s->early[0]) {
		/* There was an address when the kernel began. */
		m->s->event.flags |= EVENT_RACED;
		event_end(m->s, 0);
		m->s->early[0] = 0;
	}
	m->s->event.flags = 0;
	return 0;
}

__noinline int emit_messages(struct scratch *s, u64 address, u32 first, u32 sent)
{
	struct messages m = {.s = s, .address = address, .first = first, .sent = sent};

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

/* Puts what a socketcall(2) stands for in its place; false if that is not watched. */
static __always_inline bool unwrap_socketcall(struct task *t)
{
	const volatile struct shape *shape;
	u32 call = arg(t, 0), args[6] = {};
	void *from = (void *)arg(t, 1);

	if (call >= SYSCALLS - SOCKETCALL_BASE)
		return false;
	asm volatile("%0 &= 31" : "+r"(call)); /* for the verifier */
	shape = &shapes[1][SOCKETCALL_BASE + call];
	if (!shape->kind)
		return false;
	/* Calls have two to six arguments, and nothing need be mapped behind them. */
	if (bpf_probe_read_user(args, 24, from) && bpf_probe_read_user(args, 16, from) &&
	    bpf_probe_read_user(args, 12, from))
		bpf_probe_read_user(args, 8, from);
	for (u32 i = 0; i < 6; i++)
		t->args[i] = args[i];
	__builtin_memcpy(&t->call, (const void *)shape, sizeof(t->call));
	return true;
}

#endif
