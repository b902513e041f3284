//go:build linux && (amd64 || arm64)

package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"
)

// ebpfBackend watches the kernel through probe.bpf.c.
type ebpfBackend struct {
	objs   kernelObjects
	takeIn *link.Iter

	control    sync.Mutex // held while the control side is in the kernel
	generation uint32     // of the scope; see take_in

	mu      sync.Mutex
	uid     uint32            // of the scope
	marks   []*mark           // on their way through the ring, oldest first
	token   uint64            // of the newest of them
	seen    uint64            // of the newest that came back
	waiting bool              // mark may be waiting for room
	windows [lossSlots]uint64 // the window that owns the slot of losses

	gatherTime time.Duration

	drained chan struct{} // next has made room while mark was waiting
	marked  chan struct{} // a mark is on its way
	caught  bool          // next has caught up with the ring
	closed  chan struct{}
	once    sync.Once

	sample ringbuf.Record
	event  kernelEvent
	held   heldRequests
	told   toldPaths
	clock  wallClock

	reportedTotal uint64
	reported      [lossSlots + 1][probeLossLOSSES]uint64
}

var _ backend = (*ebpfBackend)(nil)

const (
	// ringHeadroom keeps room for a few thousand marks however many events there are.
	ringHeadroom = 256 << 10

	// maxMarksOnTheirWay bounds how far mark may be ahead of next. The kernel side
	// counts in a window's slot for half of lossSlots windows, so that next has
	// reported what is in it long before another window owns it.
	maxMarksOnTheirWay = lossSlots/2 - 1

	// maxGatherTime is how long an event may wait for others; see gather.
	maxGatherTime = 5 * time.Millisecond

	// fillRate is what the ring is filled with at the very most, in bytes a second: two
	// CPUs that do nothing but open files make 100 MB of records.
	fillRate = 200e6

	// maxTakeInPasses is more than a process tree is ever deep; a pass takes in a
	// generation at least.
	maxTakeInPasses = 10000
)

// newEBPFBackend loads and attaches the kernel side. ringSize is in bytes, a power
// of two. What the machine lacks is an errUnavailable.
func newEBPFBackend(ringSize int) (_ backend, err error) {
	b := &ebpfBackend{
		gatherTime: min(maxGatherTime, time.Duration(float64(ringSize)/2/fillRate*1e9)),
		event:      kernelEvent{scopeUID: uint32(os.Getuid())},
		drained:    make(chan struct{}, 1),
		marked:     make(chan struct{}, 1),
		closed:     make(chan struct{}),
	}
	defer func() {
		if err != nil {
			b.Close()
			err = explainEBPF(err)
		}
	}()
	if err := b.objs.load(ringSize); err != nil {
		return nil, err
	}
	if _, err := b.objs.introduce.Run(&ebpf.RunOptions{}); err != nil {
		return nil, fmt.Errorf("run introduce: %w", err)
	}
	if b.takeIn, err = link.AttachIter(link.IterOptions{Program: b.objs.takeIn}); err != nil {
		return nil, fmt.Errorf("attach take_in: %w", err)
	}
	if err := b.objs.attach(); err != nil {
		return nil, err
	}
	b.generation = 1
	if err := b.objs.CurrentGeneration.Set(b.generation); err != nil {
		return nil, err
	}
	// A parent outside of the pid namespace cannot be named, nor watched.
	if parent := os.Getppid(); parent > 0 {
		if _, err := b.pass(parent); err != nil {
			return nil, err
		}
		var refused uint32
		if err := b.objs.RefusedTasks.Get(&refused); err != nil {
			return nil, err
		}
		if refused > 0 {
			return nil, unavailable{errors.New("the kernel cannot keep anything with a task; since Linux 7 that takes a CPU with cmpxchg16b (in QEMU, +cx16)")}
		}
	}
	return b, nil
}

func (b *ebpfBackend) name() string { return "ebpf" }

// lockOpen locks b.control unless b is closed. What Close takes away is still in use
// until it is unlocked.
func (b *ebpfBackend) lockOpen() error {
	b.control.Lock()
	select {
	case <-b.closed:
		b.control.Unlock()
		return os.ErrClosed
	default:
		return nil
	}
}

