//go:build linux && (amd64 || arm64)

package main

import "testing"

// TestEBPFWithoutIOUring loads and attaches as on a kernel that does not have io_uring.
func TestEBPFWithoutIOUring(t *testing.T) {
	ebpfOrSkip(t, 1<<20).Close()
	spec, err := loadSpec()
	if err != nil {
		t.Fatal(err)
	}
	types, err := namedTypes()
	if err != nil {
		t.Fatal(err)
	}
	delete(types, "io_kiocb")
	copies, err := hookCopies()
	if err != nil {
		t.Fatal(err)
	}
	kernel, err := readKernelBTF(types)
	if err != nil {
		t.Fatal(err)
	}
	var o kernelObjects
	defer o.Close()
	if err := o.makeRing(1 << 20); err != nil {
		t.Fatal(err)
	}
	if err := o.makeMaps(spec, 1<<20, copies); err != nil {
		t.Fatal(err)
	}
	if err := o.loadPrograms(spec, copies, kernel); err != nil {
		t.Fatal(err)
	}
	if err := o.attach(); err != nil {
		t.Fatal(err)
	}
	if len(o.hooks) != len(hookNames)*copies {
		t.Errorf("%d programs are on hooks, want %d", len(o.hooks), len(hookNames)*copies)
	}
}
