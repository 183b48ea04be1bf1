package automutex

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex/internal/decide"
	"github.com/automutex/automutex/internal/engine"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/internal/stamp"
	"github.com/automutex/automutex/internal/turn"
)

// What meets an outage, a closed gate or a pause together comes back in the time that is due, spread.
func TestDelays_spread(t *testing.T) {
	t.Parallel()
	away := func(after time.Duration) func() time.Duration {
		o := &outage{since: time.Now().Add(-after)}
		return func() time.Duration { return o.delay("a key") }
	}
	gate := func(reason string, opens time.Duration) func() time.Duration {
		return (&BusyError{Reason: reason, ExpiresIn: opens}).gateDelay
	}
	pause := func(left time.Duration) func() time.Duration {
		return func() time.Duration { return pauseDelay(left) }
	}
	for name, c := range map[string]struct {
		delay               func() time.Duration
		least, most, spread time.Duration
	}{
		// The later the longer Redis has been away.
		"away since now":   {away(0), time.Second, 2 * time.Second, 500 * time.Millisecond},
		"away for 10 s":    {away(10 * time.Second), 5 * time.Second, 11 * time.Second, 5 * time.Second},
		"away for an hour": {away(time.Hour), 15 * time.Second, 30 * time.Second, 15 * time.Second},
		// Over a quarter of the time until the gate opens, 2 to 30 s; asynq's times are whole seconds.
		"rate, soon":         {gate(ReasonRate, time.Millisecond), time.Millisecond, 3 * time.Second, 2 * time.Second},
		"rate, in an hour":   {gate(ReasonRate, time.Hour), time.Hour, time.Hour + 31*time.Second, 30 * time.Second},
		"cooldown of 40 s":   {gate(ReasonCooldown, 40*time.Second), 40 * time.Second, 51 * time.Second, 10 * time.Second},
		"closed for 40 s":    {gate(ReasonClosed, 40*time.Second), 40 * time.Second, 51 * time.Second, 10 * time.Second},
		"paused, no end":     {pause(0), 30 * time.Second, 90 * time.Second, 60 * time.Second},
		"paused, almost not": {pause(time.Millisecond), time.Millisecond, 5*time.Second + time.Millisecond, 5 * time.Second},
		"paused for 1 min":   {pause(time.Minute), time.Minute, 90 * time.Second, 30 * time.Second},
		"paused for a day":   {pause(24 * time.Hour), 30 * time.Second, 90 * time.Second, 60 * time.Second},
	} {
		seen, first, last := map[time.Duration]bool{}, time.Duration(1<<62), time.Duration(0)
		for range 1000 {
			d := c.delay()
			if d < c.least || d > c.most {
				t.Fatalf("%s: back after %s, want %s to %s", name, d, c.least, c.most)
			}
			seen[d], first, last = true, min(first, d), max(last, d)
		}
		if len(seen) < 900 || last-first < c.spread/2 {
			t.Errorf("%s: %d different delays of 1000, from %s to %s", name, len(seen), first, last)
		}
	}
}

// What fails for one task or one key is no outage: it is logged once, and tried again at growing intervals.
func TestOutage_ofOneSubject(t *testing.T) {
	t.Parallel()
	text := &redistest.Log{}
	log := text.Logger()
	o, away := redisOutage(), errors.New("away")
	for range 50 {
		o.recordFailure(log, "Redis", "poisoned", away)
		o.recordSuccess(log, "another")
	}
	if text := text.String(); strings.Count(text, "cannot be asked") != 1 || strings.Count(text, "answers again") != 1 || strings.Count(text, "fails for this one") != 1 {
		t.Errorf("log: %s", text)
	}
	f := o.subjects["poisoned"]
	f.since = time.Now().Add(-time.Hour)
	o.subjects["poisoned"] = f
	if d := o.delay("poisoned"); d < 15*time.Second {
		t.Errorf("it is tried again after %s, an hour after it first failed", d)
	}
	if d := o.delay("another"); d > 2*time.Second {
		t.Errorf("another one is tried again after %s", d)
	}
	o.recordSuccess(log, "poisoned")
	if len(o.subjects) != 0 {
		t.Error("it works again, and is remembered")
	}
	for i := range 2 * maxFailing {
		o.recordFailure(log, "Redis", fmt.Sprint(i), away)
	}
	if len(o.subjects) != maxFailing {
		t.Errorf("%d subjects are remembered", len(o.subjects))
	}
}

