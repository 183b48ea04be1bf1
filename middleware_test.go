package automutex

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex/internal/control"
	"github.com/automutex/automutex/internal/decide"
	"github.com/automutex/automutex/internal/engine"
	"github.com/automutex/automutex/internal/engine/workers"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/internal/stamp"
	"github.com/automutex/automutex/lock"
)

// The tests here look inside of the package. What a user can see is tested in internal/e2e, on asynq's servers.

func TestMain(m *testing.M) { redistest.Main(m) }

func newGuard(t *testing.T, s *redistest.Server, rules ...Rule) *Guard {
	t.Helper()
	return newGuardWith(t, s, Config{Rules: rules, Logger: slog.New(slog.DiscardHandler)})
}

func newGuardWith(t *testing.T, s *redistest.Server, cfg Config) *Guard {
	t.Helper()
	cfg.Prefix = redistest.Name(t)
	guard, err := New(s.Client(t), cfg)
	redistest.Must(t, err)
	t.Cleanup(func() {
		redistest.Must(t, guard.Close(context.Background()))
	})
	return guard
}

// An Enqueue that took longer than the stamp's deadline takes its place again before it returns. The task's other rules
// are the worker's business: one under Allow without a key, and one whose limit is not known now, refuse nothing.
func TestInOrder_slowEnqueue(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		cfg := Config{Prefix: redistest.Name(t), Rules: []Rule{
			{Task: "work", Scope: "none", On: []string{"none"}, Busy: Allow},
			{Task: "work", Scope: "work", On: []string{"id"}, InOrder: true},
			{Task: "work", Scope: "away", LimitOf: func(context.Context, *asynq.Task) (int, error) {
				return 0,
					errors.New("away")
			}},
		}}
		c, err := NewClient(rdb, asynq.NewClientFromRedisClient(rdb), cfg)
		redistest.Must(t, err)
		c.stampDeadline = 0 // so that every Enqueue is slow
		_, err = c.EnqueueContext(t.Context(), asynq.NewTask("work", []byte(`{"id":1}`)), asynq.Queue(redistest.Name(t)))
		redistest.Must(t, err)
		head, err := c.engine.Head(t.Context(), orderedKey(cfg.Prefix+":{work|1}"))
		if err != nil || head.State == "i" || head.State == "" {
			t.Fatalf("%+v, %v", head, err)
		}
	})
}

// Close beside Shutdown has as much time as Shutdown takes.
func TestRun_handlerOutlivesShutdown(t *testing.T) {
	t.Parallel()
	for _, ruled := range []string{"work", "another"} { // the handler of a task without a rule counts, too
		running, let, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
		guard := newGuard(t, redistest.Mini(t), Rule{Task: ruled})
		handler := guard.Middleware(asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
			close(running)
			<-let
			return nil
		}))
		go func() { ended <- handler.ProcessTask(context.Background(), asynq.NewTask("work", nil)) }()
		<-running
		if err := guard.closeBeside(func() {}); !errors.Is(err, errShutdownTimeout) {
			t.Errorf("a rule for %s: got %v", ruled, err)
		}
		close(let)
		redistest.Must(t, <-ended)
	}
}

// With the Middleware on some handlers, or twice, there is no warning of an unguarded server, and a task takes one
// worker.
func TestServerConfig_withMiddleware(t *testing.T) {
	t.Parallel()
	for name, wrap := range map[string]func(*Guard, asynq.Handler) asynq.Handler{
		"some":  func(g *Guard, h asynq.Handler) asynq.Handler { g.Middleware(h); return h },
		"twice": func(g *Guard, h asynq.Handler) asynq.Handler { return g.Middleware(g.Middleware(h)) },
	} {
		log := &redistest.Log{}
		guard := newGuardWith(t, redistest.Mini(t), Config{Rules: []Rule{{Task: "park", Busy: Park}}, Logger: log.Logger()})
		server := guard.ServerConfig(asynq.Config{Concurrency: 1})
		server.BaseContext() // of a task that asynq ends before its handler: its Deadline has passed in the queue
		ctx := server.BaseContext()
		redistest.Must(t, wrap(guard, asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
			w := ctx.Value(serverKey{guard}).(*worker)
			if guard.enterTask(ctx).leave(); name == "twice" && !w.inside.Load() {
				t.Error("one task counts as two")
			}
			w.server.checkGuarded()
			return nil
		})).ProcessTask(ctx, asynq.NewTask("work", nil)))
		if text := log.Text(slog.LevelWarn); text != "" {
			t.Errorf("%s: logged %q", name, text)
		}
	}
}

