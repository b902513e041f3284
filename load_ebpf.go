//go:build linux && (amd64 || arm64)

package main

import (
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
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
	ring                    *ringbuf.Reader // of the map Events
	introduce, mark, takeIn *ebpf.Program   // the sidecar runs them
	hooks                   []*ebpf.Program // in the order to attach them in
	cgroups, paths          []*ebpf.Program
	links                   []link.Link
}

// kernelState is what all programs share.
type kernelState struct {
	probeMaps
	probeVariables
	Bss *ebpf.Map `ebpf:".bss"` // behind the variables that are not constant
}

// hookNames are the programs on the kernel's hooks, in the order to attach them in:
// with the exit first, no entry is seen whose exit is not.
var hookNames = []string{probeProgOnSysExit, probeProgOnSysEnter, probeProgOnFork, probeProgOnExec, probeProgOnSetState, probeProgOnSignal, probeProgOnUringComplete, probeProgOnUringSubmit}

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
	o.hooks = make([]*ebpf.Program, len(hookNames)*copies)
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
		for h, name := range hookNames {
			load(&o.hooks[h*copies+i], name, maps)
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

// attach puts the programs on their hooks.
func (o *kernelObjects) attach() error {
	for i, p := range o.hooks {
		name := hookNames[i/(len(o.hooks)/len(hookNames))]
		l, err := attachHook(p, tracepoints[name])
		if err != nil {
			return fmt.Errorf("attach %s: %w", name, err)
		}
		o.links = append(o.links, l)
	}
	for _, p := range o.paths {
		if p == nil {
			break
		}
		l, err := link.AttachTracing(link.TracingOptions{Program: p})
		if err == nil {
			o.links = append(o.links, l)
		}
	}
	return o.attachCgroups()
}

// notSupported returns nil for an error that says that this kernel does not have or
// allow something; but not for one of the verifier's.
func notSupported(err error) error {
	if errors.Is(err, ebpf.ErrNotSupported) || errors.Is(err, os.ErrPermission) && !errors.As(err, new(*verifierError)) {
		return nil
	}
	return err
}

// attachCgroups puts the programs on cgroups on the root of cgroup v2. Where there is
// none, or this process may not, where messages go is read from their senders' memory.
func (o *kernelObjects) attachCgroups() error {
	root, err := cgroupRoot()
	if err != nil || root == "" || slices.Contains(o.cgroups, nil) {
		return err
	}
	for i, attach := range []ebpf.AttachType{ebpf.AttachCGroupUDP4Sendmsg, ebpf.AttachCGroupUDP6Sendmsg} {
		l, err := link.AttachCgroup(link.CgroupOptions{Path: root, Attach: attach, Program: o.cgroups[i]})
		if err != nil {
			return notSupported(fmt.Errorf("attach %s to %s: %w", cgroupNames[i], root, err))
		}
		o.links = append(o.links, l)
	}
	return o.UdpHooked.Set(true)
}

// cgroupRoot returns where cgroup v2 is mounted; it is empty if that is nowhere.
func cgroupRoot() (string, error) {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "", fmt.Errorf("find cgroup v2: %w", err)
	}
	for mount := range strings.Lines(string(mounts)) {
		// Before the dash: id, parent, device, root, mount point; after it: type (proc_pid_mountinfo(5)).
		before, after, _ := strings.Cut(mount, " - ")
		if fields := strings.Fields(before); strings.HasPrefix(after, "cgroup2 ") && len(fields) > 4 && fields[3] == "/" {
			return octal.Replace(fields[4]), nil
		}
	}
	return "", nil
}

// octal undoes what the kernel does to mount points for mountinfo.
var octal = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

// tracepoints has the names of those that programs of that type go to, newest first.
// Programs of the other type have theirs from the kernel's types.
var tracepoints = map[string][]string{
	probeProgOnUringSubmit:   {"io_uring_submit_req", "io_uring_submit_sqe"},
	probeProgOnUringComplete: {"io_uring_complete"},
}

func attachHook(p *ebpf.Program, names []string) (l link.Link, err error) {
	if len(names) == 0 {
		return link.AttachTracing(link.TracingOptions{Program: p})
	}
	for _, name := range names {
		l, err = link.AttachRawTracepoint(link.RawTracepointOptions{Name: name, Program: p})
		if !errors.Is(err, os.ErrNotExist) {
			break
		}
	}
	return l, err
}

// Close detaches and frees everything.
func (o *kernelObjects) Close() (err error) {
	for _, l := range o.links {
		err = errors.Join(err, l.Close())
	}
	for _, p := range slices.Concat(o.hooks, o.cgroups, o.paths, []*ebpf.Program{o.introduce, o.mark, o.takeIn}) {
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
	switch {
	case errors.As(err, new(*verifierError)):
		return fmt.Errorf("the kernel refused a program; please report this with the kernel's version: %w", err)
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
