package main

import (
	"io"
)

func actor(in io.Reader, out io.Writer) int { return 0 }
