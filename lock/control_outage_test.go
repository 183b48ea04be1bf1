package lock

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/controls"
	"github.com/automutex/automutex/internal/exchange"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/internal/turn"
)

// A Locker that has never read the controls waits for them for a second while the server
// loads, and then works without them. Later an outage leaves what was read last in force.
func TestControls_outage(t *testing.T) {
	t.Parallel()
	eachSingle(t, func(t *testing.T, s *redistest.Server) {
		prefix := ownPrefix(t)
		operator := newLocker(t, s.Client(t), prefix)
		pause(t, operator, "report", time.Time{}, "")
		hook := &redistest.FailHook{}
		rdb := s.Client(t)
		rdb.AddHook(hook)
		l := newLocker(t, rdb, prefix)
		m := l.Mutex("report")
		loading := func(cmd redis.Cmder) error {
			if args := cmd.Args(); len(args) > 3 && args[3] == any(l.controls.Keys[0]) {
				return redistest.ReplyError("LOADING Redis is loading the dataset in memory")
			}
			return nil
		}
		hook.Before(loading)
		began := time.Now()
		mustUnlock(t, mustTry(t, l.Mutex("other")))
		if took := time.Since(began); took < 900*time.Millisecond {
			t.Errorf("TryLock before the controls were read took %s, want a second", took)
		}
		hook.Before(nil)
		if err := wantBusy(t, mustNotTry(t, m)); err.Reason != ReasonPaused {
			t.Errorf("TryLock: %v, want paused", err)
		}
		hook.Before(loading)
		_ = l.controls.ObeyNow(t.Context())
		if err := wantBusy(t, mustNotTry(t, m)); err.Reason != ReasonPaused {
			t.Errorf("TryLock while the controls cannot be read: %v, want paused", err)
		}
	})
}

// A call that is cancelled says so, also if a read of the controls that began before it ended
// meanwhile at a bound of its own.
func TestControls_cancelledAfterARead(t *testing.T) {
	t.Parallel()
	hook, rdb := &redistest.FailHook{}, redistest.Mini(t).Client(t)
	l := newLocker(t, rdb, ownPrefix(t))
	reads, end, ended := make(chan struct{}, 100), make(chan struct{}), make(chan struct{})
	hook.Before(func(cmd redis.Cmder) error {
		if args := cmd.Args(); len(args) < 4 || args[3] != any(l.controls.Keys[0]) {
			return nil
		}
		reads <- struct{}{}
		select {
		case <-end: // one read takes this
			return context.DeadlineExceeded
		case <-ended:
			return nil
		}
	})
	rdb.AddHook(hook)
	first := make(chan error, 1)
	go func() {
		_, err := l.Mutex("first").TryLock(t.Context()) // goes on without controls when its read has failed
		first <- err
	}()
	<-reads
	ctx, cancel := context.WithCancel(t.Context())
	asked := &askedContext{Context: ctx, asked: make(chan struct{}, 100)}
	second := make(chan error, 1)
	go func() {
		_, err := l.Mutex("second").TryLock(asked)
		second <- err
	}()
	<-asked.asked // the second call waits for a read, which the first one's is too old for
	end <- struct{}{}
	redistest.Must(t, <-first)
	cancel()
	if err := <-second; !errors.Is(err, context.Canceled) {
		t.Errorf("TryLock: %v, want context.Canceled", err)
	}
	close(ended)
}

// askedContext tells when somebody begins to wait for its end.
type askedContext struct {
	context.Context
	asked chan struct{}
}

func (c *askedContext) Done() <-chan struct{} {
	select {
	case c.asked <- struct{}{}:
	default:
	}
	return c.Context.Done()
}

// A refused read has read nothing. A Locker that was not let in when it first asked obeys a
// pause with the first call that is let in.
func TestControls_refusedIsNotRead(t *testing.T) {
	t.Parallel()
	s := redistest.StartReal(t)
	prefix, admin := ownPrefix(t), s.Client(t)
	pause(t, newLocker(t, admin, prefix), "report", time.Time{}, "for hours already")
	tell(t, admin, "ACL", "SETUSER", "new", "on", ">old", "~*", "&*", "+@all")
	l := newLocker(t, s.Client(t, func(o *redis.UniversalOptions) { o.Username, o.Password = "new", "secret" }), prefix)
	if err := mustNotTry(t, l.Mutex("report")); !errors.Is(err, ErrBackend) {
		t.Errorf("TryLock with a wrong password: %v, want ErrBackend", err)
	}
	tell(t, admin, "ACL", "SETUSER", "new", ">secret")
	if err := wantBusy(t, mustNotTry(t, l.Mutex("report"))); err.Reason != ReasonPaused {
		t.Errorf("TryLock once it is let in: %v, want paused", err)
	}
}

