/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * The kernel's own word on what a delete, a rename and the like are about: the checks
 * of security modules (security/security.c) are called with the directory and entry
 * that the kernel has found. They can be looked into where it allows fentry programs
 * and has CONFIG_SECURITY_PATH.
 */
#ifndef __SECURITY_BPF_H__
#define __SECURITY_BPF_H__

#include "path.bpf.h"

static __always_inline u64 func_arg(void *ctx, u32 n)
{
	u64 value = 0;

	bpf_get_func_arg(ctx, n, &value);
	return value;
}

/*
 * Tells of one or two entries (of no entry: of the directories themselves), the new
 * one first. The record goes with the one of the same thread's system call.
 */
__noinline int tell_paths(u64 dir, u64 entry, u64 dir2, u64 entry2)
{
	struct task *t = current_in_scope();
	struct path *path = (struct path *)dir;
	struct scratch *s;
	u32 off;

	if (!t || !t->call.kind)
		return 0;
	s = scratch_of(HOOK_PATH);
	if (!s)
		return 0;
	__builtin_memset(&s->event, 0, sizeof(s->event));
	s->event.kind = KIND_PATH;
	s->event.tid = t->tid;
	s->event.ts_ns = t->ts_ns;
	off = put_path(s, 0, entry ?: (u64)BPF_CORE_READ(path, dentry),
		       (u64)BPF_CORE_READ(path, mnt), TAG_PATH);
	path = (struct path *)dir2;
	if (entry2)
		off = put_path(s, off, entry2, (u64)BPF_CORE_READ(path, mnt), TAG_PATH2);
	event_send(s, off);
	return 0;
}

/* The check of a path; Go makes others of it (pathHooks in load_ebpf.go). */
SEC("fentry/security_path_chmod")
int on_path(void *ctx)
{
	return tell_paths(func_arg(ctx, 0), 0, 0, 0);
}

/* The same of an entry in a directory. */
SEC("fentry/security_path_unlink")
int on_path_entry(void *ctx)
{
	return tell_paths(func_arg(ctx, 0), func_arg(ctx, 1), 0, 0);
}

SEC("fentry/security_path_link")
int on_path_link(void *ctx)
{
	/* Both are in the same mount, or it is refused. */
	u64 dir = func_arg(ctx, 1);

	return tell_paths(dir, func_arg(ctx, 2), dir, func_arg(ctx, 0));
}

SEC("fentry/security_path_rename")
int on_path_rename(void *ctx)
{
	return tell_paths(func_arg(ctx, 2), func_arg(ctx, 3), func_arg(ctx, 0), func_arg(ctx, 1));
}

#endif
