package automutex

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex/internal/blocked"
	"github.com/automutex/automutex/internal/decide"
	"github.com/automutex/automutex/internal/engine"
	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/internal/stamp"
	"github.com/automutex/automutex/internal/turn"
	"github.com/automutex/automutex/lock"
)

// A sleep on the last attempt ends with what makes another try pointless.
func TestAttempt_sleep(t *testing.T) {
	t.Parallel()
	guard := newGuard(t, redistest.Mini(t))
	ended, end := context.WithCancel(context.Background())
	end()
	soon, cancel := context.WithTimeout(context.Background(), margin/2)
	defer cancel()
	replaced := newReplaceState()
	replaced.requestStop(target{})
	for name, d := range map[string]*delivery{
		"the task's context ended":   {facts: facts{guard: guard, ctx: ended}},
		"the margin before deadline": {facts: facts{guard: guard, ctx: soon}},
		"replaced":                   {facts: facts{guard: guard, ctx: context.Background()}, replacing: replaced},
	} {
		d.sleep(time.Hour) // or the test would not end
		if d.over() == decide.Goes && d.hasTimeFor(0) {
			t.Errorf("%s: tries again", name)
		}
	}
	d := &delivery{facts: facts{guard: guard, ctx: context.Background()}}
	if d.sleep(time.Millisecond); d.over() != decide.Goes || !d.hasTimeFor(time.Hour) {
		t.Error("a task with time does not try again")
	}
	guard.stop()
	if d.sleep(time.Hour); d.over() != decide.GuardClosed {
		t.Error("a task tries again after Close")
	}
}

// A task on its last attempt whose lease was lost pauses before it takes its locks again.
func TestStay_afterALostLease(t *testing.T) {
	t.Parallel()
	d := &delivery{facts: facts{guard: newGuard(t, redistest.Mini(t)), ctx: context.Background()}}
	began := time.Now()
	if d.stay(decide.Decision{What: decide.Stay}, obstacle{why: decide.LeaseLost}); time.Since(began) < retakeDelay {
		t.Errorf("it looks again after %s", time.Since(began))
	}
}

// That an operator has paused a key may be known from before an outage: it does not end that.
func TestBusy_endsAnOutage(t *testing.T) {
	t.Parallel()
	guard := newGuard(t, redistest.Mini(t), Rule{Task: "work"})
	d, at := &delivery{facts: facts{guard: guard, ctx: context.Background()}}, target{rule: guard.rules.match("work")[0], key: "key"}
	guard.outage.recordFailure(guard.log, "Redis", at.key, errors.New("away"))
	if d.refused(at, &BusyError{Reason: ReasonPaused}); guard.outage.since.IsZero() {
		t.Error("a pause has ended the outage")
	}
	if d.refused(at, &BusyError{Reason: ReasonHeld}); !guard.outage.since.IsZero() {
		t.Error("the outage goes on though Redis said who holds the key")
	}
}

// A task that waits in its worker parks when half of its time is over: here in a second, of the twenty that are left.
func TestPark_atHalfOfItsTime(t *testing.T) {
	t.Parallel()
	guard := newGuard(t, redistest.Mini(t), Rule{Task: "work"})
	ctx, cancel := context.WithTimeout(t.Context(), 21*time.Second)
	defer cancel()
	d := guard.newDelivery(ctx, asynq.NewTask("work", nil))
	d.note, d.arrived, d.server = "q/id", time.Now().Add(-19*time.Second), &server{guard: guard, workers: workers{limit: 10}}
	at := target{rule: guard.rules.match("work")[0], scope: "work", key: guard.cfg.Prefix + ":{work}", limit: 1}
	held, err := guard.engine.Take(t.Context(), engine.Request{Ref: engine.Ref{Key: at.key, Limit: 1}, Name: "work", TTL: time.Minute})
	redistest.Must(t, err)
	var busy *BusyError
	if err := d.wait(at, d.waitOf(at)); !errors.As(err, &busy) || !busy.parked || busy.Waited > 15*time.Second {
		t.Errorf("%v, after %s", err, time.Since(d.arrived))
	}
	_, err = held.Release(t.Context(), engine.Ending{})
	redistest.Must(t, err)
}

// What a handler returns is what asynq gets: that very value.
func TestMiddleware_passesErrorsThrough(t *testing.T) {
	t.Parallel()
	guard := newGuard(t, redistest.Mini(t), Rule{Task: "work"})
	for _, want := range []error{
		nil, errors.New("own"), asynq.SkipRetry, fmt.Errorf("wrapped: %w", asynq.RevokeTask), lock.ErrBusy, &BusyError{Rule: "own"},
	} {
		got := guard.Middleware(asynq.HandlerFunc(func(context.Context, *asynq.Task) error { return want })).
			ProcessTask(context.Background(), asynq.NewTask("work", nil))
		if got != want || guard.findReturned(got) != nil {
			t.Errorf("got %v, want %v, which is no hand-back", got, want)
		}
	}
}

