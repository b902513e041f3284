//go:build !unix

package main

import (
	"errors"
	"io"
	"os"
)

type server struct{ in, out *os.File }

type serverUser struct{}

var errNoServer = usageError{errors.New("run: this system has no process groups")}

func invokingUser(bool) (*serverUser, error) { return nil, nil }

func startServer([]string, *serverUser, io.Writer) (*server, error) { return nil, errNoServer }

func (s *server) pid() int         { return 0 }
func (s *server) release() error   { return errNoServer }
func (s *server) signal(os.Signal) {}
func (s *server) end()             {}
func (s *server) kill()            {}
func (s *server) wait()            {}
func (s *server) status() int      { return 0 }

func runServer([]string, io.Reader, io.Writer, io.Writer) error { return errNoServer }
