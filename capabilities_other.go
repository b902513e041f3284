//go:build !linux

package main

// dropCapabilities does nothing: only Linux has any.
func dropCapabilities() error { return nil }
