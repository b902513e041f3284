//go:build !unix

package main

import "os"

var endSignals = []os.Signal{os.Interrupt}

var brokenPipe []os.Signal

// waitReaderGone waits for ever: a closed output is noticed by the next write.
func waitReaderGone(*os.File) error { select {} }
