package main

// clang is named with its version, since another one makes another object and CI
// compares them byte by byte.
//
//go:generate go tool bpf2go -cc clang-16 -strip llvm-strip-16 -tags linux -target amd64,arm64 -type event -type section -type mark_request -type kind -type how -type arg -type tag -type section_flag -type event_flag -type loss -type mark_op probe probe.bpf.c -- -O2 -mcpu=v3 -Wall -Werror