// What is known of the holder reaches the task that parks behind it.
func TestPark_knowsHowLongTheKeyIsTaken(t *testing.T) {
	t.Parallel()
	d := &delivery{facts: facts{guard: newGuard(t, redistest.Mini(t))}}
	err := d.toBusyError(target{rule: &compiledRule{}}, &engine.Busy{Answer: turn.Answer{Parked: true, Place: 3, SinceTaken: time.Minute, InLine: time.Second}})
	var busy *BusyError
	if !errors.As(err, &busy) || !busy.parked || busy.Place != 3 || busy.takenFor != time.Minute || busy.inLine != time.Second {
		t.Errorf("%+v", busy)
	}
}

// What a look at the head finds, and what follows.
func TestInOrder_seen(t *testing.T) {
	t.Parallel()
	const note = "q/id"
	mine := stamp.New(note, 3)
	mine.Nonce, mine.Ticket, mine.Key = stamp.NewNonce(), 7, "automutex:{work|1}"
	info := func(state asynq.TaskState, lastErr string) *asynq.TaskInfo {
		return &asynq.TaskInfo{State: state, LastErr: lastErr, Headers: map[string]string{stamp.Header: mine.String()}}
	}
	other := info(asynq.TaskStatePending, "")
	other.Headers = nil
	overdue := info(asynq.TaskStateRetry, blocked.ParkedOn(mine.Key))
	overdue.Deadline = time.Now().Add(-time.Second)
	item := inside.OrderItem{Nonce: mine.Nonce, Note: note}
	for name, one := range map[string]struct {
		info *asynq.TaskInfo
		err  error
		on   OnArchive
		want inside.OrderAct
	}{
		"not found":            {nil, asynq.ErrTaskNotFound, HoldKey, inside.ActGone},
		"no queue":             {nil, asynq.ErrQueueNotFound, HoldKey, inside.ActGone},
		"no answer":            {nil, errors.New("away"), HoldKey, lookFailed},
		"another task":         {other, nil, HoldKey, inside.ActGone},
		"archived, hold":       {info(asynq.TaskStateArchived, ""), nil, HoldKey, inside.ActArchived},
		"archived, continue":   {info(asynq.TaskStateArchived, ""), nil, Continue, inside.ActLeft},
		"overdue, hold":        {overdue, nil, HoldKey, inside.ActArchived},
		"overdue, continue":    {overdue, nil, Continue, inside.ActLeft},
		"completed":            {info(asynq.TaskStateCompleted, ""), nil, HoldKey, inside.ActLeft},
		"parked here":          {info(asynq.TaskStateRetry, blocked.ParkedOn(mine.Key)), nil, HoldKey, lookWake},
		"parked elsewhere":     {info(asynq.TaskStateRetry, blocked.ParkedOn("automutex:{x}")), nil, HoldKey, inside.ActPresent},
		"failed":               {info(asynq.TaskStateRetry, "broken"), nil, HoldKey, inside.ActPresent},
		"pending":              {info(asynq.TaskStatePending, ""), nil, HoldKey, inside.ActPresent},
		"active":               {info(asynq.TaskStateActive, ""), nil, HoldKey, inside.ActPresent},
		"scheduled by a human": {info(asynq.TaskStateScheduled, ""), nil, HoldKey, inside.ActPresent},
	} {
		if act, _ := seenInOrder(one.info, errors.Is(one.err, asynq.ErrTaskNotFound) || errors.Is(one.err, asynq.ErrQueueNotFound), one.err, item, &compiledRule{Rule: Rule{OnArchive: one.on}}, mine.Key); act != one.want {
			t.Errorf("%s: %q, want %q", name, act, one.want)
		}
	}
}

// What parks is away for about as long as its turn would take, each for another
// time, and for no more than ten minutes.
func TestPark_safetyNet(t *testing.T) {
	t.Parallel()
	g := newGuard(t, redistest.Mini(t), Rule{Task: "work", Busy: Park})
	targets, err := g.rules.targets(t.Context(), asynq.NewTask("work", nil), g.cfg.Prefix)
	if err != nil || len(targets) != 1 {
		t.Fatal(targets, err)
	}
	d := g.newDelivery(context.Background(), asynq.NewTask("work", nil))
	for _, c := range []struct {
		expires  time.Duration
		place    int
		min, max time.Duration
	}{
		{0, 0, minParkDelay, minParkDelay * 5 / 4},
		{30 * time.Second, 0, 30 * time.Second, 38 * time.Second},
		{0, 100, minParkDelay + 100*time.Second, 132 * time.Second},
		{0, 1_000_000_000, 5 * time.Minute, 10 * time.Minute},
		{time.Hour, 0, 5 * time.Minute, 10 * time.Minute},
	} {
		seen := map[time.Duration]bool{}
		for range 100 {
			answer := d.park(targets[0], &BusyError{ExpiresIn: c.expires, Place: c.place, parked: true})
			h := g.findReturned(answer)
			if h == nil || h.delay < c.min || h.delay > c.max {
				t.Fatalf("%s and place %d: %v", c.expires, c.place, h)
			}
			seen[h.delay] = true
		}
		if len(seen) < 90 {
			t.Errorf("%s and place %d: %d different delays of 100", c.expires, c.place, len(seen))
		}
	}
}

