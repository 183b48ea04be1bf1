package trust

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
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

type redisFault struct {
	name string
	args []string // of its redis-server
	// forgets: it takes leases away. Until their holders' next renewal others may
	// hold the same, and afterwards nobody may. Else nobody ever may.
	forgets bool
	// says is how the error of a TryLock during it begins; empty: there need be none.
	says string
	// frees: a holder can release during it.
	frees bool
	// quiet: callers never hear of it.
	quiet bool

	begin, end act
}

func operate(t *testing.T, ops *redis.Client, args ...any) {
	t.Helper()
	if err := ops.Do(context.Background(), args...).Err(); err != nil {
		t.Fatalf("%v: %v", args, err)
	}
}

type act = func(t *testing.T, s *redistest.Server, ops *redis.Client)

func operated(args ...any) act {
	return func(t *testing.T, _ *redistest.Server, ops *redis.Client) { operate(t, ops, args...) }
}

func killed(t *testing.T, s *redistest.Server, _ *redis.Client)  { s.Kill(t) }
func started(t *testing.T, s *redistest.Server, _ *redis.Client) { s.Start(t) }

func lasting(t *testing.T, d time.Duration) {
	t.Helper()
	began := time.Now()
	redistest.Eventually(t, d+crowdSoon, func() bool { return time.Since(began) > d }, "%s of it", d)
}

