package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/engine/workers"
	"github.com/automutex/automutex/internal/redistest"
)

// TestParkedLines plays testdata/parked.txt, whose head says how to read it.
func TestParkedLines(t *testing.T) {
	t.Parallel()
	play(t, "testdata/parked.txt", func() func(*event) (string, error) {
		return (&told{inbound: 1}).play
	})
}

// began is when each story begins.
var began = time.Unix(1_000_000_000, 0)

// told is the line of a story.
type told parkedLine

func (s *told) play(e *event) (string, error) {
	n, now := (*parkedLine)(s), began.Add(e.At)
	say := func(yes bool, this, that string) (string, error) {
		if !yes {
			this = that
		}
		return s.tell(this), nil
	}
	seen := func(lines int, ends time.Duration) {
		n.parked, n.seenAt = true, now
		n.planCheck(now.Add(n.interval(lines)), ends, now)
	}
	sinceCall := e.Duration("since-call", -1)
	switch e.Name {
	case "named":
		paused, ends := e.Has("paused"), e.Duration("ends", -1)
		called := n.sawNamed(e.Words(), paused, n.callLife(minCallLife), now)
		seen(1, ends)
		for _, note := range called {
			n.setCall(note, call{})
		}
		return s.tell("calls " + cmp.Or(strings.Join(called, " "), "nobody")), nil
	case "makes":
		return say(n.beginCall(strings.Join(e.Words(), " ")), "the Caller is called", "nobody is called")
	case "answers", "ends":
		words := e.Words()
		fate := Fate(strings.TrimPrefix(words[1], "unsure"))
		switch {
		case e.Name == "answers":
			return say(n.sawFate(words[0], fate), "leaves the called", "stays called")
		case n.endCall(words[0], fate, now):
			n.setCall(words[0], call{})
			return s.tell("called once more"), nil
		}
		return s.tell(""), nil
	case "comes":
		own, others := e.Has("yours"), e.Number("others", 0)
		n.sawReturned(strings.Join(e.Words(), " "), sinceCall, own, others)
		return say(sinceCall >= 0, "by a call", "by itself")
	case "parks":
		called := e.Has("called") || sinceCall >= 0
		n.ref.Ordered = e.Has("ordered") || n.ref.Ordered
		n.sawParked(strings.Join(e.Words(), " "), called)
		seen(1, -1)
		return s.tell(""), nil
	case "checks":
		n.beginCheck()
		return s.tell(""), nil
	case "checked":
		n.endCheck(e.Has("idle"))
		seen(e.Number("lines", 1), -1)
		return s.tell(""), nil
	case "nothing":
		return say(n.sawNothing(began.Add(e.Duration("sent", e.At))), "nothing is parked",
			"the reply is old, or it was known")
	}
	return "", fmt.Errorf("no event %q", e.Name)
}

// tell says what an event has led to, and what is known of the line then.
func (s *told) tell(led string) string {
	var parts []string
	if led != "" {
		parts = append(parts, led)
	}
	for _, note := range slices.Sorted(maps.Keys(s.calls)) {
		parts = append(parts, note+" "+[...]string{"under way", "arrived", "named again", "coming"}[s.calls[note].state])
	}
	if len(s.notNow) > 0 {
		parts = append(parts, "not now: "+strings.Join(slices.Sorted(maps.Keys(s.notNow)), " "))
	}
	if s.inbound != 1 {
		parts = append(parts, fmt.Sprintf("%g at once", s.inbound))
	}
	if s.avgReturn > 0 {
		parts = append(parts, fmt.Sprintf("comes within %s", (*parkedLine)(s).callLife(minCallLife)))
	}
	switch {
	case s.checking:
		parts = append(parts, "a check is under way")
	case s.checkAt.IsZero():
		parts = append(parts, "no check")
	default:
		parts = append(parts, "check at "+s.checkAt.Sub(began).String())
	}
	return strings.Join(parts, "; ")
}

// callers is one Caller for several engines: it counts the calls of each note, and answers as said, else FateUnsure.
type callers struct {
	mu     sync.Mutex
	says   func(ctx context.Context, note string, nth int) Fate
	called []string
	log    redistest.Log
}

