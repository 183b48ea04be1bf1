package lock_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/engine"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// spent is what Redis has spent by its own count: calls of all commands, and its core, network included.
type spent struct{ calls, coreUS float64 }

func spentBy(b *testing.B, rdb redis.UniversalClient) (s spent) {
	b.Helper()
	text, err := rdb.Info(context.Background(), "stats", "cpu").Result()
	redistest.Must(b, err)
	for line := range strings.SplitSeq(text, "\r\n") {
		name, value, _ := strings.Cut(line, ":")
		n, _ := strconv.ParseFloat(value, 64)
		switch name {
		case "total_commands_processed":
			s.calls = n
		case "used_cpu_user_main_thread", "used_cpu_sys_main_thread":
			s.coreUS += n * 1e6
		}
	}
	return s
}

// BenchmarkSizing is what the operations that matter cost Redis, on a server of each benchmark's own, with sixteen
// clients at once: so many that Redis finds several calls to read whenever it looks.
//
//	go test -run '^$' -bench Sizing -benchtime 40000x ./lock
func BenchmarkSizing(b *testing.B) {
	const clients = 16
	ctx := context.Background()
	pair := func(m *lock.Lock) error {
		le, err := m.TryLock(ctx)
		if err != nil {
			return err
		}
		return le.Unlock(ctx)
	}
	name := func(client int) (string, lock.Option) {
		return "itunes:verify", lock.Parts(strconv.Itoa(70_000_000 + client))
	}
	note := lock.Note("default/0192a8f0-7c3e-7bd0-9d4c-52a8a1f0c9d3")
	free := func(n int) func(*lock.Locker, int) func() error {
		return func(l *lock.Locker, client int) func() error {
			scope, part := name(client)
			m := l.Semaphore(scope, n, part, note)
			return func() error { return pair(m) }
		}
	}
	contended := func(n int) func(*lock.Locker, int) func() error { // handed over from client to client
		return func(l *lock.Locker, _ int) func() error {
			m := l.Semaphore("itunes:verify", n, note)
			return func() error { return m.Do(ctx, func(context.Context) error { return nil }) }
		}
	}
	for _, c := range []struct {
		name string
		each func(l *lock.Locker, client int) func() error // what a client does again and again
	}{
		{"free mutex", free(1)},
		{"free semaphore", free(4)},
		{"held", func(l *lock.Locker, client int) func() error { // in vain
			scope, part := name(client)
			m := l.Mutex(scope, part, note)
			_, err := m.TryLock(ctx)
			return func() error {
				if _, busy := m.TryLock(ctx); err != nil || !errors.Is(busy, lock.ErrBusy) {
					return fmt.Errorf("%w, %w", err, busy)
				}
				return nil
			}
		}},
		{"contended mutex", contended(1)},
		{"contended semaphore", contended(4)},
		// parks behind a holder, and comes when it has left
		{"parked and called", func(l *lock.Locker, client int) func() error {
			scope, part := name(client)
			m, parked := l.Mutex(scope, part), l.Mutex(scope, part, note)
			return func() error {
				le, err := m.TryLock(ctx)
				if err != nil {
					return err
				}
				if _, err := lock.LockOrPark(ctx, parked, parkNow); !isParked(err) {
					return fmt.Errorf("not parked: %w", err)
				}
				if err := le.Unlock(ctx); err != nil {
					return err
				}
				return pair(parked)
			}
		}},
		{"in order", func(l *lock.Locker, client int) func() error { // stamped, run, and done
			scope, part := name(client)
			key, n := l.Mutex(scope, part).Key(), 0
			return func() error {
				n++
				nonce := strconv.Itoa(n)
				ticket, _, _, err := insider.Stamp(ctx, insider.ByKey(l, key), "default/"+nonce, nonce, time.Minute, 0)
				if err != nil {
					return err
				}
				place := engine.Place{Nonce: nonce, Ticket: ticket, Most: -1}
				le, err := insider.At(l.Mutex("ordered"), "ordered", key, 1, "default/"+nonce, insider.InOrder(place)).TryLock(ctx)
				if err != nil {
					return err
				}
				insider.EndOrder(le, engine.OutcomeDone)
				return le.Unlock(ctx)
			}
		}},
	} {
		b.Run(c.name, func(b *testing.B) {
			rdb := redistest.StartReal(b).Client(b, func(o *redis.UniversalOptions) { o.PoolSize = 100 })
			l := insider.Caller(rdb, lock.Options{Owner: "worker-7.example.com:4242"},
				func(context.Context, string, string) engine.Fate { return engine.FateComing })
			defer func() { _ = l.Close() }()
			var calls []func() error
			for client := range clients {
				calls = append(calls, c.each(l, client))
			}
			before := spentBy(b, rdb)
			var wg sync.WaitGroup
			b.ResetTimer()
			for client, call := range calls {
				redistest.Go(&wg, func() {
					for range (b.N + client) / clients {
						if err := call(); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
			b.StopTimer()
			after, n := spentBy(b, rdb), float64(b.N)
			b.ReportMetric((after.coreUS-before.coreUS)/n, "redis-us/op")
			b.ReportMetric((after.calls-before.calls)/n, "commands/op")
		})
	}
}