// mux.Use(unwrap, guard.Middleware) beside Run: the inner Middleware takes a task that unwrap has decoded for the outer
// one's.
func TestMiddleware_unwrapped(t *testing.T) {
	t.Parallel()
	unwrap := func(t *asynq.Task) ([]byte, error) {
		text, is := strings.CutPrefix(string(t.Payload()), "v1 ")
		if !is {
			return nil, errors.New("no envelope")
		}
		return []byte(text), nil
	}
	guard := newGuardWith(t, redistest.Mini(t), Config{Rules: []Rule{{Task: "work", On: []string{"id"}}}, Decode: unwrap,
		Logger: slog.New(slog.DiscardHandler)})
	ran := false
	inner := guard.Middleware(asynq.HandlerFunc(func(context.Context, *asynq.Task) error { ran = true; return nil }))
	outer := guard.Middleware(asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		payload, err := unwrap(task)
		redistest.Must(t, err)
		return inner.ProcessTask(ctx, asynq.NewTask(task.Type(), payload))
	}))
	if err := outer.ProcessTask(t.Context(), asynq.NewTask("work", []byte(`v1 {"id":1}`))); err != nil || !ran {
		t.Errorf("%v, ran %t", err, ran)
	}
}

// That an operator has paused a key may be known from before an outage: it does not end that.
func TestBusy_endsAnOutage(t *testing.T) {
	t.Parallel()
	guard := newGuard(t, redistest.Mini(t), Rule{Task: "work"})
	d, at := &delivery{facts: facts{guard: guard, ctx: context.Background()}},
		&target{rule: guard.rules.match("work")[0], key: "key"}
	guard.outage.Failed(guard.log, "away")
	if d.refused(at, &BusyError{Reason: ReasonPaused}); guard.outage.Lasts() == 0 {
		t.Error("a pause has ended the outage")
	}
	if d.refused(at, &BusyError{Reason: ReasonHeld}); guard.outage.Lasts() > 0 {
		t.Error("the outage goes on though Redis said who holds the key")
	}
}

// A sleep on the last attempt ends with what makes another try pointless.
func TestAttempt_sleep(t *testing.T) {
	t.Parallel()
	guard := newGuard(t, redistest.Mini(t))
	ended, end := context.WithCancel(context.Background())
	end()
	soon, cancel := context.WithTimeout(context.Background(), margin/2)
	defer cancel()
	replaced := &delivery{facts: facts{guard: guard, ctx: context.Background()}}
	replaced.mayStop()
	replaced.askToStop(&wanted{})
	for name, d := range map[string]*delivery{
		"the task's context ended":   {facts: facts{guard: guard, ctx: ended}},
		"the margin before deadline": {facts: facts{guard: guard, ctx: soon}},
		"replaced":                   replaced,
	} {
		d.sleep(time.Hour, nil) // or the test would not end
		if d.over() == decide.Goes && d.hasTimeFor(0) {
			t.Errorf("%s: tries again", name)
		}
	}
	d := &delivery{facts: facts{guard: guard, ctx: context.Background()}}
	if d.sleep(time.Millisecond, nil); d.over() != decide.Goes || !d.hasTimeFor(time.Hour) {
		t.Error("a task with time does not try again")
	}
	guard.life.End()
	if d.sleep(time.Hour, nil); d.over() != decide.GuardClosed {
		t.Error("a task tries again after Close")
	}
}

