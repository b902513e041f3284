//go:build linux && (amd64 || arm64)

package main

import (
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/ringbuf"
)

// kernelObjects is what probe.bpf.c is in the kernel.
type kernelObjects struct {
	kernelState
	ring                    *ringbuf.Reader // of the map Events
	introduce, mark, takeIn *ebpf.Program   // the sidecar runs them
	hooks                   []hook          // in the order to attach them in
	cgroups, paths          []*ebpf.Program // as cgroupNames and pathHooks; nil for what is not supported
	links                   []link.Link
}

// kernelState is what all programs share.
type kernelState struct {
	probeMaps
	probeVariables
	Bss *ebpf.Map `ebpf:".bss"` // behind the variables that are not constant
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
// long is done side by side: reading the kernel's types, and clearing the pages of the
// ring; then mapping them, and the programs. Garbage is left to the end.
func (o *kernelObjects) load(ringSize int) error {
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	copies, err := hookCopies()
	if err != nil {
		return err
	}
	spec, err := loadProbe()
	if err != nil {
		return err
	}
	types, err := namedTypes(spec.Types)
	if err != nil {
		return err
	}
	var kernel *kernelBTF
	var kernelErr error
	var read sync.WaitGroup
	read.Go(func() { kernel, kernelErr = readKernelBTF(types, hookTypes(spec)) })
	if err := o.makeMaps(spec, ringSize, copies); err != nil {
		return err
	}
	if read.Wait(); kernelErr != nil {
		return kernelErr
	}
	return o.loadPrograms(spec, copies, kernel)
}

// makeMaps makes all maps and sets all constants but copy.
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
	spec.Maps[probeMapEvents].MaxEntries = uint32(ringSize)
	spec.Maps[probeMapScratches].MaxEntries *= uint32(ebpf.MustPossibleCPU() * copies)
	if err := spec.LoadAndAssign(&o.kernelState, nil); err != nil {
		return fmt.Errorf("make maps: %w", err)
	}
	return nil
}

// loadPrograms loads the programs side by side, those on hooks in as many copies, and
// maps the ring.
func (o *kernelObjects) loadPrograms(spec *ebpf.CollectionSpec, copies int, kernel *kernelBTF) error {
	loads := []func() error{func() (err error) {
		if o.ring, err = ringbuf.NewReader(o.Events); err != nil {
			return fmt.Errorf("open ring buffer: %w", err)
		}
		return nil
	}}
	load := func(into **ebpf.Program, name string, maps map[string]*ebpf.Map) {
		loads = append(loads, func() (err error) {
			*into, err = loadProgram(spec.Programs[name], maps, kernel)
			return err
		})
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
			probeMapEvents:    o.Events,
			probeMapTasks:     o.Tasks,
			probeMapScratches: o.Scratches,
			probeMapSending:   o.Sending,
			".bss":            o.Bss,
			".rodata":         constants.Map,
		}
		for h, name := range names {
			load(&o.hooks[h*copies+i].program, name, maps)
		}
		if i == 0 {
			load(&o.introduce, probeProgIntroduce, maps)
			load(&o.mark, probeProgMark, maps)
			load(&o.takeIn, probeProgTakeIn, maps)
			loads = append(loads, func() error {
				for p, hook := range pathHooks {
					program := *spec.Programs[hook.program]
					program.AttachTo = hook.function
					var err error
					if o.paths[p], err = loadProgram(&program, maps, kernel); err != nil {
						return nil // these make paths better where they can, and nothing depends on them
					}
				}
				return nil
			})
			for c, name := range cgroupNames {
				loads = append(loads, func() (err error) {
					o.cgroups[c], err = loadProgram(spec.Programs[name], maps, kernel)
					return notSupported(err) // that may be for want of CAP_NET_ADMIN; see attachCgroups
				})
			}
		}
	}
	errs := make([]error, len(loads))
	var wg sync.WaitGroup
	for i, load := range loads {
		wg.Go(func() { errs[i] = load() })
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// namedTypes names the types that the programs know.
func namedTypes(program *btf.Spec) (map[string]bool, error) {
	names := map[string]bool{}
	for t, err := range program.All() {
		if err != nil {
			return nil, err
		}
		// What follows three underscores tells one kernel's form of a type from another's.
		if name, _, _ := strings.Cut(t.TypeName(), "___"); name != "" {
			names[name] = true
		}
	}
	return names, nil
}

// hookTypes names the types of the kernel's that stand for the programs' hooks.
func hookTypes(spec *ebpf.CollectionSpec) map[string]bool {
	names := map[string]bool{}
	for _, p := range spec.Programs {
		if name := hookType(p); name != "" {
			names[name] = true
		}
	}
	for _, hook := range pathHooks {
		names[hook.function] = true
	}
	return names
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