func TestPark_parkBy(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for _, c := range []struct {
		came, deadline, want time.Duration // from now
	}{
		{0, 10 * time.Second, 5 * time.Second},
		// For its second lock it counts from when it came, not from now.
		{-6 * time.Second, 4 * time.Second, -time.Second},
		// The answer has to be there before the deadline.
		{0, time.Second, 0},
		{0, 1500 * time.Millisecond, 500 * time.Millisecond},
	} {
		if by := parkBy(now.Add(c.came), now.Add(c.deadline-margin)); !by.Equal(now.Add(c.want)) {
			t.Errorf("came %s, deadline %s: parks at %s, want %s", c.came, c.deadline, by.Sub(now), c.want)
		}
	}
}

// Asked to stop before its handler began, a task does not run, and holds nothing.
func TestReplace_askedBeforeItRuns(t *testing.T) {
	t.Parallel()
	guard := newGuard(t, redistest.Mini(t), Rule{Task: "work", On: []string{"id"}, Busy: Replace})
	task := asynq.NewTask("work", []byte(`{"id":1}`))
	targets, err := guard.rules.targets(t.Context(), task, guard.cfg.Prefix)
	redistest.Must(t, err)
	d := guard.newDelivery(t.Context(), task)
	redistest.Must(t, d.registerArrival(targets[0]))
	d.replacing.requestStop(targets[0])
	err = d.run(asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
		t.Error("it runs")
		return nil
	}))
	if !errors.Is(err, ErrReplaced) || !errors.Is(err, asynq.RevokeTask) {
		t.Errorf("answered %v", err)
	}
	if info, err := guard.engine.Inspect(t.Context(), engine.Ref{Key: targets[0].key}, 1, "", ""); info.Held > 0 || err != nil {
		t.Errorf("the key is held: %+v, %v", info, err)
	}
}

// Each guard knows its own answer, whatever it is wrapped in.
func TestReplace_answer(t *testing.T) {
	t.Parallel()
	one, other, cause := &Guard{}, &Guard{}, errors.New("cause")
	own := &revoked{guard: one, rule: "r", key: "k", err: cause}
	for err, ours := range map[error][2]bool{
		own:                                {true, false},
		fmt.Errorf("more: %w", own):        {true, false},
		&revoked{guard: other, err: own}:   {true, true},
		cause:                              {false, false},
		ErrReplaced:                        {false, false},
		asynq.RevokeTask:                   {false, false},
		&BusyError{Key: "k", cause: cause}: {false, false},
	} {
		if is := [2]bool{one.isRevoked(err), other.isRevoked(err)}; is != ours {
			t.Errorf("%v is the answer of the one or the other: %v, want %v", err, is, ours)
		}
	}
	if !errors.Is(own, asynq.RevokeTask) || !errors.Is(own, ErrReplaced) || !errors.Is(own, cause) ||
		own.Error() != `automutex: rule "r": key "k": replaced by a newer task: cause` {
		t.Errorf("got %v", own)
	}
}

// What another program may write as a parked note wakes nobody: under a rule in order the key is looked at again.
func TestPark_noteOfNoTask(t *testing.T) {
	t.Parallel()
	g := newGuard(t, redistest.Mini(t), Rule{Task: "work", InOrder: true})
	const ordered = "|l|a|nonce|17|5|"
	for _, c := range []struct {
		scope, note string
		want        inside.Fate
	}{
		{"work", "", inside.FateGone}, {"work", "no task", inside.FateGone}, {"work", "h:token", inside.FateGone},
		{"other", ordered + "default/id", inside.FateUnsure}, {"work", ordered + "no task", inside.FateUnsure}, {"work", ordered, inside.FateUnsure},
	} {
		if fate := g.wakeParked(t.Context(), g.cfg.Prefix+":{"+c.scope+"}", c.note); fate != c.want {
			t.Errorf("%q of %s: %v, want %v", c.note, c.scope, fate, c.want)
		}
	}
}
