//go:build linux

package main

import (
	"debug/elf"
	"testing"
)

// archRows is empty: arm64 has no older spellings.
func archRows(string) []callRow { return nil }

// exitCode ends a process.
const exitCode, exitMachine = "\x00\x00\x80\xd2\xa8\x0b\x80\xd2\x01\x00\x00\xd4", elf.EM_AARCH64 // mov x0, 0; mov x8, SYS_EXIT; svc 0

var archForks []forkRow

func forkInPlace(*byte, uintptr, uintptr) int { panic("not here") }

func compatSystemCalls(t *testing.T) { t.Skip("the tests know no way to make them here") }
