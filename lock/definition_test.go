package lock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/redistest"
)

func TestBadDefinitions(t *testing.T) {
	t.Parallel()
	l := newLocker(t, redistest.Mini(t).Client(t))
	for want, m := range map[string]*Lock{
		"empty":                 l.Mutex(""),
		"at least 1":            l.Semaphore("x", 0),
		"-3 holders":            l.Semaphore("x", -3),
		"at least 100ms":        l.Mutex("x", TTL(99*time.Millisecond)),
		"did you mean 5s?":      l.Mutex("x", TTL(5)),
		"TTL of \"x\" is 0s":    l.Mutex("x", TTL(0)),
		"MaxHold is -1ns":       l.Mutex("x", MaxHold(-1)),
		"Options.TTL is 1ms":    New(redistest.Mini(t).Client(t), Options{TTL: time.Millisecond}).Mutex("x"),
		"prefix \"{a}\"":        New(redistest.Mini(t).Client(t), Options{Prefix: "{a}"}).Mutex("x"),
		"prefix \"a b\"":        New(redistest.Mini(t).Client(t), Options{Prefix: "a b"}).Mutex("x"),
		"TTL of \"y\" is -1s: ": l.Mutex("y", TTL(-time.Second)),
	} {
		_, err1 := m.TryLock(t.Context())
		_, err2 := m.Lock(t.Context())
		_, err3 := m.Available(t.Context())
		err4 := m.Do(t.Context(), func(context.Context) error { return nil })
		for _, err := range []error{m.err, err1, err2, err3, err4} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("error is %v, want one with %q", err, want)
			}
		}
	}
	for _, ttl := range []time.Duration{inside.MaxTTL + time.Millisecond, time.Duration(1<<63 - 1).Truncate(time.Millisecond)} {
		if l.Mutex("x", TTL(ttl)).err == nil {
			t.Errorf("a TTL of %s is accepted", ttl)
		}
	}
	if err := l.Mutex("x", TTL(inside.MaxTTL)).err; err != nil {
		t.Errorf("MaxTTL: %v", err)
	}
	if err := mustTry(t, l.Mutex(redistest.Name(t))).Extend(t.Context(), 1<<63-1); err == nil {
		t.Error("an endless Extend is accepted")
	}
	if err := l.Mutex("x", TTL(inside.MinTTL)).err; err != nil {
		t.Errorf("MinTTL: %v", err)
	}
}

// time.Until gives fractions of a millisecond, of which Redis knows nothing.
func TestDurationsAreRoundedUpToMilliseconds(t *testing.T) {
	t.Parallel()
	l := newLocker(t, redistest.Mini(t).Client(t), func(o *Options) { o.TTL = time.Second + 1 })
	for _, m := range []*Lock{l.Mutex("x"), l.Mutex("x", TTL(time.Second+1)), l.Mutex("x", TTL(time.Second+time.Millisecond))} {
		if err := m.err; err != nil || m.ttl != time.Second+time.Millisecond {
			t.Errorf("a TTL of 1 s and a nanosecond is %s: %v", m.ttl, err)
		}
	}
	m := l.Mutex(redistest.Name(t))
	le := mustTry(t, m)
	if err := le.Extend(t.Context(), time.Until(time.Now().Add(time.Minute))); err != nil {
		t.Errorf("Extend by a minute and a fraction: %v", err)
	}
	if err := le.Extend(t.Context(), time.Nanosecond); err != nil {
		t.Errorf("Extend by a nanosecond: %v", err)
	}
	if err := le.Extend(t.Context(), 0); err == nil {
		t.Error("Extend by 0 is accepted")
	}
}

// What tracing hooks print is a member's text, on one line.
func TestArgumentsPrintAsText(t *testing.T) {
	t.Parallel()
	l := newLocker(t, redistest.Mini(t).Client(t), owner("worker\n7"))
	m := l.Mutex(redistest.Name(t), Note("order\x1b[31m 7"))
	le := mustTry(t, m)
	want := le.token + `|worker%0A7|order\u001b[31m 7`
	for what, args := range map[string][]any{
		"ask":     {"evalsha", &le.asks},
		"release": {"evalsha", &le.releases},
		"renew":   {"evalsha", &le.member},
	} {
		if got := redis.NewCmd(t.Context(), args...).String(); !strings.Contains(got, want) {
			t.Errorf("%s prints %q, want it to have %q", what, got, want)
		}
	}
	reply, err := raw(m).Eval(t.Context(), "return ARGV[1]", nil, &le.member).Text()
	if err != nil || reply != le.body {
		t.Errorf("a renewal sends %q, want %q: %v", reply, le.body, err)
	}
}

func TestErrorTextsNameTheLock(t *testing.T) {
	t.Parallel()
	err := fmt.Errorf("wrapped: %w", &BusyError{Name: "room:1", cause: context.Canceled})
	if !errors.Is(err, ErrBusy) || !errors.Is(err, context.Canceled) {
		t.Errorf("%v Is not both", err)
	}
}

// Options that are wrong are the error of all calls, of those that are no lock's too.
func TestBadOptions_everyCall(t *testing.T) {
	t.Parallel()
	l := New(redistest.Mini(t).Client(t), Options{TTL: time.Millisecond})
	_, listed := l.Controls().List(t.Context())
	_, swept := l.sweep(t.Context())
	for what, err := range map[string]error{
		"Pause": l.Controls().Pause(t.Context(), "x", time.Time{}, ""), "Resume": l.Controls().Resume(t.Context(), "x"),
		"SetLimit": l.Controls().SetLimit(t.Context(), "x", 1, ""), "List": listed, "Sweep": swept,
		"Lead": l.Lead(t.Context(), "x", func(context.Context) error { return nil }),
	} {
		if err == nil || !strings.Contains(err.Error(), "Options.TTL is 1ms") {
			t.Errorf("%s: %v, want one that names the option", what, err)
		}
	}
}
