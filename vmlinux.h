/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The kernel types that probe.bpf.c reads, and only the fields that it reads.
 * CO-RE relocates every access to the running kernel's own layout (BTF), so
 * neither the order nor the size of a struct here means anything. Where a
 * kernel has the field under another type or in a union, the name still matches.
 */
#ifndef __VMLINUX_H__
#define __VMLINUX_H__

typedef unsigned char __u8;
typedef short __s16;
typedef unsigned short __u16;
typedef int __s32;
typedef unsigned int __u32;
typedef long long __s64;
typedef unsigned long long __u64;
typedef __u8 u8;
typedef __s16 s16;
typedef __u16 u16;
typedef __s32 s32;
typedef __u32 u32;
typedef __s64 s64;
typedef __u64 u64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u64 __be64;
typedef __u32 __wsum;
typedef int pid_t;
typedef _Bool bool;

#define NULL ((void *)0)
#define true 1
#define false 0

enum bpf_map_type {
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_LRU_HASH = 9,
	BPF_MAP_TYPE_RINGBUF = 27,
	BPF_MAP_TYPE_TASK_STORAGE = 29,
};

enum {
	BPF_F_NO_PREALLOC = 1,
	BPF_LOCAL_STORAGE_GET_F_CREATE = 1,
	BPF_RB_FORCE_WAKEUP = 2,
	BPF_RB_AVAIL_DATA = 0,
};

/* The kernel's helpers, to ask which of them there are. */
enum bpf_func_id {
	BPF_FUNC_loop = 181,
};

/* The context of programs on a cgroup's sockets: part of the kernel's interface. */
struct bpf_sock_addr {
	__u32 user_family;
	__u32 user_ip4;
	__u32 user_ip6[4];
	__u32 user_port;
};

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct qstr {
	union {
		struct {
			u32 hash;
			u32 len;
		};
		u64 hash_len;
	};
	const unsigned char *name;
};

struct super_block {
	u32 s_dev;
	unsigned long s_magic;
};

struct inode {
	unsigned short i_mode;
	struct super_block *i_sb;
	unsigned long i_ino;
	unsigned int i_nlink;
	void *i_private;
};

struct dentry {
	struct dentry *d_parent;
	struct qstr d_name; /* in a union with __d_name since 6.15 */
	struct inode *d_inode;
};

struct vfsmount {
	struct dentry *mnt_root;
};

struct ns_common {
	unsigned int inum;
};

struct mnt_namespace {
	struct ns_common ns;
};

struct nsproxy {
	struct mnt_namespace *mnt_ns;
};

struct mount {
	struct mnt_namespace *mnt_ns;
	struct mount *mnt_parent;
	struct dentry *mnt_mountpoint;
	struct vfsmount mnt;
};

struct path {
	struct vfsmount *mnt;
	struct dentry *dentry;
};

struct file {
	void *private_data;
	struct inode *f_inode;
	struct path f_path; /* in a union with __f_path since 6.17 */
};

struct fdtable {
	unsigned int max_fds;
	struct file **fd;
};

struct files_struct {
	struct fdtable *fdt;
};

struct fs_struct {
	struct path root;
	struct path pwd;
};

struct pid_namespace;

struct upid {
	int nr;
	struct pid_namespace *ns;
};

struct pid {
	unsigned int level;
	struct upid numbers[1]; /* level + 1 of them */
};

enum pid_type {
	PIDTYPE_PID,
	PIDTYPE_TGID,
	PIDTYPE_PGID,
	PIDTYPE_SID,
	PIDTYPE_MAX,
};

struct signal_struct {
	struct pid *pids[PIDTYPE_MAX];
};

struct kernel_siginfo {
	int si_code;
};

struct mm_struct {
	unsigned long arg_start;
	unsigned long arg_end;
	struct file *exe_file;
};

struct thread_info {
	unsigned long flags;
	u32 status; /* x86 alone */
};

typedef struct {
	u32 val;
} kuid_t;

struct cred {
	kuid_t uid;
};

