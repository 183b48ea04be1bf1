package lock

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/parking"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/internal/wire"
)

func TestANoteParksOnce(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t))
		mustTry(t, m)
		a, b := noted(m, "a"), noted(m, "b")
		other := handle(newLocker(t, s.Client(t)), m, Note("a"))
		mustPark(t, a)
		first, _, _ := away(t, a)
		mustPark(t, b)
		for _, again := range []*Lock{a, other, a} {
			if busy := mustPark(t, again); busy.Place != 0 {
				t.Errorf("place %d after parking anew", busy.Place)
			}
			if ticket, _, _ := away(t, a); ticket != first {
				t.Errorf("ticket %.0f, at first %.0f", ticket, first)
			}
		}
		if n := band(t, m, "p:"); n != 2 {
			t.Errorf("%d parked; %s", n, dump(m))
		}
		// Coming back as a goroutine it stands where it stood.
		w := lockBeside(t, a)
		waiting(t, m, 1)
		if ticket := lineTicket(t, m); ticket != first {
			t.Errorf("in line with the ticket %.0f, parked with %.0f", ticket, first)
		}
		if info := inspected(t, b); info.Parked != 1 || info.Waiting != 1 || info.Place != 1 {
			t.Errorf("%+v", info)
		}
		w.cancel()
		_ = w.failed(t)
		nothingOf(t, a)
		if n := band(t, m, "p:"); n != 1 {
			t.Errorf("%d parked, want b alone; %s", n, dump(m))
		}
	})
}

func inspected(t testing.TB, m *Lock) inside.Info {
	t.Helper()
	info, err := m.inspectAll(t.Context())
	redistest.Must(t, err)
	return info
}

// However it comes back, a lock that is taken leaves nothing of the note, and
// its lease says how long it was in line.
func TestParkedComesBack(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t))
		ways := map[string]func(m *Lock) (*Lease, error){
			"TryLock":         func(m *Lock) (*Lease, error) { return m.TryLock(t.Context()) },
			"Lock":            func(m *Lock) (*Lease, error) { return m.Lock(t.Context()) },
			"LockOrPark":      func(m *Lock) (*Lease, error) { return m.lockOrPark(t.Context(), make(chan struct{})) },
			"LockOrPark, now": func(m *Lock) (*Lease, error) { return m.lockOrPark(t.Context(), closedYield) },
		}
		for way, take := range ways {
			for _, called := range []bool{false, true} {
				m := l.Mutex(redistest.Name(t), Note("job"))
				held := mustTry(t, noted(m, "holder"))
				began := time.Now()
				mustPark(t, m)
				mustPark(t, noted(m, "other"))
				redistest.Eventually(t, soon, func() bool { return time.Since(began) > 2*time.Millisecond }, "time that counts")
				busy := mustBeBusy(t, m)
				if _, _, ok := away(t, m); !ok || busy.Parked {
					t.Errorf("TryLock that found it busy: %+v; %s", busy, dump(m))
				}
				inbound := 0
				if called {
					inbound = 1
				}
				releases(t, held, inbound, parking.MinCallLife)
				if _, is, _ := away(t, m); is != called {
					t.Fatalf("called: %v; %s", is, dump(m))
				}
				le, err := take(m)
				if err != nil {
					t.Fatalf("%s: %v; %s", way, err, dump(m))
				}
				if d := le.parked; d <= 0 || d > time.Since(began)+time.Millisecond {
					t.Errorf("%s: parked for %v, of %v", way, d, time.Since(began))
				}
				nothingOf(t, m)
				if n := band(t, m, "p:"); n != 1 {
					t.Errorf("%s: %d parked, want the other one; %s", way, n, dump(m))
				}
				mustUnlock(t, le)
			}
		}
	})
}

