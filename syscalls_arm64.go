//go:build linux

package main

// arm64 has the *at forms alone.
var archSyscallSpecs []syscallSpec

// largeFile is O_LARGEFILE, which 64-bit kernels add by themselves.
const largeFile = 0o400000
