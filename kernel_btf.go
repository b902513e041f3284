//go:build linux && (amd64 || arm64)

package main

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"
)

// kernelBTF is what the running kernel says of its own types.
//
// It is read here and not by the library, since a client waits for it: the library
// decodes all names, then whatever can be reached through pointers from the type of
// a hook (from task_struct, nearly everything), and the types of each module. That
// takes 35 ms of CPU and more; to find the hooks, and the hundred types that the
// programs are relocated to, takes four.
type kernelBTF struct {
	hooks map[string]btf.TypeID // typedefs and functions by name, as hookPrefixes has them
	types *btf.Spec             // the wanted ones, with all that they hold; pointers are to void
}

// has tells whether the kernel has that one of the wanted types.
func (k *kernelBTF) has(name string) bool {
	_, err := k.types.AnyTypeByName(name)
	return err == nil
}

// btfPath is where the kernel has it, in the format of Documentation/bpf/btf.rst.
const btfPath = "/sys/kernel/btf/vmlinux"

// readKernelBTF reads all hooks and the types with these names.
func readKernelBTF(types map[string]bool) (*kernelBTF, error) {
	f, err := os.Open(btfPath)
	if err != nil {
		return nil, fmt.Errorf("read the kernel's types: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("read the kernel's types: %w", err)
	}
	// It can be mapped since Linux 6.16; a copy takes 5 ms.
	raw, err := unix.Mmap(int(f.Fd()), 0, int(info.Size()), unix.PROT_READ, unix.MAP_PRIVATE)
	if err == nil {
		defer unix.Munmap(raw)
	} else if raw, err = io.ReadAll(f); err != nil {
		return nil, fmt.Errorf("read the kernel's types: %w", err)
	}
	k, err := decodeKernelBTF(raw, types)
	if err != nil {
		return nil, fmt.Errorf("decode the kernel's types in %s: %w", btfPath, err)
	}
	return k, nil
}

// decodeKernelBTF keeps nothing of raw.
func decodeKernelBTF(raw []byte, types map[string]bool) (*kernelBTF, error) {
	in, err := indexBTF(raw)
	if err != nil {
		return nil, err
	}
	k := &kernelBTF{hooks: map[string]btf.TypeID{}}
	out := btfSubset{in: in, ids: map[uint32]uint32{0: 0}, names: map[uint32]uint32{0: 0}, strings: []byte{0}}
	for id := uint32(1); id < uint32(len(in.at)); id++ {
		kind, place := in.kind(id), in.word(id, 0)
		switch kind {
		case btfTypedef, btfFunction:
			// Half of all types are functions: how a name starts is quicker to see than what it is.
			rest := in.strings[min(int(place), len(in.strings)):]
			if !slices.ContainsFunc(hookPrefixes[kind], func(prefix []byte) bool { return bytes.HasPrefix(rest, prefix) }) {
				continue
			}
			k.hooks[string(in.string(place))] = btf.TypeID(id)
		case btfStruct, btfUnion, btfEnum, btfEnum64:
			if types[string(in.string(place))] {
				out.id(id)
			}
		}
	}
	encoded, err := out.encode()
	if err != nil {
		return nil, err
	}
	k.types, err = btf.LoadSpecFromReader(bytes.NewReader(encoded))
	return k, err
}

// namedTypes names the types that the programs know.
func namedTypes() (map[string]bool, error) {
	object, err := elf.NewFile(bytes.NewReader(_ProbeBytes))
	if err != nil {
		return nil, fmt.Errorf("read the programs' types: %w", err)
	}
	section := object.Section(".BTF")
	if section == nil {
		return nil, errors.New("the programs have no types")
	}
	raw, err := section.Data()
	if err != nil {
		return nil, fmt.Errorf("read the programs' types: %w", err)
	}
	in, err := indexBTF(raw)
	if err != nil {
		return nil, fmt.Errorf("decode the programs' types: %w", err)
	}
	names := map[string]bool{}
	for id := uint32(1); id < uint32(len(in.at)); id++ {
		// What follows three underscores tells one kernel's form of a type from another's.
		name, _, _ := strings.Cut(string(in.string(in.word(id, 0))), "___")
		names[name] = true
	}
	delete(names, "")
	return names, nil
}

// The kinds of types that matter here.
const (
	btfInt      = 1
	btfPointer  = 2
	btfArray    = 3
	btfStruct   = 4
	btfUnion    = 5
	btfEnum     = 6
	btfForward  = 7
	btfTypedef  = 8
	btfVolatile = 9
	btfConst    = 10
	btfRestrict = 11
	btfFunction = 12
	btfFloat    = 16
	btfTypeTag  = 18
	btfEnum64   = 19

	btfKinds     = 20
	btfMagic     = 0xeb9f
	btfVersion   = 1
	btfHeaderLen = 24
	btfTypeLen   = 12 // three words: name; kind and number of members; size or type
)

// hookPrefixes are how the names of those start that stand for hooks; see hookType.
var hookPrefixes = [btfKinds][][]byte{
	btfTypedef:  {[]byte("btf_trace_")},
	btfFunction: {[]byte("bpf_iter_"), []byte("security_path_")},
}

// btfTails is how many bytes follow a type of each kind: in all, and for each member.
var btfTails = [btfKinds]struct{ fixed, each int }{
	btfInt:                        {fixed: 4},
	btfArray:                      {fixed: 12},
	btfStruct:                     {each: 12},
	btfUnion:                      {each: 12},
	btfEnum:                       {each: 8},
	13 /* BTF_KIND_FUNC_PROTO */ : {each: 8},
	14 /* BTF_KIND_VAR */ :        {fixed: 4},
	15 /* BTF_KIND_DATASEC */ :    {each: 12},
	17 /* BTF_KIND_DECL_TAG */ :   {fixed: 4},
	btfEnum64:                     {each: 12},
}

// errBadBTF is of types that are not as the kernel's documentation has them.
var errBadBTF = errors.New("not BTF of a form that is known here")

// btfIndex is where each type is.
type btfIndex struct {
	types, strings []byte
	at             []uint32 // in types, by id; there is no type 0
}

func indexBTF(raw []byte) (*btfIndex, error) {
	if len(raw) < btfHeaderLen || binary.NativeEndian.Uint16(raw) != btfMagic || raw[2] != btfVersion {
		return nil, errBadBTF
	}
	word := func(at int) uint64 { return uint64(binary.NativeEndian.Uint32(raw[at:])) }
	types, strings := word(4)+word(8), word(4)+word(16)
	if size := uint64(len(raw)); types+word(12) > size || strings+word(20) > size {
		return nil, fmt.Errorf("%w: a section is longer than the file", errBadBTF)
	}
	x := &btfIndex{types: raw[types : types+word(12)], strings: raw[strings : strings+word(20)]}
	if len(x.strings) == 0 || x.strings[len(x.strings)-1] != 0 {
		return nil, fmt.Errorf("%w: the last name has no end", errBadBTF)
	}
	x.at = make([]uint32, 1, 1+len(x.types)/(2*btfTypeLen))
	for at := 0; at < len(x.types); {
		id := uint32(len(x.at))
		x.at = append(x.at, uint32(at))
		if len(x.types)-at < btfTypeLen {
			return nil, fmt.Errorf("%w: type %d is cut off", errBadBTF, id)
		}
		if kind := x.kind(id); kind == 0 || kind >= btfKinds {
			return nil, fmt.Errorf("%w: type %d is of kind %d", errBadBTF, id, kind)
		}
		if at += x.len(id); at > len(x.types) {
			return nil, fmt.Errorf("%w: type %d is cut off", errBadBTF, id)
		}
	}
	return x, nil
}

// word returns one of the three words of a type.
func (x *btfIndex) word(id uint32, n int) uint32 {
	return binary.NativeEndian.Uint32(x.types[int(x.at[id])+4*n:])
}

func (x *btfIndex) kind(id uint32) uint32 { return x.word(id, 1) >> 24 & 0x1f }
func (x *btfIndex) members(id uint32) int { return int(x.word(id, 1) & 0xffff) }

func (x *btfIndex) len(id uint32) int {
	tail := btfTails[x.kind(id)]
	return btfTypeLen + tail.fixed + tail.each*x.members(id)
}

// string returns a name, which is empty if there is none at that place.
func (x *btfIndex) string(at uint32) []byte {
	if uint64(at) >= uint64(len(x.strings)) {
		return nil
	}
	name := x.strings[at:]
	return name[:bytes.IndexByte(name, 0)]
}

// btfSubset is some of the types of an index, with ids in the order in which they
// were asked for.
type btfSubset struct {
	in      *btfIndex
	order   []uint32          // in's ids of the types here
	ids     map[uint32]uint32 // from in's
	names   map[uint32]uint32 // places, from in's
	types   []byte
	strings []byte
	err     error
}

// id returns the new id of a type, which is part of the subset from now on.
func (s *btfSubset) id(old uint32) uint32 {
	id, ok := s.ids[old]
	if !ok {
		if old >= uint32(len(s.in.at)) {
			s.err = fmt.Errorf("%w: there is no type %d", errBadBTF, old)
			return 0
		}
		s.order = append(s.order, old)
		id = uint32(len(s.order))
		s.ids[old] = id
	}
	return id
}

func (s *btfSubset) name(old uint32) uint32 {
	at, ok := s.names[old]
	if !ok {
		at = uint32(len(s.strings))
		s.strings = append(append(s.strings, s.in.string(old)...), 0)
		s.names[old] = at
	}
	return at
}

// encode returns the subset, with all that its types hold, as BTF.
func (s *btfSubset) encode() ([]byte, error) {
	for i := 0; i < len(s.order); i++ {
		if s.add(s.order[i]); s.err != nil {
			return nil, s.err
		}
	}
	b := binary.NativeEndian.AppendUint16(nil, btfMagic)
	b = append(b, btfVersion, 0)
	for _, word := range []int{btfHeaderLen, 0, len(s.types), len(s.types), len(s.strings)} {
		b = binary.NativeEndian.AppendUint32(b, uint32(word))
	}
	return append(append(b, s.types...), s.strings...), nil
}

// add copies a type, with the ids and places of names in it changed to those here.
func (s *btfSubset) add(old uint32) {
	kind, members, at, start := s.in.kind(old), s.in.members(old), s.in.at[old], len(s.types)
	s.types = append(s.types, s.in.types[at:int(at)+s.in.len(old)]...)
	t := s.types[start:]
	change := func(at int, to func(uint32) uint32) {
		binary.NativeEndian.PutUint32(t[at:], to(binary.NativeEndian.Uint32(t[at:])))
	}
	change(0, s.name)
	switch kind {
	case btfInt, btfEnum, btfForward, btfFloat, btfEnum64:
	case btfTypedef, btfVolatile, btfConst, btfRestrict, btfTypeTag:
		change(8, s.id)
	case btfPointer:
		change(8, func(uint32) uint32 { return 0 })
	case btfArray:
		change(btfTypeLen, s.id)
		change(btfTypeLen+4, s.id)
	case btfStruct, btfUnion:
		for m := range members {
			change(btfTypeLen+12*m+4, s.id)
		}
	default:
		s.err = fmt.Errorf("%w: a structure holds type %d of kind %d", errBadBTF, old, kind)
		return
	}
	for at := btfTypeLen; btfTails[kind].each > 0 && at < len(t); at += btfTails[kind].each {
		change(at, s.name)
	}
}
