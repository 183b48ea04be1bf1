package web

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
	"github.com/automutex/automutex/unique"
)

// Nobody looks, nothing is asked: the goroutine ends, and the next viewer starts another.
func TestSampler_idle(t *testing.T) {
	t.Parallel()
	v := serve(t, redistest.Mini(t), Options{})
	s := v.page.sampler
	running := func() bool { s.mu.Lock(); defer s.mu.Unlock(); return s.running }
	if running() {
		t.Fatal("it runs before anybody looked")
	}
	v.find("/keys", "No lock is held")
	if !running() {
		t.Fatal("it does not run while somebody looks")
	}
	s.mu.Lock()
	s.asked = s.asked.Add(-2 * idleAfter)
	s.mu.Unlock()
	redistest.Eventually(t, patience, func() bool { return !running() }, "it ends when nobody looks")
	v.find("/keys", "No lock is held")
	if !running() {
		t.Error("it does not start again")
	}
}

// However long a look takes, the locks are left alone for three times as long.
func TestSampler_aQuarterOfTheTime(t *testing.T) {
	t.Parallel()
	for _, took := range []time.Duration{0, time.Millisecond, 20 * time.Millisecond, time.Second, 10 * time.Second, time.Hour} {
		pause := pauseAfter(took)
		if share := float64(took) / float64(took+pause); share > 0.25 {
			t.Errorf("a look of %s is %.2f of the time", took, share)
		}
		if took+pause < minInterval {
			t.Errorf("a look of %s comes again after %s", took, took+pause)
		}
		if took <= time.Second && took+pause > maxPause {
			t.Errorf("a look of %s comes again only after %s", took, took+pause)
		}
	}
}

// The rows that are kept are bounded, and are the most contended ones; counts are of all.
func TestSnapshot_bounded(t *testing.T) {
	t.Parallel()
	snap := &snapshot{}
	for i := range maxRows + 10 {
		snap.rows = append(snap.rows, row{Key: fmt.Sprint(i), Waiting: i})
	}
	snap.sort()
	if len(snap.rows) != maxRows || snap.rows[0].Waiting != maxRows+9 || snap.byKey["10"] != maxRows-1 {
		t.Errorf("%d rows, the first with a line of %d", len(snap.rows), snap.rows[0].Waiting)
	}
}

// What is shown of a first look that goes on does not change with it. Scopes beyond the bound are counted
// together, and the ends of the lists of what is worth a look are those that come last.
func TestSnapshot_counts(t *testing.T) {
	t.Parallel()
	at := time.Unix(1_700_000_000, 0)
	snap := &snapshot{byScope: map[string]*scopeTotals{}}
	if snap.hot.MostWaited() != 0 || snap.hot.Holds() {
		t.Error("a look at nothing has found a line")
	}
	add := func(i int) {
		r := row{Key: fmt.Sprintf("p:{s%d|1}", i%(maxScopes+5)), Held: 1, Waiting: i, Since: at.Add(-time.Duration(i)), Closed: lock.ReasonRate, Opens: at.Add(-time.Duration(i))}
		r.Head = &inside.Head{Key: r.Key, State: "a", Queued: 2, Since: r.Since}
		snap.count(r)
		snap.rows = append(snap.rows, r)
	}
	for i := range maxScopes + 5 {
		add(i)
	}
	part := snap.copy(at)
	for i := range 10 {
		add(i + maxScopes + 5)
	}
	for what, s := range map[string]struct {
		snap *snapshot
		last int
	}{"the part": {part, maxScopes + 4}, "the whole": {snap, maxScopes + 14}} {
		h, rest := s.snap.hot, s.snap.byScope[""]
		if s.snap.totals.Locks != s.last+1 || len(s.snap.byScope) != maxScopes+1 || rest == nil || rest.Locks != 5 {
			t.Errorf("%s: %+v in %d scopes, with the rest %+v", what, s.snap.totals, len(s.snap.byScope), rest)
		}
		if h.MostWaited() != s.last || len(h.Waited) != hottest || h.Closed != s.last+1 || len(h.Heads) != mostHeads {
			t.Errorf("%s: %d closed gates, %d heads, the longest line %d", what, h.Closed, len(h.Heads), h.MostWaited())
		}
		for name, since := range map[string]time.Time{"held longest": h.Longest[0].Since, "head": h.Heads[0].Head.Since, "gate": h.Gates[0].Opens} {
			if !since.Equal(at.Add(-time.Duration(s.last))) {
				t.Errorf("%s, the first %s: %s", what, name, at.Sub(since))
			}
		}
	}
	if first := part.byScope["s0"]; first.Locks != 1 || len(first.Top) != 0 || len(snap.byScope["s0"].Top) != 1 || len(part.rows) != maxScopes+5 {
		t.Errorf("the part of a scope: %+v of %d rows", first, len(part.rows))
	}
}

