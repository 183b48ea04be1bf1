package lock

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/exchange"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/internal/turn"
)

// traffic has n goroutines of two Lockers take the lock in turn until stop is
// closed, and counts the turns. Each section counts itself in with enter.
type traffic struct {
	stop  chan struct{}
	wg    sync.WaitGroup
	turns atomic.Int64
	errs  atomic.Int64 // ErrBackend from Lock, ErrBackend and ErrNotHeld from Unlock
}

func startTraffic(t *testing.T, clients []redis.UniversalClient, name string, n int, enter func(le *Lease) (leave func())) *traffic {
	tr := &traffic{stop: make(chan struct{})}
	for _, rdb := range clients {
		m := newLocker(t, rdb).Mutex(name, TTL(5*time.Second), Fenced())
		for range n {
			redistest.Go(&tr.wg, func() {
				for {
					select {
					case <-tr.stop:
						return
					default:
					}
					ctx, cancel := context.WithTimeout(context.Background(), soon)
					le, err := m.Lock(ctx)
					cancel()
					if err != nil {
						if !errors.Is(err, ErrBackend) {
							t.Errorf("Lock: %v", err)
							return
						}
						tr.errs.Add(1)
						continue
					}
					leave := enter(le)
					leave()
					tr.turns.Add(1)
					if err := le.Unlock(context.Background()); err != nil {
						tr.errs.Add(1)
						if !errors.Is(err, ErrBackend) && !errors.Is(err, ErrNotHeld) {
							t.Errorf("Unlock: %v", err)
						}
					}
				}
			})
		}
	}
	t.Cleanup(tr.end)
	return tr
}

func (tr *traffic) end() {
	select {
	case <-tr.stop:
	default:
		close(tr.stop)
	}
	tr.wg.Wait()
}

// more waits for n more turns.
func (tr *traffic) more(t *testing.T, n int64) {
	t.Helper()
	before := tr.turns.Load()
	redistest.Eventually(t, soon, func() bool { return tr.turns.Load() >= before+n }, "%d more turns", n)
}

func TestScriptFlushInMidTraffic(t *testing.T) {
	t.Parallel()
	s := redistest.StartReal(t)
	name := redistest.Name(t)
	var inside atomic.Int64
	tr := startTraffic(t, []redis.UniversalClient{s.Client(t), s.Client(t)}, name, 5, func(*Lease) func() {
		if n := inside.Add(1); n > 1 {
			t.Errorf("%d inside", n)
		}
		return func() { inside.Add(-1) }
	})
	rdb := s.Client(t)
	for range 50 {
		tr.more(t, 5)
		redistest.Must(t, rdb.ScriptFlush(t.Context()).Err())
	}
	tr.more(t, 50)
	tr.end()
	if n := tr.errs.Load(); n != 0 {
		t.Errorf("%d errors", n)
	}
	free(t, newLocker(t, rdb).Mutex(name), soon)
}

// Redis restarts and loses everything, the holder too. What is promised: waiters
// get the lock in turn, and at any time at most one of those that came after
// the restart holds it; a holder from before it finds its lease lost.
func TestRestartInMidTraffic(t *testing.T) {
	redistest.RealTime(t)
	t.Parallel()
	s := redistest.StartReal(t)
	name := redistest.Name(t)
	l := newLocker(t, s.Client(t))
	m := l.Mutex(name, TTL(1500*time.Millisecond), Fenced())
	before := mustTry(t, m)
	lost := before.Bind(t.Context())
	var inside, restarted atomic.Int64
	restarted.Store(1 << 60)
	tr := startTraffic(t, []redis.UniversalClient{s.Client(t), s.Client(t)}, name, 5, func(le *Lease) func() {
		if fence, err := le.Fence(); err != nil || fence < restarted.Load() {
			return func() {} // believed in before the restart
		}
		if n := inside.Add(1); n > 1 {
			t.Errorf("%d inside", n)
		}
		return func() { inside.Add(-1) }
	})
	waiting(t, m, 10)
	s.Stop(t)
	s.Start(t)
	restarted.Store(serverNow(t, m).UnixMicro())
	tr.more(t, 100)
	select {
	case <-lost.Done():
	case <-time.After(soon):
		t.Fatal("the holder from before the restart has not noticed")
	}
	if !errors.Is(context.Cause(lost), ErrLost) {
		t.Errorf("cause %v", context.Cause(lost))
	}
	if err := before.Unlock(t.Context()); !errors.Is(err, ErrNotHeld) {
		t.Errorf("Unlock by the holder from before: %v, want ErrNotHeld", err)
	}
	tr.more(t, 100)
	tr.end()
	free(t, m, soon)
}

