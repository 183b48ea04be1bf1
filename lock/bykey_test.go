package lock

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/redistest"
)

// A key that List tells leads back to its lock.
func TestByKey(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t), owner("this|worker"))
		name := redistest.Name(t)
		for _, m := range []*Lock{
			l.Mutex(name, Note("default/1")),
			l.Mutex(name, Note("default/1"), Parts("a|b", "{c} %")),
			l.Mutex(name+" é", Note("default/1"), Parts(strings.Repeat("long", 100))),
		} {
			le := mustTry(t, m)
			began := serverNow(t, m)
			waiter := inLine(t, handle(newLocker(t, s.Client(t), owner("the other")), m, Note("q|2/x"), Parts(m.parts...)), 1)

			byKey := l.byKey(m.Key())
			redistest.Must(t, byKey.err)
			holders, err := byKey.Holders(t.Context())
			if err != nil || len(holders) != 1 || holders[0].Token != le.Token() || holders[0].Owner != "this|worker" {
				t.Errorf("holders %+v, %v", holders, err)
			}
			away := handle(l, m, Note("q/parked"), Parts(m.parts...))
			mustPark(t, away)
			line, err := byKey.listLine(t.Context(), inside.Info{}, 10)
			if err != nil || len(line) != 2 || line[0].Owner != "the other" || line[0].Note != "q|2/x" || line[0].Parked ||
				line[1].Note != "q/parked" || !line[1].Parked || line[1].Called || line[1].Since.Before(line[0].Since) {
				t.Fatalf("line %+v, %v", line, err)
			}
			if line[0].Since.Before(began.Add(-time.Second)) || line[0].Since.After(serverNow(t, m).Add(time.Second)) {
				t.Errorf("in line since %s, the server's clock was %s", line[0].Since, began)
			}
			info, err := byKey.inspectAll(t.Context())
			if since := serverNow(t, m).Add(-info.Granted).Sub(began); err != nil || max(since, -since) > soon || info.Parked != 1 {
				t.Errorf("%+v, %v; taken at %s", info, err, began)
			}
			if ok, err := byKey.Break(t.Context(), le.Token()); err != nil || !ok {
				t.Errorf("Break: %v, %v", ok, err)
			}
			mustUnlock(t, waiter.got(t))
			mustUnlock(t, mustTry(t, away))
			free(t, m, soon)
			if line, err := byKey.listLine(t.Context(), inside.Info{}, 10); err != nil || len(line) != 0 {
				t.Errorf("line %+v, %v", line, err)
			}
		}
	})
}

func TestByKey_refuses(t *testing.T) {
	t.Parallel()
	l := newLocker(t, redistest.Mini(t).Client(t))
	for key, want := range map[string]string{
		"":                       "begin",
		"room":                   "begin",
		"other:{room}":           "begin",
		"automutex:{room":        "not closed",
		"automutex:{}":           "nothing",
		"automutex:{room}x":      "follows",
		"automutex:{ports}:pool": "pool",
		"automutex:{a b}":        "escaped",
		"automutex:{\xff}":       "escaped",
		"automutex:{a\x1b[2J}":   "escaped",
		"automutex:{" + strings.Repeat("x", 1<<20): "not closed",
	} {
		m := l.byKey(key)
		if err := m.err; err == nil || !strings.Contains(err.Error(), want) || len(err.Error()) > 500 {
			t.Errorf("%.40q: %.600v; want %q", key, err, want)
		}
		if _, err := m.BreakAll(t.Context()); err == nil {
			t.Errorf("%.40q: BreakAll did something", key)
		}
		if _, err := m.listLine(t.Context(), inside.Info{}, 1); err == nil {
			t.Errorf("%.40q: Line did something", key)
		}
	}
}

// What cannot be read is an error; what is no lock is none.
func TestByKey_backend(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		l := newLocker(t, rdb)
		m := l.Mutex(redistest.Name(t))
		redistest.Must(t, rdb.Set(t.Context(), m.Key(), "no lock", time.Minute).Err())
		if line, err := l.byKey(m.Key()).listLine(t.Context(), inside.Info{}, 10); err != nil || len(line) != 0 {
			t.Errorf("line %v, %v", line, err)
		}
		redistest.Must(t, rdb.Close())
		if _, err := l.byKey(m.Key()).listLine(t.Context(), inside.Info{}, 10); !errors.Is(err, ErrBackend) {
			t.Errorf("got %v", err)
		}
	})
}
