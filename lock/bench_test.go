package lock_test

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

// The floors that the engine is measured against, in the same run.
var compareAndDelete = redis.NewScript(`
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0`)

// benchClient is a real redis-server of this benchmark alone, and a client with
// a connection for every goroutine.
func benchClient(b *testing.B) redis.UniversalClient {
	b.Helper()
	s := redistest.StartReal(b)
	return s.Client(b, func(o *redis.UniversalOptions) { o.PoolSize = 300 })
}

// parallel runs b.N calls of f on n goroutines; f gets its goroutine's number.
func parallel(b *testing.B, n int, f func(goroutine int) error) {
	b.Helper()
	b.ReportAllocs()
	var left atomic.Int64
	left.Store(int64(b.N))
	var wg sync.WaitGroup
	b.ResetTimer()
	for i := range n {
		redistest.Go(&wg, func() {
			for left.Add(-1) >= 0 {
				if err := f(i); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "pairs/s")
}

// BenchmarkUncontended takes and releases locks that nobody else wants, beside
// a raw SET NX PX with a compare-and-delete script, which promises far less.
func BenchmarkUncontended(b *testing.B) {
	rdb := benchClient(b)
	ctx := context.Background()
	ending, cancel := context.WithCancel(ctx)
	defer cancel()
	for _, n := range []int{1, 16, 64, 256} {
		b.Run(fmt.Sprintf("raw/%d", n), func(b *testing.B) {
			var token atomic.Int64
			keys := names(b, n)
			parallel(b, n, func(i int) error {
				mine := strconv.FormatInt(token.Add(1), 10)
				ok, err := rdb.SetNX(ctx, keys[i], mine, 30*time.Second).Result()
				if err != nil || !ok {
					return fmt.Errorf("SET NX PX: %t, %w", ok, err)
				}
				return compareAndDelete.Run(ctx, rdb, []string{keys[i]}, mine).Err()
			})
		})
		for name, ctx := range map[string]context.Context{"lock": ctx, "lock, context that can end": ending} {
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
				locker := lock.New(rdb, lock.Options{})
				defer locker.Close()
				var locks []*lock.Lock
				for _, name := range names(b, n) {
					locks = append(locks, locker.Mutex(name))
				}
				parallel(b, n, func(i int) error {
					lease, err := locks[i].TryLock(ctx)
					if err != nil {
						return err
					}
					return lease.Unlock(ctx)
				})
			})
		}
	}
}

func names(b *testing.B, n int) []string {
	b.Helper()
	base := redistest.Name(b)
	list := make([]string, n)
	for i := range list {
		list[i] = base + strconv.Itoa(i)
	}
	return list
}

// BenchmarkHandOff passes one key round among n goroutines that hold it for a
// millisecond each, beside a bare token in a list (BLPOP, RPUSH), which knows
// no deadline, no owner and no lost client.
func BenchmarkHandOff(b *testing.B) {
	rdb := benchClient(b)
	ctx := context.Background()
	for _, n := range []int{2, 32, 128} {
		b.Run(fmt.Sprintf("blpop/%d", n), func(b *testing.B) {
			key := redistest.Name(b)
			redistest.Must(b, rdb.RPush(ctx, key, "token").Err())
			handOff(b, rdb, n, func() (func() error, error) {
				err := rdb.BLPop(ctx, 0, key).Err()
				return func() error { return rdb.RPush(ctx, key, "token").Err() }, err
			})
		})
		b.Run(fmt.Sprintf("lock/%d", n), func(b *testing.B) {
			locker := lock.New(rdb, lock.Options{})
			defer locker.Close()
			m := locker.Mutex(redistest.Name(b))
			handOff(b, rdb, n, func() (func() error, error) {
				lease, err := m.Lock(ctx)
				if err != nil {
					return nil, err
				}
				return func() error { return lease.Unlock(ctx) }, nil
			})
		})
	}
}

// handOff runs b.N turns and reports turns a second, the gap between the start
// of a release and the next holder's start, commands sent per turn, and how
// evenly the goroutines were served (Jain: 1 is perfectly even).
func handOff(b *testing.B, rdb redis.UniversalClient, n int, acquire func() (release func() error, err error)) {
	b.Helper()
	turns := make([]float64, n)
	gaps := make([]time.Duration, 0, b.N)
	var released time.Time // guarded by the lock under test, as are gaps and turn
	turn := 0
	before := commandsSent(b, rdb)
	var wg sync.WaitGroup
	b.ResetTimer()
	for i := range n {
		redistest.Go(&wg, func() {
			for {
				release, err := acquire()
				if err != nil {
					b.Error(err)
					return
				}
				if !released.IsZero() {
					gaps = append(gaps, time.Since(released))
				}
				turn++
				last := turn >= b.N
				turns[i]++
				hold := time.Now()
				for time.Since(hold) < time.Millisecond {
					time.Sleep(time.Millisecond - time.Since(hold))
				}
				released = time.Now()
				if err := release(); err != nil {
					b.Error(err)
				}
				if last {
					return
				}
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	all := float64(turn)
	b.ReportMetric(all/b.Elapsed().Seconds(), "turns/s")
	b.ReportMetric((commandsSent(b, rdb)-before)/all, "cmds/turn")
	slices.Sort(gaps)
	if len(gaps) > 0 {
		b.ReportMetric(float64(gaps[len(gaps)/2].Microseconds()), "gap-p50-µs")
		b.ReportMetric(float64(gaps[len(gaps)*99/100].Microseconds()), "gap-p99-µs")
	}
	var sum, squares float64
	for _, t := range turns {
		sum += t
		squares += t * t
	}
	b.ReportMetric(sum*sum/(float64(n)*squares), "jain")
}

// commandsSent counts the commands that clients sent, not those inside scripts.
func commandsSent(b *testing.B, rdb redis.UniversalClient) float64 {
	b.Helper()
	info, err := rdb.Info(context.Background(), "commandstats").Result()
	redistest.Must(b, err)
	var sum float64
	for line := range strings.Lines(info) {
		for _, sent := range []string{"evalsha", "eval", "blpop", "rpush", "ping", "subscribe"} {
			if rest, ok := strings.CutPrefix(line, "cmdstat_"+sent+":calls="); ok {
				n, err := strconv.ParseFloat(rest[:strings.IndexByte(rest, ',')], 64)
				if err != nil {
					b.Fatal(errors.Join(errors.New("INFO commandstats: "+line), err))
				}
				// RPUSH runs inside no script, and no script is sent by another.
				sum += n
			}
		}
	}
	return sum
}