// A note that holds neither waits nor parks, whatever the limit.
func TestNobodyParksBehindItsOwnNote(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t), owner("me"))
		for _, limit := range []int{1, 2} {
			m := l.Semaphore(redistest.Name(t), limit, Note("job"))
			for range limit - 1 {
				mustTry(t, handle(l, m, TTL(10*time.Second), Note("earlier deadline")))
			}
			mustTry(t, m)
			for what, yield := range map[string]chan struct{}{"closed": closedYield, "open": make(chan struct{})} {
				le, err := m.lockOrPark(t.Context(), yield)
				if le != nil || err == nil {
					t.Fatal("took it")
				}
				if busy := wantBusy(t, err); busy.Parked || busy.Note != "job" || busy.Holder != "me" {
					t.Errorf("limit %d, yield %s: %+v", limit, what, busy)
				}
				redistest.Eventually(t, soon, func() bool { return band(t, m, "e:")+band(t, m, "d:")+band(t, m, "p:") == 0 },
					"nothing of it in line; %s", stringer(func() string { return dump(m) }))
			}
		}
	})
}

// However many hold a lock, an ask that finds it busy looks at some of them only: at more
// where it would be refused a slot beside a holder with its note.
func TestAnAskDoesNotReadAThousandHolders(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		s = quiet(t, s)
		l := newLocker(t, s.Client(t))
		const limit = 2000
		m := l.Semaphore(redistest.Name(t), limit, TTL(time.Hour))
		mustTry(t, m)
		holders := make([]redis.Z, limit-1)
		for i := range holders {
			// By their deadlines: the note that is looked for is the 100th, then the 1,001st.
			holders[i] = redis.Z{Score: float64(time.Now().UnixMilli() + 20_000 + int64(i)), Member: fmt.Sprintf("h:x.3000.%d|owner|note-%d", i, i+1)}
		}
		redistest.Must(t, raw(m).ZAdd(t.Context(), m.Key(), holders...).Err())
		for note, found := range map[string]bool{"note-100": true, "note-1001": false} {
			if busy := mustBeBusy(t, noted(m, note)); (busy.Note == note) != found {
				t.Errorf("%s: the holder shown is %s", note, busy.Note)
			}
		}
		for note, found := range map[string]bool{"note-1000": true, "note-1001": false} {
			if busy := mustBeBusy(t, handle(l, m, Note(note), onePerNote())); (busy.Note == note) != found {
				t.Errorf("%s, with OnePerNote: the holder shown is %s", note, busy.Note)
			}
		}
	})
}

// A note is any text.
func TestNotesOfAnyBytes(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		s = quiet(t, s)
		called := make(chan string, 1)
		l := newLocker(t, s.Client(t), calls(func(_ context.Context, _, note string) inside.Fate {
			called <- note
			return inside.FateComing
		}))
		for _, note := range []string{
			"a|b", "|", "queue%2F/id", "100%", "%s %d", "line\nfeed\r\n", "\x00\xff\xfe", "\u00fc\u4e16\U0001f512\u200b", " ", "f", "i", "p:l:",
			"(.*)", "[^|]", "{x}", strings.Repeat("long|/%", 1500),
		} {
			m := l.Mutex(redistest.Name(t), Note(note))
			held := mustTry(t, noted(m, "holder"))
			mustPark(t, m)
			mustUnlock(t, held)
			if got := come(t, called, "the call"); got != note {
				t.Errorf("parked as %q, called as %q", note, got)
			}
			le, err := m.lockOrPark(t.Context(), closedYield)
			if err != nil {
				t.Fatalf("%q: %v; %s", note, err, dump(m))
			}
			nothingOf(t, m)
			if _, err := m.lockOrPark(t.Context(), closedYield); wantBusy(t, err).Parked || wantBusy(t, err).Note != note {
				t.Errorf("%q behind itself: %+v", note, err)
			}
			mustUnlock(t, le)
			free(t, m, 0)
		}
	})
}

// What is said of a call is about nothing but a call: an entry that came and
// parked anew, or is gone, is left as it is.
func TestAFateOfWhatIsNotCalled(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t))
		mustTry(t, m)
		parkAll(t, m, "a", "b")
		looksAfter(t, m, 1, time.Hour)
		mustPark(t, noted(m, "a")) // it came
		before := stored(t, m)
		for _, note := range []string{"a", "b", "never seen"} {
			for _, fate := range []int{1, 2} {
				runs(t, m, wire.CallScript, []any{m.limit, 0, 1000, note, fate})
			}
		}
		if after := stored(t, m); !maps.Equal(before, after) {
			t.Errorf("stored: %v, before %v", after, before)
		}
	})
}