// A read that was sent before a call, and is refused during it, does not end the call's wait:
// the user may have been let in since.
func TestControls_refusedBeforeTheCall(t *testing.T) {
	t.Parallel()
	eachSingle(t, func(t *testing.T, s *redistest.Server) {
		prefix := ownPrefix(t)
		pause(t, newLocker(t, s.Client(t), prefix), "report", time.Time{}, "")
		hook, held, release := &redistest.FailHook{}, make(chan struct{}), make(chan struct{})
		rdb := s.Client(t)
		rdb.AddHook(hook)
		l := newLocker(t, rdb, prefix)
		var reads atomic.Int32
		hook.Before(func(cmd redis.Cmder) error {
			if args := cmd.Args(); len(args) > 3 && args[3] == any(l.controls.Keys[0]) && reads.Add(1) == 1 {
				close(held)
				<-release
				return redistest.ReplyError("NOAUTH Authentication required.")
			}
			return nil
		})
		var calls sync.WaitGroup
		defer calls.Wait()
		calls.Add(1)
		go func() {
			defer calls.Done()
			_, _ = l.Mutex("other").TryLock(t.Context())
		}()
		<-held
		time.AfterFunc(50*time.Millisecond, func() { close(release) }) // most likely within the call below
		if err := wantBusy(t, mustNotTry(t, l.Mutex("report"))); err.Reason != ReasonPaused {
			t.Errorf("TryLock: %v, want paused", err)
		}
	})
}

// A pause is obeyed in time by a process one of whose reads hangs: the next read does not
// wait for it.
func TestControls_oneReadHangs(t *testing.T) {
	redistest.RealTime(t)
	t.Parallel()
	s := redistest.StartReal(t)
	prefix := ownPrefix(t)
	p := redistest.NewProxy(t, s.Addr())
	operator, far := newLocker(t, s.Client(t), prefix), newLocker(t, p.Client(t), prefix)
	m := far.Mutex("report")
	mustUnlock(t, mustTry(t, m))
	h := p.Hold(redistest.IsControlRead, 1)
	t.Cleanup(h.Release)
	redistest.Eventually(t, soon, func() bool { return h.Count() == 1 }, "a read that hangs")
	pause(t, operator, "report", time.Time{}, "")
	paused := time.Now()
	var last time.Time
	for time.Since(paused) < ControlDelay+time.Second {
		le, err := m.TryLock(t.Context())
		if err != nil {
			if busy := wantBusy(t, err); busy.Reason != ReasonPaused {
				t.Fatal(err)
			}
			return
		}
		last = time.Now()
		mustUnlock(t, le)
		time.Sleep(5 * time.Millisecond)
	}
	t.Errorf("the lock was taken %s after it was paused; ControlDelay is %s", last.Sub(paused), ControlDelay)
}

// A Locker that has never read the controls takes locks on the nodes that work while the node
// of the controls is away: the first call waits for a second, the others do not.
func TestControls_newLockerWithoutTheirNode(t *testing.T) {
	redistest.RealTime(t)
	t.Parallel()
	s := redistest.StartCluster(t, 0)
	log := &redistest.Log{}
	rdb := s.Client(t) // one that knows the nodes
	known, fresh := newLocker(t, rdb), newLocker(t, rdb, logTo(log))
	name, control := "", known.controls.Keys[0]
	for i := range 100 {
		if name = fmt.Sprint("elsewhere", i); s.MasterOf(t, known.Mutex(name).Key()) != s.MasterOf(t, control) {
			break
		}
	}
	mustUnlock(t, mustTry(t, known.Mutex(name)))
	resume := s.PauseMaster(t, control)
	defer resume()
	for i, most := range []time.Duration{1500 * time.Millisecond, 500 * time.Millisecond} {
		began := time.Now()
		mustUnlock(t, mustTry(t, fresh.Mutex(name)))
		if took := time.Since(began); took > most {
			t.Errorf("call %d of a Locker that has not read the controls took %s, want %s at most", i+1, took, most)
		}
	}
	redistest.Eventually(t, turn.Patience, func() bool { // the calls did not wait for the read to end
		return strings.Contains(log.String(), "the controls cannot be read; this process obeys no pause")
	}, "it is logged")
	if n := strings.Count(log.String(), "the controls cannot be read; this process obeys no pause"); n != 1 {
		t.Errorf("%d log lines:\n%s", n, log.String())
	}
}

