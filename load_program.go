//go:build linux && (amd64 || arm64)

package main

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"
)

// progLoad is the part of union bpf_attr for BPF_PROG_LOAD that is used here
// (include/uapi/linux/bpf.h).
type progLoad struct {
	progType           uint32
	insnCount          uint32
	insns              *byte
	license            *byte
	logLevel           uint32
	logSize            uint32
	log                *byte
	kernelVersion      uint32
	flags              uint32
	name               [16]byte
	ifindex            uint32
	expectedAttachType uint32
	btfFD              uint32
	funcInfoSize       uint32
	funcInfo           *byte
	funcInfoCount      uint32
	lineInfoSize       uint32
	lineInfo           *byte
	lineInfoCount      uint32
	attachBTFID        uint32
}

const (
	// btfExtLineLen is where the header of .BTF.ext has the length of what it has on
	// lines (Documentation/bpf/btf.rst).
	btfExtLineLen = 20

	verifierLogSize  = 16 << 20
	verifierLogLines = 12 // of it that are shown: its end, with the reason

	// loadAttempts is how often a program is tried whose verification a signal has
	// ended; Go's scheduler sends some.
	loadAttempts = 30
)

// A verifierError is of a program that the kernel has refused.
type verifierError struct {
	program string
	err     error
	log     []string // the end of it
}

func (e *verifierError) Error() string {
	return fmt.Sprintf("load program %s: %v:\n\t%s", e.program, e.err, strings.Join(e.log, "\n\t"))
}

func (e *verifierError) Unwrap() error { return e.err }

// loadSpec reads the programs without their lines of source, which the kernel would
// check and keep, and quote in the log of a program that it refuses: all that takes 5 ms
// of CPU while a client waits.
func loadSpec() (*ebpf.CollectionSpec, error) {
	object, err := elf.NewFile(bytes.NewReader(_ProbeBytes))
	if err != nil {
		return nil, fmt.Errorf("read the programs: %w", err)
	}
	section := object.Section(".BTF.ext")
	if section == nil || section.Size < btfExtLineLen+4 {
		return nil, errors.New("read the programs: there is nothing about their functions")
	}
	without := slices.Clone(_ProbeBytes)
	object.ByteOrder.PutUint32(without[section.Offset+btfExtLineLen:], 4) // which is for the size of a line
	return ebpf.LoadCollectionSpecFromReader(bytes.NewReader(without))
}

