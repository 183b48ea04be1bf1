package main

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/redistest"
)

// Each contender excludes, waits, releases and says when its holder counts no
// longer: else its figures would be those of something else.
func TestContenders(t *testing.T) {
	redistest.RealTime(t)
	t.Parallel()
	s := redistest.Real(t)
	for _, c := range contenders {
		if c.floor {
			continue
		}
		t.Run(c.String(), func(t *testing.T) {
			t.Parallel()
			if !(&server{rdb: s.Client(t).(*redis.Client)}).has(t.Context(), c.needs) {
				t.Skipf("this server has no %s", c.needs)
			}
			l, err := c.open(conf{Addr: s.Addr(), N: 4, Every: time.Millisecond, TTL: 5 * time.Second})
			redistest.Must(t, err)
			t.Cleanup(func() {
				if err := l.close(); err != nil {
					t.Error(err)
				}
			})
			ctx, key := t.Context(), redistest.Name(t)
			first, err := own(ctx, l.handle(key))
			redistest.Must(t, err)
			if _, err := l.handle(key).try(ctx); !errors.Is(err, errBusy) {
				t.Errorf("a second try: %v, want busy", err)
			}
			rdb := redis.NewClient(&redis.Options{Addr: s.Addr()})
			t.Cleanup(func() { _ = rdb.Close() })
			redistest.Eventually(t, redistest.Patience, func() bool {
				deadline, err := c.deadline(ctx, key, &server{rdb: rdb})
				left := time.Until(deadline)
				return err == nil && left > 3*time.Second && left < 6*time.Second
			}, "a deadline in about 5 s")
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
			redistest.Must(t, err)
			if _, err := l.handle(key).lock(brief); err == nil {
				t.Error("two hold it")
			}
			if err := again.release(ctx); err != nil {
				t.Errorf("release: %v", err)
			}
		})
	}
}

// What a contender sends is counted: a command that its list does not name would cost it
// nothing in the tables. MONITOR distinguishes what a client sent from what a script ran.
func TestContenders_sendWhatIsCounted(t *testing.T) {
	t.Parallel()
	for _, c := range contenders {
		if c.floor {
			continue // it needs something in Redis first
		}
		t.Run(c.String(), func(t *testing.T) {
			t.Parallel()
			s := redistest.StartReal(t)
			if !(&server{rdb: s.Client(t).(*redis.Client)}).has(t.Context(), c.needs) {
				t.Skipf("this server has no %s", c.needs)
			}
			watch, err := net.Dial("tcp", s.Addr())
			redistest.Must(t, err)
			defer func() { _ = watch.Close() }()
			lines := bufio.NewScanner(watch)
			if _, err := io.WriteString(watch, "MONITOR\r\n"); err != nil || !lines.Scan() || lines.Text() != "+OK" {
				t.Fatalf("MONITOR: %q, %v", lines.Text(), err)
			}
			l, err := c.open(conf{Addr: s.Addr(), N: 4, Every: time.Millisecond, TTL: 5 * time.Second})
			redistest.Must(t, err)
			h := l.handle(redistest.Name(t))
			for range 3 {
				got, err := own(t.Context(), h)
				if err == nil {
					err = got.release(t.Context())
				}
				redistest.Must(t, err)
			}
			if err := l.close(); err != nil {
				t.Error(err)
			}
			// The end of the record: a command of this test's own.
			last := redistest.Name(t)
			if err := s.Client(t).Get(t.Context(), last).Err(); !errors.Is(err, redis.Nil) {
				t.Fatal(err)
			}
			redistest.Must(t, watch.SetReadDeadline(time.Now().Add(20*time.Second)))
			for lines.Scan() {
				if strings.Contains(lines.Text(), last) {
					return
				}
				if name := sentCommand(lines.Text()); name != "" && !slices.Contains(c.sends, name) && !slices.Contains(setsUp, name) {
					t.Errorf("%q is sent, and not counted: %s", name, lines.Text())
				}
			}
			t.Fatalf("MONITOR ended before this test's own command: %v", lines.Err())
		})
	}
}

// setsUp are commands that a client or a library sends once, for a connection or a start.
var setsUp = []string{"hello", "client", "subscribe", "unsubscribe", "script", "psubscribe", "cluster"}

// sentCommand is the name of the command that a line of MONITOR tells of, or "" where a
// script ran it: 1339518083.107412 [0 127.0.0.1:60866] "keys" "*".
func sentCommand(line string) string {
	_, rest, ok := strings.Cut(line, " [")
	from, rest, ok2 := strings.Cut(rest, "] \"")
	name, _, _ := strings.Cut(rest, "\"")
	if !ok || !ok2 || strings.HasSuffix(from, " lua") {
		return ""
	}
	return strings.ToLower(name)
}
