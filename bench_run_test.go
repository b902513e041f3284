//go:build linux && (amd64 || arm64)

package main

import (
	"bufio"
	"bytes"
	"io"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"
)

func init() {
	// answer is a server that answers each line at once.
	testParts["answer"] = func([]string) error {
		in := bufio.NewReader(os.Stdin)
		for {
			if _, err := in.ReadSlice('\n'); err == io.EOF {
				return nil
			} else if err != nil {
				return err
			}
			if _, err := io.WriteString(os.Stdout, `{"jsonrpc":"2.0","id":1,"result":{"content":[]}}`+"\n"); err != nil {
				return err
			}
		}
	}
}

// behindRun is the command, behind run.
func behindRun(backend string, command *exec.Cmd) *exec.Cmd {
	args := append([]string{"run", "--backend", backend, "--"}, command.Args...)
	cmd := exec.Command(os.Getenv("PROBE_BENCH_BIN"), args...)
	if cmd.Path == "" {
		cmd = partCommand("probe", args...)
	}
	cmd.Env = command.Env
	cmd.Stderr = io.Discard
	return cmd
}

// BenchmarkEBPFRun measures how long a call takes, and how much longer behind run. Goal:
// at most 150 µs in the middle.
func BenchmarkEBPFRun(b *testing.B) {
	direct := &benchedProbe{b: b, cmd: partCommand("answer")}
	direct.start()
	// Its environment says which part to play; that of run does not matter to the binary.
	through := &benchedProbe{b: b, cmd: behindRun("ebpf", partCommand("answer"))}
	through.start()
	call := func(p *benchedProbe) time.Duration {
		start := time.Now()
		if _, err := io.WriteString(p.in, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x"}}`+"\n"); err != nil {
			b.Fatal(err)
		}
		p.line()
		return time.Since(start)
	}
	call(through) // by now it has started
	var with, without []time.Duration
	for b.Loop() {
		without, with = append(without, call(direct)), append(with, call(through))
	}
	slices.Sort(with)
	slices.Sort(without)
	b.ReportMetric(micros(with[len(with)/2]-without[len(without)/2]), "more-p50-µs")
	b.ReportMetric(micros(without[len(without)/2]), "without-p50-µs")
	b.ReportMetric(micros(with[len(with)*99/100]), "with-p99-µs")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkEBPFRunLarge passes a message of 100 MB through cat, and through cat behind run,
// beside two cats, which are two copies through a pipe as well. Goal: within 20 %.
func BenchmarkEBPFRunLarge(b *testing.B) {
	block := bytes.Repeat([]byte("x"), 1<<20)
	pass := func(cmd *exec.Cmd) time.Duration {
		in, err := cmd.StdinPipe()
		if err != nil {
			b.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			b.Fatal(err)
		}
		startFor(b, cmd)
		io.WriteString(in, "\n")
		io.ReadFull(out, make([]byte, 1)) // it has started
		start := time.Now()
		go func() {
			io.WriteString(in, `{"id":1,"result":"`)
			for range 100 {
				in.Write(block)
			}
			io.WriteString(in, `"}`+"\n")
			in.Close()
		}()
		if n, err := io.Copy(io.Discard, out); err != nil || n < 100<<20 {
			b.Fatalf("%d bytes, %v", n, err)
		}
		return time.Since(start)
	}
	var with, without, ratios []float64
	for b.Loop() {
		w := pass(exec.Command("sh", "-c", "cat | cat | cat")).Seconds()
		r := pass(behindRun("ebpf", exec.Command("cat"))).Seconds()
		with, without, ratios = append(with, r), append(without, w), append(ratios, r/w)
	}
	for _, list := range [][]float64{with, without, ratios} {
		slices.Sort(list)
	}
	b.ReportMetric(100/with[len(with)/2], "with-MiB/s")
	b.ReportMetric(100/without[len(without)/2], "without-MiB/s")
	b.ReportMetric(ratios[len(ratios)/2], "with/without")
	b.ReportMetric(0, "ns/op")
}
