package web

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/inspect"
	"github.com/automutex/automutex/internal/redistest"
)

// Where there are few locks they are counted often, also if a look has taken long; where there are many, Redis is
// left alone nearly all of the time.
func TestPauseAfter(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		locks int
		took  time.Duration
		want  time.Duration
	}{
		{0, 0, time.Second}, {7, 10 * time.Millisecond, 990 * time.Millisecond},
		{7, 300 * time.Millisecond, 2700 * time.Millisecond},
		{10_000, 400 * time.Millisecond, 20 * time.Second}, {100_000, 4 * time.Second, time.Minute},
		{7, time.Hour, time.Minute},
	} {
		if got := pauseAfter(c.locks, c.took); got != c.want {
			t.Errorf("after a look of %s at %d locks: %s, want %s", c.took, c.locks, got, c.want)
		}
	}
}

// stand has the page show a look of that age, and no other.
func (v *site) stand(s *snapshot, age time.Duration) {
	s.at = time.Now().Add(-age)
	v.page.locks.mu.Lock()
	defer v.page.locks.mu.Unlock()
	v.page.locks.value, v.page.locks.next = s, time.Now().Add(time.Hour)
}

// heldRow is a lock that had been held for so long when somebody looked.
func heldRow(key string, held time.Duration) row {
	at := time.Unix(1_700_000_000, 0)
	since := at.Add(-held)
	return row{inspect.Lock{Key: key, Held: 1, Since: &since, Holders: []inspect.Holder{{Owner: "w",
		Until: at.Add(time.Second)}}, At: at}}
}

// What an old look has found is shown as it was, with its age beside it: a lock that was held for 200 ms then is not
// said to have been held since.
func TestOldLook(t *testing.T) {
	t.Parallel()
	v := onReal(t, Options{Rules: []automutex.Rule{{Task: "report"}}})
	ended := heldRow(v.prefix+":{report|ended}", 200*time.Millisecond)
	v.stand(&snapshot{rows: []row{ended}, totals: totals{Locks: 1, Held: 1}}, 12*time.Second)
	v.get("/rules").want(200, "Counted 1", ">200ms<")
	v.get("/").want(200, "Counted 1", "report|ended", "200ms")
	free := heldRow(v.prefix+":{report}", 0)
	free.Held, free.Holders = 0, nil
	v.stand(&snapshot{rows: []row{free}}, time.Minute)
	v.get("/keys").want(200, "Counted 1m", "nobody")
	v.stand(&snapshot{rows: []row{free}}, -time.Hour)
	v.get("/keys").want(200, "nobody").without("Counted")
}

// A look at all locks that takes longer than a view waits is shown when it is there.
func TestSnapshot_slow(t *testing.T) {
	t.Parallel()
	v := onMini(t, Options{})
	v.hold(v.locker.Mutex("x"))
	v.page.within.redis = time.Nanosecond
	eventually(t, func() bool {
		s, _ := v.page.snapshot(t.Context()) // nil and an error until then
		return s != nil && s.Held == 1
	}, "a look")
}

// The rule whose key had been held longest comes first.
func TestRules_longest(t *testing.T) {
	t.Parallel()
	v := onReal(t, Options{Rules: []automutex.Rule{{Task: "a"}, {Task: "b"}}})
	rows := []row{heldRow(v.prefix+":{a}", time.Second), heldRow(v.prefix+":{b}", time.Minute)}
	v.stand(&snapshot{rows: rows}, 0)
	v.get("/rules").want(200).begins("<bdi>a</bdi>")
	v.get("/rules?sort=longest").want(200, "live?view=rules&amp;sort=longest\"",
		`aria-sort="descending"><button form="sort" name="sort" value="longest"`).begins("<bdi>b</bdi>")
}

// The longest line comes first, then what was taken longest ago, then by key.
func TestBusier(t *testing.T) {
	t.Parallel()
	old := time.Now().Add(-time.Hour)
	all := []row{{inspect.Lock{Key: "c"}}, {inspect.Lock{Key: "b", Since: &old}}, {inspect.Lock{Key: "a"}},
		{inspect.Lock{Key: "z", Line: 1}}}
	slices.SortFunc(all, busier)
	if order := all[0].Key + all[1].Key + all[2].Key + all[3].Key; order != "zbac" {
		t.Errorf("in the order %s", order)
	}
}

