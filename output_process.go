package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"time"
)

// What comes of run's event lines. They go to a process of their own, which sees their end
// when run has gone, however that was: a client may kill it at any time, and what is written
// last, as the report, is to be had all the same. Nor does a call wait for more than a pipe.

// An outputProcess is that process.
type outputProcess struct {
	cmd   *exec.Cmd
	in    *os.File // event lines
	alive *os.File // the process writes a byte when it takes them
	over  bool

	timeout time.Duration // that a call waits if it does not
}

// startOutput starts it, with the arguments of run.
func startOutput(args []string, stderr io.Writer) (*outputProcess, error) {
	self, err := ownProgram()
	if err != nil {
		return nil, fmt.Errorf("start the output: %w", err)
	}
	theirs, in, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start the output: %w", err)
	}
	defer theirs.Close()
	growPipe(theirs, outputPipeSize)
	alive, tell, err := os.Pipe()
	if err != nil {
		in.Close()
		return nil, fmt.Errorf("start the output: %w", err)
	}
	defer tell.Close()
	o := &outputProcess{cmd: exec.Command(self, append([]string{"run-output"}, args...)...), in: in, alive: alive, timeout: outputTimeout}
	o.cmd.Stdin, o.cmd.Stdout, o.cmd.Stderr = theirs, tell, stderr
	ownSession(o.cmd)
	if err := o.cmd.Start(); err != nil {
		o.over = true
		return nil, errors.Join(fmt.Errorf("start the output: %w", err), in.Close(), alive.Close())
	}
	return o, nil
}

// ready waits until it takes lines. If it does not, it has said why.
func (o *outputProcess) ready() error {
	if n, _ := o.alive.Read(make([]byte, 1)); n == 0 {
		return cmp.Or(o.close(), errors.New("start the output: it has ended"))
	}
	return nil
}

// outputTimeout is how long a call waits for an output that takes nothing.
const outputTimeout = 10 * time.Second

// Write writes lines. What takes none, as a file that is a pipe which nobody reads, must not
// keep a server and its client from each other: it is given up.
func (o *outputProcess) Write(lines []byte) (int, error) {
	o.in.SetWriteDeadline(time.Now().Add(o.timeout))
	n, err := o.in.Write(lines)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		o.cmd.Process.Kill()
		err = fmt.Errorf("nothing has been taken for %v: the rest of this session is not recorded", o.timeout)
	}
	return n, err
}

// close ends the lines and waits until all is written. If that fails, it has been said.
func (o *outputProcess) close() error {
	if o.over {
		return nil
	}
	o.over = true
	o.in.Close()
	defer o.alive.Close()
	var exit *exec.ExitError
	if err := o.cmd.Wait(); errors.As(err, &exit) && exit.Exited() {
		return exitStatus(exit.ExitCode())
	} else if err != nil {
		return fmt.Errorf("wait for the output: %w", err)
	}
	return nil
}

// runOutputCommand is the hidden command run-output.
func runOutputCommand(args []string, stdin io.Reader, stdout, stderr io.Writer) error {
	o, err := parseRun(args, stdout)
	if err != nil {
		return err
	}
	p, err := o.policy()
	if err != nil {
		return err
	}
	user, err := invokingUser(o.asRoot)
	if err != nil {
		return err
	}
	out, err := newRunOutput(p, o.files, user)
	if err != nil {
		return err
	}
	for _, f := range out.files {
		if sameFile(f.Name(), "/dev/stdout") || sameFile(f.Name(), *o.policyFlags.file) || sameFile(f.Name(), o.eventsFile) {
			return usageError{fmt.Errorf("%s: that is read already, or is the client's", f.Name())}
		}
	}
	if err := dropCapabilities(); err != nil {
		return err
	}
	parent := os.Getppid()
	signal.Ignore(append(slices.Clone(endSignals), brokenPipe...)...) // they are for run
	if _, err := stdout.Write([]byte{1}); err != nil {
		return err
	}
	err = out.takeAll(stdin)
	signal.Reset(endSignals...) // nobody else is there to be ended
	if os.Getppid() != parent && out.group > 1 {
		killGroup(out.group) // run was killed: what the server has started is left
	}
	if err = errors.Join(err, out.close(stderr)); err != nil {
		return err
	}
	return o.policyFlags.verdict(out.evaluation)
}

// outputPipeSize is room for what has been seen meanwhile, in bytes.
const outputPipeSize = 1 << 20

// outputGatherTime is how long lines may wait in the pipe for others: a call waits for its
// server, which has a CPU the sooner the less is done meanwhile.
const outputGatherTime = 5 * time.Millisecond

// takeAll takes lines until there are no more.
func (o *runOutput) takeAll(lines io.Reader) error {
	buf := make([]byte, 256<<10)
	for {
		n, err := lines.Read(buf)
		o.Write(buf[:n]) // which never fails
		if err == io.EOF {
			return nil
		} else if err != nil {
			return fmt.Errorf("read events: %w", err)
		}
		if n < len(buf)/16 { // else there are many
			time.Sleep(outputGatherTime)
		}
	}
}