// loadProgram loads one program, with what it takes from kernel. The library could,
// but not without decoding the kernel's types its way; see kernelBTF.
func loadProgram(spec *ebpf.ProgramSpec, maps map[string]*ebpf.Map, kernel *kernelBTF) (*ebpf.Program, error) {
	attr := progLoad{progType: uint32(spec.Type), expectedAttachType: uint32(spec.AttachType), flags: spec.Flags}
	copy(attr.name[:len(attr.name)-1], spec.Name)
	if hook := hookType(spec); hook != "" {
		attr.attachBTFID = uint32(kernel.hooks[hook])
		if attr.attachBTFID == 0 {
			return nil, fmt.Errorf("load program %s: this kernel has no %s: %w", spec.Name, hook, ebpf.ErrNotSupported)
		}
	}
	insns, types, err := relocate(spec, maps, kernel)
	if err != nil {
		return nil, fmt.Errorf("load program %s: %w", spec.Name, err)
	}
	funcs, _, err := btf.MarshalExtInfos(insns, types)
	if err != nil {
		return nil, fmt.Errorf("load program %s: describe its functions: %w", spec.Name, err)
	}
	handle, err := btf.NewHandle(types)
	if err != nil {
		return nil, fmt.Errorf("load program %s: load its types: %w", spec.Name, err)
	}
	defer handle.Close()
	var code bytes.Buffer
	if err := insns.Marshal(&code, spec.ByteOrder); err != nil {
		return nil, fmt.Errorf("load program %s: %w", spec.Name, err)
	}
	attr.insns, attr.insnCount = unsafe.SliceData(code.Bytes()), uint32(code.Len()/8)
	license, err := unix.BytePtrFromString(spec.License)
	if err != nil {
		return nil, fmt.Errorf("load program %s: license: %w", spec.Name, err)
	}
	attr.license = license
	attr.btfFD = uint32(handle.FD())
	attr.funcInfo, attr.funcInfoSize, attr.funcInfoCount = unsafe.SliceData(funcs), btf.FuncInfoSize, uint32(len(funcs))/btf.FuncInfoSize
	fd, err := attr.load()
	if errors.Is(err, unix.EPERM) {
		return nil, fmt.Errorf("load program %s: %w", spec.Name, err) // it was not even looked at
	} else if err != nil {
		// The log costs time, so it is asked for only if there is something in it.
		log := make([]byte, verifierLogSize)
		attr.logLevel, attr.logSize, attr.log = 1, uint32(len(log)), unsafe.SliceData(log)
		if fd, again := attr.load(); again == nil {
			unix.Close(fd)
		}
		text, _, _ := strings.Cut(string(log), "\x00")
		if text == "" {
			return nil, fmt.Errorf("load program %s: %w", spec.Name, err)
		}
		all := strings.Split(strings.TrimSpace(text), "\n")
		return nil, &verifierError{spec.Name, err, all[max(0, len(all)-verifierLogLines):]}
	}
	runtime.KeepAlive(maps)
	p, err := ebpf.NewProgramFromFD(fd)
	if err != nil {
		return nil, fmt.Errorf("load program %s: %w", spec.Name, err)
	}
	return p, nil
}

// relocate returns a program's instructions with its maps and the kernel's own places
// in them, and the types that they name.
func relocate(spec *ebpf.ProgramSpec, maps map[string]*ebpf.Map, kernel *kernelBTF) (insns asm.Instructions, types *btf.Builder, err error) {
	insns = slices.Clone(spec.Instructions)
	var relocations []*btf.CORERelocation
	var relocated []int
	for i := range insns {
		if r := btf.CORERelocationMetadata(&insns[i]); r != nil {
			relocations, relocated = append(relocations, r), append(relocated, i)
		}
		if insns[i].IsLoadFromMap() {
			m := maps[insns[i].Reference()]
			if m == nil {
				return nil, nil, fmt.Errorf("there is no map %q", insns[i].Reference())
			}
			if err := insns[i].AssociateMap(m); err != nil {
				return nil, nil, fmt.Errorf("use map %s: %w", insns[i].Reference(), err)
			}
		}
	}
	types = new(btf.Builder)
	fixups, err := btf.CORERelocate(relocations, []*btf.Spec{kernel.types}, spec.ByteOrder, types.Add)
	if err != nil {
		return nil, nil, fmt.Errorf("relocate: %w", err)
	}
	for i := range fixups {
		if err := fixups[i].Apply(&insns[relocated[i]]); err != nil {
			return nil, nil, fmt.Errorf("relocate %v: %w", relocations[i], err)
		}
	}
	return insns, types, nil
}

// load returns the new program's descriptor.
func (a *progLoad) load() (int, error) {
	var errno unix.Errno
	for range loadAttempts {
		var fd uintptr
		fd, _, errno = unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_LOAD, uintptr(unsafe.Pointer(a)), unsafe.Sizeof(*a))
		if errno == 0 {
			return int(fd), nil
		}
		if errno != unix.EAGAIN && errno != unix.EINTR {
			break
		}
	}
	return 0, errno
}

// hookType names the kernel's type that stands for the program's hook.
func hookType(spec *ebpf.ProgramSpec) string {
	switch spec.AttachType {
	case ebpf.AttachTraceRawTp:
		return "btf_trace_" + spec.AttachTo
	case ebpf.AttachTraceIter:
		return "bpf_iter_" + spec.AttachTo
	case ebpf.AttachTraceFEntry:
		return spec.AttachTo
	}
	return ""
}