// A task on its last attempt whose lease was lost pauses before it takes its locks again.
func TestStay_afterALostLease(t *testing.T) {
	t.Parallel()
	d := &delivery{facts: facts{guard: newGuard(t, redistest.Mini(t)), ctx: context.Background()}}
	began := time.Now()
	if d.stay(decide.Decision{What: decide.GiveBack}, &obstacle{why: decide.LeaseLost}); time.Since(began) < minStay {
		t.Errorf("it looks again after %s", time.Since(began))
	}
}

// A task that waits in its worker parks when half of its time is over: here in a second, of the twenty that are left.
func TestPark_atHalfOfItsTime(t *testing.T) {
	t.Parallel()
	guard := newGuard(t, redistest.Mini(t), Rule{Task: "work"})
	ctx, cancel := context.WithTimeout(t.Context(), 21*time.Second)
	defer cancel()
	d := guard.newDelivery(ctx, asynq.NewTask("work", nil))
	d.note, d.arrived, d.server = "q/id", time.Now().Add(-19*time.Second),
		&server{guard: guard, workers: workers.Server{Limit: 10}}
	at := &target{rule: guard.rules.match("work")[0], scope: "work", key: guard.cfg.Prefix + ":{work}", limit: 1}
	held, err := guard.engine.Take(t.Context(), &engine.Request{Ref: engine.Ref{Key: at.key, Limit: 1}, Name: "work",
		TTL: time.Minute})
	redistest.Must(t, err)
	var busy *BusyError
	if err := d.wait(at, d.waitOf(at)); !errors.As(err, &busy) || !busy.parked || busy.Waited <= 0 ||
		busy.Waited > 15*time.Second {
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
		nil, errors.New("own"), asynq.SkipRetry, fmt.Errorf("wrapped: %w", asynq.RevokeTask), lock.ErrBusy,
		&BusyError{Rule: "own"},
	} {
		got := guard.Middleware(asynq.HandlerFunc(func(context.Context, *asynq.Task) error { return want })).
			ProcessTask(context.Background(), asynq.NewTask("work", nil))
		if got != want || guard.verdictIn(got) != nil {
			t.Errorf("got %v, want %v, which is no hand-back", got, want)
		}
	}
	ended := make(chan struct{})
	go func() { // a handler that ends so gives its lock back, too
		defer close(ended)
		_ = guard.Middleware(asynq.HandlerFunc(func(context.Context, *asynq.Task) error { runtime.Goexit(); return nil })).
			ProcessTask(context.Background(), asynq.NewTask("work", nil))
	}()
	<-ended
	redistest.Must(t, guard.Middleware(asynq.HandlerFunc(func(context.Context,
		*asynq.Task) error {
		return nil
	})).ProcessTask(t.Context(), asynq.NewTask("work", nil)))
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
	d.askToStop(&wanted{&targets[0]})
	err = d.run(asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
		t.Error("it runs")
		return nil
	}))
	if !errors.Is(err, ErrReplaced) || !errors.Is(err, asynq.RevokeTask) {
		t.Errorf("answered %v", err)
	}
	if info, err := guard.engine.Inspect(t.Context(), engine.Ref{Key: targets[0].key}, 1); info.Held > 0 || err != nil {
		t.Errorf("the key is held: %+v, %v", info, err)
	}
}