// A process reads the controls each ReadEvery. Only where replies take long it reads more often.
func TestControls_readEvery(t *testing.T) {
	t.Parallel()
	s := redistest.StartReal(t)
	lines := monitor(t, s)
	m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t))
	mustUnlock(t, mustTry(t, m))
	var last, longest float64
	for reads := 0; reads < 6; {
		line := come(t, lines, "a read of the controls")
		if lua, args := monitored(t, line); lua || !strings.HasPrefix(args[0], "eval") || !strings.HasSuffix(args[3], "{control}") {
			continue
		}
		at, err := strconv.ParseFloat(strings.Fields(line)[0], 64)
		if err != nil {
			t.Fatal(err)
		}
		if reads++; reads > 1 {
			longest = max(longest, at-last)
		}
		last = at
	}
	if least := (controls.ReadEvery - 100*time.Millisecond).Seconds(); longest < least {
		t.Errorf("at most %.1f s between two reads, want %.1f", longest, least)
	}
}

// A pause is ordered while the command that takes the lock is on its way for longer than ControlDelay. Then TryLock and
// Lock give the lock back: nothing starts after the operator was told that the pause is in force.
func TestControls_pausedWhileTheAskTravels(t *testing.T) {
	redistest.RealTime(t)
	t.Parallel()
	for _, hangs := range []bool{false, true} {
		t.Run(fmt.Sprintf("its release hangs %v", hangs), func(t *testing.T) {
			t.Parallel()
			eachSingle(t, func(t *testing.T, s *redistest.Server) {
				prefix, p := ownPrefix(t), redistest.NewProxy(t, s.Addr())
				operator := newLocker(t, s.Client(t), prefix)
				far := newLocker(t, p.Client(t, func(o *redis.UniversalOptions) { o.ReadTimeout = exchange.Timeout }), prefix) // no ask is sent twice
				tried, locked := far.Mutex("report"), far.Mutex("mail")
				for _, m := range []*Lock{tried, locked} {
					mustUnlock(t, mustTry(t, m)) // connected, and the controls are known
				}
				asks := []*redistest.Held{p.Hold(isTake(tried), 1), p.Hold(isTake(locked), 1)}
				releases := &redistest.Held{}
				if hangs {
					releases = p.Hold(isRelease(tried), 1)
				}
				failed := make(chan error, 1)
				go func() { _, err := tried.TryLock(context.Background()); failed <- err }()
				waiter := lockBeside(t, locked)
				for _, ask := range asks {
					redistest.Eventually(t, soon, func() bool { return ask.Count() == 1 }, "an ask that is on its way")
				}
				pause(t, operator, "report", time.Time{}, "")
				pause(t, operator, "mail", time.Time{}, "")
				ordered := time.Now()
				redistest.Eventually(t, soon, func() bool { return time.Since(ordered) > ControlDelay+100*time.Millisecond }, "time")
				arrived := time.Now()
				for _, ask := range asks {
					ask.Release()
				}
				if busy := wantBusy(t, come(t, failed, "the end of TryLock")); busy.Reason != ReasonPaused {
					t.Errorf("TryLock: %v, want that the lock is paused", busy)
				}
				if took := time.Since(arrived); took > 3*time.Second { // the client gives a command up after 5 s
					t.Errorf("TryLock waits %s for its release", took)
				}
				if hangs {
					releases.Release()
				}
				free(t, operator.Mutex("report"), soon)
				redistest.Eventually(t, soon, func() bool {
					holders, err := operator.Mutex("mail").Holders(t.Context())
					return err == nil && len(holders) == 0
				}, "Lock has given the lock back")
				if !waiter.pending() {
					t.Fatalf("Lock returned %v, %v; want that it waits", waiter.lease, waiter.err)
				}
				resume(t, operator, "mail")
				mustUnlock(t, waiter.got(t))
			})
		})
	}
}
