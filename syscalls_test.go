//go:build linux && (amd64 || arm64)

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"
)

// TestSyscallNumbers checks the tables of numbers against golang.org/x/sys/unix, for
// all architectures: each number is right, and no spelling is left out.
func TestSyscallNumbers(t *testing.T) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "golang.org/x/sys").Output()
	if err != nil {
		t.Skipf("where is the source of golang.org/x/sys: %v", err)
	}
	for arch, numbers := range map[string]map[string]int{runtime.GOARCH: nativeNumbers, arch32: numbers32} {
		source, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(out)), "unix", "zsysnum_linux_"+arch+".go"))
		if err != nil {
			t.Fatal(err)
		}
		found := 0
		for _, m := range regexp.MustCompile(`SYS_(\w+) *= *(\d+)`).FindAllStringSubmatch(string(source), -1) {
			name := strings.ToLower(m[1])
			if _, ok := syscallMeanings[name]; !ok {
				continue
			}
			found++
			if number, ok := numbers[name]; !ok || strconv.Itoa(number) != m[2] {
				t.Errorf("%s: %s is %d (%v), want %s", arch, name, number, ok, m[2])
			}
		}
		if found != len(numbers) || found < 20 {
			t.Errorf("%s: the table has %d numbers, and there are %d", arch, len(numbers), found)
		}
		for name, number := range numbers {
			if number >= socketcallBase {
				t.Errorf("%s: %s is %d, where the calls of socketcall are", arch, name, number)
			}
		}
	}
}