struct task_struct {
	struct thread_info thread_info;
	unsigned int flags;
	struct mm_struct *mm;
	pid_t pid;
	pid_t tgid;
	struct task_struct *real_parent;
	struct task_struct *group_leader;
	struct pid *thread_pid;
	char comm[16];
	struct fs_struct *fs;
	struct files_struct *files;
	struct signal_struct *signal;
	struct nsproxy *nsproxy;
	const struct cred *cred;
};

struct filename {
	const char *name;
};

struct open_how {
	u64 flags;
	u64 mode;
};

/* io_uring: a request, and what it starts with by operation (the file first). */
struct io_cqe {
	s32 res;
	int fd; /* until the file is looked up */
};

struct io_cmd_data {
	struct file *file;
};

struct io_kiocb {
	struct file *file;
	struct io_cmd_data cmd; /* since 6.0 */
	u8 opcode;
	unsigned int flags;
	struct io_cqe cqe; /* since 5.19 */
	void *async_data;
};

struct io_open {
	int dfd;
	u32 file_slot;
	struct filename *filename;
	struct open_how how;
};

struct io_unlink {
	int dfd;
	struct filename *filename;
};

struct io_rename {
	int old_dfd;
	int new_dfd;
	struct filename *oldpath;
	struct filename *newpath;
	int flags;
};

struct io_mkdir {
	int dfd;
	struct filename *filename;
};

struct io_link {
	int old_dfd;
	int new_dfd;
	struct filename *oldpath;
	struct filename *newpath;
};

/* Since 7.0 the names are in a type that says that they are not complete yet. */
struct delayed_filename {
	struct filename *__incomplete_filename;
};

struct io_open___7 {
	struct delayed_filename filename;
};

struct io_unlink___7 {
	struct delayed_filename filename;
};

struct io_rename___7 {
	struct delayed_filename oldpath;
	struct delayed_filename newpath;
};

struct io_mkdir___7 {
	struct delayed_filename filename;
};

struct io_link___7 {
	struct delayed_filename oldpath;
	struct delayed_filename newpath;
};

struct io_connect {
	void *addr;
	int addr_len;
};

struct io_sr_msg {
	void *umsg;
	unsigned int msg_flags;
	struct io_kiocb *notif; /* since 6.0 */
	void *addr;		/* 6.0 to 6.9 */
	int addr_len;
};

struct msghdr {
	void *msg_name;
	int msg_namelen;
};

struct __kernel_sockaddr_storage {
	unsigned short ss_family;
};

struct io_async_msghdr {
	struct msghdr msg;
	struct __kernel_sockaddr_storage addr;
};

struct io_ftrunc {
	s64 len;
};

struct io_bind {
	int addr_len;
};

struct io_listen {
	int backlog;
};

struct linux_binprm {
	struct file *file;
	int argc;
	const char *filename;
	const char *interp;
};

struct in6_addr {
	union {
		u8 u6_addr8[16];
	} in6_u;
};

struct sock_common {
	union {
		struct {
			__be32 skc_daddr;
			__be32 skc_rcv_saddr;
		};
	};
	union {
		struct {
			__be16 skc_dport;
			__u16 skc_num;
		};
	};
	unsigned short skc_family;
	volatile unsigned char skc_state;
	struct in6_addr skc_v6_daddr;
	struct in6_addr skc_v6_rcv_saddr;
};

struct sock {
	struct sock_common __sk_common;
	u16 sk_type;
	u16 sk_protocol;
};

struct socket {
	struct sock *sk;
};

struct seq_file;

struct bpf_iter_meta {
	struct seq_file *seq;
};

struct bpf_iter__task {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
};

#if defined(__TARGET_ARCH_x86)
struct pt_regs {
	unsigned long r10;
	unsigned long bp;
	unsigned long bx;
	unsigned long r9;
	unsigned long r8;
	unsigned long cx;
	unsigned long dx;
	unsigned long si;
	unsigned long di;
	unsigned long orig_ax;
};
#elif defined(__TARGET_ARCH_arm64)
struct user_pt_regs {
	u64 regs[31];
};

struct pt_regs {
	union {
		struct user_pt_regs user_regs;
		struct {
			u64 regs[31];
		};
	};
	u64 orig_x0;
	s32 syscallno;
};
#endif

#pragma clang attribute pop

#endif
