//go:build !unix

package main

import (
	"os"
	"os/exec"
)

var endSignals = []os.Signal{os.Interrupt}

// signalNumber is that of SIGINT, the only one.
func signalNumber(os.Signal) int { return 2 }

var brokenPipe []os.Signal

func killGroup(int) {}

func ownProgram() (string, error) { return os.Executable() }

// ownSession does nothing: there is nothing of the kind.
func ownSession(*exec.Cmd) {}

// waitReaderGone waits for ever: a closed output is noticed by the next write.
func waitReaderGone(*os.File) error { select {} }