// Rows on the screen are renewed one by one where the look at all locks is old, and never
// for longer than the budget.
func TestRefresh(t *testing.T) {
	t.Parallel()
	v := serve(t, redistest.Real(t), Options{})
	a := v.locker.Mutex("a")
	lease := v.hold(a)
	s := v.page.sampler
	old := []row{{Key: a.Key(), Held: 7}, {Key: v.prefix + ":{b}", Held: 3}}
	if got := s.refresh(context.Background(), old, time.Now()); got[0].Held != 7 {
		t.Errorf("a fresh row became %+v", got[0])
	}
	got := s.refresh(context.Background(), old, time.Now().Add(-time.Minute))
	if got[0].Held != 1 || got[0].Owner != "worker-1:4242" || got[1].Held != 0 || got[1].Key != old[1].Key {
		t.Errorf("renewed: %+v", got)
	}
	s.single.mu.Lock()
	s.single.seen[a.Key()] = refreshed{row{Key: a.Key(), Held: 5}, time.Now().Add(time.Hour)}
	s.single.mu.Unlock()
	if got := s.refresh(context.Background(), old, time.Now().Add(-time.Minute)); got[0].Held != 5 {
		t.Errorf("a row that was renewed just now is %+v", got[0])
	}
	redistest.Must(t, lease.Unlock(context.Background()))
	s.single.mu.Lock()
	s.single.seen = nil
	s.single.since, s.single.spent = time.Now().Add(time.Hour), refreshBudget
	s.single.mu.Unlock()
	if got := s.refresh(context.Background(), old, time.Now().Add(-time.Minute)); got[0].Held != 7 {
		t.Errorf("asked beyond the budget: %+v", got[0])
	}
}

// The history has the last hour, knows when nobody looked, and is bounded.
func TestHistory(t *testing.T) {
	t.Parallel()
	h := newPastHour()
	at := time.Unix(1_700_000_000, 0)
	look := func(after time.Duration, rows ...row) {
		snap := &snapshot{at: at.Add(after), rows: rows, complete: true}
		for _, r := range rows {
			snap.totals.Held += r.Held
		}
		snap.sort()
		h.add(snap)
	}
	look(0, row{Key: "a", Held: 1, Waiting: 2}, row{Key: "quiet", Held: 1})
	look(10*time.Second, row{Key: "quiet", Held: 1})
	look(40*time.Second, row{Key: "a", Held: 1, Waiting: 1})
	if h.keys["quiet"] != nil {
		t.Error("a key without a line has a history")
	}
	points := h.keys["a"].lastHour(slotOf(at.Add(50 * time.Second)))
	var got []int
	for _, p := range points[len(points)-6:] {
		if !p.seen() {
			got = append(got, -1)
			continue
		}
		got = append(got, p.Waiting)
	}
	if fmt.Sprint(got) != "[2 0 -1 -1 1 -1]" {
		t.Errorf("the line was %v", got)
	}
	for i := range 2 * maxSeries {
		look(time.Minute, row{Key: fmt.Sprint(i), Waiting: 1})
	}
	h.follow(row{Key: "followed"}, slotOf(at.Add(time.Minute)))
	if len(h.keys) != maxSeries || h.keys["followed"] == nil {
		t.Errorf("%d keys have a history, want %d, with the one that is followed", len(h.keys), maxSeries)
	}
	look(3 * time.Hour)
	if len(h.keys) != 0 {
		t.Errorf("%d keys have a history after hours", len(h.keys))
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
	for _, wrong := range []Options{{Rules: []automutex.Rule{{}}}, {Unique: []unique.Rule{{}}}} {
		if _, err := New(redistest.Mini(t).Client(t), wrong); err == nil || !strings.HasPrefix(err.Error(), "web: Options: ") {
			t.Errorf("%+v: %v", wrong, err)
		}
	}
	_, err := New(redistest.Mini(t).Client(t), Options{RootPath: "locks", AsynqmonPath: "https://x", Prefix: "{", Logger: slog.New(slog.DiscardHandler)})
	for _, text := range []string{"RootPath", "AsynqmonPath", "Prefix"} {
		if err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%v does not name %s", err, text)
		}
	}
}

// The first look at many locks shows those that it has found so far.
func TestSampler_firstPart(t *testing.T) {
	t.Parallel()
	v := serve(t, redistest.Real(t), Options{})
	var takers sync.WaitGroup
	for from := range 50 {
		takers.Go(func() {
			for i := from; i < partEvery+50; i += 50 {
				if _, err := v.locker.Mutex("many", lock.Parts(fmt.Sprint(i)), lock.NoRenew()).TryLock(t.Context()); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	takers.Wait()
	s := v.page.sampler
	whole := s.look(t.Context())
	if part := s.current; part == nil || part.complete || len(part.rows) != partEvery || !whole.complete || len(whole.rows) != partEvery+50 {
		t.Errorf("shown before: %+v; %d rows in the end", part, len(whole.rows))
	}
}

// After Close nobody waits for a look, and none begins.
func TestSampler_closed(t *testing.T) {
	t.Parallel()
	closed := make(chan struct{})
	close(closed)
	s := newSampler(nil, nil, closed)
	if snap := s.get(t.Context()); snap != nil || s.ended != nil {
		t.Errorf("%+v, began: %v", snap, s.ended != nil)
	}
}

// The list says when it does not have all locks.
func TestKeys_kept(t *testing.T) {
	t.Parallel()
	v := serve(t, redistest.Mini(t), Options{})
	snap := &snapshot{at: time.Now().Add(time.Hour), complete: true, totals: totals{Locks: 1234}, rows: []row{{Key: v.prefix + ":{a}", Held: 1}}}
	snap.sort()
	s := v.page.sampler
	s.mu.Lock()
	s.running, s.current = true, snap // no look takes its place
	s.mu.Unlock()
	v.get("/keys").want(200, "the list has the 1 most contended")
}
