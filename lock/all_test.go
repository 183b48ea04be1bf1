package lock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/redistest"
)

// several makes n mutexes of l, in different slots of a Cluster.
func several(t *testing.T, l *Locker, n int, options ...Option) []*Lock {
	t.Helper()
	var locks []*Lock
	for range n {
		locks = append(locks, l.Mutex(redistest.Name(t), options...))
	}
	return locks
}

func TestAll(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		l, other := newLocker(t, rdb), newLocker(t, rdb)
		locks := several(t, l, 5)
		slices.Reverse(locks)
		set := l.All(locks...)
		leases, err := set.TryLock(t.Context())
		if err != nil {
			t.Fatalf("TryLock: %v", err)
		}
		for _, m := range locks {
			mustBeBusy(t, handle(other, m))
			if le := leases.Of(m); le == nil || le.lock.Key() != m.Key() || !le.Held() {
				t.Errorf("Of(%q): %v", m.name, le)
			}
			if le := leases.Of(handle(other, m)); le != leases.Of(m) {
				t.Errorf("Of another handle: %v", le)
			}
		}
		if le := leases.Of(l.Mutex("another")); le != nil {
			t.Errorf("Of a lock that is not in the set: %v", le)
		}
		each := leases.Each()
		var keys []string
		for _, le := range each {
			keys = append(keys, le.lock.Key())
		}
		if len(each) != 5 || !slices.IsSorted(keys) {
			t.Errorf("Each gives %q, want all by key", keys)
		}
		each[0] = nil // a copy
		if leases.Each()[0] == nil {
			t.Error("Each gives away what the leases are kept in")
		}

		// Others wait for one or for all.
		w := inLine(t, handle(other, locks[2]), 1)
		if err := leases.Unlock(t.Context()); err != nil {
			t.Errorf("Unlock: %v", err)
		}
		mustUnlock(t, w.got(t))
		if err := leases.Unlock(t.Context()); !errors.Is(err, ErrNotHeld) {
			t.Errorf("second Unlock: %v, want ErrNotHeld", err)
		}
		for _, m := range locks {
			free(t, m, soon)
		}
	})
}

// One is taken: none is held.
func TestAllOrNone(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		l, other := newLocker(t, rdb), newLocker(t, rdb, owner("other"))
		locks := several(t, l, 5)
		for i, m := range locks {
			held := mustTry(t, handle(other, m))
			leases, err := l.All(locks...).TryLock(t.Context())
			if busy := wantBusy(t, err); leases != nil || busy.Name != m.name || busy.Holder != "other" {
				t.Errorf("TryLock with %q taken: %v, %v", m.name, leases, err)
			}
			for j, m := range locks {
				if n := band(t, m, "h:"); (n == 1) != (i == j) {
					t.Errorf("lock %d has %d holders after a TryLock that found %d taken; %s", j, n, i, dump(m))
				}
			}
			mustUnlock(t, held)
		}

		// Waiting for the last one ends with its context: the others are free.
		last := slices.MaxFunc(locks, func(a, b *Lock) int { return strings.Compare(a.Key(), b.Key()) })
		held := mustTry(t, handle(other, last))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			_, err := l.All(locks...).Lock(ctx)
			done <- err
		}()
		waiting(t, last, 1)
		for _, m := range locks {
			mustBeBusy(t, handle(other, m))
		}
		cancel()
		err := <-done
		if wantBusy(t, err); !errors.Is(err, context.Canceled) {
			t.Errorf("Lock: %v, want it to be context.Canceled too", err)
		}
		mustUnlock(t, held)
		for _, m := range locks {
			free(t, m, soon)
		}
	})
}

// Many goroutines, sets that overlap, any order: all come through, and each
// lock has one holder at a time.
func TestAllDoesNotDeadlock(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		const lockers, each, sections, names = 3, 4, 12, 6
		var list [names]string
		for i := range list {
			list[i] = redistest.Name(t)
		}
		var inside [names]atomic.Int64
		var wg sync.WaitGroup
		ctx, cancel := context.WithTimeout(t.Context(), 3*soon)
		defer cancel()
		for range lockers {
			l := newLocker(t, s.Client(t))
			for range each {
				redistest.Go(&wg, func() {
					for range sections {
						mine := rand.Perm(names)[:2+rand.IntN(3)]
						var locks []*Lock
						for _, i := range mine {
							locks = append(locks, l.Mutex(list[i]))
						}
						err := l.All(locks...).Do(ctx, func(context.Context) error {
							for _, i := range mine {
								if n := inside[i].Add(1); n > 1 {
									t.Errorf("%d hold lock %d", n, i)
								}
							}
							for _, i := range mine {
								inside[i].Add(-1)
							}
							return nil
						})
						if err != nil {
							t.Errorf("Do: %v", err)
							return
						}
					}
				})
			}
		}
		wg.Wait()
		l := newLocker(t, s.Client(t))
		for _, name := range list {
			free(t, l.Mutex(name), soon)
		}
	})
}

func TestAllTakesDuplicatesOnce(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t))
		a, b := l.Mutex(redistest.Name(t)), l.Semaphore(redistest.Name(t), 2)
		leases, err := l.All(a, b, l.Mutex(a.name), b, a).TryLock(t.Context())
		if err != nil || len(leases.Each()) != 2 {
			t.Fatalf("TryLock with duplicates: %v, %v", leases, err)
		}
		if n := band(t, b, "h:"); n != 1 {
			t.Errorf("a semaphore given twice has %d holders, want 1", n)
		}
		if err := leases.Unlock(t.Context()); err != nil {
			t.Errorf("Unlock: %v", err)
		}
	})
}