func (b *ebpfBackend) scope(pgid int) (processes int, err error) {
	if err := b.lockOpen(); err != nil {
		return 0, err
	}
	defer b.control.Unlock()
	b.generation++
	for range maxTakeInPasses {
		taken, err := b.pass(pgid)
		if err != nil {
			return 0, err
		}
		var n uint32
		if err := b.objs.TakenProcesses.Get(&n); err != nil {
			return 0, err
		}
		processes += int(n)
		if taken == 0 {
			b.mu.Lock()
			defer b.mu.Unlock()
			return processes, b.objs.TakenUid.Get(&b.uid)
		}
	}
	return 0, fmt.Errorf("scope %d: its processes fork faster than they can be counted", pgid)
}

// pass runs take_in over all tasks once and returns how many it took.
func (b *ebpfBackend) pass(pid int) (taken uint32, err error) {
	if _, err := b.runTakeIn(pid, b.generation); err != nil {
		return 0, err
	}
	return taken, b.objs.TakenTasks.Get(&taken)
}

func (b *ebpfBackend) live() (map[uint64]bool, error) {
	windows, _, err := b.liveNumbers()
	return windows, err
}

// liveNumbers returns the windows and programs that the tasks in scope can still name.
func (b *ebpfBackend) liveNumbers() (windows, programs map[uint64]bool, err error) {
	if err := b.lockOpen(); err != nil {
		return nil, nil, err
	}
	defer b.control.Unlock()
	raw, err := b.runTakeIn(0, 0)
	if err != nil {
		return nil, nil, err
	}
	windows, programs = map[uint64]bool{}, map[uint64]bool{}
	for ; len(raw) >= 24; raw = raw[24:] {
		windows[binary.NativeEndian.Uint64(raw)] = true
		windows[binary.NativeEndian.Uint64(raw[8:])] = true
		programs[binary.NativeEndian.Uint64(raw[16:])] = true
	}
	return windows, programs, nil
}

// runTakeIn runs take_in over all tasks once and returns what it writes.
func (b *ebpfBackend) runTakeIn(pid int, generation uint32) ([]byte, error) {
	for _, v := range []struct {
		variable *ebpf.Variable
		value    uint32
	}{
		{b.objs.WantedPid, uint32(pid)},
		{b.objs.WantedGeneration, generation},
		{b.objs.TakenTasks, 0},
		{b.objs.TakenProcesses, 0},
	} {
		if err := v.variable.Set(v.value); err != nil {
			return nil, err
		}
	}
	tasks, err := b.takeIn.Open()
	if err != nil {
		return nil, fmt.Errorf("open take_in: %w", err)
	}
	defer tasks.Close()
	raw, err := io.ReadAll(tasks)
	if err != nil {
		return nil, fmt.Errorf("read take_in: %w", err)
	}
	return raw, nil
}

func (b *ebpfBackend) mark(m *mark) error {
	b.mu.Lock()
	b.token++
	b.marks = append(b.marks, m)
	b.windows[m.window/windowStep%lossSlots] = m.window
	request := probeMarkRequest{Window: m.window, Token: b.token, Op: uint32(m.op), Generation: b.generation}
	b.mu.Unlock()
	for {
		// Ask for a wake-up before trying, so that none is missed.
		b.mu.Lock()
		b.waiting = true
		room := b.token-b.seen < maxMarksOnTheirWay
		b.mu.Unlock()
		if room {
			if err := b.lockOpen(); err != nil {
				return err
			}
			ret, err := b.objs.mark.Run(&ebpf.RunOptions{Context: &request})
			b.control.Unlock()
			if err != nil {
				return fmt.Errorf("run mark: %w", err)
			}
			if ret == 0 {
				wake(b.marked)
				return nil
			}
		}
		select {
		case <-b.drained:
		case <-b.closed:
			return os.ErrClosed
		}
	}
}