// Each guard knows its own answer, whatever it is wrapped in.
func TestReplace_answer(t *testing.T) {
	t.Parallel()
	one, other, cause := &Guard{}, &Guard{}, errors.New("cause")
	revoke := func(g *Guard, err error) error {
		f := &facts{guard: g, task: asynq.NewTask("work", nil)}
		f.mayStop()
		f.askToStop(&wanted{&target{rule: &compiledRule{}, key: "k"}})
		return f.revoke(&obstacle{ran: true, err: err})
	}
	own := revoke(one, cause)
	for err, ours := range map[error][2]bool{
		own:                         {true, false},
		fmt.Errorf("more: %w", own): {true, false},
		revoke(other, own):          {true, true},
		cause:                       {false, false},
		ErrReplaced:                 {false, false},
		asynq.RevokeTask:            {false, false},
		&BusyError{Key: "k"}:        {false, false},
	} {
		if is := [2]bool{one.verdictIn(err) != nil, other.verdictIn(err) != nil}; is != ours {
			t.Errorf("%v is the answer of the one or the other: %v, want %v", err, is, ours)
		}
	}
	if !errors.Is(own, asynq.RevokeTask) || !errors.Is(own, ErrReplaced) || !errors.Is(own, cause) ||
		own.Error() != `rule "work": key "k": automutex: replaced by a newer task: cause` {
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
		want        engine.Fate
	}{
		{"work", "", engine.FateGone}, {"work", "no task", engine.FateGone}, {"work", "h:token", engine.FateGone},
		{"other", ordered + "default/id", engine.FateUnsure}, {"work", ordered + "no task", engine.FateUnsure},
		{"work", ordered, engine.FateUnsure},
	} {
		if fate := g.wakeParked(t.Context(), g.cfg.Prefix+":{"+c.scope+"}", c.note); fate != c.want {
			t.Errorf("%q of %s: %v, want %v", c.note, c.scope, fate, c.want)
		}
	}
}

func TestDelay(t *testing.T) {
	t.Parallel()
	guard := newGuard(t, redistest.Mini(t), Rule{Task: "work"})
	d := &delivery{facts: facts{guard: guard}}
	busy := &BusyError{ExpiresIn: time.Hour}
	in := func(p Policy) *target { return &target{rule: &compiledRule{Rule: Rule{Busy: p}}} }
	for _, c := range []struct {
		when        decide.When
		met         obstacle
		least, most time.Duration
	}{
		{decide.AtGate, obstacle{busy: busy, target: in(Park)}, time.Hour, 2 * time.Hour},
		{decide.AtResume, obstacle{busy: busy, target: in(RetryIn(time.Second))}, 30 * time.Second, 90 * time.Second},
		{decide.AtOutage, obstacle{target: in(RetryIn(time.Hour))}, time.Second, 2 * time.Second},
		{decide.AsAsked, obstacle{delay: 90 * time.Minute, ran: true}, 90 * time.Minute, 90 * time.Minute},
		{decide.AsAsked, obstacle{delay: 90 * time.Minute}, 90 * time.Minute, 90*time.Minute + time.Second},
		{decide.Soon, obstacle{busy: busy, target: in(RetryIn(7 * time.Minute))}, 7 * time.Minute, 7 * time.Minute},
		{decide.Soon, obstacle{busy: busy, target: in(Retry)}, time.Second, 5 * time.Second},
	} {
		if got := d.delay(c.when, &c.met); got < c.least || got > c.most {
			t.Errorf("%v, %+v: %s, want %s to %s", c.when, c.met, got, c.least, c.most)
		}
	}
}

// A parked task comes back by itself for about as long as its turn takes.
func TestTurnIn(t *testing.T) {
	t.Parallel()
	const sec = time.Second
	for want, busy := range map[time.Duration]BusyError{
		5 * sec:         {},
		30 * sec:        {ExpiresIn: 30 * sec},
		105 * sec:       {Place: 100},
		12 * sec:        {Place: 2, ExpiresIn: 10 * sec, Reason: ReasonClosed},
		1_000_005 * sec: {Place: math.MaxInt},
		time.Hour:       {Place: 3, Reason: ReasonArchived},
	} {
		if in := busy.turnIn(); in != want {
			t.Errorf("%+v: %s, want %s", busy, in, want)
		}
	}
}

