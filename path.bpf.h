/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * Files and their names: what is behind a descriptor, the path of it, and what the
 * caller called it.
 */
#ifndef __PATH_BPF_H__
#define __PATH_BPF_H__

#include "early.bpf.h"

/* The address of the current process's open file with that descriptor, or zero. */
__noinline u64 file_at(s32 fd)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct fdtable *fdt = BPF_CORE_READ(task, files, fdt);
	struct file **fds, *file = NULL;

	if (!fdt || (u32)fd >= BPF_CORE_READ(fdt, max_fds))
		return 0;
	fds = BPF_CORE_READ(fdt, fd);
	bpf_probe_read_kernel(&file, sizeof(file), &fds[(u32)fd]);
	return (u64)file;
}

static __always_inline struct file *file_of(s32 fd)
{
	return (struct file *)file_at(fd);
}

/* A walk from a file up to the root, and where its next name goes. */
struct walk {
	struct scratch *s;
	struct dentry *dentry;
	struct dentry *mnt_root; /* of mnt */
	struct mount *mnt;
	u32 at;
	u32 end; /* of the section */
	u8 flags;
};

/*
 * Takes one step, to the parent directory or mount; returns whether it was the last.
 * Pointers are copied out of w, or CO-RE would look for struct walk in the kernel.
 */
static long walk_step(u32 step, struct walk *w)
{
	struct dentry *dentry = w->dentry, *parent;
	struct mount *mnt = w->mnt, *mnt_parent;
	long n;

	if (dentry == w->mnt_root) {
		mnt_parent = BPF_CORE_READ(mnt, mnt_parent);
		if (mnt_parent == mnt || !mnt_parent) {
			w->flags = 0;
			return 1;
		}
		w->dentry = BPF_CORE_READ(mnt, mnt_mountpoint);
		w->mnt = mnt_parent;
		w->mnt_root = BPF_CORE_READ(mnt_parent, mnt.mnt_root);
		return 0;
	}
	n = bpf_probe_read_kernel_str(tail_at(w->s, w->at), NAME_LEN,
				      BPF_CORE_READ(dentry, d_name.name));
	if (n <= 0) {
		w->flags = SECTION_UNREADABLE;
		return 1;
	}
	w->at += n;
	parent = BPF_CORE_READ(dentry, d_parent);
	if (parent == dentry || !parent) {
		w->flags = 0; /* in no directory: a memfd, a pipe */
		return 1;
	}
	w->dentry = parent;
	return w->at > w->end;
}

/* Notes in the record if a path that ends at the root of mnt is none of the sidecar's. */
static __always_inline void note_namespace(struct scratch *s, struct mount *mnt)
{
	struct mnt_namespace *ns = BPF_CORE_READ(mnt, mnt_ns);
	u32 inum = BPF_CORE_READ(ns, ns.inum);

	/* A file system that only the kernel mounts has an error for its namespace. */
	if ((s64)ns < 0 && (s64)ns > -4096)
		return;
	if (inum != self_mnt_ns)
		s->event.mnt_ns = ns && inum && inum != MNT_NS_ANON ? inum : MNT_NS_NONE;
}

/*
 * Appends the names from dentry up to the root of its mount namespace. The walk
 * goes from mount to mount as d_path does, but does not stop at the root of a
 * process that is in a chroot, since its reader is not.
 */
__noinline u32 put_path(struct scratch *s, u32 off, u64 dentry_address, u64 mnt_address, u32 tag)
{
	struct walk w = {
	    .s = s,
	    .dentry = (struct dentry *)dentry_address,
	    .at = off + sizeof(struct section),
	    .end = off + sizeof(struct section) + PATH_LEN,
	    .flags = SECTION_CUT,
	};
	struct mount *mnt;

	if (!s)
		return off;
	if (!dentry_address || !mnt_address)
		return section_end(s, off, 0, tag, SECTION_UNREADABLE);
	mnt = (struct mount *)(mnt_address - bpf_core_field_offset(struct mount, mnt));
	w.mnt = mnt;
	w.mnt_root = BPF_CORE_READ(mnt, mnt.mnt_root);
	/* bpf_loop came with 5.17; the verifier walks a plain loop step by step. */
	if (bpf_core_enum_value_exists(enum bpf_func_id, BPF_FUNC_loop)) {
		bpf_loop(PATH_STEPS, walk_step, &w, 0);
	} else {
		for (u32 i = 0; i < PATH_STEPS_OLD; i++)
			if (walk_step(i, &w))
				break;
	}
	if (w.dentry == w.mnt_root)
		note_namespace(s, w.mnt);
	return section_end(s, off, w.at - off - sizeof(struct section), tag, w.flags);
}