// The rows that are kept are bounded, and are the most contended ones; counts are of all, and the list says so.
func TestSnapshot_bounded(t *testing.T) {
	t.Parallel()
	s := &snapshot{}
	for i := range 2*maxRows + 10 {
		s.add(row{Lock: inspect.Lock{Key: fmt.Sprintf("p:{%d}", i), Line: i}})
	}
	s.trim()
	if len(s.rows) != maxRows || s.rows[0].Line != 2*maxRows+9 || s.Locks != 2*maxRows+10 {
		t.Errorf("%d rows of %d locks, the first with a line of %d", len(s.rows), s.Locks, s.rows[0].Line)
	}
	v := onMini(t, Options{})
	v.stand(s, -time.Hour)
	v.get("/keys").want(200, "the list has the 50000 most contended")
}

// The chart has the last hour, and a point for each ten seconds at most.
func TestHour(t *testing.T) {
	t.Parallel()
	var h hour
	at := time.Unix(1_700_000_000, 0)
	for s := range 7300 {
		h.add(at.Add(time.Duration(s)*time.Second), totals{Held: s, Line: 5, Parked: 2, Queued: 1})
	}
	h.add(at.Add(7290*time.Second), totals{Held: 1}) // the clock went back
	var points [][4]int64
	redistest.Must(t, json.Unmarshal([]byte(h.json()), &points))
	for i, p := range points[1:] {
		if p[0] <= points[i][0] {
			t.Fatalf("point %d is at %d, after one at %d", i+1, p[0], points[i][0])
		}
	}
	if n := len(points); n < 300 || n > 370 || points[n-1] != [4]int64{at.Unix() + 7290, 1, 0, 0} || points[5][2] != 2 ||
		points[5][3] != 3 {
		t.Errorf("%d points, the last is %v, an early one %v", len(points), points[len(points)-1], points[5])
	}
}

// New says what is wrong with its options, all at once.
func TestNew_refuses(t *testing.T) {
	t.Parallel()
	wrapped := struct{ redis.UniversalClient }{redistest.Mini(t).Client(t)}
	for text, rdb := range map[string]redis.UniversalClient{"nil": nil, "cannot list locks": wrapped} {
		if _, err := New(rdb, Options{}); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%v does not say %s", err, text)
		}
	}
	_, err := New(redistest.Mini(t).Client(t), Options{
		RootPath: "locks", AsynqmonPath: "https://x", Prefix: "{", Rules: []automutex.Rule{{}},
		Logger: slog.New(slog.DiscardHandler),
	})
	for _, text := range []string{"RootPath", "AsynqmonPath", "Prefix", "web: Options: "} {
		if err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%v does not name %s", err, text)
		}
	}
}

// An answer is for all viewers: it does not fail because the one who asked goes away, and keeps nobody
// longer than he waits. When it is too old, the next viewer asks anew.
func TestShared(t *testing.T) {
	t.Parallel()
	s := shared[int]{ctx: t.Context(), within: patience}
	asked := 0
	ask := func(ctx context.Context) (int, time.Duration, error) { asked++; return asked, time.Hour, ctx.Err() }
	here := t.Context()
	gone, cancel := context.WithCancel(here)
	cancel()
	if n, err := s.get(gone, ask); n > 1 || !errors.Is(err, context.Canceled) {
		t.Fatalf("%d, %v; want the end of the wait", n, err)
	}
	for range 3 {
		if n, err := s.get(here, ask); n != 1 || err != nil {
			t.Fatalf("%d, %v; want the first answer", n, err)
		}
	}
	forget(&s)
	if n, err := s.get(here, ask); n != 2 || err != nil {
		t.Errorf("%d, %v; want a second answer", n, err)
	}
	forget(&s)
	fails := errors.New("no answer")
	n, err := s.get(here, func(context.Context) (int, time.Duration, error) { return 0, 0, fails })
	if n != 2 || !errors.Is(err, fails) {
		t.Errorf("%d, %v; want the answer of before, with the error", n, err)
	}
	forget(&s)
	hangs := make(chan struct{})
	defer close(hangs)
	if n, err := s.get(gone, func(context.Context) (int, time.Duration, error) { <-hangs; return -1, 0, nil }); n != 2 ||
		!errors.Is(err, fails) {
		t.Errorf("%d, %v while the next question hangs; want the answer of before, with the error", n, err)
	}
}
