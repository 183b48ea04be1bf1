package lock_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// calmServer is s, or a miniredis of the test's own: a miniredis runs one script at a time.
func calmServer(t testing.TB, s *redistest.Server) *redistest.Server {
	t.Helper()
	if s.Kind() == redistest.KindMini {
		return redistest.StartMini(t)
	}
	return s
}

// impatient is a client that sends nothing twice.
func impatient(o *redis.UniversalOptions) { o.MaxRetries, o.ReadTimeout = -1, time.Second }

// takesAndUnlocks has a turn.
func takesAndUnlocks(t testing.TB, m *lock.Lock) {
	t.Helper()
	mustUnlock(t, mustTry(t, m))
}

// looksAt is what Redis stores of m.
func looksAt(t testing.TB, m *lock.Lock) inside.Info {
	t.Helper()
	info, err := insider.Inspect(t.Context(), m)
	redistest.Must(t, err)
	return info
}

// clockOf is the server's clock.
func clockOf(t testing.TB, rdb redis.UniversalClient) time.Time {
	t.Helper()
	now, err := rdb.Time(t.Context()).Result()
	redistest.Must(t, err)
	return now
}

// passes waits until the server's clock is later than that.
func passes(t testing.TB, rdb redis.UniversalClient, at time.Time) {
	t.Helper()
	redistest.Eventually(t, soon, func() bool { return clockOf(t, rdb).After(at) }, "it is %s", at)
}

// waitsOrParks calls LockOrPark beside, and gives what makes it park.
func waitsOrParks(t testing.TB, m *lock.Lock) (w *attempt, park func()) {
	now := make(chan struct{})
	w = beside(t, m, func(ctx context.Context) (*lock.Lease, error) { return insider.LockOrPark(ctx, m, now) })
	return w, sync.OnceFunc(func() { close(now) })
}

// callbook is a Caller that keeps what it was called for, and answers by note.
type callbook struct {
	mu    sync.Mutex // guards what follows
	fates map[string]inside.Fate
	notes []string
}

func (c *callbook) call(_ context.Context, _, note string) inside.Fate {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.notes = append(c.notes, note)
	return c.fates[note]
}

func (c *callbook) set(note string, fate inside.Fate) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fates[note] = fate
}

// of is how often note was called.
func (c *callbook) of(note string) (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, one := range c.notes {
		if one == note {
			n++
		}
	}
	return n
}

func (c *callbook) called(t testing.TB, note string, times int) {
	t.Helper()
	redistest.Eventually(t, soon, func() bool { return c.of(note) >= times }, "%q called %d times", note, times)
}
