package main

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/redistest"
)

// Each contender excludes, waits, releases and says when its holder counts no
// longer: else its figures would be those of something else.
func TestContenders(t *testing.T) {
	t.Parallel()
	s := redistest.Real(t)
	for _, c := range contenders {
		if c.floor {
			continue
		}
		t.Run(c.String(), func(t *testing.T) {
			t.Parallel()
			l, err := c.open(conf{Addr: s.Addr(), N: 4, Every: time.Millisecond, TTL: 5 * time.Second})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := l.close(); err != nil {
					t.Error(err)
				}
			})
			ctx, key := t.Context(), redistest.Name(t)
			first, err := own(ctx, l.handle(key))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := l.handle(key).try(ctx); !errors.Is(err, errBusy) {
				t.Errorf("a second try: %v, want busy", err)
			}
			rdb := redis.NewClient(&redis.Options{Addr: s.Addr()})
			t.Cleanup(func() { _ = rdb.Close() })
			deadline, err := c.deadline(ctx, key, &server{rdb: rdb})
			if left := time.Until(deadline); err != nil || left < 3*time.Second || left > 6*time.Second {
				t.Errorf("the deadline is in %s, %v; want about 5s", left, err)
			}
			waited := make(chan error, 1)
			// It ends with its lock, or after 20 s.
			go func() {
				err := errBusy
				for began := time.Now(); err != nil && time.Since(began) < 20*time.Second; {
					// Once more where a waiter was not woken, as happens to rueidislock's.
					brief, cancel := context.WithTimeout(ctx, time.Second)
					var got held
					if got, err = l.handle(key).lock(brief); err == nil {
						err = got.release(ctx)
					}
					cancel()
				}
				waited <- err
			}()
			select {
			case err := <-waited:
				t.Fatalf("a waiter did not wait: %v", err)
			case <-time.After(20 * time.Millisecond):
			}
			if err := first.release(ctx); err != nil {
				t.Errorf("release: %v", err)
			}
			if err := <-waited; err != nil {
				t.Errorf("the waiter: %v", err)
			}
			brief, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
			defer cancel()
			again, err := own(ctx, l.handle(key))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := l.handle(key).lock(brief); err == nil {
				t.Error("two hold it")
			}
			if err := again.release(ctx); err != nil {
				t.Errorf("release: %v", err)
			}
		})
	}
}
