package lock

import (
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/controls"
	"github.com/automutex/automutex/internal/redistest"
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
		for _, stored := range []string{strconv.Itoa(controls.StoredFormat + 1), "0x", "junk"} {
			prefix, log := ownPrefix(t), &redistest.Log{}
			older := newLocker(t, s.Client(t), prefix)
			held := mustTry(t, older.Mutex("held"))
			rdb, key := s.Client(t), older.controls.Format.Keys[0]
			if err := rdb.Set(t.Context(), key, stored, time.Minute).Err(); err != nil {
				t.Fatal(err)
			}
			l := newLocker(t, s.Client(t), prefix, logTo(log))
			for what, call := range map[string]func() error{
				"TryLock":   func() error { _, err := l.Mutex("report").TryLock(t.Context()); return err },
				"Lock":      func() error { _, err := l.Mutex("report").Lock(t.Context()); return err },
				"semaphore": func() error { _, err := l.Semaphore("report", 3).TryLock(t.Context()); return err },
				"Break":     func() error { _, err := l.Mutex("held").BreakAll(t.Context()); return err },
			} {
				err := call()
				if !errors.Is(err, ErrBackend) || !strings.Contains(err.Error(), "format") || !strings.Contains(err.Error(), older.prefix) {
					t.Errorf("%s beside format %s: %v, want ErrBackend that names the format and the prefix", what, stored, err)
				}
			}
			if n := raw(l.Mutex("report")).Exists(t.Context(), l.Mutex("report").Key()).Val(); n != 0 {
				t.Error("something was written")
			}
			mustUnlock(t, held)
			if err := rdb.Del(t.Context(), key).Err(); err != nil {
				t.Fatal(err)
			}
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