// tripsInVain counts how often parked tasks that nobody calls come back to a key that
// one holder keeps for job: places are kept, and the lease is renewed all the time.
func tripsInVain(parked int, job, ttl time.Duration) (trips int) {
	for place := range parked {
		for at := time.Duration(0); ; trips++ {
			busy := &BusyError{ExpiresIn: ttl, Place: place, takenFor: at, inLine: at, parked: true}
			if at += busy.parkDelay(); at >= job {
				break
			}
		}
	}
	return trips
}

// Behind a holder that works for long, parked tasks come back in vain rarely.
func TestPark_staysAwayBehindALongHolder(t *testing.T) {
	t.Parallel()
	for ttl, most := range map[time.Duration]int{30 * time.Second: 50, 5 * time.Second: 100} {
		if n := tripsInVain(300, time.Minute, ttl); n > most {
			t.Errorf("TTL %s: 300 tasks parked behind a job of a minute came back %d times, want %d at most", ttl, n, most)
		}
	}
	// A job that takes an hour: each comes back once in five to ten minutes.
	if n := tripsInVain(300, time.Hour, 30*time.Second); n > 300*15 {
		t.Errorf("300 tasks parked behind a job of an hour came back %d times", n)
	}
}

// A wait that a pause ended is one for a paused key, though the key is held, and the pause over: no policy may end the task.
func TestBusyError_afterAPause(t *testing.T) {
	t.Parallel()
	guard := newGuard(t, redistest.Mini(t), Rule{Task: "work"})
	d := guard.newDelivery(t.Context(), asynq.NewTask("work", nil))
	at := target{rule: guard.rules.match("work")[0], key: guard.cfg.Prefix + ":{work}"}
	for left, want := range map[bool]string{true: ReasonPaused, false: ReasonHeld} {
		var busy *BusyError
		err := d.toBusyError(at, &engine.Busy{Answer: turn.Answer{ServerUS: 1, Holder: "token|worker|"}, Left: left})
		if !errors.As(err, &busy) || busy.Reason != want || busy.Holder != "worker" || left != (busy.Pause != nil) {
			t.Errorf("left at a pause: %v; the error is %+v", left, busy)
		}
	}
}

// A parked task that nobody wakes any more, since its key has changed, comes back within ten minutes, however far back it stands.
func TestParkDelay_bounds(t *testing.T) {
	t.Parallel()
	for _, reason := range []string{ReasonHeld, ReasonBehind, ReasonArchived, ReasonRate, ReasonPaused} {
		for _, place := range []int{0, 1, 59, 180, 10_000, math.MaxInt} {
			for _, long := range []time.Duration{0, time.Minute, 1000 * time.Hour} {
				busy := &BusyError{Place: place, Reason: reason, ExpiresIn: long, inLine: long, takenFor: long}
				if delay := busy.parkDelay(); delay < minParkDelay || delay > maxParkDelay {
					t.Errorf("%+v comes back after %s", busy, delay)
				}
			}
		}
	}
}

