package lock_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// Texts that differ make locks that differ.
func TestTexts_namesDoNotCollide(t *testing.T) {
	t.Parallel()
	l := newLocker(t, redistest.Mini(t).Client(t))
	unique := redistest.Name(t)
	keys := map[string]string{}
	for _, a := range hostile {
		for _, m := range []*lock.Lock{l.Mutex(unique + a), l.Mutex(unique, lock.Parts(a)), l.Mutex(unique, lock.Parts(a, a)), l.Mutex(unique, lock.Parts(a, ""))} {
			if before, ok := keys[m.Key()]; ok {
				t.Errorf("%.40q and %.40q share the key %.80q", before, a, m.Key())
			}
			keys[m.Key()] = a
		}
	}
	// Without an Owner the holder is called host:pid.
	m := l.Mutex(unique)
	mustTry(t, m)
	if busy := mustBeBusy(t, m); !strings.Contains(busy.Holder, ":") {
		t.Errorf("holder %q, want host:pid", busy.Holder)
	}
}

// Parked notes, and those of tasks in order, are named as they are, whatever their bytes.
func TestTexts_notes(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		s = calmServer(t, s)
		called := make(chan string, 100)
		l := newCaller(t, s.Client(t), func(_ context.Context, _, note string) inside.Fate {
			called <- note
			return inside.FateComing
		})
		for i, note := range append(hostile, "queue%2F/id", "100%", "p:l:", "(.*)", "[^|]", "n:x", "o:y|a", strings.Repeat("long|/%", 1500)) {
			y := yardOf(t, l, 1)
			held := mustTry(t, y.plain())
			y.parks(t, note, note+"'")
			mustUnlock(t, held)
			if got := come(t, called, "the call"); got != note {
				t.Fatalf("parked as %q, called as %q", note, got)
			}
			le := mustTry(t, y.note(note))
			if busy := mustBeBusy(t, y.note(note)); busy.Note != note {
				t.Errorf("%q behind itself: %+v", note, busy)
			}
			if line := y.line(t); len(line) != 1 || line[0] != note+"'" {
				t.Errorf("in line: %q", line)
			}
			redistest.Must(t, y.plain().Delete(t.Context()))
			_ = le.Unlock(t.Context())
			for range len(called) {
				<-called
			}

			q := queue{newLocker(t, s.Client(t)), s, l.Mutex(redistest.Name(t)).Key()}
			place := func(note, nonce string) task {
				ticket, _, _, err := insider.Stamp(t.Context(), q.lock(), note, nonce, time.Minute, 0)
				redistest.Must(t, err)
				return task{q, note, inside.Place{Nonce: nonce, Ticket: ticket, Most: -1}}
			}
			a, b := place(note, "first"), place(note+"'", "second")
			if busy := mustPark(t, b.one()); busy.Note != note || busy.Place != 1 {
				t.Errorf("%d: behind %q at place %d, want behind %q", i, busy.Note, busy.Place, note)
			}
			q.isNext(t, note, 2)
			a.run(t, inside.OutcomeHeld)
			redistest.Must(t, second(insider.SkipHead(t.Context(), q.lock(), note, 0)))
			q.isNext(t, note+"'", 1)
			b.run(t, inside.OutcomeDone)
			b.refused(t, insider.IsOrderDone)
		}
	})
}
