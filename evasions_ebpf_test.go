//go:build linux && (amd64 || arm64)

package main

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

// TestEBPFEvasions runs the ways in which programs have escaped, misled or blinded
// tools of this kind. The numbers are those of the list that they come from.
func TestEBPFEvasions(t *testing.T) {
	for _, e := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"01 leaves the scope", leavers},
		{"02 forks", forks},
		{"03 exec from a thread", execFromThread},
		{"04 reused pids", reusedPIDs},
		{"05 pid and user namespaces", namespaces},
		{"06 named like the probe", namesakes},
		{"07 many children", manyChildren},
		{"08 every spelling", everySpelling},
		{"09 32-bit system calls", compatSystemCalls},
		{"10 io_uring", uringRequests},
		{"11 every way to send", everyDestination},
		{"12 sockets of other families", otherFamilies},
		{"13 descriptors from elsewhere", foreignDescriptors},
		{"14 acts in another process", otherProcesses},
		{"15 acts of a daemon", daemons},
		{"16 threads that race", races},
		{"17 misleading paths", misleadingPaths},
		{"18 long paths", longPaths},
		{"19 misleading arguments", programs},
		{"20 strings never touched", untouchedStrings},
		{"21 bytes of every kind", everyByte},
		{"22 a million opens", aMillionOpens},
		{"23 a busy neighbour", busyNeighbour},
		{"24 a reader that stops", stoppedReader},
		{"25 a probe that is stopped", stoppedProbe},
		{"26 calls that overlap", overlappingCalls},
		{"27 work that goes on", workGoesOn},
		{"28 bad control lines", badControlLines},
		{"29 the client is gone", endings},
	} {
		t.Run(e.name, e.run)
	}
}

// during returns the events of a call in which act is all that happens.
func during(c *client, act func()) []outLine {
	c.t.Helper()
	rowNumber++
	id := "row " + strconv.Itoa(rowNumber)
	c.begin(id, "")
	act()
	c.end(id)
	return events(c.seen(), id)
}

// folder returns a temporary one, by the name that the kernel has for it.
func folder(t *testing.T) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// smallProgram returns a program that ends at once, and does nothing else.
func smallProgram(t *testing.T, name string) string {
	t.Helper()
	const base, headers = 0x400000, 64 + 56
	size := uint64(headers + len(exitCode))
	return writeProgram(t, name, elf.Header64{
		Ident: [elf.EI_NIDENT]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
		Type:  uint16(elf.ET_EXEC), Machine: uint16(exitMachine), Version: uint32(elf.EV_CURRENT),
		Entry: base + headers, Phoff: 64, Ehsize: 64, Phentsize: 56, Phnum: 1,
	}, elf.Prog64{
		Type: uint32(elf.PT_LOAD), Flags: uint32(elf.PF_R | elf.PF_X), Vaddr: base, Paddr: base,
		Filesz: size, Memsz: size, Align: 0x10000,
	}, []byte(exitCode))
}

// writeProgram returns the path of a program of those parts.
func writeProgram(t *testing.T, name string, parts ...any) string {
	t.Helper()
	path := filepath.Join(folder(t), name)
	var b bytes.Buffer
	for _, part := range parts {
		if err := binary.Write(&b, binary.LittleEndian, part); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(path, b.Bytes(), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// skipped returns how many events are lost since the kernel did not run a program, which
// it may where it preempts: on emulated CPUs even three copies can be busy. Any other
// loss is an error.
func skipped(t *testing.T, lines []outLine) (n int) {
	t.Helper()
	for _, l := range filter(lines, fields{"type": "drop"}) {
		if copies, err := hookCopies(); err != nil || copies == 1 || l["reason"] != "program_skipped" {
			t.Fatalf("some were lost: %v", l)
		}
		n += int(l["count"].(float64))
	}
	return n
}
