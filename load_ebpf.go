//go:build linux && (amd64 || arm64)

package main

import (
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"
)

// kernelObjects is what probe.bpf.c is in the kernel.
type kernelObjects struct {
	kernelState
	ownPrograms
	ring  *ringbuf.Reader // of the map Events
	exits []exitProgram   // this and the next: a copy each
	hooks []hookPrograms
	links []link.Link
}

// kernelState is what all programs share.
type kernelState struct {
	probeMaps
	probeVariables
	Bss *ebpf.Map `ebpf:".bss"` // behind the variables that are not constant
}

// ownPrograms are those that the sidecar runs.
type ownPrograms struct {
	Introduce *ebpf.Program `ebpf:"introduce"`
	Mark      *ebpf.Program `ebpf:"mark"`
	TakeIn    *ebpf.Program `ebpf:"take_in"`
}

// exitProgram takes as long to load as all others together.
type exitProgram struct {
	OnSysExit *ebpf.Program `ebpf:"on_sys_exit"`
}

// hookPrograms are the other programs on the kernel's hooks.
type hookPrograms struct {
	OnSysEnter *ebpf.Program `ebpf:"on_sys_enter"`
	OnFork     *ebpf.Program `ebpf:"on_fork"`
	OnExec     *ebpf.Program `ebpf:"on_exec"`
	OnSetState *ebpf.Program `ebpf:"on_set_state"`
	OnSignal   *ebpf.Program `ebpf:"on_signal"`
}

const (
	// copiesIfPreempted is how many programs there are on each hook where one can
	// be preempted; see copies in probe.bpf.c.
	copiesIfPreempted = 3

	// verifierLines is how much of the verifier's log is shown: its end, with the reason.
	verifierLines = 12

	// preemptingVersion is Linux 7.0 (KERNEL_VERSION).
	preemptingVersion = 7 << 16
)

// load makes the maps and loads the programs. A client waits for it, so what takes
// long is done side by side: decoding the kernel's types and clearing and mapping the
// pages of the ring, then the programs. Some 30 MB of garbage are left to the end.
func (o *kernelObjects) load(ringSize int) error {
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	types := btf.NewCache()
	decoded := make(chan struct{})
	go func() {
		defer close(decoded)
		types.Kernel() // if it fails, it fails again for who needs it
	}()
	copies, err := hookCopies()
	if err != nil {
		return err
	}
	spec, err := loadProbe()
	if err != nil {
		return err
	}
	for _, v := range []struct {
		variable *ebpf.VariableSpec
		value    any
	}{
		{spec.Variables[probeVarShapes], syscallShapes()},
		{spec.Variables[probeVarCopies], uint32(copies)},
		{spec.Variables[probeVarRingSize], uint64(ringSize)},
		{spec.Variables[probeVarRingHeadroom], uint64(ringHeadroom)},
	} {
		if err := v.variable.Set(v.value); err != nil {
			return err
		}
	}
	spec.Maps[probeMapEvents].MaxEntries = uint32(ringSize)
	spec.Maps[probeMapScratches].MaxEntries *= uint32(ebpf.MustPossibleCPU() * copies)
	options := ebpf.CollectionOptions{Cache: types}
	if err := spec.LoadAndAssign(&o.kernelState, &options); err != nil {
		return fmt.Errorf("make maps: %w", err)
	}
	if o.ring, err = ringbuf.NewReader(o.Events); err != nil {
		return fmt.Errorf("open ring buffer: %w", err)
	}
	options.MapReplacements = map[string]*ebpf.Map{
		probeMapEvents:    o.Events,
		probeMapTasks:     o.Tasks,
		probeMapScratches: o.Scratches,
		".bss":            o.Bss,
	}
	o.exits, o.hooks = make([]exitProgram, copies), make([]hookPrograms, copies)
	var wg sync.WaitGroup
	errs := make(chan error, 1+2*copies)
	load := func(programs any, number int) {
		spec := spec.Copy()
		wg.Go(func() {
			<-decoded
			if err := spec.Variables[probeVarCopy].Set(uint32(number)); err != nil {
				errs <- err
			} else if err := spec.LoadAndAssign(programs, &options); err != nil {
				errs <- fmt.Errorf("load programs: %w", err)
			}
		})
	}
	load(&o.ownPrograms, 0)
	for i := range copies {
		load(&o.exits[i], i)
		load(&o.hooks[i], i)
	}
	wg.Wait()
	close(errs)
	return <-errs // the first one; nil if there is none
}

