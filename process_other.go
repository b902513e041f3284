//go:build !unix

package main

import (
	"os"
	"os/exec"
)

var endSignals = []os.Signal{os.Interrupt}

var brokenPipe []os.Signal

// ownSession does nothing: there is nothing of the kind.
func ownSession(*exec.Cmd) {}

// waitReaderGone waits for ever: a closed output is noticed by the next write.
func waitReaderGone(*os.File) error { select {} }
