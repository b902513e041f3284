//go:build linux && (amd64 || arm64)

package main

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/ringbuf"
)

// kernelObjects is what probe.bpf.c is in the kernel.
type kernelObjects struct {
	kernelState
	events                  *ebpf.Map
	ring                    *ringbuf.Reader // of events
	introduce, mark, takeIn *ebpf.Program   // the sidecar runs them
	hooks                   []hook          // in the order to attach them in
	cgroups, paths          []*ebpf.Program // as cgroupNames and pathHooks; nil for what is not supported
	links                   []link.Link
}

// kernelState is what all programs share besides the ring: maps, and of the variables
// those that are used here.
type kernelState struct {
	Scratches *ebpf.Map `ebpf:"scratches"`
	Sending   *ebpf.Map `ebpf:"sending"`
	Tasks     *ebpf.Map `ebpf:"tasks"`
	Bss       *ebpf.Map `ebpf:".bss"` // behind the variables

	CurrentGeneration *ebpf.Variable `ebpf:"current_generation"`
	Losses            *ebpf.Variable `ebpf:"losses"`
	LossesTotal       *ebpf.Variable `ebpf:"losses_total"`
	RefusedTasks      *ebpf.Variable `ebpf:"refused_tasks"`
	TakenProcesses    *ebpf.Variable `ebpf:"taken_processes"`
	TakenTasks        *ebpf.Variable `ebpf:"taken_tasks"`
	TakenUid          *ebpf.Variable `ebpf:"taken_uid"`
	UdpHooked         *ebpf.Variable `ebpf:"udp_hooked"`
	WantedGeneration  *ebpf.Variable `ebpf:"wanted_generation"`
	WantedPid         *ebpf.Variable `ebpf:"wanted_pid"`
}

// A hook is a program on one of the kernel's hooks, or a copy of it.
type hook struct {
	name    string
	program *ebpf.Program
}

// hookNames are the programs on the kernel's hooks, in the order to attach them in:
// with the exit first, no entry is seen whose exit is not.
var hookNames = []string{
	probeProgOnSysExit, probeProgOnSysEnter, probeProgOnFork, probeProgOnExec, probeProgOnSetState, probeProgOnSignal,
}

// uringNames are those that a kernel without io_uring has no hooks for.
var uringNames = []string{probeProgOnUringComplete, probeProgOnUringSubmit}

// pathHooks are the kernel's checks of paths, with the programs that go on them. Not
// every kernel has a use for them; without them, names are the caller's.
var pathHooks = []struct{ function, program string }{
	{"security_path_chmod", probeProgOnPath},
	{"security_path_chown", probeProgOnPath},
	{"security_path_truncate", probeProgOnPath},
	{"security_path_link", probeProgOnPathLink},
	{"security_path_mkdir", probeProgOnPathEntry},
	{"security_path_mknod", probeProgOnPathEntry},
	{"security_path_rename", probeProgOnPathRename},
	{"security_path_rmdir", probeProgOnPathEntry},
	{"security_path_symlink", probeProgOnPathEntry},
	{"security_path_unlink", probeProgOnPathEntry},
}

// cgroupNames are the programs on cgroups, one copy each: nothing skips them.
var cgroupNames = []string{probeProgOnUdp4, probeProgOnUdp6}

const (
	// copiesIfPreempted is how many programs there are on each hook where one can
	// be preempted; see copies in probe.bpf.c.
	copiesIfPreempted = 3

	// preemptingVersion is Linux 7.0 (KERNEL_VERSION).
	preemptingVersion = 7 << 16
)

// load makes the maps and loads the programs. A client waits for it, so what takes
// long is done side by side.
func (o *kernelObjects) load(ringSize int) error {
	copies, err := hookCopies()
	if err != nil {
		return err
	}
	types, err := namedTypes()
	if err != nil {
		return err
	}
	var spec *ebpf.CollectionSpec
	var kernel *kernelBTF
	err = sideBySide(
		func() (err error) {
			if spec, err = loadSpec(); err != nil {
				return err
			}
			return o.makeMaps(spec, ringSize, copies)
		},
		func() error { return o.makeRing(ringSize) },
		func() (err error) { kernel, err = readKernelBTF(types); return err },
	)
	if err != nil {
		return err
	}
	return o.loadPrograms(spec, copies, kernel)
}

