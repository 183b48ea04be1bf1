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
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9/logging"

	"github.com/automutex/automutex/internal/redistest"
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
		row(b, s, fmt.Sprintf("free:%d", n), locks, func(b *testing.B, name string) { free(b, s, named(name), n, 1) })
	}
	row(b, s, "semaphore:16", "asynq-semaphore automutex", func(b *testing.B,
		name string) {
		free(b, s, named(name), 16, 4)
	})
	row(b, s, "busy:16", locks, func(b *testing.B, name string) { busy(b, s, named(name), 16) })
	for _, n := range []int{2, 8, 32, 128} {
		row(b, s, fmt.Sprintf("handoff:%d", n), "blpop automutex-task "+locks,
			func(b *testing.B, name string) { handOff(b, s, named(name), n) })
	}
}

// row has each of the contenders run a scenario on an empty server.
func row(b *testing.B, s *redistest.Server, scenario, names string, run func(b *testing.B, name string)) {
	for _, name := range strings.Fields(names) {
		b.Run("scenario="+scenario+"/contender="+name, func(b *testing.B) {
			redistest.Must(b, s.Client(b).FlushAll(b.Context()).Err())
			run(b, name)
		})
	}
}

// takes opens a contender for so many goroutines, each with a key of its own or all with one.
func takes(b *testing.B, s *redistest.Server, c *contender, n, limit int, own bool) []take {
	open, all := c.open(b, s.Addr(), limit), make([]take, n)
	for i := range all {
		if all[i] = open(key); own {
			all[i] = open(key + strconv.Itoa(i))
		}
	}
	return all
}

func nothing() {}

func free(b *testing.B, s *redistest.Server, c *contender, n, limit int) {
	takes := takes(b, s, c, n, limit, true)
	spin(b, takes, 500+10*n, nil) // makes connections and scripts known, and warms what is cold
	measure(b, s, c.sends, func() { spin(b, takes, b.N, nil) })
}

func busy(b *testing.B, s *redistest.Server, c *contender, n int) {
	takes := takes(b, s, c, n+1, 1, false)
	holder, takes := takes[n], takes[:n]
	redistest.Must(b, holder(b.Context(), false, func() {
		spin(b, takes, 500, errBusy)
		measure(b, s, c.sends, func() { spin(b, takes, b.N, errBusy) })
	}))
}

// spin has each goroutine try, until n tries in all came to what is wanted.
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

// turns is what goroutines that take turns with a key write while they hold it.
type turns struct {
	b      *testing.B
	server *redistest.Server
	sends  []string
	n      int // goroutines

	mu       sync.Mutex // guards what follows, should a lock not keep its promise
	taken    int        // the first n turns are for everybody to have asked, and do not count
	last     int        // who had the turn before
	released time.Time
	inside   bool
	gaps     []time.Duration
	longest  time.Duration
	before   gauge
}

func handOff(b *testing.B, s *redistest.Server, c *contender, n int) {
	ctx := context.Background()
	t := &turns{b: b, server: s, sends: c.sends, n: n, last: -1}
	var wg sync.WaitGroup
	for i, take := range takes(b, s, c, n, 1, false) {
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
	if t.taken == t.n+t.b.N {
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
}

func TestMain(m *testing.M) {
	logging.Disable() // go-redis' own; errors reach us anyway
	redistest.Main(m)
}

// gauge is what Redis and this process have spent so far; times in microseconds.
type gauge struct{ calls, busy, cpu, own float64 }

func read(b *testing.B, s *redistest.Server, sends []string) (g gauge) {
	info, err := s.Client(b).InfoMap(context.Background(), "commandstats", "cpu").Result()
	redistest.Must(b, err)
	for _, command := range sends {
		var calls, us float64
		_, _ = fmt.Sscanf(info["Commandstats"]["cmdstat_"+command], "calls=%f,usec=%f", &calls, &us) // absent: never sent
		g.calls, g.busy = g.calls+calls, g.busy+us
	}
	for _, part := range []string{"used_cpu_user_main_thread", "used_cpu_sys_main_thread"} {
		s, err := strconv.ParseFloat(info["CPU"][part], 64)
		redistest.Must(b, err)
		g.cpu += s * 1e6
	}
	var used syscall.Rusage
	redistest.Must(b, syscall.Getrusage(syscall.RUSAGE_SELF, &used))
	g.own = float64(used.Utime.Nano()+used.Stime.Nano()) / 1e3
	return g
}

// spent reports what b.N operations have cost between two looks.
func spent(b *testing.B, before, after gauge) {
	n := float64(b.N)
	b.ReportMetric((after.busy-before.busy)/n, "redis-us/op")
	b.ReportMetric((after.calls-before.calls)/n, "redis-cmds/op")
	b.ReportMetric((after.cpu-before.cpu)/n, "redis-cpu-us/op")
	b.ReportMetric((after.own-before.own)/n, "cpu-us/op")
}

// measure reports what f costs, which does b.N operations.
func measure(b *testing.B, s *redistest.Server, sends []string, f func()) {
	b.ReportAllocs()
	before := read(b, s, sends)
	b.ResetTimer()
	f()
	b.StopTimer()
	spent(b, before, read(b, s, sends))
}

func microseconds(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
