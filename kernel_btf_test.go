//go:build linux && (amd64 || arm64)

package main

import (
	"errors"
	"io/fs"
	"testing"

	"github.com/cilium/ebpf/btf"
)

// TestKernelBTF holds what is read of the running kernel's types against what the
// library reads.
func TestKernelBTF(t *testing.T) {
	theirs, err := btf.LoadKernelSpec()
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, btf.ErrNotSupported) {
		t.Skip("this kernel does not tell its types: ", err)
	} else if err != nil {
		t.Fatal(err)
	}
	program, err := loadSpec()
	if err != nil {
		t.Fatal(err)
	}
	types, err := namedTypes()
	if err != nil {
		t.Fatal(err)
	}
	ours, err := readKernelBTF(types)
	if err != nil {
		t.Fatal(err)
	}
	for name, id := range ours.hooks {
		hook, err := theirs.TypeByID(id)
		if err != nil || hook.TypeName() != name {
			t.Errorf("hook %s: type %d is %v, %v", name, id, hook, err)
		}
	}
	for _, p := range program.Programs {
		if name := hookType(p); name != "" && ours.hooks[name] == 0 {
			t.Errorf("there is no hook %s", name)
		}
	}
	for _, hook := range pathHooks {
		if ours.hooks[hook.function] == 0 {
			t.Errorf("there is no hook %s", hook.function)
		}
	}
	if structs, enums := compareTypes(t, ours.types, theirs); structs < 50 || enums == 0 {
		t.Errorf("%d structures and %d enums, want at least 50 and one", structs, enums)
	}
}

// compareTypes compares each named structure, union and enum of ours with the one of
// theirs, and returns how many there were.
func compareTypes(t *testing.T, ours, theirs *btf.Spec) (structs, enums int) {
	same := func(a, b []btf.Member) bool {
		if len(a) != len(b) {
			return false
		}
		for i := range a {
			if a[i].Name != b[i].Name || a[i].Offset != b[i].Offset || a[i].BitfieldSize != b[i].BitfieldSize {
				return false
			}
			sizeA, errA := btf.Sizeof(a[i].Type)
			sizeB, errB := btf.Sizeof(b[i].Type)
			if sizeA != sizeB || (errA == nil) != (errB == nil) {
				return false
			}
		}
		return true
	}
	for typ, err := range ours.All() {
		if err != nil {
			t.Fatal(err)
		}
		if typ.TypeName() == "" {
			continue
		}
		candidates, err := theirs.AnyTypesByName(typ.TypeName())
		if err != nil {
			t.Errorf("%v: %v", typ, err)
			continue
		}
		found := false
		for _, candidate := range candidates {
			switch a := typ.(type) {
			case *btf.Struct:
				b, ok := candidate.(*btf.Struct)
				found = found || ok && a.Size == b.Size && same(a.Members, b.Members)
				structs++
			case *btf.Union:
				b, ok := candidate.(*btf.Union)
				found = found || ok && a.Size == b.Size && same(a.Members, b.Members)
				structs++
			case *btf.Enum:
				b, ok := candidate.(*btf.Enum)
				found = found || ok && len(a.Values) == len(b.Values) && a.Values[0] == b.Values[0]
				enums++
			default:
				found = true
			}
		}
		if !found {
			t.Errorf("%v differs from the library's", typ)
		}
	}
	return structs, enums
}

// TestKernelBTFBroken takes all ends, and some middles, of type information away.
func TestKernelBTFBroken(t *testing.T) {
	raw := smallBTF(t)
	types := map[string]bool{"outer": true, "choice": true}
	k, err := decodeKernelBTF(raw, types)
	if err != nil || k.hooks["btf_trace_hook"] == 0 {
		t.Fatalf("hooks %v, error %v", k, err)
	}
	if _, err := k.types.AnyTypeByName("inner"); err != nil {
		t.Errorf("what outer holds is not there: %v", err)
	}
	for n := range raw {
		if _, err := decodeKernelBTF(raw[:n], types); !errors.Is(err, errBadBTF) {
			t.Errorf("the first %d bytes of %d: %v", n, len(raw), err)
		}
	}
}

// FuzzKernelBTF changes type information that is right.
func FuzzKernelBTF(f *testing.F) {
	f.Add(smallBTF(f))
	f.Fuzz(func(t *testing.T, raw []byte) {
		k, err := decodeKernelBTF(raw, map[string]bool{"outer": true, "choice": true})
		if err != nil {
			return
		}
		for range k.types.All() {
		}
	})
}

// smallBTF is type information with a hook, an enum and a structure in a structure.
func smallBTF(tb testing.TB) []byte {
	number := &btf.Int{Name: "int", Size: 4, Encoding: btf.Signed}
	inner := &btf.Struct{Name: "inner", Size: 4, Members: []btf.Member{{Name: "n", Type: number}}}
	outer := &btf.Struct{Name: "outer", Size: 24, Members: []btf.Member{
		{Name: "in", Type: inner},
		{Name: "all", Type: &btf.Array{Index: number, Type: &btf.Const{Type: number}, Nelems: 2}, Offset: 32},
		{Name: "next", Offset: 128},
	}}
	outer.Members[2].Type = &btf.Pointer{Target: outer}
	hook := &btf.Typedef{Name: "btf_trace_hook", Type: &btf.Pointer{Target: &btf.FuncProto{Return: number, Params: []btf.FuncParam{{Name: "o", Type: outer.Members[2].Type}}}}}
	b, err := btf.NewBuilder([]btf.Type{outer, hook, &btf.Enum{Name: "choice", Size: 4, Values: []btf.EnumValue{{Name: "A", Value: 1}}}}, nil)
	if err != nil {
		tb.Fatal(err)
	}
	raw, err := b.Marshal(nil, nil)
	if err != nil {
		tb.Fatal(err)
	}
	return raw
}
