package main

import "io"

func demo(args []string, stdin io.Reader, stdout io.Writer) error       { return nil }
func demoServer(args []string, stdin io.Reader, stdout io.Writer) error { return nil }
