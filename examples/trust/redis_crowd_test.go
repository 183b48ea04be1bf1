package trust

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/inside"
	lockkeys "github.com/automutex/automutex/internal/keys"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// crowdSoon bounds what must happen, on a machine whose cores are busy with
// other things.
const crowdSoon = 60 * time.Second

// crowdTTL is long beside a renewal (TTL/3), so that it shows which of the two
// ended a lease.
const crowdTTL = 6 * time.Second

// crowdNotice is within which a holder knows that Redis forgot it: its next
// renewal, which may have to be tried again, and a second or two for a machine whose
// cores are busy. It is shorter than what a lease lasts by itself.
const crowdNotice = crowdTTL/3 + 2500*time.Millisecond

// crowd is clients that take turns on some keys while their Redis is broken, and
// the book of who believed in what.
type crowd struct {
	t       *testing.T
	lockers []*lock.Locker
	keys    []string
	stop    chan struct{} // closed by end, which waits for wg
	wg      sync.WaitGroup

	turns      atomic.Int64
	unsure     atomic.Int64 // calls that failed with ErrBackend
	replicas   atomic.Int64 // among them, with ErrNotReplicated
	notHeld    atomic.Int64 // Unlocks of what was gone
	slowest    atomic.Int64 // ns by which a call outlasted its context
	unexpected atomic.Int64

	mu          sync.Mutex // guards what follows
	book        map[string]*crowdKey
	overlaps    int       // beliefs that began beside another one
	late        int       // of these, those after settled
	regressions int       // leases with a fence not above one that was written before they were asked for
	refused     int       // other writes with a fence not above the last one: a store that looks at fences refuses them
	last        error     // that made a call unsure
	settled     time.Time // from when on nobody may believe in what a fault took; zero: always
	amid        bool      // a fault that takes leases is on
}

type crowdKey struct {
	inside map[*lock.Lease]bool
	fence  int64 // of the last write
}

// newCrowd makes two lockers with clients of their own.
func newCrowd(t *testing.T, client func() redis.UniversalClient, o lock.Options) *crowd {
	c := &crowd{t: t, stop: make(chan struct{}), book: map[string]*crowdKey{}}
	o.Logger = slog.New(slog.DiscardHandler)
	for range 2 {
		l := lock.New(client(), o)
		t.Cleanup(func() { _ = l.Close() })
		c.lockers = append(c.lockers, l)
	}
	for range 4 {
		c.keys = append(c.keys, redistest.Name(t))
	}
	t.Cleanup(c.end)
	return c
}

// start sends each locker n goroutines to work, which end at end.
func (c *crowd) start(n int, dice uint64) {
	for i, l := range c.lockers {
		for j := range n {
			r := rand.New(rand.NewPCG(dice, uint64(i*n+j)))
			c.wg.Go(func() {
				for {
					select {
					case <-c.stop:
						return
					default:
					}
					c.turn(l, c.keys[r.IntN(len(c.keys))], r)
				}
			})
		}
	}
}

func (c *crowd) end() {
	select {
	case <-c.stop:
	default:
		close(c.stop)
	}
	c.wg.Wait()
}

// turn is one stay: wait, write with the fence, work, leave.
func (c *crowd) turn(l *lock.Locker, key string, r *rand.Rand) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	before := c.written(key)
	le, err := l.Mutex(key, lock.TTL(crowdTTL), lock.Fenced()).Lock(ctx)
	if deadline, _ := ctx.Deadline(); time.Since(deadline) > time.Duration(c.slowest.Load()) {
		c.slowest.Store(int64(time.Since(deadline)))
	}
	switch {
	case errors.Is(err, lock.ErrBackend):
		c.doubt(err)
		if errors.Is(err, lock.ErrNotReplicated) {
			c.replicas.Add(1)
		}
		select { // as a caller does that is told of an outage
		case <-c.stop:
		case <-time.After(20 * time.Millisecond):
		}
		return
	case errors.Is(err, lock.ErrBusy):
		return
	case err != nil:
		c.unexpected.Add(1)
		c.t.Errorf("Lock: %v", err)
		return
	}
	c.enter(key, le, before)
	work := time.Duration(r.IntN(3)) * time.Millisecond
	switch r.IntN(40) {
	case 0: // so that somebody is at work whatever happens
		work = time.Duration(1000+r.IntN(1000)) * time.Millisecond
	case 1, 2, 3:
		work = time.Duration(50+r.IntN(200)) * time.Millisecond
	}
	select {
	case <-le.Bind(context.Background()).Done(): // as a handler does that is told to stop
	case <-time.After(work):
	}
	c.leave(key, le)
	began := time.Now()
	err = le.Unlock(context.Background())
	if took := time.Since(began); took > 12*time.Second {
		c.t.Errorf("Unlock took %s", took)
	}
	switch {
	case err == nil:
		c.turns.Add(1)
	case errors.Is(err, lock.ErrNotHeld):
		c.notHeld.Add(1)
	case errors.Is(err, lock.ErrBackend):
		c.doubt(err)
	default:
		c.unexpected.Add(1)
		c.t.Errorf("Unlock: %v", err)
	}
}