// sideBySide does as much of work at a time as there are CPUs, and what comes first in
// it first. It returns the first error.
func sideBySide(work ...func() error) error {
	errs := make([]error, len(work))
	var begun atomic.Int64
	var all sync.WaitGroup
	for range min(len(work), runtime.GOMAXPROCS(0)) {
		all.Go(func() {
			for i := begun.Add(1) - 1; i < int64(len(work)); i = begun.Add(1) - 1 {
				errs[i] = work[i]()
			}
		})
	}
	all.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// makeRing makes the ring and maps it. It is not part of the others' specification,
// which has types for it: the kernel takes none for a ring, but says so only when it has
// cleared all its pages.
func (o *kernelObjects) makeRing(ringSize int) (err error) {
	o.events, err = ebpf.NewMap(&ebpf.MapSpec{Name: probeMapEvents, Type: ebpf.RingBuf, MaxEntries: uint32(ringSize)})
	if err != nil {
		return fmt.Errorf("make ring buffer: %w", err)
	}
	if o.ring, err = ringbuf.NewReader(o.events); err != nil {
		return fmt.Errorf("open ring buffer: %w", err)
	}
	return nil
}

// makeMaps makes the other maps and sets all constants but copy.
func (o *kernelObjects) makeMaps(spec *ebpf.CollectionSpec, ringSize, copies int) error {
	for _, v := range []struct {
		variable *ebpf.VariableSpec
		value    any
	}{
		{spec.Variables[probeVarShapes], syscallShapes()},
		{spec.Variables[probeVarUringOps], uringShapes()},
		{spec.Variables[probeVarCopies], uint32(copies)},
		{spec.Variables[probeVarRingSize], uint64(ringSize)},
		{spec.Variables[probeVarRingHeadroom], uint64(ringHeadroom)},
	} {
		if err := v.variable.Set(v.value); err != nil {
			return err
		}
	}
	spec.Maps[probeMapScratches].MaxEntries *= uint32(ebpf.MustPossibleCPU() * copies)
	if err := spec.LoadAndAssign(&o.kernelState, nil); err != nil {
		return fmt.Errorf("make maps: %w", err)
	}
	return nil
}

// loadPrograms loads the programs side by side, those on hooks in as many copies.
func (o *kernelObjects) loadPrograms(spec *ebpf.CollectionSpec, copies int, kernel *kernelBTF) error {
	type job struct {
		instructions int
		load         func() error
	}
	var jobs []job
	add := func(name string, load func(*ebpf.ProgramSpec) error) {
		program := spec.Programs[name]
		jobs = append(jobs, job{len(program.Instructions), func() error { return load(program) }})
	}
	names := hookNames
	if kernel.has("io_kiocb") {
		names = slices.Concat(hookNames, uringNames)
	}
	for _, name := range names {
		for range copies {
			o.hooks = append(o.hooks, hook{name: name})
		}
	}
	o.cgroups, o.paths = make([]*ebpf.Program, len(cgroupNames)), make([]*ebpf.Program, len(pathHooks))
	for i := range copies {
		if err := spec.Variables[probeVarCopy].Set(uint32(i)); err != nil {
			return err
		}
		var constants struct {
			Map *ebpf.Map `ebpf:".rodata"`
		}
		if err := spec.LoadAndAssign(&constants, nil); err != nil {
			return fmt.Errorf("make map of constants: %w", err)
		}
		defer constants.Map.Close()
		maps := map[string]*ebpf.Map{
			probeMapEvents:    o.events,
			probeMapTasks:     o.Tasks,
			probeMapScratches: o.Scratches,
			probeMapSending:   o.Sending,
			".bss":            o.Bss,
			".rodata":         constants.Map,
		}
		into := func(to **ebpf.Program) func(*ebpf.ProgramSpec) error {
			return func(program *ebpf.ProgramSpec) (err error) {
				*to, err = loadProgram(program, maps, kernel)
				return err
			}
		}
		for h, name := range names {
			add(name, into(&o.hooks[h*copies+i].program))
		}
		if i > 0 {
			continue
		}
		add(probeProgIntroduce, into(&o.introduce))
		add(probeProgMark, into(&o.mark))
		add(probeProgTakeIn, into(&o.takeIn))
		for c, name := range cgroupNames {
			add(name, func(program *ebpf.ProgramSpec) error {
				return notSupported(into(&o.cgroups[c])(program)) // that may be for want of CAP_NET_ADMIN; see attachCgroups
			})
		}
		add(probeProgOnPath, func(*ebpf.ProgramSpec) error {
			for p, hook := range pathHooks {
				program := *spec.Programs[hook.program]
				program.AttachTo = hook.function
				if err := into(&o.paths[p])(&program); err != nil {
					return nil // these make paths better where they can, and nothing depends on them
				}
			}
			return nil
		})
	}
	// With the longest last, one CPU would do it alone.
	slices.SortStableFunc(jobs, func(a, b job) int { return b.instructions - a.instructions })
	var loads []func() error
	for _, job := range jobs {
		loads = append(loads, job.load)
	}
	return sideBySide(loads...)
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