var redisFaults = []redisFault{
	{name: "restart without persistence", forgets: true, begin: killed, end: started},
	{
		name: "restart with AOF, appendfsync always", args: []string{"--appendonly", "yes", "--appendfsync", "always"},
		begin: killed, end: started,
	},
	{
		name: "SCRIPT FLUSH", quiet: true, frees: true,
		begin: func(t *testing.T, _ *redistest.Server, ops *redis.Client) {
			for range 100 {
				operate(t, ops, "SCRIPT", "FLUSH")
			}
		},
	},
	{name: "FLUSHALL", forgets: true, begin: operated("FLUSHALL")},
	{
		name: "out of memory, noeviction", says: "OOM", frees: true, args: []string{"--maxmemory-policy", "noeviction"},
		begin: operated("CONFIG", "SET", "maxmemory", "100kb"), // less than it takes for itself
		end:   operated("CONFIG", "SET", "maxmemory", "0"),
	},
	{
		name: "eviction, allkeys-lru", forgets: true, args: []string{"--maxmemory-policy", "allkeys-lru"},
		begin: operated("CONFIG", "SET", "maxmemory", "100kb"), // less than it takes for itself
		end:   operated("CONFIG", "SET", "maxmemory", "0"),
	},
	{
		name: "READONLY", says: "READONLY",
		begin: func(t *testing.T, s *redistest.Server, _ *redis.Client) { s.Forget(t) },
		end:   func(t *testing.T, s *redistest.Server, _ *redis.Client) { s.Promote(t) },
	},
	{
		name: "BUSY, a script of somebody else's", says: "BUSY", args: []string{"--busy-reply-threshold", "50"},
		begin: func(t *testing.T, s *redistest.Server, _ *redis.Client) {
			other := s.Client(t, func(o *redis.UniversalOptions) { o.ReadTimeout = -1 })
			ended := make(chan struct{}) // the test waits for it: it ends with SCRIPT KILL
			go func() {
				defer close(ended)
				_ = other.Eval(context.Background(), `while true do end`, nil).Err()
			}()
			t.Cleanup(func() { <-ended })
			ops := s.Client(t)
			redistest.Eventually(t, crowdSoon, func() bool {
				return redis.HasErrorPrefix(ops.Get(context.Background(), "any").Err(), "BUSY")
			}, "a busy Redis")
		},
		end: func(t *testing.T, _ *redistest.Server, ops *redis.Client) {
			redistest.Eventually(t, crowdSoon, func() bool { return ops.ScriptKill(context.Background()).Err() == nil },
				"SCRIPT KILL")
		},
	},
	{
		// It says "max number of clients reached" and hangs up, so that often the
		// client's first write fails before it reads that.
		name: "maxclients", says: "lock: backend error",
		begin: func(t *testing.T, _ *redistest.Server, ops *redis.Client) {
			// Everybody's connections are cut, and nobody gets another one.
			operate(t, ops, "CONFIG", "SET", "maxclients", "1")
			operate(t, ops, "CLIENT", "KILL", "TYPE", "pubsub")
			operate(t, ops, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
		},
		end: operated("CONFIG", "SET", "maxclients", "1000"),
	},
}

// TestRedisFaults has a crowd take turns while its Redis fails. What docs/guarantees.md promises: no call hangs; nobody
// believes beside another but, where Redis forgets, until the holders' next renewal; those who hold what is not
// forgotten keep it; it all goes on afterwards; nothing is left behind.
func TestRedisFaults(t *testing.T) {
	redistest.RealTime(t)
	t.Parallel()
	for _, fault := range redisFaults {
		t.Run(strings.NewReplacer(" ", "_", ",", "").Replace(fault.name), func(t *testing.T) {
			t.Parallel()
			testRedisFault(t, fault)
		})
	}
}

func testRedisFault(t *testing.T, fault redisFault) {
	s := redistest.StartReal(t, fault.args...)
	// One connection that is there before, for what an operator does.
	ops := redis.NewClient(&redis.Options{Addr: s.Addr(), PoolSize: 1, MaxRetries: -1})
	t.Cleanup(func() { _ = ops.Close() })
	redistest.Must(t, ops.Ping(t.Context()).Err())
	c := newCrowd(t, func() redis.UniversalClient { return s.Client(t) }, lock.Options{})
	c.start(4, seed(t))
	for range size(1, 20) {
		c.more(30)
		ttl := crowdTTL
		if !fault.forgets {
			ttl *= 10 // a fault takes its time on a busy machine, and is to end before they do
		}
		k, leaver := c.keep(3, ttl), c.keep(1, ttl)
		unsure := c.unsure.Load()
		if fault.forgets {
			c.taking()
		}
		fault.begin(t, s, ops)
		if fault.says != "" {
			refusing(t, c, fault.says)
		}
		if fault.frees {
			leaver.release(nil)
		}
		lasting(t, size(300*time.Millisecond, time.Second))
		if fault.forgets {
			redistest.Eventually(t, crowdSoon, func() bool {
				n, err := ops.Exists(t.Context(), k.stored()...).Result()
				return err != nil || n == 0 // away, and what it had with it
			}, "leases taken away")
		}
		if fault.end != nil {
			fault.end(t, s, ops)
		}
		began := time.Now()
		if fault.forgets {
			c.noticed()
			k.lost(began, crowdNotice)
		}
		c.more(10)
		if fault.forgets {
			k.release(lock.ErrNotHeld)
			leaver.release(lock.ErrNotHeld)
		} else {
			c.kept(k)
			k.live()
			k.release(nil)
			if !fault.frees {
				leaver.release(nil)
			}
		}
		if fault.quiet && c.unsure.Load() != unsure {
			t.Errorf("%d calls were told of it", c.unsure.Load()-unsure)
		}
	}
	if c.unsure.Load() > 0 {
		c.visit() // a release may be lost
	}
	c.verdict(fault.forgets, s.Client(t))
}

// refusing waits until a TryLock is told what the fault says: an error that is clear, and neither free nor busy.
func refusing(t *testing.T, c *crowd, says string) {
	t.Helper()
	var err error
	redistest.Eventually(t, crowdSoon, func() bool {
		var le *lock.Lease
		le, err = c.lockers[0].Mutex(redistest.Name(t), lock.TTL(crowdTTL)).TryLock(t.Context())
		if err == nil {
			_ = le.Unlock(t.Context()) // the fault may only just begin
		}
		return err != nil
	}, "a refusal")
	// Not only the words: what kind of error it is.
	if !errors.Is(err, lock.ErrBackend) || errors.Is(err, lock.ErrBusy) {
		t.Errorf("TryLock says %v, want ErrBackend", err)
	}
	redistest.Eventually(t, crowdSoon, func() bool {
		if err == nil || !strings.Contains(err.Error(), says) {
			_, err = c.lockers[1].Mutex(redistest.Name(t), lock.TTL(crowdTTL)).TryLock(t.Context())
		}
		return err != nil && strings.Contains(err.Error(), says)
	}, "an error that says %q: %v", says, fmt.Sprint(err))
}

// crowdSoon bounds what must happen, on a machine whose cores are busy with other things.
const crowdSoon = 60 * time.Second

const crowdWait = 3 * time.Second

// crowdTTL is long beside a renewal (TTL/3), so that it shows which of the two ended a lease.
const crowdTTL = 6 * time.Second

// crowdNotice is within which a holder knows that Redis forgot it: its next renewal, which may have to be tried again,
// and a second or two for a machine whose cores are busy. It is shorter than what a lease lasts by itself.
const crowdNotice = crowdTTL/3 + 2500*time.Millisecond

// crowd is clients that take turns on some keys while their Redis is broken, and the book of who believed in what.
type crowd struct {
	t       *testing.T
	lockers []*lock.Locker
	keys    []string
	stop    chan struct{} // closed by end, which waits for wg
	wg      sync.WaitGroup

	turns   atomic.Int64
	unsure  atomic.Int64 // calls that failed with ErrBackend
	slowest atomic.Int64 // ns by which a call outlasted its context

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
	ctx, cancel := context.WithTimeout(context.Background(), crowdWait)
	defer cancel()
	before := c.written(key)
	le, err := l.Mutex(key, lock.TTL(crowdTTL), lock.Fenced()).Lock(ctx)
	if deadline, _ := ctx.Deadline(); time.Since(deadline) > time.Duration(c.slowest.Load()) {
		c.slowest.Store(int64(time.Since(deadline)))
	}
	switch {
	case errors.Is(err, lock.ErrBackend):
		c.doubt(err)
		select { // as a caller does that is told of an outage
		case <-c.stop:
		case <-time.After(20 * time.Millisecond):
		}
		return
	case errors.Is(err, lock.ErrBusy):
		return
	case err != nil:
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
	case errors.Is(err, lock.ErrNotHeld): // gone
	case errors.Is(err, lock.ErrBackend):
		c.doubt(err)
	default:
		c.t.Errorf("Unlock: %v", err)
	}
}

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

func (c *crowd) written(key string) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.of(key).fence
}