func (c *callers) call(ctx context.Context, _, note string) Fate {
	c.mu.Lock()
	c.called = append(c.called, note)
	nth := c.countLocked(note)
	c.mu.Unlock()
	return c.says(ctx, note, nth)
}

func (c *callers) countLocked(note string) (n int) {
	for _, one := range c.called {
		if one == note {
			n++
		}
	}
	return n
}

func (c *callers) count(note string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.countLocked(note)
}

// waitFor waits until a note was called so often.
func (c *callers) waitFor(t *testing.T, note string, times int) {
	t.Helper()
	eventually(t, func() bool { return c.count(note) >= times }, "%d calls of %s", times, note)
}

func startCalling(
	t *testing.T, s *redistest.Server, says func(ctx context.Context, note string, nth int) Fate,
) (*Engine, *callers) {
	t.Helper()
	c := &callers{says: says}
	e := New(Options{Client: s.Client(t), Prefix: "automutex", Owner: "test", Log: c.log.Logger(), Call: c.call})
	t.Cleanup(e.Close)
	e.ArriveWithin(maxCallLife) // no call is repeated since a test was stopped for a second
	return e, c
}

// park parks notes on the lock of r, which somebody holds.
func park(t *testing.T, e *Engine, r Request, notes ...string) {
	t.Helper()
	r.Line = &Line{Yield: AtOnce}
	for _, note := range notes {
		r.Note = note
		_, err := e.Take(context.Background(), &r)
		var busy *Busy
		if !errors.As(err, &busy) || !busy.Parked {
			t.Fatalf("%s: %v, want parked", note, err)
		}
		e.parking.sawParked(r.Ref, note, busy.Answer, false)
	}
}

// comeBack has a parked note take the lock, or waits in vain.
func comeBack(t *testing.T, e *Engine, r Request, note string) *Lease {
	t.Helper()
	r.Note, r.Line = note, noLine
	le := e.newLease(&r, noLine)
	a, _, err := e.ask(context.Background(), le, askTry, false, false)
	if err != nil || !a.Yours {
		t.Fatalf("%s: %+v, %v; want the lock", note, a, err)
	}
	if _, sinceCall := e.parking.sawReturn(r.Ref, note, a); sinceCall < 0 {
		t.Errorf("%s came by itself", note)
	}
	return le
}

// releaseAndCall gives a lock back, as whoever calls parked work does.
func releaseAndCall(t *testing.T, e *Engine, le *Lease) {
	t.Helper()
	r, sent := le.request.Ref, time.Now()
	inbound, life, _ := e.parking.wanted(r, true)
	back, err := parseRelease(run(t, e, releaseScript, r, le.body.Text, e.limit(&r), inbound, life))
	redistest.Must(t, err)
	e.parking.sawNamed(r, back.named, sent)
}

func leftOf(t *testing.T, s *redistest.Server, r Request) (keys []string) {
	t.Helper()
	for _, key := range append(r.keys(), r.Key+":call:a", r.Key+":call:b") {
		n, err := s.Client(t).Exists(context.Background(), key).Result()
		redistest.Must(t, err)
		if n > 0 {
			keys = append(keys, key)
		}
	}
	return keys
}

