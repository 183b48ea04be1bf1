package lock

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/parking"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/internal/wire"
)

// callee is a Caller that answers as told, and notes its calls.
type callee struct {
	mu    sync.Mutex // guards what follows
	fates map[string]inside.Fate
	calls []string
	at    []time.Time
}

func answers(fates map[string]inside.Fate) *callee { return &callee{fates: fates} }

func (c *callee) call(_ context.Context, _, note string) inside.Fate {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls, c.at = append(c.calls, note), append(c.at, time.Now())
	return c.fates[note]
}

func (c *callee) set(note string, fate inside.Fate) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fates[note] = fate
}

func (c *callee) of(note string) (at []time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, n := range c.calls {
		if n == note {
			at = append(at, c.at[i])
		}
	}
	return at
}

func (c *callee) total() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.calls)
}

func (c *callee) called(t testing.TB, note string, times int) {
	t.Helper()
	redistest.Eventually(t, soon, func() bool { return len(c.of(note)) >= times }, "%q called %d times", note, times)
}

func TestFates(t *testing.T) {
	redistest.RealTime(t)
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		s = quiet(t, s)
		c := answers(map[string]inside.Fate{"gone": inside.FateGone, "later": inside.FateLater, "unsure": inside.FateUnsure, "coming": inside.FateComing})
		l := newLocker(t, s.Client(t), calls(c.call))
		m := l.Mutex(redistest.Name(t))
		held := mustTry(t, m)
		parkAll(t, m, "gone", "later", "unsure", "coming")
		began := time.Now()
		mustUnlock(t, held)
		c.called(t, "unsure", 3) // it is repeated, by looks
		first := c.of("unsure")
		if d := first[0].Sub(began); d > parking.CheckEvery && s.Kind() == redistest.KindReal {
			t.Errorf("the first one that might come was called after %v: those before it were to be passed over at once", d)
		}
		if d := first[2].Sub(first[0]); d < parking.CheckEvery/2 {
			t.Errorf("three calls within %v", d)
		}
		// On a starved machine a look that ran before may be read after it was taken out.
		if n := len(c.of("gone")); n != 1 && (s.Kind() != redistest.KindMini || n > 2) {
			t.Errorf("gone was called %d times", n)
		}
		if _, _, ok := away(t, noted(m, "gone")); ok {
			t.Errorf("gone is still there; %s", dump(m))
		}
		later, _, ok := away(t, noted(m, "later"))
		if last, _, _ := away(t, noted(m, "coming")); !ok || later < last {
			t.Errorf("later has the ticket %.0f, the last one %.0f; %s", later, last, dump(m))
		}
		c.set("unsure", inside.FateGone)
		c.called(t, "coming", 1)
		// Not before its life is over.
		c.called(t, "coming", 2)
		if at := c.of("coming"); at[1].Sub(at[0]) < parking.MinCallLife {
			t.Errorf("repeated after %v", at[1].Sub(at[0]))
		}
		c.set("later", inside.FateGone)
		c.set("coming", inside.FateGone)
		free(t, m, soon)
	})
}

// A line of nothing but what cannot run now does not spin.
func TestALineOfLaters(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		s = quiet(t, s)
		for _, n := range []int{1, 5, 100} {
			c := answers(map[string]inside.Fate{})
			rdb := s.Client(t)
			scripts := newTap(rdb)
			l := newLocker(t, rdb, calls(c.call))
			m := l.Mutex(redistest.Name(t))
			held := mustTry(t, m)
			for i := range n {
				note := fmt.Sprint("later", i)
				c.set(note, inside.FateLater)
				parkAll(t, m, note)
			}
			// Looks may have called ahead. From now on they are counted.
			scripts.reset()
			before, rounds := c.total(), len(c.of("later0"))
			began := time.Now()
			mustUnlock(t, held)
			c.called(t, "later0", rounds+4)
			made, told, took := c.total()-before, scripts.count(wire.CallScript), time.Since(began)
			// A look comes after parking.CheckEvery, or a bit sooner with others.
			looks := int(took/(parking.CheckEvery-parking.CheckTogether)) + 2
			if most := looks * min(n+1, parking.MaxNotNow+1); made > most {
				t.Errorf("%d of them: %d calls within %v, want at most %d", n, made, took, most)
			}
			if most := looks * min(n+2, parking.MaxNotNow+2); told > most {
				t.Errorf("%d of them: %d runs of call within %v, want at most %d", n, told, took, most)
			}
			redistest.Must(t, m.Delete(t.Context()))
		}
	})
}

// A call that took longer than it may keeps its claim until that lapses: its last command may not have reached Redis yet,
// and another process must not call meanwhile.
func TestFates_lateCallKeepsItsClaim(t *testing.T) {
	redistest.RealTime(t)
	t.Parallel()
	for late, want := range map[bool]int64{false: 0, true: 1} {
		t.Run(fmt.Sprintf("late %v", late), func(t *testing.T) {
			t.Parallel()
			redistest.Each(t, func(t *testing.T, s *redistest.Server) {
				next := make(chan struct{}, 1)
				m := newLocker(t, s.Client(t), calls(func(ctx context.Context, _, note string) inside.Fate {
					switch {
					case note == "next": // the call before it has ended
						next <- struct{}{}
					case late:
						<-ctx.Done()
					}
					return inside.FateGone
				})).Mutex(redistest.Name(t))
				held := mustTry(t, m)
				parkAll(t, m, "job", "next")
				mustUnlock(t, held)
				come(t, next, "the next call")
				if n := raw(m).Exists(t.Context(), m.Key()+":call:job:claim").Val(); n != want {
					t.Errorf("%d claims, want %d", n, want)
				}
			})
		})
	}
}