// asynq takes its worker from a task whose context has ended.
func TestStuckHandler_isNoWorker(t *testing.T) {
	t.Parallel()
	guard := newGuard(t, redistest.Mini(t), Rule{Task: "work"})
	ctx, cancel := context.WithCancel(guard.ServerConfig(asynq.Config{Concurrency: 3}).BaseContext())
	defer cancel()
	lender := ctx.Value(serverKey{guard}).(*worker).server.lender("x", 0)
	goesOn := make(chan struct{})
	end := sync.OnceFunc(func() { close(goesOn) })
	defer end()
	var wg sync.WaitGroup
	redistest.Go(&wg, func() {
		_ = guard.Middleware(asynq.HandlerFunc(func(context.Context, *asynq.Task) error { <-goesOn; return nil })).
			ProcessTask(ctx, asynq.NewTask("work", nil))
	})
	idle := func(n int) {
		t.Helper()
		redistest.Eventually(t, redistest.Patience, func() bool { return lender.Calls("x", 1, false) == n }, "%d are idle", n)
	}
	idle(2)
	cancel()
	idle(3)
	end()
	wg.Wait()
	idle(3)
}

// A wait that a pause ended is one for a paused key, though the key is held, and the pause over: no policy may end the
// task.
func TestBusyError_afterAPause(t *testing.T) {
	t.Parallel()
	guard := newGuard(t, redistest.Mini(t), Rule{Task: "work"})
	d := guard.newDelivery(t.Context(), asynq.NewTask("work", nil))
	at := &target{rule: guard.rules.match("work")[0], key: guard.cfg.Prefix + ":{work}"}
	for pause, want := range map[*control.Order]string{{Kind: control.Pauses}: ReasonPaused, control.Unread: ReasonPaused,
		nil: ReasonHeld} {
		var busy *BusyError
		err := d.toBusyError(at, &engine.Busy{Answer: engine.Answer{ServerUS: 1, Holder: "token|worker|", Pause: pause}})
		if !errors.As(err, &busy) || busy.Reason != want || busy.Holder != "worker" ||
			(want == ReasonPaused) != (busy.Pause != nil) {
			t.Errorf("%+v: the error is %+v", pause, busy)
		}
	}
}

