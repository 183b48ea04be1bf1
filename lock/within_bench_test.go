//go:build unix

package lock_test

import (
	"context"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/lock"
)

// BenchmarkContexts takes and releases locks that nobody else wants, with a context
// that never ends, with one that can end, and with one that can end and the option
// Uninterrupted. It reports the CPU time of this process for each pair.
func BenchmarkContexts(b *testing.B) {
	rdb := benchClient(b)
	ending, cancel := context.WithCancel(context.Background())
	defer cancel()
	for _, n := range []int{1, 16} {
		for _, c := range []struct {
			name    string
			ctx     context.Context // a row of a table
			options []lock.Option
		}{
			{"never ends", context.Background(), nil},
			{"can end", ending, nil},
			{"can end, Uninterrupted", ending, []lock.Option{lock.Inside(inside.Pass{}).Uninterrupted()}},
		} {
			b.Run(c.name+"/"+strconv.Itoa(n), func(b *testing.B) {
				locker := lock.New(rdb, lock.Options{})
				defer locker.Close()
				var locks []*lock.Lock
				for _, name := range names(b, n) {
					locks = append(locks, locker.Mutex(name, c.options...))
				}
				before := cpuTime(b)
				parallel(b, n, func(i int) error {
					lease, err := locks[i].TryLock(c.ctx)
					if err != nil {
						return err
					}
					return lease.Unlock(c.ctx)
				})
				b.ReportMetric(float64((cpuTime(b)-before).Nanoseconds())/1e3/float64(b.N), "cpu-µs/pair")
			})
		}
	}
}

// cpuTime is the CPU time that this process has used.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
