package controls

import (
	"errors"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/wire"
)

// A reply that is none, and one that says that there are too many controls, leave in force what was read before.
func TestParseControls_refused(t *testing.T) {
	t.Parallel()
	if state, err := parseControls([]any{int64(1), int64(0), []any{}}, nil); err != nil || len(state.targets) != 0 {
		t.Errorf("none: %+v, %v", state, err)
	}
	for _, reply := range []any{nil, "1", []any{}, []any{int64(0), int64(0), []any{}}, []any{int64(1), int64(1), []any{"report"}}} {
		if state, err := parseControls(reply, nil); err == nil {
			t.Errorf("%v is %+v", reply, state)
		}
	}
	if _, err := parseControls([]any{int64(1), int64(mostRead + 1), []any{}}, nil); !errors.Is(err, errManyControls) {
		t.Errorf("too many: %v", err)
	}
}

// An order is for the mutexes and semaphores of its prefix, and for nothing else that has a key there.
func TestOf(t *testing.T) {
	t.Parallel()
	c := New(Options{Prefix: "p"}) // without its goroutine
	limited := &controlled{entry: wire.Entry{Limit: &wire.LimitEntry{Holders: 3}}}
	c.state.Store(&State{targets: map[string]*controlled{"report": limited, "other:": limited}})
	for key, want := range map[string]int{
		"p:{report}": 3, "p:{report|acme}": 3, "p:{mail}": 0, "p:{report}:claim": 0, "p:{report|acme}:call:default/id": 0, "p:pool:{report}": 0, "other:{report}": 0,
	} {
		if got, pause := c.Of(key); got != want || pause != nil {
			t.Errorf("%s: limit %d, %+v; want %d and no pause", key, got, pause, want)
		}
	}
}

// The time that a round trip may take is no difference of clocks.
func TestSkew(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for ahead, want := range map[time.Duration]time.Duration{
		0: 0, 900 * time.Millisecond: 0, -900 * time.Millisecond: 0, time.Hour: time.Hour, -time.Minute: -time.Minute,
	} {
		s := &State{serverTime: now.Round(0).Add(ahead), localTime: now}
		if got := s.skew(); got != want {
			t.Errorf("Redis' clock is %s ahead: %s, want %s", ahead, got, want)
		}
	}
}