// What a user reads says what happened, to what, and what to do.
func TestTexts(t *testing.T) {
	t.Parallel()
	cause := errors.New("cause")
	for got, want := range map[string]string{
		(&FullError{Key: "k", Queued: 9,
			Max: 8}).Error(): `automutex: key "k" is full: 9 of its tasks are not done, and MaxQueued is 8; the task is not enqueued: try again later`,
		(&EnqueueError{Rule: "r", Key: "k", Task: "q/t",
			Err: cause}).Error(): `automutex: rule "r": task q/t of key "k" is not enqueued: cause`,
		(&EnqueueError{Rule: "r", Key: "k", Task: "q/t", Err: cause,
			Unknown: true}).Error(): `automutex: rule "r": task q/t of key "k" may be enqueued or not: cause`,
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

func TestSaid(t *testing.T) {
	t.Parallel()
	// asynq revokes a task also if SkipRetry is in the error.
	if answer, _ := said(errors.Join(asynq.SkipRetry, asynq.RevokeTask)); answer != decide.SaidDrop {
		t.Errorf("RevokeTask beside SkipRetry: %v", answer)
	}
}

// An operator reads in asynq why a task has not run, and what it waits for.
func TestBusyError_text(t *testing.T) {
	t.Parallel()
	for want, busy := range map[string]*BusyError{
		": behind task q/1, which comes first": {Reason: ReasonBehind, HolderTask: "q/1"},
		": behind task q/1, which comes first and is to come back in 1.5s": {Reason: ReasonBehind,
			HolderTask: "q/1", ExpiresIn: 1500 * time.Millisecond},
		": behind task q/1, which failed and is retried": {Reason: ReasonBehind,
			HolderTask: "q/1", failed: true, ExpiresIn: time.Millisecond},
		": behind task q/1, which failed and is retried in 1m0s": {Reason: ReasonBehind,
			HolderTask: "q/1", failed: true, ExpiresIn: time.Minute},
		": behind task q/1, which is archived: run it again or skip it to go on": {Reason: ReasonArchived, HolderTask: "q/1"},
		": behind an earlier task with the same ID (q/1), which is gone: skip it to go on": {Reason: ReasonArchived,
			HolderTask: "q/1", reused: true},
		": held by task q/1 on vm:1 until its deadline in 3s unless renewed; waited 10ms": {Reason: ReasonHeld,
			Holder: "vm:1", HolderTask: "q/1", ExpiresIn: 3 * time.Second, Waited: 10 * time.Millisecond},
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
		{`{"N": 1}`, 3, 50, 0}, // encoding/json takes it for n
		{`no JSON`, 3, 50, 0},
	} {
		field := &LimitField{Path: "n", Default: test.deflt, Most: test.most}
		rs := compileRules(t, Rule{Task: "work", LimitField: field})
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

// The log names a head that asynq has called active for more than a minute and that does not hold its key, since its
// worker is dead.
func TestInOrder_headOfADeadWorker(t *testing.T) {
	t.Parallel()
	s, log, prefix := redistest.Mini(t), &redistest.Log{}, redistest.Name(t)
	rdb := s.Client(t)
	guard := newGuardWith(t, s, Config{Rules: []Rule{{Task: "work", InOrder: true}}, Logger: log.Logger()})
	_, err := asynq.NewClientFromRedisClient(rdb).Enqueue(asynq.NewTask("work", nil), asynq.Queue(prefix),
		asynq.TaskID("id"))
	redistest.Must(t, err)
	redistest.Must(t, rdb.HSet(t.Context(), "asynq:{"+prefix+"}:t:id", "state", "active").Err())
	note := prefix + "/id"
	for age, want := range map[time.Duration]int{10 * time.Second: 0, 2 * time.Minute: 1} {
		item := engine.OrderItem{State: "a", Nonce: stamp.Unstamped(note), Ticket: 1,
			Seen: fmt.Sprint(time.Now().Add(-age).UnixMicro()), Note: note}
		before := strings.Count(log.Text(slog.LevelWarn), "asynq runs it again")
		guard.wakeInOrder(t.Context(), guard.cfg.Prefix+":{work}", item)
		if n := strings.Count(log.Text(slog.LevelWarn), "asynq runs it again") - before; n != want {
			t.Errorf("seen %s ago: %d warnings, want %d: %s", age, n, want, log.Text(slog.LevelDebug))
		}
	}
}

// A task without a rule whose type looks like the Task of a rule that nothing serves: that is said once for each rule.
// Rules of other workers, and types that have a rule, say nothing.
func TestMiddleware_looksLikeARule(t *testing.T) {
	t.Parallel()
	type embeds struct{ *asynq.ServeMux }
	wraps := map[string]func(*Guard, *asynq.ServeMux) asynq.Handler{
		"mux":      func(g *Guard, mux *asynq.ServeMux) asynq.Handler { return g.Middleware(mux) },
		"embedded": func(g *Guard, mux *asynq.ServeMux) asynq.Handler { return g.Middleware(embeds{mux}) },
		"Use":      func(g *Guard, mux *asynq.ServeMux) asynq.Handler { mux.Use(g.Middleware); return mux },
		"wrapped": func(g *Guard, mux *asynq.ServeMux) asynq.Handler {
			return g.Middleware(asynq.HandlerFunc(mux.ProcessTask))
		},
	}
	for wrapped, wrap := range wraps {
		for _, c := range []struct {
			tasks, served, come, want []string // served: patterns of the mux; want: Tasks of rules that are warned of
		}{
			{[]string{"cron:nigtly"}, []string{"cron:nightly"}, []string{"cron:nightly", "cron:nightly"},
				[]string{"cron:nigtly"}},
			{[]string{"cron:nigtly"}, []string{"cron:"}, []string{"cron:hourly", "cron:nightly"}, []string{"cron:nigtly"}},
			{[]string{"crn:"}, []string{"cron:"}, []string{"cron:nightly", "cron:hourly"}, []string{"crn:"}},
			{[]string{"Pay", "rprt"}, []string{"pay", "report"}, []string{"pay", "report"}, []string{"Pay", "rprt"}},
			{[]string{"sync:eu", "sync:us", "mail:send"}, []string{"sync:eu"}, []string{"sync:eu", "other"}, nil},
			{[]string{"sync:", "sync:us"}, []string{"sync:eu"}, []string{"sync:eu"}, nil},
			{[]string{"sync:us"}, []string{"sync:us", "sync:eu"}, []string{"sync:us", "sync:eu"}, nil},
			{[]string{"a", "report:x"}, []string{"b", "report:yearly"}, []string{"b", "report:yearly"}, nil},
		} {
			log, mux := &redistest.Log{}, asynq.NewServeMux()
			var rules []Rule
			for _, task := range c.tasks {
				rules = append(rules, Rule{Task: task})
			}
			for _, pattern := range c.served {
				mux.HandleFunc(pattern, func(context.Context, *asynq.Task) error { return nil })
			}
			handler := wrap(newGuardWith(t, redistest.Mini(t), Config{Rules: rules, Prefix: redistest.Name(t),
				Logger: log.Logger()}), mux)
			for _, come := range c.come {
				_ = handler.ProcessTask(t.Context(), asynq.NewTask(come, nil)) // asynq's mux refuses a type that it does not serve
			}
			var warned []string
			for _, task := range c.tasks {
				if n := strings.Count(log.Text(slog.LevelWarn), fmt.Sprintf("a rule is for %q, which", task)); n > 0 {
					warned = append(warned, strings.Repeat(task, n))
				}
			}
			if n := strings.Count(log.Text(slog.LevelWarn), "did you mean"); !slices.Equal(warned, c.want) || n != len(c.want) {
				t.Errorf("%s: rules for %q, served %q, came %q: warned of %q, %d times; want %q", wrapped, c.tasks, c.served,
					c.come, warned, n, c.want)
			}
		}
	}
	// What a mux serves exactly is no slip, also if the other type comes first, and if it is that of a second server.
	log, mux := &redistest.Log{}, asynq.NewServeMux()
	guard := newGuardWith(t, redistest.Mini(t), Config{Rules: []Rule{{Task: "sync:us"}}, Logger: log.Logger()})
	mux.Handle("sync:us", asynq.NotFoundHandler())
	guard.Middleware(asynq.NewServeMux())
	_ = guard.Middleware(mux).ProcessTask(t.Context(), asynq.NewTask("sync:eu", nil))
	if text := log.Text(slog.LevelWarn); text != "" {
		t.Errorf("logged %q", text)
	}
}

// What a set-up hides is said in the log, once.
func TestGuard_saysWhatItHides(t *testing.T) {
	t.Parallel()
	log := &redistest.Log{}
	g := newGuardWith(t, redistest.Mini(t), Config{Logger: log.Logger(), Rules: []Rule{
		{Task: "work", On: []string{"id", "whole"}, Scope: "s"}, {Task: "report", On: []string{"id"}, Scope: "s"},
		{Task: "all", On: []string{"."}}, {Task: "reprot"},
	}})
	for _, payload := range []string{`{"id": 1, "whole": {"a": 2}}`, `{"id": 1, "whole": [3]}`} {
		for _, name := range []string{"work", "all"} {
			_, err := g.Keys(t.Context(), asynq.NewTask(name, []byte(payload)))
			redistest.Must(t, err)
			g.sawType(name)
		}
		g.checkMet()
	}
	lines := strings.Split(strings.TrimSpace(log.Text(slog.LevelWarn)), "\n")
	for i, parts := range [][]string{
		{`rule "report" (Rules[1]): Scope: rule "work" (Rules[0])`, "another number of fields"},
		{`rule "work" (Rules[0]): On: a field is an object or a list`, "field=whole"},
		{"none is known to have come for these rules", "rules=[report reprot]", "types=[all work]"},
	} {
		for _, part := range parts {
			if len(lines) != 3 || !strings.Contains(lines[i], part) {
				t.Errorf("the log says %q, want %q in line %d", lines, part, i+1)
			}
		}
	}
}