// A Redis that is away for some seconds: who is in line stays in line, who holds
// and does not reach its deadline goes on holding.
func TestOutageOfSomeSeconds(t *testing.T) {
	redistest.RealTime(t)
	t.Parallel()
	s := redistest.StartReal(t)
	l := newLocker(t, s.Client(t))
	m := l.Mutex(redistest.Name(t), TTL(20*time.Second))
	held := mustTry(t, m)
	bound := held.Bind(t.Context())
	w := inLine(t, handle(newLocker(t, s.Client(t)), m), 1)
	s.Pause(t)
	if !w.pending() || bound.Err() != nil {
		t.Fatal("an outage of no time at all")
	}
	began := time.Now()
	redistest.Eventually(t, soon, func() bool { return time.Since(began) > 4*time.Second || !w.pending() }, "4 s")
	s.Resume(t)
	if bound.Err() != nil {
		t.Fatalf("lost: %v", context.Cause(bound))
	}
	mustUnlock(t, held)
	mustUnlock(t, w.got(t))
	free(t, m, soon)
}

// A refusal that does not change ends the wait of one in line at once, and its place is given up.
func TestWaiterInLineIsRefused(t *testing.T) {
	t.Parallel()
	l := newLocker(t, redistest.Mini(t).Client(t))
	m := l.Mutex(redistest.Name(t))
	w := hearing(m, 1000, 0)
	for _, c := range []struct {
		reply string
		ends  bool
	}{{"LOADING Redis is loading the dataset in memory", false}, {"NOPERM this user has no permissions", true}} {
		w.turn.Due(time.Now().Add(turn.RefreshEvery))
		l.line.handleReply(w, turn.Reply{Err: exchange.Failed("ask", m.Key(), redistest.ReplyError(c.reply))})
		if w.finished() != c.ends {
			t.Fatalf("%s: the wait has ended: %v, want %v", c.reply, w.finished(), c.ends)
		}
	}
	if _, err := l.line.result(t.Context(), w, 0); !errors.Is(err, ErrBackend) {
		t.Errorf("the caller gets %v", err)
	}
}

// Everything at once, over and over: connections cut, replies lost, messages
// dropped. At most one believes, and it goes on.
func TestChaos(t *testing.T) {
	t.Parallel()
	eachSingle(t, func(t *testing.T, s *redistest.Server) {
		name := redistest.Name(t)
		p := redistest.NewProxy(t, s.Addr())
		var inside atomic.Int64
		tr := startTraffic(t, []redis.UniversalClient{p.Client(t), s.Client(t)}, name, 4, func(le *Lease) func() {
			n := inside.Add(1)
			if bound := le.Bind(context.Background()); n > 1 && bound.Err() == nil {
				t.Errorf("%d inside", n)
			}
			return func() { inside.Add(-1) }
		})
		for i := range 10 {
			turns := int64(10)
			switch i % 5 {
			case 0:
				p.Cut()
			case 1:
				p.DropReplies(3)
			case 2:
				p.DropMessages(true)
				turns = 2 // each may take a second
			case 3:
				p.DropReplyTo(func(command []string) bool { return command[0] == "EVALSHA" }, 4)
				p.Cut()
				turns = 2 // as before
			case 4:
				p.Heal()
			}
			tr.more(t, turns)
		}
		p.Heal()
		tr.more(t, 50)
		tr.end()
		free(t, newLocker(t, s.Client(t)).Mutex(name), soon)
	})
}
