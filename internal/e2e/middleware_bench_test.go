//go:build unix

package e2e

import (
	"context"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// BenchmarkMiddleware has an uncontended task go through a Guard, beside the pair of
// commands alone. The difference of their processor time, which the benchmark reports,
// and of their allocations is the Guard's own work.
func BenchmarkMiddleware(b *testing.B) {
	rdb := redistest.Real(b).Client(b)
	// As asynq calls handlers: with a deadline, and a context that can be cancelled.
	ctx, cancel := context.WithTimeout(b.Context(), 30*time.Minute)
	defer cancel()
	b.Run("lock", func(b *testing.B) {
		locker := lock.New(rdb, lock.Options{Prefix: redistest.Name(b)})
		defer func() { _ = locker.Close() }()
		locks := make([]*lock.Lock, 64)
		for i := range locks {
			locks[i] = locker.Mutex("work", lock.Parts(strconv.Itoa(i)), inner.Uninterrupted())
		}
		i := 0
		measure(b, func() error {
			i++
			lease, err := locks[i%len(locks)].Lock(ctx)
			if err != nil {
				return err
			}
			return lease.Unlock(ctx)
		})
	})
	b.Run("guard", func(b *testing.B) {
		guard, err := automutex.New(rdb, automutex.Config{Rules: []automutex.Rule{{Task: "work", On: []string{"id"}}}, Prefix: redistest.Name(b)})
		redistest.Must(b, err)
		defer func() { _ = guard.Close(context.Background()) }()
		handler := guard.Middleware(asynq.HandlerFunc(func(context.Context, *asynq.Task) error { return nil }))
		tasks := make([]*asynq.Task, 64)
		for i := range tasks {
			tasks[i] = asynq.NewTask("work", []byte(`{"id":`+strconv.Itoa(i)+`}`))
		}
		i := 0
		measure(b, func() error {
			i++
			return handler.ProcessTask(ctx, tasks[i%len(tasks)])
		})
	})
}

// measure calls f b.N times, and reports the processor time of this process for each.
func measure(b *testing.B, f func() error) {
	b.Helper()
	b.ReportAllocs()
	began := processorTime(b)
	for range b.N {
		redistest.Must(b, f())
	}
	b.ReportMetric(float64((processorTime(b)-began).Nanoseconds())/float64(b.N), "cpu-ns/op")
}

// processorTime is what this process has used so far.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var used syscall.Rusage
	redistest.Must(b, syscall.Getrusage(syscall.RUSAGE_SELF, &used))
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
