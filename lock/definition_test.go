package lock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

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
		"whole milliseconds":    l.Mutex("x", TTL(time.Second+time.Microsecond)),
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
		for _, err := range []error{m.Err(), err1, err2, err3, err4} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("error is %v, want one with %q", err, want)
			}
		}
	}
	for _, ttl := range []time.Duration{MaxTTL + time.Millisecond, time.Duration(1<<63 - 1).Truncate(time.Millisecond)} {
		if l.Mutex("x", TTL(ttl)).Err() == nil {
			t.Errorf("a TTL of %s is accepted", ttl)
		}
	}
	if err := l.Mutex("x", TTL(MaxTTL)).Err(); err != nil {
		t.Errorf("MaxTTL: %v", err)
	}
	if err := mustTry(t, l.Mutex(redistest.Name(t))).Extend(t.Context(), 1<<63-1); err == nil {
		t.Error("an endless Extend is accepted")
	}
	if _, err := new(Set).TryLock(t.Context()); err == nil {
		t.Error("a zero Set locks nothing and says nothing")
	}
	if err := l.Mutex("x", TTL(MinTTL)).Err(); err != nil {
		t.Errorf("MinTTL: %v", err)
	}
}

func TestErrorTextsNameTheLock(t *testing.T) {
	t.Parallel()
	err := fmt.Errorf("wrapped: %w", &BusyError{Name: "room:1", cause: context.Canceled})
	if !errors.Is(err, ErrBusy) || !errors.Is(err, context.Canceled) {
		t.Errorf("%v Is not both", err)
	}
}
