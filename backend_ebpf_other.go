//go:build !linux || !(amd64 || arm64)

package main

import (
	"errors"
	"runtime"
)

func newEBPFBackend(int) (backend, error) {
	return nil, unavailable{errors.New("eBPF needs Linux on x86-64 or arm64, and this is " + runtime.GOOS + "/" + runtime.GOARCH + "; use --backend fake")}
}