// TestChecksCallParked: a holder that dies is noticed, and what it kept waiting is called; again, if the call fails in
// any way.
func TestChecksCallParked(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		e, c := startCalling(t, s, func(ctx context.Context, note string, nth int) Fate {
			if by, ok := ctx.Deadline(); !ok || time.Until(by) > callTime/2 {
				t.Errorf("a call may last until %v", by)
			}
			switch {
			case note == "a" && nth == 1:
				panic("a Caller that panics")
			case note == "a" && nth == 2:
				return FateUnsure
			case note == "a":
				return FateGone // then b is called at once, and asks to be passed over
			case note == "b" && nth == 1:
				return FateLater // then c is
			}
			return FateComing
		})
		r := request(t)
		dead := start(t, s)
		short := r
		short.TTL = 3 * time.Second
		must(t, dead, short)
		park(t, e, r, "a", "b", "c")
		claim, rdb := r.Key+":call:a", s.Client(t)
		redistest.Must(t, rdb.Set(context.Background(), claim, "another", 0).Err())
		dead.Close()
		eventually(t, func() bool {
			return strings.Contains(c.log.Text(slog.LevelDebug), "another process calls it")
		}, "a call")
		if n := c.count("a"); n > 0 {
			t.Errorf("%d calls beside that of another process", n)
		}
		redistest.Must(t, rdb.Del(context.Background(), claim).Err())
		c.waitFor(t, "c", 1)
		redistest.Must(t, rdb.ZScore(context.Background(), r.Key+":parked", "b").Err())
		if rdb.ZScore(context.Background(), r.Key+":parked", "a").Err() == nil {
			t.Error("who is gone keeps its place")
		}
		c.mu.Lock()
		if got := strings.Join(c.called, " "); !strings.HasPrefix(got, strings.Repeat("a ", 3)+"b c") { // or b
			t.Errorf("called %s", got)
		}
		c.mu.Unlock()
		releaseAndCall(t, e, comeBack(t, e, r, "c"))
		c.waitFor(t, "b", 2)
		releaseAndCall(t, e, comeBack(t, e, r, "b"))
		eventually(t, func() bool {
			p := e.parking
			p.mu.Lock()
			n := p.lines[r.Key]
			rests := p.parkedOn == 0 && p.rounds == 0 && !n.parked && len(n.calls) == 0 && p.callers == 0
			p.mu.Unlock()
			return rests && len(leftOf(t, s, r)) == 0
		}, "rest, without a key")
	})
}

// TestClose_hung: Close ends beside a call to a silent Redis.
func TestClose_hung(t *testing.T) {
	t.Parallel()
	e, silent := start(t, redistest.Mini(t)), make(chan bool)
	e.life.Spawn(func() { <-silent })
	e.Close()
	close(silent)
}

// idleParking is one whose Engine is closed: nothing looks but the test.
func idleParking(t *testing.T) *parking {
	t.Helper()
	e, _ := startCalling(t, redistest.Mini(t), nil)
	e.Close()
	return e.parking
}

// TestLenderOfAnotherServer: parked work borrows from the server whose task asked last, and counts there alone. An
// operator's look leaves it there.
func TestLenderOfAnotherServer(t *testing.T) {
	t.Parallel()
	p := idleParking(t)
	p.callers = maxCallers // calls stay queued
	one := &workers.Lender{Server: &workers.Server{Limit: 10}, Idle: 2}
	other := &workers.Lender{Server: &workers.Server{Limit: 10}, Idle: 2}
	for i, c := range []struct {
		from          *workers.Lender
		key           int
		called        []string
		one, other    int
		oneMostCalled float64
	}{
		{one, 1, nil, 8, 8, 20},
		{one, 0, []string{"a", "b"}, 6, 8, 10},
		{other, 0, nil, 8, 6, 20},
		{nil, 0, nil, 8, 6, 20},
	} {
		r := mutexOf(c.key)
		r.Lender, r.Rated = c.from, c.from != nil
		p.sawNamed(r, named{parked: 1, called: c.called, opens: time.Minute}, time.Now())
		if a, b, most := one.Calls("x", 1, false), other.Calls("x", 1, false), one.Most(); a != c.one || b != c.other ||
			most != c.oneMostCalled {
			t.Errorf("%d: they lend %d and %d, and one may have %v called; want %+v", i, a, b, most, c)
		}
	}
	// The calls that are queued are made by others: these come no more.
	p.sawNamed(mutexOf(0), named{}, time.Now().Add(time.Minute))
	if p.makeCalls(); other.Calls("x", 1, false) != 8 {
		t.Errorf("%d may be called once nothing is parked, want 8", other.Calls("x", 1, false))
	}
}

func mutexOf(i int) Ref { return Ref{Key: fmt.Sprint(i), Limit: 1} }

