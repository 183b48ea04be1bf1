//go:build unix

package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

const (
	locks = "raw automutex redislock redsync rueidislock asynq-semaphore"
	key   = "room"
)

// BenchmarkLock has the locks alone. Free: each goroutine takes and releases a key of its own. Semaphore: the same,
// with 4 slots. Busy: 16 goroutines try in vain. Handoff: all want one key, hold it for a millisecond and ask again.
func BenchmarkLock(b *testing.B) {
	s := redistest.StartReal(b, "--maxclients", "5000")
	for _, n := range []int{1, 16, 64, 256} {
		row(b, s, fmt.Sprintf("free:%d", n), locks, func(b *testing.B, c *contender) { free(b, s, c, n, 1) })
	}
	row(b, s, "semaphore:16", "asynq-semaphore automutex", func(b *testing.B, c *contender) { free(b, s, c, 16, 4) })
	row(b, s, "busy:16", locks, func(b *testing.B, c *contender) { busy(b, s, c, 16) })
	for _, n := range []int{2, 8, 32, 128} {
		row(b, s, fmt.Sprintf("handoff:%d", n), "blpop automutex-task "+locks, func(b *testing.B, c *contender) { handOff(b, s, c, n) })
	}
}

// row has each of the contenders run a scenario on an empty server.
func row(b *testing.B, s *redistest.Server, scenario, names string, run func(*testing.B, *contender)) {
	for _, name := range strings.Fields(names) {
		b.Run("scenario="+scenario+"/contender="+name, func(b *testing.B) {
			redistest.Must(b, s.Client(b).FlushAll(b.Context()).Err())
			run(b, named(name))
		})
	}
}

func nothing() {}

func free(b *testing.B, s *redistest.Server, c *contender, n, limit int) {
	open := c.open(b, s.Addr(), limit)
	takes := make([]take, n)
	for i := range takes {
		takes[i] = open(key + strconv.Itoa(i))
	}
	spin(b, takes, 500+10*n, nil) // makes connections and scripts known, and warms what is cold
	measure(b, s, c.sends, func() { spin(b, takes, b.N, nil) })
}

func busy(b *testing.B, s *redistest.Server, c *contender, n int) {
	open := c.open(b, s.Addr(), 1)
	takes := make([]take, n)
	for i := range takes {
		takes[i] = open(key)
	}
	redistest.Must(b, open(key)(b.Context(), false, func() {
		spin(b, takes, 500, errBusy)
		measure(b, s, c.sends, func() { spin(b, takes, b.N, errBusy) })
	}))
}

// spin has each goroutine try, until n tries in all came to what is wanted. A client on a busy machine may give up a
// free key too early, which is no failure.
func spin(b *testing.B, takes []take, n int, want error) {
	ctx := context.Background()
	var left atomic.Int64
	left.Store(int64(n))
	var wg sync.WaitGroup
	for _, take := range takes {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				err := take(ctx, false, nothing)
				for want == nil && errors.Is(err, errBusy) {
					err = take(ctx, false, nothing)
				}
				if !errors.Is(err, want) {
					b.Errorf("%v, want %v", err, want)
					return
				}
			}
		})
	}
	wg.Wait()
}

// turns is what goroutines that take turns with a key note while they hold it.
type turns struct {
	b      *testing.B
	server *redistest.Server
	rdb    redis.UniversalClient
	sends  []string
	n      int // goroutines

	mu       sync.Mutex // guards what follows, should a lock not keep its promise
	taken    int        // the first n turns are for everybody to have asked, and do not count
	last     int        // who had the turn before
	released time.Time
	inside   bool
	gaps     []time.Duration
	longest  time.Duration
	memory   int64
	before   gauge
}