// hookCopies returns how many copies of the programs it takes on this kernel.
func hookCopies() (int, error) {
	running, err := features.LinuxVersionCode()
	if err != nil {
		return 0, fmt.Errorf("find out which kernel this is: %w", err)
	}
	if running >= preemptingVersion {
		return copiesIfPreempted, nil
	}
	return 1, nil
}

// hooked returns the programs on hooks in the order to attach them in: with the
// exits first, no entry is seen whose exit is not.
func (o *kernelObjects) hooked() []*ebpf.Program {
	var programs []*ebpf.Program
	for _, p := range o.exits {
		programs = append(programs, p.OnSysExit)
	}
	for _, p := range o.hooks {
		programs = append(programs, p.OnSysEnter, p.OnFork, p.OnExec, p.OnSetState, p.OnSignal)
	}
	return programs
}

// attach puts the programs on their hooks.
func (o *kernelObjects) attach() error {
	for _, p := range o.hooked() {
		l, err := link.AttachTracing(link.TracingOptions{Program: p})
		if err != nil {
			return fmt.Errorf("attach %v: %w", p, err)
		}
		o.links = append(o.links, l)
	}
	return nil
}

// Close detaches and frees everything.
func (o *kernelObjects) Close() (err error) {
	for _, l := range o.links {
		err = errors.Join(err, l.Close())
	}
	for _, p := range append(o.hooked(), o.Introduce, o.Mark, o.TakeIn) {
		err = errors.Join(err, p.Close())
	}
	if o.ring != nil {
		err = errors.Join(err, o.ring.Close())
	}
	return errors.Join(err, o.probeMaps.Close(), o.Bss.Close())
}

// explainEBPF says what is missing and how to get it, if that is why err happened.
func explainEBPF(err error) error {
	// Without privilege, the kernel says EPERM, or refuses parts of the program.
	if lacking := lackingCapabilities(); lacking != "" {
		return unavailable{fmt.Errorf("eBPF needs root, or CAP_BPF and CAP_PERFMON, and this process lacks %s; use sudo (%w)", lacking, err)}
	}
	var verifier *ebpf.VerifierError
	switch {
	case errors.As(err, &verifier) && len(verifier.Log) > 0:
		// Nobody may be reading standard error, and a log can be longer than a pipe.
		end := verifier.Log[max(0, len(verifier.Log)-verifierLines):]
		return fmt.Errorf("the kernel refused the program; please report this with the kernel's version (%w):\n\t%s", verifier.Cause, strings.Join(end, "\n\t"))
	case errors.Is(err, unix.EPERM):
		return unavailable{fmt.Errorf("%w; something forbids eBPF here: a container's seccomp filter, or kernel lockdown", err)}
	case errors.Is(err, btf.ErrNotFound), errors.Is(err, os.ErrNotExist), errors.Is(err, ebpf.ErrNotSupported),
		// Linux 5.13 and older just say EINVAL.
		errors.Is(features.HaveProgramType(ebpf.Syscall), ebpf.ErrNotSupported):
		return unavailable{fmt.Errorf("%w; it needs Linux 5.15 or later with CONFIG_DEBUG_INFO_BTF", err)}
	}
	return err
}

// lackingCapabilities names what this process lacks of the capabilities for eBPF
// (capabilities(7)); it is empty if there is nothing, or if that cannot be told.
func lackingCapabilities() string {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if unix.Capget(&header, &sets[0]) != nil {
		return ""
	}
	has := func(capability int) bool { return sets[capability/32].Effective&(1<<(capability%32)) != 0 }
	var lacking []string
	if !has(unix.CAP_SYS_ADMIN) {
		if !has(unix.CAP_BPF) {
			lacking = append(lacking, "CAP_BPF")
		}
		if !has(unix.CAP_PERFMON) {
			lacking = append(lacking, "CAP_PERFMON")
		}
	}
	return strings.Join(lacking, " and ")
}