// enter says that somebody begins to work under a lease, beside whom, and that the first thing it does is to write
// with its fence. before is what was written when it asked for the lease.
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

func (c *crowd) more(n int64) {
	c.t.Helper()
	before := c.turns.Load()
	redistest.Eventually(c.t, crowdSoon, func() bool { return c.turns.Load() >= before+n }, "%d more turns; %v", n, c)
}

// taking says that from now on a fault takes leases away: whoever has one may not
// know until its next renewal gets through.
func (c *crowd) taking() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.amid = true
}

// noticed says that renewals get through again: after crowdNotice nobody may believe in what is gone.
func (c *crowd) noticed() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.amid, c.settled = false, time.Now().Add(crowdNotice)
}

func (c *crowd) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return fmt.Sprintf("turns %d, told unsure %d, overlaps %d, late %d, refused by fence %d, fence regressions %d; %v",
		c.turns.Load(), c.unsure.Load(), c.overlaps, c.late, c.refused, c.regressions, c.last)
}

// visit ends it all: each key is taken and given back once more.
func (c *crowd) visit() {
	c.t.Helper()
	c.end()
	for _, key := range c.keys {
		var err error
		redistest.Eventually(c.t, crowdSoon, func() bool {
			var le *lock.Lease
			if le, err = c.lockers[0].Mutex(key, lock.TTL(crowdTTL)).TryLock(c.t.Context()); err == nil {
				err = le.Unlock(c.t.Context())
			}
			return err == nil
		}, "%s is free when the lease of who had it is over", key)
	}
}

