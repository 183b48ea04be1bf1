package trust

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// redisFault is something that a Redis does or has done to it.
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

	begin func(t *testing.T, s *redistest.Server, ops *redis.Client)
	end   func(t *testing.T, s *redistest.Server, ops *redis.Client)
}

func operate(t *testing.T, ops *redis.Client, args ...any) {
	t.Helper()
	if err := ops.Do(context.Background(), args...).Err(); err != nil {
		t.Fatalf("%v: %v", args, err)
	}
}

// lasting waits out a fault: for so long it is there.
func lasting(t *testing.T, d time.Duration) {
	t.Helper()
	began := time.Now()
	redistest.Eventually(t, d+crowdSoon, func() bool { return time.Since(began) > d }, "%s of it", d)
}

var redisFaults = []redisFault{
	{
		name: "restart without persistence", forgets: true,
		begin: func(t *testing.T, s *redistest.Server, _ *redis.Client) { s.Kill(t) },
		end:   func(t *testing.T, s *redistest.Server, _ *redis.Client) { s.Start(t) },
	},
	{
		name: "restart with AOF, appendfsync always", args: []string{"--appendonly", "yes", "--appendfsync", "always"},
		begin: func(t *testing.T, s *redistest.Server, _ *redis.Client) { s.Kill(t) },
		end:   func(t *testing.T, s *redistest.Server, _ *redis.Client) { s.Start(t) },
	},
	{
		name: "SCRIPT FLUSH", quiet: true, frees: true,
		begin: func(t *testing.T, _ *redistest.Server, ops *redis.Client) {
			for range 100 {
				operate(t, ops, "SCRIPT", "FLUSH")
			}
		},
	},
	{
		name: "FLUSHALL", forgets: true,
		begin: func(t *testing.T, _ *redistest.Server, ops *redis.Client) { operate(t, ops, "FLUSHALL") },
	},
	{
		name: "out of memory, noeviction", says: "OOM", frees: true, args: []string{"--maxmemory-policy", "noeviction"},
		begin: func(t *testing.T, _ *redistest.Server, ops *redis.Client) {
			operate(t, ops, "CONFIG", "SET", "maxmemory", "100kb") // less than it takes for itself
		},
		end: func(t *testing.T, _ *redistest.Server, ops *redis.Client) {
			operate(t, ops, "CONFIG", "SET", "maxmemory", "0")
		},
	},
	{
		name: "eviction, allkeys-lru", forgets: true, args: []string{"--maxmemory-policy", "allkeys-lru"},
		begin: func(t *testing.T, _ *redistest.Server, ops *redis.Client) {
			operate(t, ops, "CONFIG", "SET", "maxmemory", "100kb")
		},
		end: func(t *testing.T, _ *redistest.Server, ops *redis.Client) {
			operate(t, ops, "CONFIG", "SET", "maxmemory", "0")
		},
	},
	{
		name: "READONLY", says: "READONLY",
		begin: func(t *testing.T, s *redistest.Server, _ *redis.Client) { s.Forget(t) },
		end:   func(t *testing.T, s *redistest.Server, _ *redis.Client) { s.Promote(t) },
	},
	{
		// 200 keys that take ten milliseconds each.
		name: "LOADING", says: "LOADING", args: []string{"--appendonly", "yes", "--appendfsync", "always",
			"--rdbcompression", "no", "--loading-process-events-interval-bytes", "1024", "--key-load-delay", "10000"},
		begin: func(t *testing.T, s *redistest.Server, ops *redis.Client) {
			if err := ops.Eval(context.Background(),
				`for i = 1, 200 do redis.call('SET', KEYS[1] .. i, string.rep('x', 250)) end`, []string{"load"}).Err(); err != nil && !errors.Is(err, redis.Nil) {
				t.Fatal(err)
			}
			// Of an AOF a Redis serves nobody for the first thousand commands, so they
			// are to be in the RDB that it begins with.
			operate(t, ops, "BGREWRITEAOF")
			redistest.Eventually(t, crowdSoon, func() bool {
				info, err := ops.Info(context.Background(), "persistence").Result()
				return err == nil && strings.Contains(info, "\r\naof_rewrite_in_progress:0\r\n") && strings.Contains(info, "\r\naof_rewrite_scheduled:0\r\n")
			}, "the end of the rewrite")
			s.Kill(t)
			s.Start(t)
		},
		end: func(t *testing.T, _ *redistest.Server, ops *redis.Client) {
			redistest.Eventually(t, crowdSoon, func() bool {
				info, err := ops.Info(context.Background(), "persistence").Result()
				return err == nil && strings.Contains(info, "\r\nloading:0\r\n")
			}, "the end of loading")
		},
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
			redistest.Eventually(t, crowdSoon, func() bool { return ops.ScriptKill(context.Background()).Err() == nil }, "SCRIPT KILL")
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
		end: func(t *testing.T, _ *redistest.Server, ops *redis.Client) {
			operate(t, ops, "CONFIG", "SET", "maxclients", "1000")
		},
	},
}

// TestRedisFaults has a crowd take turns while its Redis fails. What
// docs/guarantees.md promises: no call hangs; nobody believes beside another but,
// where Redis forgets, until the holders' next renewal; those who hold what is not
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
	row := &row{t}
	s := redistest.StartReal(t, fault.args...)
	// One connection that is there before, for what an operator does.
	ops := redis.NewClient(&redis.Options{Addr: s.Addr(), PoolSize: 1, MaxRetries: -1})
	t.Cleanup(func() { _ = ops.Close() })
	redistest.Must(t, ops.Ping(t.Context()).Err())
	c := newCrowd(t, func() redis.UniversalClient { return s.Client(t) }, lock.Options{})
	c.start(4, seed(t))
	rounds := size(1, 20)
	var notice, recovery time.Duration
	kept, gone := 0, 0
	for range rounds {
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
			notice = max(notice, k.lost(began, crowdNotice))
		}
		recovery = max(recovery, c.more(10))
		switch {
		case fault.forgets:
			gone += len(k.keys)
			k.release(lock.ErrNotHeld)
			leaver.release(lock.ErrNotHeld)
		default:
			kept += len(k.keys)
			for i, key := range k.keys {
				if _, err := c.lockers[(i+1)%2].Mutex(key).TryLock(t.Context()); !errors.Is(err, lock.ErrBusy) {
					t.Errorf("TryLock of a key that a live lease holds: %v", err)
				}
			}
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
	c.end()
	c.gone(s.Client(t))
	row.notef("times %d", rounds)
	row.notef("turns %d", c.turns.Load())
	row.notef("told unsure %d", c.unsure.Load())
	if fault.forgets {
		row.notef("holders forgotten %d", gone)
		row.notef("told within %s of TTL/3 = %s", notice.Round(10*time.Millisecond), crowdTTL/3)
	} else {
		row.notef("holders kept %d of %d", kept, kept)
	}
	c.verdict(row, fault.forgets)
	row.notef("10 turns again after %s", recovery.Round(10*time.Millisecond))
}

// refusing waits until a TryLock is told what the fault says: an error that is
// clear, and neither free nor busy.
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
