package lock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// What an ordinary task's lock looks like: the lengths of names decide how many
// bytes it takes.
const (
	sizingScope = "itunes:verify"
	sizingOwner = "worker-7.example.com:4242"
	sizingNote  = "default/0192a8f0-7c3e-7bd0-9d4c-52a8a1f0c9d3"
)

// gauge reads what Redis has spent.
type gauge struct {
	scriptUS float64 // in scripts, by its own clock
	calls    int     // of scripts
	cpuUS    float64 // of the main thread, network included
}

func read(b *testing.B, rdb redis.UniversalClient) (g gauge) {
	b.Helper()
	ctx := context.Background()
	text, err := rdb.Info(ctx, "commandstats").Result()
	redistest.Must(b, err)
	for _, command := range []string{"cmdstat_evalsha", "cmdstat_eval"} {
		var calls int
		var us float64
		_, line, _ := strings.Cut(text, "\n"+command+":")
		_, _ = fmt.Sscanf(line, "calls=%d,usec=%f", &calls, &us) // absent: 0
		g.calls, g.scriptUS = g.calls+calls, g.scriptUS+us
	}
	if text, err = rdb.Info(ctx, "cpu").Result(); err != nil {
		b.Fatal(err)
	}
	for _, key := range []string{"used_cpu_user_main_thread", "used_cpu_sys_main_thread"} {
		_, line, _ := strings.Cut(text, "\n"+key+":")
		line, _, _ = strings.Cut(line, "\r")
		s, err := strconv.ParseFloat(line, 64)
		if err != nil {
			b.Fatalf("%s: %v", key, err)
		}
		g.cpuUS += s * 1e6
	}
	return g
}

// spent reports what n operations cost.
func spent(b *testing.B, rdb redis.UniversalClient, before gauge, n int) {
	b.Helper()
	after := read(b, rdb)
	b.ReportMetric((after.scriptUS-before.scriptUS)/float64(n), "script-us/op")
	b.ReportMetric((after.cpuUS-before.cpuUS)/float64(n), "redis-cpu-us/op")
	b.ReportMetric(float64(after.calls-before.calls)/float64(n), "calls/op")
	b.ReportMetric(0, "ns/op")
}

// sizingLocker is a Locker on a redis-server of this benchmark alone.
func sizingLocker(b *testing.B, settings ...string) (*lock.Locker, redis.UniversalClient) {
	b.Helper()
	rdb := redistest.StartReal(b, settings...).Client(b, func(o *redis.UniversalOptions) { o.PoolSize = 300 })
	l := lock.New(rdb, lock.Options{Owner: sizingOwner})
	b.Cleanup(func() { _ = l.Close() })
	return l, rdb
}

func sizingLock(l *lock.Locker, i int) *lock.Lock {
	return l.Mutex(sizingScope, lock.Parts(strconv.Itoa(70_000_000+i)), lock.Note(sizingNote))
}

// clients are so many that Redis finds several calls to read whenever it looks: one
// at a time would have it go to sleep and wake up for each, which costs more than all
// the rest.
const clients = 16