// doubt notes that a call does not know what became of it.
func (c *crowd) doubt(err error) {
	c.unsure.Add(1)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = err
}

// of is the page of a key. Callers hold mu.
func (c *crowd) of(key string) *crowdKey {
	if c.book[key] == nil {
		c.book[key] = &crowdKey{inside: map[*lock.Lease]bool{}}
	}
	return c.book[key]
}

// written is the highest fence that was written for a key.
func (c *crowd) written(key string) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.of(key).fence
}

// enter notes that somebody begins to work under a lease, beside whom, and that
// the first thing it does is to write with its fence. before is what was written
// when it asked for the lease.
func (c *crowd) enter(key string, le *lock.Lease, before int64) {
	fence, err := le.Fence() // 0: it was taken without one, and nothing is written
	if err != nil && !errors.Is(err, lock.ErrNotFenced) {
		c.doubt(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.of(key)
	if !le.Held() {
		return // stopped for so long between the two
	}
	for other := range k.inside {
		if other.Held() {
			c.overlaps++
			if !c.amid && time.Now().After(c.settled) {
				c.late++
			}
		}
	}
	switch {
	case fence == 0:
	case fence <= before:
		c.regressions++
	case fence <= k.fence: // granted before the one that wrote, and begins after it
		c.refused++
	}
	k.fence = max(k.fence, fence)
	k.inside[le] = true
}

func (c *crowd) leave(key string, le *lock.Lease) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.book[key].inside, le)
}

// more waits for n more turns and tells how long that took.
func (c *crowd) more(n int64) time.Duration {
	c.t.Helper()
	began, before := time.Now(), c.turns.Load()
	redistest.Eventually(c.t, crowdSoon, func() bool { return c.turns.Load() >= before+n }, "%d more turns; %v", n, c)
	return time.Since(began)
}

// taking says that from now on a fault takes leases away: whoever has one may not
// know until its next renewal gets through.
func (c *crowd) taking() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.amid = true
}

// noticed says that renewals get through again: after crowdNotice nobody may
// believe in what is gone.
func (c *crowd) noticed() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.amid, c.settled = false, time.Now().Add(crowdNotice)
}

// String is what was counted.
func (c *crowd) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return fmt.Sprintf("turns %d, told unsure %d (not replicated %d), told lost %d, overlaps %d, late %d, refused by fence %d, fence regressions %d, unexpected %d; %v",
		c.turns.Load(), c.unsure.Load(), c.replicas.Load(), c.notHeld.Load(), c.overlaps, c.late, c.refused, c.regressions, c.unexpected.Load(), c.last)
}

// verdict holds the book against what is promised, and notes it. forgets: leases
// were taken away, so that there may be overlaps until those who had them knew.
func (c *crowd) verdict(row *row, forgets bool) {
	c.t.Helper()
	c.bounded()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.late > 0 || !forgets && c.overlaps > 0 {
		c.t.Errorf("%d overlaps, %d of them when all holders had to know", c.overlaps, c.late)
	}
	if !forgets && c.refused > 0 {
		c.t.Errorf("%d writes came after those of a later holder", c.refused)
	}
	if c.regressions > 0 { // all on one machine, whose clock did not step
		c.t.Errorf("%d fence regressions", c.regressions)
	}
	if forgets {
		row.notef("overlaps until TTL/3 %d, later %d", c.overlaps-c.late, c.late)
		row.notef("stale writes refused by fence %d", c.refused)
	} else {
		row.notef("overlaps %d", c.overlaps)
	}
	row.notef("fence regressions %d", c.regressions)
}

// bounded holds every call against the documented bound.
func (c *crowd) bounded() {
	c.t.Helper()
	// An exchange with Redis is given up after about 5 s, 10 s when it began to
	// hang late, and leaving the line takes a moment.
	if slowest := time.Duration(c.slowest.Load()); slowest > 12*time.Second {
		c.t.Errorf("a Lock returned %s after its context had ended", slowest)
	}
}

// gone waits until Redis has nothing of the crowd's keys: nothing is left behind.
func (c *crowd) gone(rdb redis.UniversalClient, keys ...string) {
	c.t.Helper()
	for _, key := range append(keys, c.keys...) {
		key = lockkeys.Key(inside.DefaultPrefix, key)
		redistest.Eventually(c.t, crowdSoon, func() bool {
			n, err := rdb.Exists(context.Background(), key).Result()
			return err == nil && n == 0
		}, "nothing left under %s", key)
	}
}

// fenceOf is the fence of a lease that is held.
func fenceOf(t *testing.T, le *lock.Lease) int64 {
	t.Helper()
	fence, err := le.Fence()
	if err != nil {
		t.Errorf("Fence: %v", err)
	}
	return fence
}