func TestAllDo(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t))
		locks := several(t, l, 3, TTL(time.Minute))
		set := l.All(locks...)
		ran := false
		err := set.Do(t.Context(), func(context.Context) error {
			ran = true
			for _, m := range locks {
				mustBeBusy(t, m)
			}
			return nil
		})
		if err != nil || !ran {
			t.Errorf("Do: %v, ran %v", err, ran)
		}
		failure := errors.New("a failure")
		if err := set.Do(t.Context(), func(context.Context) error { return failure }); !errors.Is(err, failure) || errors.Is(err, ErrLost) {
			t.Errorf("Do: %v", err)
		}
		func() {
			defer func() {
				if r := recover(); r != "boom" {
					t.Errorf("recovered %v", r)
				}
			}()
			_ = set.Do(t.Context(), func(context.Context) error { panic("boom") })
		}()
		for _, m := range locks {
			free(t, m, soon)
		}

		// The context ends when any of them is lost, and the others are released.
		for _, m := range locks {
			err := set.Do(t.Context(), func(ctx context.Context) error {
				if _, err := m.BreakAll(ctx); err != nil {
					return err
				}
				endsWithin(t, ctx, soon)
				return nil
			})
			if !errors.Is(err, ErrLost) {
				t.Errorf("Do with %q broken: %v, want ErrLost", m.name, err)
			}
		}
		for _, m := range locks {
			free(t, m, soon)
		}
	})
}

func TestAllBind(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t))
		locks := several(t, l, 3)
		for i := range locks {
			leases, err := l.All(locks...).Lock(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			parent, cancel := context.WithCancel(t.Context())
			ctx, child := leases.Bind(t.Context()), leases.Bind(parent)
			cancel()
			if child.Err() == nil || ctx.Err() != nil {
				t.Errorf("the parent's end: %v, %v", child.Err(), ctx.Err())
			}
			mustUnlock(t, leases.Each()[i]) // released, not lost
			if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) || errors.Is(cause, ErrLost) {
				t.Errorf("one was released: the context's cause is %v", cause)
			}
			if err := leases.Unlock(t.Context()); !errors.Is(err, ErrNotHeld) {
				t.Errorf("Unlock with one released before: %v, want ErrNotHeld", err)
			}
			for _, m := range locks {
				free(t, m, soon)
			}
		}
	})
}

// What was taken first is lost while the last is waited for: none is held.
func TestAllThatLosesOneWhileItWaits(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		l, other := newLocker(t, rdb), newLocker(t, rdb)
		locks := several(t, l, 3)
		slices.SortFunc(locks, func(a, b *Lock) int { return strings.Compare(a.Key(), b.Key()) })
		held := mustTry(t, handle(other, locks[2]))
		done := make(chan error, 1)
		go func() {
			_, err := l.All(locks...).Lock(t.Context())
			done <- err
		}()
		waiting(t, locks[2], 1)
		heard(t, locks[0])
		if n, err := handle(other, locks[0]).BreakAll(t.Context()); n != 1 || err != nil {
			t.Fatalf("BreakAll: %d, %v", n, err)
		}
		redistest.Eventually(t, soon, func() bool {
			l.renewer.mu.Lock()
			defer l.renewer.mu.Unlock()
			return len(l.renewer.leases) == 1
		}, "the news that one was broken")
		mustUnlock(t, held)
		if err := <-done; !errors.Is(err, ErrLost) || !strings.Contains(err.Error(), locks[0].name) {
			t.Errorf("Lock: %v, want ErrLost that names the lock", err)
		}
		for _, m := range locks {
			free(t, m, soon)
		}
	})
}

func TestAllOfBadLocks(t *testing.T) {
	t.Parallel()
	rdb := redistest.Mini(t).Client(t)
	l, other := newLocker(t, rdb), newLocker(t, rdb)
	good := l.Mutex("good")
	for want, set := range map[string]*Set{
		"no locks":                l.All(),
		"a lock is nil":           l.All(good, nil),
		"another Locker":          l.All(good, other.Mutex("good")),
		"2 and with 3 holders":    l.All(good, l.Semaphore("s", 2), l.Semaphore("s", 3)),
		"the name is empty":       l.All(good, l.Mutex("")),
		"the Redis client is nil": New(nil, Options{}).All(good),
		"at least 1":              l.All(l.Semaphore("x", 0), good),
	} {
		_, err1 := set.TryLock(t.Context())
		_, err2 := set.Lock(t.Context())
		err3 := set.Do(t.Context(), func(context.Context) error { t.Error("Do ran its function"); return nil })
		for _, err := range []error{err1, err2, err3} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("error is %v, want one with %q", err, want)
			}
		}
	}
	free(t, good, soon)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.All(good).TryLock(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("TryLock with an ended context: %v", err)
	}
	if _, err := l.All(good).Lock(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("Lock with an ended context: %v", err)
	}
}

// The locks that the caller gave stay as they were.
func TestAllLeavesItsArgumentsAlone(t *testing.T) {
	t.Parallel()
	l := newLocker(t, redistest.Mini(t).Client(t))
	var locks []*Lock
	for i := range 5 {
		locks = append(locks, l.Mutex(fmt.Sprint(9-i)))
	}
	locks = append(locks, locks[0])
	before := slices.Clone(locks)
	l.All(locks...)
	if !slices.Equal(locks, before) {
		t.Error("All reordered its arguments")
	}
}