func handOff(b *testing.B, s *redistest.Server, c *contender, n int) {
	ctx := context.Background()
	open := c.open(b, s.Addr(), 1)
	takes := make([]take, n)
	for i := range takes {
		takes[i] = open(key)
	}
	t := &turns{b: b, server: s, rdb: s.Client(b), sends: c.sends, n: n, last: -1}
	var wg sync.WaitGroup
	for i, take := range takes {
		wg.Go(func() {
			for over := false; !over; {
				asked := time.Now()
				if err := take(ctx, true, func() { over = t.turn(i, asked) }); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// turn is one stay with the key. It tells whether those that count are over; from then on nobody works.
func (t *turns) turn(who int, asked time.Time) (over bool) {
	t.mu.Lock()
	began := time.Now()
	if t.inside {
		t.b.Error("two hold the key")
	}
	t.inside = true
	t.taken++
	over = t.taken > t.n+t.b.N
	switch {
	case over:
	case t.taken == t.n:
		t.before = read(t.b, t.server, t.sends)
		t.b.ReportAllocs()
		t.b.ResetTimer()
	case t.taken > t.n:
		if t.last != who {
			t.gaps = append(t.gaps, began.Sub(t.released))
		}
		t.longest = max(t.longest, began.Sub(asked))
	}
	t.mu.Unlock()
	for left := hold; left > 0 && !over; left = hold - time.Since(began) {
		time.Sleep(left)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	switch t.taken {
	case t.n + t.b.N/2:
		t.memory = memory(t.b, t.rdb)
	case t.n + t.b.N:
		t.b.StopTimer()
		t.report()
	}
	t.inside, t.last, t.released = false, who, time.Now()
	return over
}

func (t *turns) report() {
	spent(t.b, t.before, read(t.b, t.server, t.sends))
	t.b.ReportMetric(float64(len(t.gaps))/t.b.Elapsed().Seconds(), "handoffs/s")
	if slices.Sort(t.gaps); len(t.gaps) > 0 {
		t.b.ReportMetric(microseconds(t.gaps[len(t.gaps)/2]), "gap-p50-us")
	}
	t.b.ReportMetric(microseconds(t.longest)/1e3, "longest-wait-ms")
	t.b.ReportMetric(float64(t.memory), "redis-B")
}

// memory is what all keys take, every element counted.
func memory(b *testing.B, rdb redis.UniversalClient) (sum int64) {
	keys, err := rdb.Keys(b.Context(), "*").Result()
	redistest.Must(b, err)
	for _, key := range keys {
		n, err := rdb.MemoryUsage(b.Context(), key, 0).Result()
		if err != nil && !errors.Is(err, redis.Nil) { // gone meanwhile
			b.Error(err)
		}
		sum += n
	}
	return sum
}

// BenchmarkCrowd has b.N goroutines wait for one key of one Locker with an ordinary client. It reports how long until
// all stand in line, the longest take and release of a free key meanwhile, how long until all have had the key after
// it was released, and what share of them stood in line and had it within a minute each.
func BenchmarkCrowd(b *testing.B) {
	const patience = time.Minute
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	l := lock.New(redistest.StartReal(b).Client(b), lock.Options{})
	defer l.Close()
	m := l.Mutex(key)
	held, err := m.Lock(ctx)
	redistest.Must(b, err)
	var served atomic.Int64
	var wg sync.WaitGroup
	b.ResetTimer()
	for range b.N {
		wg.Go(func() {
			lease, err := m.Lock(ctx)
			if err == nil && lease.Unlock(ctx) == nil {
				served.Add(1)
			}
		})
	}
	began := time.Now()
	inLine := 0
	for inLine < b.N && time.Since(began) < patience {
		if inLine, err = m.Waiting(ctx); err != nil {
			inLine = 0
		}
		time.Sleep(10 * time.Millisecond)
	}
	b.ReportMetric(0, "ns/op") // a sum of what follows
	b.ReportMetric(time.Since(began).Seconds(), "quiet-s")
	b.ReportMetric(float64(inLine)/float64(b.N), "in-line/op")
	var longest time.Duration
	for range 20 {
		began := time.Now()
		lease, err := l.Mutex("free").TryLock(ctx)
		redistest.Must(b, err)
		redistest.Must(b, lease.Unlock(ctx))
		longest = max(longest, time.Since(began))
		time.Sleep(10 * time.Millisecond)
	}
	b.ReportMetric(longest.Seconds()*1e3, "free-ms")
	began = time.Now()
	redistest.Must(b, held.Unlock(ctx))
	for served.Load() < int64(b.N) && time.Since(began) < patience {
		time.Sleep(time.Millisecond)
	}
	b.ReportMetric(time.Since(began).Seconds(), "all-served-s")
	b.ReportMetric(float64(served.Load())/float64(b.N), "served/op")
	b.StopTimer()
	cancel()
	wg.Wait()
}
