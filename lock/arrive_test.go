package lock

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/redistest"
)

func TestArrive(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t))
		before := serverNow(t, m).UnixMicro()
		var last int64
		var all []int64
		for i := range 50 {
			arrival, first, err := handle(m.locker, m, Note(fmt.Sprint("note ", i))).arrive(t.Context())
			if err != nil || !first || arrival <= last {
				t.Fatalf("arrival %d is %d after %d, first: %v, %v", i, arrival, last, first, err)
			}
			last = arrival
			all = append(all, arrival)
		}
		if all[0] < before || last > serverNow(t, m).UnixMicro() {
			t.Errorf("arrivals %d to %d are not in server time from %d", all[0], last, before)
		}
		for i, want := range all {
			arrival, first, err := handle(m.locker, m, Note(fmt.Sprint("note ", i))).arrive(t.Context())
			if err != nil || first || arrival != want {
				t.Fatalf("note %d comes again: %d, first: %v, %v, want %d", i, arrival, first, err, want)
			}
		}
		if n := raw(m).Exists(t.Context(), m.Key()).Val(); n != 0 {
			t.Error("an arrival made the idle lock a key")
		}
		// Forgotten, it is new, and newer than all.
		again := handle(m.locker, m, Note("note 3"))
		redistest.Must(t, again.forget(t.Context()))
		if arrival, first, err := again.arrive(t.Context()); err != nil || !first || arrival <= last {
			t.Errorf("after Forget: %d, first: %v, %v; the last was %d", arrival, first, err, last)
		}
		// The last one forgotten leaves nothing.
		for i := range all {
			redistest.Must(t, handle(m.locker, m, Note(fmt.Sprint("note ", i))).forget(t.Context()))
		}
		if n := raw(m).Exists(t.Context(), m.arrivals()).Val(); n != 0 {
			t.Error("arrivals are left")
		}
	})
}

// Redis' clock stepped back, or two came in one microsecond: a later arrival is
// higher all the same.
func TestArrive_alwaysHigher(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t), Note("new"))
		ahead := serverNow(t, m).Add(time.Minute).UnixMicro()
		now := serverNow(t, m).UnixMilli()
		if err := raw(m).ZAdd(t.Context(), m.arrivals(), redis.Z{Score: float64(ahead), Member: "a:old"},
			redis.Z{Score: -float64(now), Member: "s:old"}).Err(); err != nil {
			t.Fatal(err)
		}
		if arrival, _, err := m.arrive(t.Context()); err != nil || arrival != ahead+1 {
			t.Errorf("arrived at %d, %v, want %d", arrival, err, ahead+1)
		}
	})
}

// Arrivals are forgotten an hour after they were last seen, some each time, and
// all of them with the key.
func TestArrive_forgetsAfterAnHour(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t))
		now := serverNow(t, m)
		put := func(note string, seen time.Time) {
			t.Helper()
			if err := raw(m).ZAdd(t.Context(), m.arrivals(), redis.Z{Score: float64(now.Add(-2 * time.Hour).UnixMicro()), Member: "a:" + note},
				redis.Z{Score: -float64(seen.UnixMilli()), Member: "s:" + note}).Err(); err != nil {
				t.Fatal(err)
			}
		}
		for i := range 100 {
			put(fmt.Sprint("stale ", i), now.Add(-arrivalKept-time.Second))
		}
		put("seen", now.Add(-arrivalKept+time.Minute))
		if _, first, err := handle(m.locker, m, Note("stale 99")).arrive(t.Context()); err != nil || !first {
			t.Errorf("one that was away for an hour is known: %v", err)
		}
		if n := raw(m).ZCard(t.Context(), m.arrivals()).Val(); n != 2*(101-64) {
			t.Errorf("%d members are left of 202, want 64 pairs fewer", n)
		}
		if arrival, first, err := handle(m.locker, m, Note("seen")).arrive(t.Context()); err != nil || first || arrival != now.Add(-2*time.Hour).UnixMicro() {
			t.Errorf("one that was seen within the hour has arrived at %d, first: %v, %v", arrival, first, err)
		}
		if n := raw(m).ZCard(t.Context(), m.arrivals()).Val(); n != 4 {
			t.Errorf("%d members are left, want the two pairs that were seen", n)
		}
		if ttl := raw(m).PTTL(t.Context(), m.arrivals()).Val(); ttl <= arrivalKept || ttl > arrivalKept+time.Minute {
			t.Errorf("the arrivals last for %s", ttl)
		}
	})
}

func TestArrive_refused(t *testing.T) {
	t.Parallel()
	l := newLocker(t, redistest.Mini(t).Client(t))
	m := l.Mutex(redistest.Name(t))
	if _, _, err := m.arrive(t.Context()); err == nil || !strings.Contains(err.Error(), "Note") {
		t.Errorf("Arrive without a note: %v", err)
	}
	if err := m.forget(t.Context()); err == nil || !strings.Contains(err.Error(), "Note") {
		t.Errorf("Forget without a note: %v", err)
	}
	if _, err := m.askOlderToStop(t.Context()); err == nil || !strings.Contains(err.Error(), "OnStop") {
		t.Errorf("Stop without OnStop: %v", err)
	}
	for _, bad := range []Option{onStop(0, func() {}), onStop(1, nil)} {
		if err := l.Mutex("x", bad).err; err == nil || !strings.Contains(err.Error(), "OnStop") {
			t.Errorf("a bad OnStop: %v", err)
		}
	}
}