__noinline u32 put_file(struct scratch *s, u32 off, u64 file_address, u32 tag)
{
	struct file *file = (struct file *)file_address;

	return put_path(s, off, (u64)BPF_CORE_READ(file, f_path.dentry),
			(u64)BPF_CORE_READ(file, f_path.mnt), tag);
}

/*
 * Tells Go which program the task runs, if it has not been told: of one that was there
 * before the scope, or whose exec found no room in the ring. If there is none now,
 * either, a later system call tells it.
 */
__noinline int tell_exe(struct scratch *s, struct task *t)
{
	struct task_struct *task = bpf_get_current_task_btf();
	u32 off;

	if (!s || !t)
		return 0;
	t->exe = __sync_fetch_and_add(&last_exe, 1) + 1;
	__builtin_memset(&s->event, 0, sizeof(s->event));
	s->event.kind = KIND_EXE;
	s->event.exe = t->exe;
	off = put_file(s, 0, (u64)BPF_CORE_READ(task, mm, exe_file), TAG_PATH);
	if (!event_send(s, off))
		t->exe = 0;
	return 0;
}

/* The process behind a pidfd, or something that is no pid. */
static __always_inline struct pid *pid_of(s32 fd)
{
	struct file *file = file_of(fd);
	struct pid *pid = BPF_CORE_READ(file, private_data);

	/* Since 6.9 pidfds have inodes of their own (cb12fd8e0dab). */
	return pid ?: BPF_CORE_READ(file, f_inode, i_private);
}

/* Appends a string of the caller's. */
__noinline u32 put_string(struct scratch *s, u32 off, u64 address, u32 tag)
{
	long n;

	if (!s)
		return off;
	/* A NUL more than a path may have, to tell the longest from a longer one. */
	n = bpf_probe_read_user_str(tail_at(s, off + sizeof(struct section)), PATH_LEN + 1,
				    (void *)address);
	if (n < 0)
		return section_end(s, off, 0, tag, SECTION_UNREADABLE);
	/* Before 6.13, an empty string has no NUL to count. */
	return section_end(s, off, n ? n - 1 : 0, tag, n > PATH_LEN ? SECTION_CUT : 0);
}

/* Appends a string of the kernel's. */
__noinline u32 put_kernel_string(struct scratch *s, u32 off, u64 address, u32 tag)
{
	long n;

	if (!s)
		return off;
	n = bpf_probe_read_kernel_str(tail_at(s, off + sizeof(struct section)), PATH_LEN,
				      (void *)address);
	return section_end(s, off, n > 0 ? n - 1 : 0, tag, n > 0 ? 0 : SECTION_UNREADABLE);
}

/*
 * Appends the directory that a name with that first character starts from: for an
 * absolute one the process's own root, which is not the namespace's in a chroot.
 */
static __always_inline u32 put_start(struct scratch *s, u32 off, u8 first, s32 dirfd, u32 tag)
{
	struct task_struct *task = bpf_get_current_task_btf();

	if (first == '/')
		return put_path(s, off, (u64)BPF_CORE_READ(task, fs, root.dentry),
				(u64)BPF_CORE_READ(task, fs, root.mnt), tag);
	if (dirfd == AT_FDCWD)
		return put_path(s, off, (u64)BPF_CORE_READ(task, fs, pwd.dentry),
				(u64)BPF_CORE_READ(task, fs, pwd.mnt), tag);
	return put_file(s, off, file_at(dirfd), tag);
}

/*
 * Appends a name of the caller's and, under the next tag, where it starts; with IN_ROOT
 * in the tag, that is the directory for an absolute name, too.
 */
#define IN_ROOT 0x100
__noinline u32 put_name(struct scratch *s, u32 off, s32 dirfd, u64 address, u32 tag)
{
	bool in_root = tag & IN_ROOT;
	u32 next;

	if (!s)
		return off;
	tag &= ~IN_ROOT;
	next = put_string(s, off, address, tag);
	compare_early(s, off, tag == TAG_NAME2);
	return put_start(s, next, in_root ? 0 : *tail_at(s, off + sizeof(struct section)), dirfd,
			 tag + 1);
}

/* Appends a name that the kernel has taken over from the caller, and where it starts. */
__noinline u32 put_filename(struct scratch *s, u32 off, s32 dirfd, u64 filename, u32 tag)
{
	u32 next;

	if (!s)
		return off;
	next =
	    put_kernel_string(s, off, (u64)BPF_CORE_READ((struct filename *)filename, name), tag);
	return put_start(s, next, *tail_at(s, off + sizeof(struct section)), dirfd, tag + 1);
}

#endif
