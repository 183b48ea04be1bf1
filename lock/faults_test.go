package lock_test

import (
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// A client that is closed, or leads to nothing: each call ends within a bound, with ErrBackend and the lock's key,
// whatever the client's options.
func TestRefusedPort(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	redistest.Must(t, err)
	addr := ln.Addr().String()
	redistest.Must(t, ln.Close())
	unreachable(t, addr)
}

// Somebody listens, accepts, and never answers.
func TestBlackhole(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	p := redistest.NewProxy(t, redistest.Mini(t).Addr())
	p.Blackhole(true)
	unreachable(t, p.Addr())
}

func unreachable(t *testing.T, addr string) {
	var wg sync.WaitGroup
	closed := redis.NewClient(&redis.Options{Addr: addr})
	_ = closed.Close()
	for what, rdb := range map[string]redis.UniversalClient{
		"default":                redis.NewClient(&redis.Options{Addr: addr}),
		"closed":                 closed,
		"reads without timeout":  redis.NewClient(&redis.Options{Addr: addr, ReadTimeout: -1}),
		"context timeout":        redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true}),
		"cluster, reads forever": redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{addr}, ReadTimeout: -1}),
	} {
		t.Cleanup(func() { _ = rdb.Close() })
		l := newLocker(t, rdb)
		name := redistest.Name(t)
		redistest.Go(&wg, func() {
			var calls sync.WaitGroup
			for call, f := range allCalls(l, name) {
				redistest.Go(&calls, func() {
					began := time.Now()
					err := f(t.Context())
					if !errors.Is(err, lock.ErrBackend) || errors.Is(err, lock.ErrBusy) || !strings.Contains(err.Error(), name) ||
						time.Since(began) > soon {
						t.Errorf("%s, %s: after %s: %v, want ErrBackend with the key", what, call, time.Since(began), err)
					}
				})
			}
			calls.Wait()
			if err := l.Close(); err != nil {
				t.Errorf("%s: Close: %v", what, err)
			}
		})
	}
	wg.Wait()
}

// A user with fewer rights has errors that say so, again and again; then nothing is taken, and nothing stays.
func TestDeniedCommands(t *testing.T) {
	t.Parallel()
	for _, right := range []string{"-evalsha", "-set"} {
		t.Run(right, func(t *testing.T) {
			t.Parallel()
			s := redistest.StartReal(t)
			admin, look := s.Client(t), lockerOn(t, s)
			l := newLocker(t, withUser(t, s, admin, "user"))
			takesAndUnlocks(t, l.Mutex(redistest.Name(t)))
			tell(t, admin, "ACL", "SETUSER", "user", right)
			m := l.Semaphore(redistest.Name(t), 2, lock.Rate(1000, time.Second, 1000), lock.TTL(6*time.Second)) // needs a script
			for range 2 {
				for what, err := range map[string]error{"TryLock": second(m.TryLock(t.Context())),
					"Lock": second(m.Lock(t.Context()))} {
					var said redis.Error
					if !errors.Is(err, lock.ErrBackend) || errors.Is(err, lock.ErrBusy) || !errors.As(err, &said) ||
						!strings.Contains(err.Error(), "ACL line") {
						t.Errorf("%s: %v, want ErrBackend that says where the rights stand", what, err)
					}
				}
				free(t, slots(look, m, 2))
			}
		})
	}
}