// verdict ends it all, and holds the book against what is promised. forgets: leases were taken away, so that there may
// be overlaps until those who had them knew. Nothing is left behind, of these keys neither.
func (c *crowd) verdict(forgets bool, rdb redis.UniversalClient, keys ...string) {
	c.t.Helper()
	c.end()
	for _, key := range append(keys, c.keys...) {
		key = lockkeys.Key(inside.DefaultPrefix, key)
		redistest.Eventually(c.t, crowdSoon, func() bool {
			n, err := rdb.Exists(context.Background(), key).Result()
			return err == nil && n == 0
		}, "nothing left under %s", key)
	}
	// An exchange with Redis is given up after about 5 s, 10 s when it began to
	// hang late, and leaving the line takes a moment.
	if slowest := time.Duration(c.slowest.Load()); slowest > 12*time.Second {
		c.t.Errorf("a Lock returned %s after its context had ended", slowest)
	}
	c.t.Log(c)
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
}

// keepers hold a key each, for as long as they believe in it.
type keepers struct {
	t      *testing.T
	keys   []string
	leases []*lock.Lease
	bound  []context.Context
}

func (c *crowd) keep(n int, ttl time.Duration) *keepers {
	c.t.Helper()
	k := &keepers{t: c.t}
	for i := range n {
		name := redistest.Name(c.t)
		m := c.lockers[i%len(c.lockers)].Mutex(name, lock.TTL(ttl))
		var le *lock.Lease
		redistest.Eventually(c.t, crowdSoon, func() (ok bool) {
			var err error
			le, err = m.TryLock(c.t.Context())
			return err == nil
		}, "a key of its own")
		k.keys, k.leases = append(k.keys, name), append(k.leases, le)
		k.bound = append(k.bound, le.Bind(context.Background()))
	}
	return k
}

func (k *keepers) stored() (keys []string) {
	for _, key := range k.keys {
		keys = append(keys, lockkeys.Key(inside.DefaultPrefix, key))
	}
	return keys
}

// lost waits until all of them know that their lease is lost.
func (k *keepers) lost(since time.Time, within time.Duration) {
	k.t.Helper()
	for i, bound := range k.bound {
		select {
		case <-bound.Done():
		case <-time.After(time.Until(since.Add(within))):
			k.t.Errorf("holder %d does not know within %s that Redis forgot it", i, within)
			continue
		}
		if cause := context.Cause(bound); !errors.Is(cause, lock.ErrLost) {
			k.t.Errorf("holder %d: %v, want ErrLost", i, cause)
		}
	}
}

func (k *keepers) live() {
	k.t.Helper()
	for i, bound := range k.bound {
		if bound.Err() != nil || !k.leases[i].Held() {
			k.t.Errorf("holder %d has lost its lease: %v", i, context.Cause(bound))
		}
	}
}

// kept holds them against what somebody else is told.
func (c *crowd) kept(k *keepers) {
	c.t.Helper()
	for i, key := range k.keys {
		if _, err := c.lockers[(i+1)%2].Mutex(key).TryLock(c.t.Context()); !errors.Is(err, lock.ErrBusy) {
			c.t.Errorf("TryLock of a key that a live lease holds: %v", err)
		}
	}
}

func (k *keepers) release(want error) {
	k.t.Helper()
	for i, le := range k.leases {
		if err := le.Unlock(context.Background()); !errors.Is(err, want) {
			k.t.Errorf("holder %d: Unlock: %v, want %v", i, err, want)
		}
	}
}