// What a user reads says what happened, to what, and what to do.
func TestTexts(t *testing.T) {
	t.Parallel()
	cause := errors.New("cause")
	for got, want := range map[string]string{
		(&FullError{Key: "k", Queued: 9, Max: 8}).Error():                                    `automutex: key "k" is full: 9 of its tasks are not done, and MaxQueued is 8; the task is not enqueued: try again later`,
		(&OptionError{Rule: "r", Task: "t", Option: "Group", why: "because"}).Error():        `automutex: rule "r" is InOrder, and task "t" has the option asynq.Group: because; the task is not enqueued: leave the option out`,
		(&EnqueueError{Rule: "r", Key: "k", Task: "q/t", Err: cause}).Error():                `automutex: rule "r": task q/t of key "k" is not enqueued: cause`,
		(&EnqueueError{Rule: "r", Key: "k", Task: "q/t", Err: cause, Unknown: true}).Error(): `automutex: rule "r": task q/t of key "k" may be enqueued or not: cause`,
		Rate{}.String(): "none",
		Rate{Starts: 3, Per: time.Minute, Burst: 2}.String():                     "3 per 1m0s, burst 2",
		HoldKey.String() + " " + Continue.String() + " " + OnArchive(7).String(): "hold continue OnArchive 7",
	} {
		if got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
	if !errors.Is(&EnqueueError{Err: cause}, cause) || !errors.Is(&FullError{}, ErrFull) {
		t.Error("an error does not unwrap to its cause")
	}
}

// The recoverer delivers an ordered task soon, and any other as asynq would.
func TestCapRedelivery(t *testing.T) {
	t.Parallel()
	s := stamp.New("default/id", 5)
	plain := asynq.NewTaskWithHeaders("work", nil, map[string]string{stamp.Header: s.String()})
	s.Nonce, s.Ticket, s.Key = stamp.NewNonce(), 1, "k"
	ordered := asynq.NewTaskWithHeaders("work", nil, map[string]string{stamp.Header: s.String()})
	for what, c := range map[string]struct {
		spent int
		err   error
		task  *asynq.Task
		want  time.Duration
	}{
		"ordered, its worker died":          {0, asynq.ErrLeaseExpired, ordered, redeliveryDelay},
		"ordered, it failed":                {0, errors.New("failed"), ordered, time.Hour},
		"not ordered":                       {4, asynq.ErrLeaseExpired, plain, time.Hour},
		"its last attempt, its worker died": {5, asynq.ErrLeaseExpired, plain, redeliveryDelay},
		"its last attempt, its time was up": {5, context.DeadlineExceeded, plain, redeliveryDelay},
		"its last attempt, it failed":       {5, errors.New("failed"), plain, time.Hour},
		"no task":                           {9, asynq.ErrLeaseExpired, nil, time.Hour},
	} {
		if got := capRedelivery(time.Hour, c.spent, c.err, c.task); got != c.want {
			t.Errorf("%s: %s, want %s", what, got, c.want)
		}
	}
	if got := capRedelivery(time.Second, 0, asynq.ErrLeaseExpired, ordered); got != time.Second {
		t.Errorf("a short delay becomes %s", got)
	}
}

// The history says what became of each run, and of each wait that ended without one.
func TestOutcome(t *testing.T) {
	t.Parallel()
	replaced := &delivery{replacing: newReplaceState()}
	replaced.replacing.cancel(errors.New("a newer task has come"))
	for _, c := range []struct {
		d         *delivery
		what      decide.What
		ran, wait string
	}{
		{&delivery{}, decide.Done, "done", "skipped"},
		{&delivery{}, decide.Spend, "failed", "failed"},
		{&delivery{}, decide.Archive, "archived", "archived"},
		{&delivery{}, decide.Drop, "dropped", "dropped"},
		{replaced, decide.Drop, "replaced", "replaced"},
		{&delivery{}, decide.Leave, "cut short", "cut short"},
		{&delivery{}, decide.Back, "comes back", "comes back"},
	} {
		for ran, want := range map[bool]string{true: c.ran, false: c.wait} {
			if got := c.d.outcome(decide.Decision{What: c.what}, ran); got != want {
				t.Errorf("%v, ran %v: %q, want %q", c.what, ran, got, want)
			}
		}
	}
	// asynq revokes a task also if SkipRetry is in the error.
	if wish, _ := wishOf(errors.Join(asynq.SkipRetry, asynq.RevokeTask)); wish != decide.WishDrop {
		t.Errorf("RevokeTask beside SkipRetry: %v", wish)
	}
}

// An operator reads in asynq why a task has not run, and what it waits for.
func TestBusyError_text(t *testing.T) {
	t.Parallel()
	for want, busy := range map[string]*BusyError{
		": behind task q/1, which comes first":                                             {Reason: ReasonBehind, HolderTask: "q/1"},
		": behind task q/1, which comes first and is to come back in 1.5s":                 {Reason: ReasonBehind, HolderTask: "q/1", ExpiresIn: 1500 * time.Millisecond},
		": behind task q/1, which failed and is retried":                                   {Reason: ReasonBehind, HolderTask: "q/1", failed: true, ExpiresIn: time.Millisecond},
		": behind task q/1, which failed and is retried in 1m0s":                           {Reason: ReasonBehind, HolderTask: "q/1", failed: true, ExpiresIn: time.Minute},
		": behind task q/1, which is archived: run it again or skip it to go on":           {Reason: ReasonArchived, HolderTask: "q/1"},
		": behind an earlier task with the same ID (q/1), which is gone: skip it to go on": {Reason: ReasonArchived, HolderTask: "q/1", reused: true},
		": behind an earlier task with the same ID (q/1), which is gone":                   {Reason: ReasonBehind, HolderTask: "q/1", reused: true},
		": held by task q/1 on vm:1 until its deadline in 3s unless renewed; waited 10ms":  {Reason: ReasonHeld, Holder: "vm:1", HolderTask: "q/1", ExpiresIn: 3 * time.Second, Waited: 10 * time.Millisecond},
		": held by vm:1": {Reason: ReasonHeld, Holder: "vm:1"},
	} {
		busy.Rule, busy.Key = "r", "p:{r|7}"
		if got := busy.Error(); got != `automutex: rule "r": key "p:{r|7}" is busy`+want {
			t.Errorf("got  %s\nwant ... %s", got, want)
		}
	}
}

func TestRuleSet_limitField(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		payload     string
		deflt, most int
		want        int // 0: an error
	}{
		{`{"n": 4}`, 0, 0, 4},
		{`{"n": "4"}`, 3, 50, 4},
		{`{"n": 51}`, 3, 50, 50},
		{`{"n": 99999999999999999999}`, 3, 50, 50},
		{`{}`, 3, 50, 3},
		{`{"n": null}`, 3, 50, 3},
		{`{"n": ""}`, 3, 50, 3},
		{``, 3, 50, 3},
		{`{}`, 0, 50, 0},
		{``, 0, 50, 0},
		{`{"n": 0}`, 3, 50, 0},
		{`{"n": -1}`, 3, 50, 0},
		{`{"n": -99999999999999999999}`, 3, 50, 0},
		{`{"n": 1.5}`, 3, 50, 0},
		{`{"n": true}`, 3, 50, 0},
		{`{"n": [1]}`, 3, 50, 0},
		{`{"n": 1, "n": 2}`, 3, 50, 0},
		{`no JSON`, 3, 50, 0},
	} {
		field := &LimitField{Path: "n", Default: test.deflt, Most: test.most}
		rs := compileRules(t, Rule{Task: "work", LimitField: field})
		field.Path = "changed" // after New it has no effect
		targets, err := rs.targets(t.Context(), asynq.NewTask("work", []byte(test.payload)), "p")
		var unfit *KeyError
		switch {
		case test.want == 0 && (!errors.As(err, &unfit) || unfit.Field != "n"):
			t.Errorf("%s, default %d, most %d: %v; want a KeyError", test.payload, test.deflt, test.most, err)
		case test.want > 0 && (err != nil || targets[0].limit != test.want):
			t.Errorf("%s, default %d, most %d: %v, %v; want %d", test.payload, test.deflt, test.most, targets, err, test.want)
		}
	}
}