// TestChecksKeepToTheirBudget: however many locks have parked work, and however soon their holders end, there are a
// thousand checks a second at most, and each lock has its turn.
func TestChecksKeepToTheirBudget(t *testing.T) {
	t.Parallel()
	const locks, seconds = 5000, 20
	p := idleParking(t)
	for i := range locks {
		p.sawNamed(mutexOf(i), named{parked: 1, called: nil, opens: 0}, time.Now())
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	taken, last, began := 0, map[*parkedLine]time.Time{}, time.Now()
	var slowest time.Duration
	for at := began; at.Before(began.Add(seconds * time.Second)); at = at.Add(10 * time.Millisecond) {
		due := p.takeDue(at)
		p.rounds = 0
		for _, n := range due {
			if before, ok := last[n]; ok {
				slowest = max(slowest, at.Sub(before))
			}
			last[n] = at
			taken++
			if p.sawParkedWork(n, 0); n.place > 0 {
				t.Fatal("a line with a check under way is in the agenda")
			}
			n.checkAt = time.Time{}
			n.endCheck(false) // answered at once: due again in half a second
			n.planCheck(at.Add(500*time.Millisecond), -1, at)
			p.plan(n)
		}
	}
	if most := seconds*1000 + maxChecks; taken > most || taken < most*9/10 {
		t.Errorf("%d checks in %d s, want %d at most and not much less", taken, seconds, most)
	}
	if most := locks*time.Second/1000 + time.Second; len(last) != locks || slowest > most {
		t.Errorf("%d locks of %d had a turn, one after %s, want %s", len(last), locks, slowest, most)
	}
}

// TestLinesAreForgotten: when nothing is parked any more, a line is remembered for a while, and longer while a call is
// under way. A round checks some lines at most.
func TestLinesAreForgotten(t *testing.T) {
	t.Parallel()
	const locks = maxChecks + 1000
	p := idleParking(t)
	sent := time.Now()
	for i := range locks {
		p.sawNamed(mutexOf(i), named{parked: 1, called: nil, opens: time.Minute}, sent)
		// from before something was parked, so it ends no checks
		p.sawNamed(mutexOf(i), named{parked: 0, called: nil, opens: -1}, sent)
	}
	if len(p.lines) != locks || p.parkedOn != locks || len(p.due) != locks {
		t.Fatalf("%d lines, %d parked on, %d due; want %d", len(p.lines), p.parkedOn, len(p.due), locks)
	}
	p.mu.Lock()
	due := p.takeDue(time.Now().Add(time.Hour))
	for _, n := range due {
		n.endCheck(false)
		p.planCheck(n, -1)
	}
	p.rounds = 0
	p.mu.Unlock()
	if len(due) != maxChecks || len(p.due) != locks {
		t.Fatalf("%d checks in a round, %d due after it; want %d and %d", len(due), len(p.due), maxChecks, locks)
	}
	called := fmt.Sprint(locks - 1)
	p.lines[called].setCall("a", call{})
	for i := range locks {
		p.sawNamed(mutexOf(i), named{parked: 0, called: nil, opens: -1}, time.Now().Add(time.Second))
	}
	if len(p.lines) != locks || p.parkedOn != 0 || len(p.due) != locks {
		t.Fatalf("%d lines are remembered, %d parked on, %d due; want %d", len(p.lines), p.parkedOn, len(p.due), locks)
	}
	p.sawReturn(mutexOf(locks), "a", Answer{Returned: true, SinceCall: -1, OthersParked: 1})
	if n := p.lines[fmt.Sprint(locks)]; n == nil || !n.parked || n.place == 0 {
		t.Fatal("nobody checks what others have parked")
	}
	p.sawNamed(mutexOf(locks), named{parked: 0, called: nil, opens: -1}, time.Now().Add(time.Second))
	p.mu.Lock()
	defer p.mu.Unlock()
	later := time.Now().Add(forgetAfter + time.Second)
	if p.takeDue(later); len(p.lines) != 1 || p.lines[called] == nil {
		t.Fatalf("%d lines are remembered, want the one with a call", len(p.lines))
	}
	p.lines[called].dropCall("a")
	if p.takeDue(later.Add(forgetAfter + time.Second)); len(p.lines) != 0 || p.due != nil {
		t.Errorf("%d lines are remembered", len(p.lines))
	}
}