func (b *ebpfBackend) next(r *record) error {
	raw := b.held.next()
	fresh := raw == nil
	if fresh {
		if b.caught {
			b.gather()
		}
		if err := b.objs.ring.ReadInto(&b.sample); errors.Is(err, os.ErrClosed) {
			return io.EOF
		} else if err != nil {
			return fmt.Errorf("read ring buffer: %w", err)
		}
		raw = b.sample.RawSample
		b.caught = b.sample.Remaining == 0
		if isMark(raw) && len(b.held.records) > 0 {
			// Nothing that was submitted before a mark is told after it.
			b.held.giveOut(raw)
			raw, fresh = b.held.next(), false
		}
	}
	e := &b.event
	if err := e.decode(raw); err != nil {
		return fmt.Errorf("the kernel side and this program do not fit: %w", err)
	}
	if fresh {
		if err := b.join(raw); err != nil {
			return fmt.Errorf("the kernel side and this program do not fit: %w", err)
		}
	}
	*r = record{
		tsNS:   b.clock.at(e.header.TsNs),
		window: e.header.Window,
		origin: e.header.Origin,
		more:   !b.caught || len(b.held.out) > 0,
	}
	if e.kind() != probeKindKIND_MARK {
		r.event = e
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if e.kind() == probeKindKIND_MARK {
		b.seen++
		if b.seen != e.header.Value[0] || len(b.marks) == 0 {
			return fmt.Errorf("mark %d came back instead of mark %d", e.header.Value[0], b.seen)
		}
		r.mark = b.marks[0]
		if r.mark.op == markScope {
			e.scopeUID = b.uid
		}
		b.marks = b.marks[1:]
	}
	if b.waiting {
		b.waiting = false
		wake(b.drained)
	}
	return nil
}

// join adds to the event, which has just come with the record raw, what others have
// told of it, and keeps what it tells of others. A record that is held, or that is for
// another one, is left with nothing to say.
func (b *ebpfBackend) join(raw []byte) error {
	e := &b.event
	if e.learn() {
		if _, programs, err := b.liveNumbers(); err == nil { // else there is nothing left to read
			e.exes.forget(e.header.Exe, programs)
		}
	}
	b.told.join(e, raw)
	if e.held() {
		b.held.hold(uint64(e.header.Ret), raw)
		e.header.Kind = uint16(probeKindKIND_URING_DONE)
	} else if e.kind() == probeKindKIND_URING_DONE {
		if submitted := b.held.take(e.header.Origin); submitted != nil {
			done := *e
			if err := e.decode(submitted); err != nil {
				return err
			}
			e.finish(&done)
		}
	}
	return nil
}

// wake leaves word in a channel with room for one.
func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// gather lets events gather for a moment, in which half of the ring can be filled at
// most, unless a mark comes. The kernel wakes the reader for the first event after it
// has caught up: without this it would for nearly each, at the cost of whoever made
// the event.
func (b *ebpfBackend) gather() {
	timer := time.NewTimer(b.gatherTime)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-b.marked:
	case <-b.closed:
	}
}

// lossReasons is how drop lines name enum loss.
var lossReasons = [probeLossLOSSES]string{
	probeLossLOSS_RING_FULL: "ring_buffer_full",
	probeLossLOSS_NO_MEMORY: "no_memory",
	probeLossLOSS_SKIPPED:   "program_skipped",
}

func (b *ebpfBackend) losses(upTo uint64, report func(window uint64, reason string, count uint64)) {
	var total uint64
	if err := b.objs.LossesTotal.Get(&total); err != nil || total == b.reportedTotal {
		return
	}
	var counts [lossSlots + 1][probeLossLOSSES]uint64
	if err := b.objs.Losses.Get(&counts); err != nil {
		return
	}
	for slot := range counts {
		for reason, n := range counts[slot] {
			if n == b.reported[slot][reason] {
				continue
			}
			window := windowUnknown
			if slot < lossSlots {
				b.mu.Lock()
				window = b.windows[slot]
				b.mu.Unlock()
				if window > upTo {
					continue // its begin is still in the ring
				}
			}
			report(window, lossReasons[reason], n-b.reported[slot][reason])
			b.reportedTotal += n - b.reported[slot][reason]
			b.reported[slot][reason] = n
		}
	}
}

// Close detaches everything. What is in the ring is lost.
func (b *ebpfBackend) Close() (err error) {
	b.once.Do(func() {
		close(b.closed)
		b.control.Lock()
		defer b.control.Unlock()
		if b.takeIn != nil {
			err = errors.Join(err, b.takeIn.Close())
		}
		err = errors.Join(err, b.objs.Close())
	})
	return err
}

// A wallClock turns CLOCK_BOOTTIME, which the kernel side stamps with, into wall
// clock. It looks at both once a second, so that it follows when the wall clock is
// set.
type wallClock struct {
	offset int64
	until  uint64
}

func (c *wallClock) at(bootNS uint64) int64 {
	if bootNS >= c.until {
		var before, wall, after unix.Timespec
		unix.ClockGettime(unix.CLOCK_BOOTTIME, &before)
		unix.ClockGettime(unix.CLOCK_REALTIME, &wall)
		unix.ClockGettime(unix.CLOCK_BOOTTIME, &after)
		c.offset = wall.Nano() - before.Nano()/2 - after.Nano()/2
		c.until = uint64(after.Nano()) + 1e9
	}
	return int64(bootNS) + c.offset
}
