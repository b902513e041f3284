//go:build !unix

package main

import "os/exec"

// ownGroup does nothing: there are no process groups, and nothing watches one.
func ownGroup(*exec.Cmd) {}