// atOnce has each client call f, on as many goroutines, b.N times in all, and
// reports what that cost.
func atOnce(b *testing.B, rdb redis.UniversalClient, goroutines int, f func(client, i int) error) {
	b.Helper()
	before := read(b, rdb)
	var wg sync.WaitGroup
	for g := range clients * goroutines {
		redistest.Go(&wg, func() {
			for i := range share(b.N, clients*goroutines, g) {
				if err := f(g%clients, i); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	spent(b, rdb, before, b.N)
}

// sizingLeases takes a lock for each client.
func sizingLeases(b *testing.B, l *lock.Locker) []*lock.Lease {
	b.Helper()
	leases := make([]*lock.Lease, clients)
	for client := range leases {
		var err error
		if leases[client], err = sizingLock(l, client).TryLock(context.Background()); err != nil {
			b.Fatal(err)
		}
	}
	return leases
}

// BenchmarkSizing measures what docs/redis.md says an operation costs Redis, and
// what a lock and a waiter weigh:
//
//	go test -run '^$' -bench Sizing -benchtime 40000x ./lock
func BenchmarkSizing(b *testing.B) {
	ctx := context.Background()
	b.Run("pair", func(b *testing.B) {
		l, rdb := sizingLocker(b)
		atOnce(b, rdb, 1, func(client, i int) error {
			le, err := sizingLock(l, clients*i+client).TryLock(ctx)
			if err != nil {
				return err
			}
			return le.Unlock(ctx)
		})
	})
	b.Run("busy", func(b *testing.B) { // an ask in vain
		l, rdb := sizingLocker(b)
		sizingLeases(b, l)
		atOnce(b, rdb, 1, func(client, _ int) error {
			if _, err := sizingLock(l, client).TryLock(ctx); !errors.Is(err, lock.ErrBusy) {
				return fmt.Errorf("not busy: %w", err)
			}
			return nil
		})
	})
	b.Run("extend", func(b *testing.B) { // what a renewal costs
		l, rdb := sizingLocker(b)
		leases := sizingLeases(b, l)
		atOnce(b, rdb, 1, func(client, _ int) error { return leases[client].Extend(ctx, time.Minute) })
	})
	for _, waiters := range []int{1, 100} {
		b.Run(fmt.Sprintf("handoff/%d", waiters), func(b *testing.B) {
			l, rdb := sizingLocker(b)
			atOnce(b, rdb, waiters+1, func(client, _ int) error {
				le, err := sizingLock(l, client).Lock(ctx)
				if err != nil {
					return err
				}
				return le.Unlock(ctx)
			})
		})
	}
	// A sorted set with a member of more than 64 bytes is no listpack, unless
	// Redis is told otherwise.
	for name, settings := range map[string][]string{"as it comes": nil, "listpacks": {"--zset-max-listpack-value", "512"}} {
		b.Run("held-bytes/"+name, func(b *testing.B) {
			l, rdb := sizingLocker(b, settings...)
			empty := used(b, rdb)
			const locks = 20_000
			before := read(b, rdb)
			for i := range locks {
				if _, err := sizingLock(l, i).TryLock(ctx); err != nil {
					b.Fatal(err)
				}
			}
			spent(b, rdb, before, locks)
			b.ReportMetric(float64(used(b, rdb)-empty)/locks, "B/lock")
			b.ReportMetric(usage(b, rdb, sizingLock(l, 0).Key()), "usage-B/lock")
		})
	}
	for _, waiters := range []int{10, 1000, 10_000} {
		b.Run(fmt.Sprintf("waiter-bytes/%d", waiters), func(b *testing.B) {
			l, rdb := sizingLocker(b)
			m := sizingLock(l, 0)
			if _, err := m.TryLock(ctx); err != nil {
				b.Fatal(err)
			}
			alone := usage(b, rdb, m.Key())
			waiting, cancel := context.WithCancel(ctx)
			var wg sync.WaitGroup
			for range waiters {
				redistest.Go(&wg, func() { _, _ = m.Lock(waiting) }) // until cancel
			}
			redistest.Eventually(b, time.Minute, func() bool {
				n, err := m.Waiting(ctx)
				return err == nil && n == waiters
			}, "%d in line", waiters)
			b.ReportMetric((usage(b, rdb, m.Key())-alone)/float64(waiters), "B/waiter")
			b.ReportMetric(0, "ns/op")
			cancel()
			wg.Wait()
		})
	}
}

// share is the part of n that falls to one of so many.
func share(n, of, which int) int {
	part := n / of
	if which < n%of {
		part++
	}
	return part
}

// used is the memory of the data set.
func used(b *testing.B, rdb redis.UniversalClient) int64 {
	b.Helper()
	text, err := rdb.Info(context.Background(), "memory").Result()
	redistest.Must(b, err)
	lines := strings.Split(text, "\r\n")
	i := slices.IndexFunc(lines, func(line string) bool { return strings.HasPrefix(line, "used_memory_dataset:") })
	n, err := strconv.ParseInt(strings.TrimPrefix(lines[max(i, 0)], "used_memory_dataset:"), 10, 64)
	redistest.Must(b, err)
	return n
}

// usage is what Redis says one key takes, every element counted.
func usage(b *testing.B, rdb redis.UniversalClient, key string) float64 {
	b.Helper()
	n, err := rdb.MemoryUsage(context.Background(), key, 0).Result()
	redistest.Must(b, err)
	return float64(n)
}
