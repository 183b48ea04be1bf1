package lock

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/controls"
	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/internal/stamp"
	"github.com/automutex/automutex/internal/wire"
)

// A process says which format it stores, for as long as it lives and a minute.
func TestFormat_isSaid(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t), ownPrefix(t))
		mustUnlock(t, mustTry(t, l.Mutex("report")))
		rdb, key := s.Client(t), l.controls.Format.Keys[0]
		if got, err := rdb.Get(t.Context(), key).Result(); err != nil || got != strconv.Itoa(controls.StoredFormat) {
			t.Errorf("the format is %q, %v", got, err)
		}
		if left, err := rdb.PTTL(t.Context(), key).Result(); err != nil || left <= controls.FormatEvery || left > controls.FormatFor {
			t.Errorf("it stands for another %s, %v", left, err)
		}
	})
}

// While processes with another format are there nothing is taken, however it is asked for. Leases
// that are held stay. When the others have gone, this process works by itself.
func TestFormat_anotherIsRefused(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		bounded, cancel := context.WithTimeout(t.Context(), time.Minute) // what is not refused may wait
		defer cancel()
		for _, stored := range []string{strconv.Itoa(controls.StoredFormat + 1), "0x", "junk", "a hash"} {
			prefix, log := ownPrefix(t), &redistest.Log{}
			older := newLocker(t, s.Client(t), prefix)
			held := mustTry(t, older.Mutex("held"))
			rdb, key := s.Client(t), older.controls.Format.Keys[0]
			err := rdb.Set(t.Context(), key, stored, time.Minute).Err()
			if stored == "a hash" {
				rdb.Del(t.Context(), key)
				err = rdb.HSet(t.Context(), key, "format", "format").Err()
			}
			redistest.Must(t, err)
			l := newLocker(t, s.Client(t), prefix, logTo(log))
			for what, call := range map[string]func() error{
				"TryLock":   func() error { _, err := l.Mutex("report").TryLock(t.Context()); return err },
				"Lock":      func() error { _, err := l.Mutex("report").Lock(bounded); return err },
				"semaphore": func() error { _, err := l.Semaphore("report", 3).TryLock(t.Context()); return err },
				"Break":     func() error { _, err := l.Mutex("held").BreakAll(t.Context()); return err },
				"Put":       func() error { _, err := l.Pool("jobs").Put(t.Context(), "job"); return err },
				"Take":      func() error { _, err := l.Pool("jobs").Take(bounded); return err },
				"Inspect":   func() error { _, err := l.Pool("jobs").Inspect(t.Context()); return err },
				"Delete":    func() error { _, err := l.Pool("jobs").Delete(t.Context()); return err },
				"arrive":    func() error { _, _, err := l.Mutex("report", Note("note")).arrive(t.Context()); return err },
				"skip": func() error {
					_, err := l.byOrder(l.Mutex("ordered").Key()).skipHead(t.Context(), "note", 1)
					return err
				},
				"Sweep": func() error { _, err := Inside(inside.Pass{}).Sweep(t.Context(), l); return err },
				"stamp": func() error { _, _, _, err := placeFor(t, newLocker(t, rdb, prefix)); return err },
			} {
				err := call()
				if !errors.Is(err, ErrBackend) || !strings.Contains(err.Error(), "format") || !strings.Contains(err.Error(), older.prefix) {
					t.Errorf("%s beside format %s: %v, want ErrBackend that names the format and the prefix", what, stored, err)
				}
			}
			for _, m := range []*Lock{l.Mutex("report"), l.Pool("jobs").m, l.Mutex("ordered")} {
				if n := raw(m).Exists(t.Context(), m.Key()).Val(); n != 0 {
					t.Errorf("something was written to %s", m.Key())
				}
			}
			mustUnlock(t, held)
			redistest.Must(t, rdb.Del(t.Context(), key).Err())
			redistest.Eventually(t, 3*controls.ReadEvery+soon, func() bool {
				le, err := l.Mutex("report").TryLock(t.Context())
				if err == nil {
					mustUnlock(t, le)
				}
				return err == nil
			}, "the locks of a process whose rivals have gone")
			for _, part := range []string{"takes no locks while others store another format", "have gone; this one takes locks"} {
				if got := log.String(); strings.Count(got, part) != 1 {
					t.Errorf("the log says %q not once:\n%s", part, got)
				}
			}
		}
	})
}

// placeFor stamps a task, as a producer of ordered tasks does.
func placeFor(t *testing.T, l *Locker) (int64, int, []inside.OrderItem, error) {
	return l.byOrder(l.Mutex("ordered").Key()).stamp(t.Context(), "queue/id", stamp.NewNonce(), time.Minute, 0)
}

// What needs no controls says its format, too: by one look for all operations of 20 seconds, also of those that come at once.
func TestFormat_withoutControls(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for what, operate := range map[string]func(l *Locker) error{
			"Put":   func(l *Locker) error { _, err := l.Pool("jobs").Put(t.Context(), "job"); return err },
			"claim": func(l *Locker) error { return l.checkFormat(t.Context(), l.Mutex("report").Key()) },
			"stamp": func(l *Locker) error { _, _, _, err := placeFor(t, l); return err },
		} {
			rdb, prefix := s.Client(t), ownPrefix(t)
			tapped := newTap(rdb) // counts EVALSHA, and EVAL where the server does not know the script
			l := newLocker(t, rdb, prefix)
			began := time.Now()
			var all sync.WaitGroup
			for range 20 {
				redistest.Go(&all, func() {
					if err := operate(l); err != nil {
						t.Errorf("%s: %v", what, err)
					}
				})
			}
			all.Wait()
			if n := tapped.count(wire.FormatScript); (n < 1 || n > 2) && time.Since(began) < controls.FormatEvery {
				t.Errorf("%s: %d looks", what, n)
			}
			if got, err := rdb.Get(t.Context(), l.controls.Format.Keys[0]).Result(); err != nil || got != strconv.Itoa(controls.StoredFormat) {
				t.Errorf("%s: the format is %q, %v", what, got, err)
			}
		}
	})
}

// A look that fails stops nobody, as for locks; nor does one that Redis refuses, which the log says once. A user who may run no
// script takes nothing.
func TestFormat_mayNotLook(t *testing.T) {
	t.Parallel()
	s := redistest.StartReal(t)
	admin := s.Client(t)
	rdb, hook := s.Client(t), &redistest.FailHook{}
	hook.Before(func(cmd redis.Cmder) error {
		if scriptName(cmd) == wire.FormatScript.Name {
			return errors.New("no reply")
		}
		return nil
	})
	rdb.AddHook(hook)
	failing := newLocker(t, rdb)
	if _, err := failing.Pool("jobs").Put(t.Context(), "job"); err != nil {
		t.Errorf("Put without a look: %v", err)
	}
	prefix, log := ownPrefix(t), &redistest.Log{}
	narrow := newLocker(t, denied(t, s, admin, "resetkeys", "~*:{report}*", "~*:{control}"), prefix, logTo(log))
	for range 3 {
		mustUnlock(t, mustTry(t, narrow.Mutex("report")))
		if _, err := narrow.Pool("report").Put(t.Context(), "job"); err != nil {
			t.Errorf("Put: %v", err)
		}
	}
	if got := log.String(); strings.Count(got, "refuses a look at the stored format") != 1 {
		t.Errorf("the log:\n%s", got)
	}
	_, err := newLocker(t, denied(t, s, admin, "-eval", "-evalsha")).Mutex("report").TryLock(t.Context())
	wantDenied(t, "TryLock", err, "EVAL")
}
