/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * io_uring: system calls that no system call makes. A request is seen when it is
 * submitted, with the names that the kernel has taken over by then, and again when
 * it is done; Go joins the two (uring_ebpf.go), since names are gone by then.
 */
#ifndef __URING_BPF_H__
#define __URING_BPF_H__

#include "socket.bpf.h"

/* include/linux/io_uring_types.h, all kernels since 5.17 */
#define REQ_F_FIXED_FILE (1 << 0)
#define REQ_F_CQE_SKIP (1 << 6)

/* The address of the struct filename in a request of that type. */
#define NAME_OF(req, type, field)                                                                  \
	(bpf_core_type_exists(struct delayed_filename)                                             \
	     ? (u64)BPF_CORE_READ((struct type##___7 *)req, field.__incomplete_filename)           \
	     : (u64)BPF_CORE_READ((struct type *)req, field))

/* The socket of a request that has not been looked at yet, if it is a descriptor's. */
static __always_inline struct sock *request_sock(struct io_kiocb *req)
{
	if (!bpf_core_field_exists(req->cqe) || (BPF_CORE_READ(req, flags) & REQ_F_FIXED_FILE))
		return NULL;
	return sock_of(BPF_CORE_READ(req, cqe.fd));
}

/* Whether addresses are taken over from the caller when a request is prepared, as since 6.10. */
static __always_inline bool takes_over(void)
{
	return bpf_core_field_exists(struct io_sr_msg, notif) &&
	       !bpf_core_field_exists(struct io_sr_msg, addr);
}

/*
 * Where the kernel has taken the address of a connect or bind over to: the state of the
 * request is either that of a message or, in newer kernels, the address itself. What
 * a message's starts with is a pointer, which no family's number can be taken for
 * that is not a multiple of eight, as AF_NETLINK's.
 */
static __always_inline u64 taken_address(struct io_kiocb *req)
{
	u64 state = (u64)BPF_CORE_READ(req, async_data), in_message;
	u16 family = 0;

	in_message = state + bpf_core_field_offset(struct io_async_msghdr, addr);
	bpf_probe_read_kernel(&family, sizeof(family), (void *)state);
	if (family & 7)
		return state;
	bpf_probe_read_kernel(&family, sizeof(family), (void *)in_message);
	return family && family < 64 ? in_message : state;
}

/* Appends where a message goes that was submitted, or returns zero if that is nothing new. */
static __always_inline u32 put_message(struct scratch *s, struct io_kiocb *req, struct sock *sk,
				       bool msg)
{
	struct io_sr_msg *sr = (struct io_sr_msg *)req;
	struct io_async_msghdr *async;
	struct message m = {};

	if (!sends_to_address(sk, BPF_CORE_READ(sr, msg_flags)))
		return 0;
	if (takes_over()) {
		async = BPF_CORE_READ(req, async_data);
		m.name = (u64)BPF_CORE_READ(async, msg.msg_name);
		m.namelen = BPF_CORE_READ(async, msg.msg_namelen);
		return m.name && m.namelen ? put_kernel_destination(s, m.name, m.namelen) : 0;
	}
	if (msg) {
		read_message(&m, (u64)BPF_CORE_READ(sr, umsg));
	} else if (bpf_core_field_exists(sr->addr)) {
		m.name = (u64)BPF_CORE_READ(sr, addr);
		m.namelen = BPF_CORE_READ(sr, addr_len);
	}
	return m.name && (s32)m.namelen > 0 ? put_destination(s, m.name, m.namelen) : 0;
}

/* Appends a name in a request of that type, and the directory that it starts from. */
#define PUT_NAME(off, type, dirfd, field, tag)                                                     \
	put_filename(s, off, BPF_CORE_READ((struct type *)req, dirfd), NAME_OF(req, type, field),  \
		     tag)

/* Fills in and sends the record of a request that was submitted. */
__noinline int emit_request(struct scratch *s, u64 address, u32 how)
{
	struct io_kiocb *req = (struct io_kiocb *)address;
	struct filename *target;
	struct sock *sk = NULL;
	u32 off = 0;

	if (!s)
		return 0;
	if (s->event.kind >= KIND_CONNECT && s->event.kind <= KIND_LISTEN) {
		sk = request_sock(req);
		put_protocol(s, sk);
	}
	switch (s->event.kind) {
	case KIND_OPEN:
		s->event.value[0] = BPF_CORE_READ((struct io_open *)req, how.flags);
		s->event.value[1] = READ_ONCE(uring_closes);
		off = PUT_NAME(off, io_open, dfd, filename, TAG_NAME);
		break;
	case KIND_DELETE:
		off = PUT_NAME(off, io_unlink, dfd, filename, TAG_NAME);
		break;
	case KIND_MKDIR:
		off = PUT_NAME(off, io_mkdir, dfd, filename, TAG_NAME);
		break;
	case KIND_RENAME:
		s->event.value[0] = BPF_CORE_READ((struct io_rename *)req, flags);
		off = PUT_NAME(off, io_rename, old_dfd, oldpath, TAG_NAME);
		off = PUT_NAME(off, io_rename, new_dfd, newpath, TAG_NAME2);
		break;
	case KIND_LINK:
		off = PUT_NAME(off, io_link, old_dfd, oldpath, TAG_NAME);
		off = PUT_NAME(off, io_link, new_dfd, newpath, TAG_NAME2);
		break;
	case KIND_SYMLINK:
		off = PUT_NAME(off, io_link, new_dfd, newpath, TAG_NAME);
		target = (struct filename *)NAME_OF(req, io_link, oldpath);
		off = put_kernel_string(s, off, (u64)BPF_CORE_READ(target, name), TAG_NAME2);
		break;
	case KIND_CONNECT:
		if (how == HOW_CONNECT) {
			struct io_connect *connect = (struct io_connect *)req;
			u32 len = BPF_CORE_READ(connect, addr_len);

			off = takes_over()
				  ? put_kernel_destination(s, taken_address(req), len)
				  : put_destination(s, (u64)BPF_CORE_READ(connect, addr), len);
		} else {
			off = put_message(s, req, sk, how == HOW_SENDMSG);
		}
		if (!off)
			return 0;
		break;
	case KIND_BIND:
	case KIND_LISTEN:
		if (sk && !is_inet(sk))
			return 0;
		s->event.value[1] = BPF_CORE_READ(req, cqe.fd);
		if (s->event.kind == KIND_BIND && bpf_core_type_exists(struct io_bind))
			off = put_kernel_addr(s, off, taken_address(req),
					      BPF_CORE_READ((struct io_bind *)req, addr_len));
		if (s->event.kind == KIND_LISTEN &&
		    bpf_core_type_exists(struct io_listen)) /* since 6.11 */
			s->event.value[2] = BPF_CORE_READ((struct io_listen *)req, backlog);
		break;
	case KIND_TRUNCATE:
		if (bpf_core_type_exists(struct io_ftrunc)) /* since 6.9 */
			s->event.value[0] = BPF_CORE_READ((struct io_ftrunc *)req, len);
		if (!(BPF_CORE_READ(req, flags) & REQ_F_FIXED_FILE))
			off = put_file(s, off, file_at(BPF_CORE_READ(req, cqe.fd)), TAG_PATH);
		break;
	}
	event_end(s, off);
	return 0;
}

/* Fills in and sends the record of what came of a request. */
__noinline int emit_done(struct scratch *s, u64 address, u32 kind)
{
	struct io_kiocb *req = (struct io_kiocb *)address;
	struct file *file;
	struct sock *sk;
	u32 off = 0;
	s32 res;

	if (!s)
		return 0;
	res = BPF_CORE_READ(req, cqe.res);
	s->event.ret = res;
	s->event.origin = address; /* the token */
	if (kind == KIND_OPEN && res >= 0) {
		/* With a slot there is no descriptor; and another file may have it by now. */
		if (BPF_CORE_READ((struct io_open *)req, file_slot)) {
			event_send(s, 0);
			return 0;
		}
		s->event.value[0] = READ_ONCE(uring_closes);
		file = file_of(res);
		s->event.flags = BPF_CORE_READ(file, f_inode, i_mode);
		s->event.value[1] = BPF_CORE_READ(file, f_inode, i_sb, s_dev);
		s->event.value[2] = BPF_CORE_READ(file, f_inode, i_ino);
		off = put_file(s, off, (u64)file, TAG_PATH);
	} else if (kind >= KIND_CONNECT && kind <= KIND_LISTEN) {
		sk = sock_in(BPF_CORE_READ(req, file));
		if (sk && is_inet(sk)) {
			s->event.value[1] = protocol_of(sk);
			if (res == 0)
				off = put_sock_addr(s, off, (u64)sk, kind == KIND_CONNECT);
		}
	}
	event_send(s, off); /* if there is no room, the event stays pending, and is no loss */
	return 0;
}

#endif
