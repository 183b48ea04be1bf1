package lock

import (
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/redistest"
)

func TestClientsThatCannotWork(t *testing.T) {
	t.Parallel()
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": "127.0.0.1:1"}})
	t.Cleanup(func() { _ = ring.Close() })
	for want, rdb := range map[string]Client{
		"is nil":                      nil,
		"nil *redis.Client":           (*redis.Client)(nil),
		"nil *redis.ClusterClient":    (*redis.ClusterClient)(nil),
		"nil *redis.Ring":             (*redis.Ring)(nil),
		"*redis.Ring cannot":          ring,
		"nil *redis.Client: pass one": redis.UniversalClient((*redis.Client)(nil)),
	} {
		l := New(rdb, Options{})
		m := l.Mutex("x")
		le, err1 := m.TryLock(t.Context())
		_, err2 := m.Lock(t.Context())
		_, err3 := m.Holders(t.Context())
		for _, err := range []error{l.life.Unfit(), checkClient(rdb), m.err, err1, err2, err3} {
			if err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "lock: ") || le != nil {
				t.Errorf("error is %v, want one with %q", err, want)
			}
		}
		if err := l.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
}

func TestClosedClient(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		m := newLocker(t, rdb).Mutex(redistest.Name(t))
		le := mustTry(t, m)
		redistest.Must(t, rdb.Close())
		bounded(t, soon, m, func() error { _, err := m.TryLock(t.Context()); return err }, redis.ErrClosed)
		bounded(t, soon, m, func() error { _, err := m.Lock(t.Context()); return err }, redis.ErrClosed)
		bounded(t, soon, m, func() error { return le.Unlock(t.Context()) }, redis.ErrClosed)
		bounded(t, soon, m, m.locker.Close, nil)
	})
}

// bounded runs f, which must end within a bound with ErrBackend that wraps want,
// or without an error where want is nil.
func bounded(t *testing.T, within time.Duration, m *Lock, f func() error, want error) {
	t.Helper()
	began := time.Now()
	err := f()
	took := time.Since(began)
	if took > within {
		t.Errorf("took %s, want at most %s (%v)", took, within, err)
	}
	switch {
	case want == nil && err != nil:
		t.Errorf("error is %v, want none", err)
	case want != nil && (!errors.Is(err, ErrBackend) || !errors.Is(err, want) || errors.Is(err, ErrBusy)):
		t.Errorf("error is %v, want ErrBackend and %v", err, want)
	case want != nil && !strings.Contains(err.Error(), m.Key()):
		t.Errorf("%q does not name the lock %q", err, m.Key())
	}
	t.Logf("%s: %v", took.Round(time.Millisecond), err)
}

// Nobody listens on the port.
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
	unreachable(t, blackhole(t))
}

// defectiveClients are clients for addr with options that make them patient.
func defectiveClients(t *testing.T, addr string) map[string]redis.UniversalClient {
	clients := map[string]redis.UniversalClient{
		"default":                redis.NewClient(&redis.Options{Addr: addr}),
		"reads without timeout":  redis.NewClient(&redis.Options{Addr: addr, ReadTimeout: -1}),
		"context timeout":        redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true}),
		"cluster":                redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{addr}}),
		"cluster, reads forever": redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{addr}, ReadTimeout: -1}),
	}
	for _, rdb := range clients {
		t.Cleanup(func() { _ = rdb.Close() })
	}
	return clients
}

// blackhole listens and accepts, and answers nothing.
func blackhole(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	redistest.Must(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		var conns []net.Conn
		for {
			c, err := ln.Accept()
			if err != nil {
				break
			}
			conns = append(conns, c)
		}
		for _, c := range conns {
			_ = c.Close()
		}
	}()
	t.Cleanup(func() { _ = ln.Close(); <-done })
	return ln.Addr().String()
}

// unreachableWithin bounds each call on a Redis that is not there: exchange.Timeout,
// and what the client takes to notice.
const unreachableWithin = soon

// unreachable runs every operation with every client, all at once, and then
// closes the Lockers: each ends within the bound, whatever the client's options.
func unreachable(t *testing.T, addr string) {
	var wg sync.WaitGroup
	for client, rdb := range defectiveClients(t, addr) {
		redistest.Go(&wg, func() {
			l := newLocker(t, rdb)
			m := l.Mutex(redistest.Name(t))
			var calls sync.WaitGroup
			for name, f := range map[string]func() error{
				"TryLock":   func() error { _, err := m.TryLock(t.Context()); return err },
				"Lock":      func() error { _, err := m.Lock(t.Context()); return err },
				"Available": func() error { _, err := m.Available(t.Context()); return err },
				"Unlock": func() error {
					le := m.newLease()
					l.renewer.add(le, 1, "", time.Now(), m.ttl, false)
					return le.Unlock(t.Context())
				},
				"Extend": func() error {
					le := m.newLease()
					l.renewer.add(le, 1, "", time.Now(), m.ttl, false)
					return le.Extend(t.Context(), time.Minute)
				},
			} {
				redistest.Go(&calls, func() {
					began := time.Now()
					err := f()
					took := time.Since(began)
					t.Logf("%s, %s: %s: %v", client, name, took.Round(time.Millisecond), err)
					if !errors.Is(err, ErrBackend) || errors.Is(err, ErrBusy) || errors.Is(err, ErrNotHeld) || !strings.Contains(err.Error(), m.Key()) {
						t.Errorf("%s, %s: error is %v, want ErrBackend with the key", client, name, err)
					}
					if took > unreachableWithin {
						t.Errorf("%s, %s: took %s, want at most %s", client, name, took, unreachableWithin)
					}
				})
			}
			calls.Wait()
			began := time.Now()
			if err := l.Close(); err != nil {
				t.Errorf("%s: Close: %v", client, err)
			}
			took := time.Since(began)
			t.Logf("%s: Close: %s", client, took.Round(time.Millisecond))
			if took > unreachableWithin {
				t.Errorf("%s: Close took %s, want at most %s", client, took, unreachableWithin)
			}
		})
	}
	wg.Wait()
}

// A lease whose Redis has gone: Unlock ends with an error within the bound.
func TestUnlockWithoutRedis(t *testing.T) {
	t.Parallel()
	s := redistest.Real(t)
	_, far, p := through(t, s)
	m := far.Mutex(redistest.Name(t))
	le := mustTry(t, m)
	p.Blackhole(true)
	began := time.Now()
	err := le.Unlock(t.Context())
	took := time.Since(began)
	t.Logf("%s: %v", took.Round(time.Millisecond), err)
	if !errors.Is(err, ErrBackend) || errors.Is(err, ErrNotHeld) || took > unreachableWithin {
		t.Errorf("after %s: %v, want ErrBackend", took, err)
	}
	p.Heal()
	free(t, m, soon) // it is tried again
}
