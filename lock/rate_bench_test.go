package lock_test

import (
	"context"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/lock"
)

// BenchmarkRate takes and releases a lock that nobody else wants, without a rate, with one
// that is never used up, and with one of which every start is given back; and beside
// another holder, where an unrated lock is more than a key that comes and goes. It reports
// the time that Redis spends in scripts for each pair.
func BenchmarkRate(b *testing.B) {
	rdb := benchClient(b)
	ctx := context.Background()
	rate := lock.Rate(1_000_000, time.Second, 1000)
	for _, c := range []struct {
		name    string
		beside  int // others that hold it all the time
		options []lock.Option
		end     func(*lock.Lease) error
	}{
		{"none", 0, nil, func(le *lock.Lease) error { return le.Unlock(ctx) }},
		{"none, beside a holder", 1, nil, func(le *lock.Lease) error { return le.Unlock(ctx) }},
		{"rate", 0, []lock.Option{rate}, func(le *lock.Lease) error { return le.Unlock(ctx) }},
		{"rate, beside a holder", 1, []lock.Option{rate}, func(le *lock.Lease) error { return le.Unlock(ctx) }},
		{"rate, given back", 0, []lock.Option{rate}, func(le *lock.Lease) error { return lock.Inside(inside.Pass{}).GiveBack(ctx, le) }},
	} {
		b.Run(c.name, func(b *testing.B) {
			locker := lock.New(rdb, lock.Options{})
			defer locker.Close()
			m := locker.Semaphore(names(b, 1)[0], 2, c.options...)
			for range c.beside {
				lease, err := m.TryLock(ctx)
				if err != nil {
					b.Fatal(err)
				}
				defer func() { _ = lease.Unlock(ctx) }()
			}
			before := scriptTime(b, rdb)
			parallel(b, 1, func(int) error {
				lease, err := m.TryLock(ctx)
				if err != nil {
					return err
				}
				return c.end(lease)
			})
			b.ReportMetric((scriptTime(b, rdb)-before)/float64(b.N), "redis-µs/pair")
		})
	}
}

var scriptStats = regexp.MustCompile(`cmdstat_eval(?:sha)?:calls=\d+,usec=(\d+)`)

// scriptTime is how long Redis has spent in scripts, in us.
func scriptTime(b *testing.B, rdb redis.UniversalClient) (us float64) {
	b.Helper()
	info, err := rdb.Info(context.Background(), "commandstats").Result()
	if err != nil {
		b.Fatal(err)
	}
	for _, found := range scriptStats.FindAllStringSubmatch(info, -1) {
		n, err := strconv.ParseFloat(found[1], 64)
		if err != nil {
			b.Fatal(err)
		}
		us += n
	}
	return us
}
