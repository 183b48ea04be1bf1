package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/control"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/internal/redisx"
)

func TestMain(m *testing.M) { redistest.Main(m) }

var each = redistest.EachInParallel

func eventually(t *testing.T, is func() bool, what string, args ...any) {
	t.Helper()
	redistest.Eventually(t, redistest.Patience, is, what, args...)
}

func start(t *testing.T, s *redistest.Server) *Engine {
	t.Helper()
	e := New(Options{Client: s.Client(t), Prefix: "automutex", Owner: "test", Log: slog.New(slog.DiscardHandler)})
	t.Cleanup(e.Close)
	return e
}

func request(t *testing.T) Request {
	return Request{Ref: Ref{Key: "automutex:{" + redistest.Name(t) + "}", Limit: 1}, TTL: 30 * time.Second}
}

func inLine(r Request) Request {
	r.Line = &Line{}
	return r
}

func take(e *Engine, r Request) (*Lease, error) {
	ctx, cancel := context.WithTimeout(context.Background(), redistest.Patience)
	defer cancel()
	return e.Take(ctx, &r)
}

// must takes a lock that is to be had.
func must(t *testing.T, e *Engine, r Request) *Lease {
	t.Helper()
	le, err := take(e, r)
	redistest.Must(t, err)
	return le
}

// takesTurn takes a lock and releases it, on any goroutine.
func takesTurn(t *testing.T, e *Engine, r Request) {
	t.Helper()
	le, err := take(e, r)
	if err == nil {
		_, err = le.Release(context.Background(), Ending{})
	}
	if err != nil {
		t.Error(err)
	}
}

// hooked is an engine on a miniredis, and what makes its commands fail.
func hooked(t *testing.T) (*Engine, *redistest.FailHook) {
	t.Helper()
	return hookedAt(t, redistest.Mini(t))
}

func hookedAt(t *testing.T, s *redistest.Server) (*Engine, *redistest.FailHook) {
	t.Helper()
	rdb, hook := s.Client(t), &redistest.FailHook{}
	rdb.AddHook(hook)
	return startAt(t, rdb), hook
}

func release(t *testing.T, le *Lease) {
	t.Helper()
	_, err := le.Release(context.Background(), Ending{})
	redistest.Must(t, err)
}

// Numbers that Go and the scripts both know have one value. Keys outlive the pause of a task that is parked.
func TestScripts_numbersAsInGo(t *testing.T) {
	t.Parallel()
	in := map[string]string{}
	for _, file := range []string{"head", "order", "send"} {
		text, err := files.ReadFile("lua/" + file + ".lua")
		redistest.Must(t, err)
		set := regexp.MustCompile(`(?m)^local ([a-z_, ]+) = ([-0-9, ]+)(?: --.*)?$`)
		for _, found := range set.FindAllStringSubmatch(string(text), -1) {
			names, values := strings.Split(found[1], ", "), strings.Split(found[2], ", ")
			for i := range min(len(names), len(values)) {
				in[names[i]] = strings.TrimSpace(values[i])
			}
		}
	}
	for name, want := range map[string]int64{
		"broken_fence": brokenFence, "stop_fence": stopFence, "gate_fence": gateFence,
		"order_look": OrderLook.Milliseconds(),
	} {
		if in[name] != fmt.Sprint(want) {
			t.Errorf("%s is %q in the scripts, and %d in Go", name, in[name], want)
		}
	}
	if ms, _ := strconv.Atoi(in["parked_for"]); ms < int((15 * time.Minute).Milliseconds()) { // decide.Delay: AtTurn
		t.Errorf("keys with parked tasks last for %d ms", ms)
	}
}

// A try whose asks stop at their bound ends with its context, also if its first exchange is waited for.
func TestTry_stopped(t *testing.T) {
	t.Parallel()
	e, hook := hooked(t)
	r := asked(e.ref("r"), "")
	must(t, e, r)
	for i := range 500 {
		join(t, e, r.Ref, fmt.Sprint("w.", i), "", time.Hour)
	}
	r.Limit, r.Whole = 1000, true
	ctx, cancel := context.WithCancel(t.Context())
	hook.After(func(redis.Cmder) error { cancel(); return nil })
	if _, err := e.Take(ctx, &r); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if info := inspect(t, e, r.Ref); info.Held > 201 { // a SET goes before the first ask
		t.Errorf("%d are granted the lock, each hundred by an ask", info.Held-1)
	}
	hook.After(nil)
	must(t, e, r)
}

// A SET that the client has sent twice, since the first reply was lost, has the lock: the second finds its own.
func TestTakeFree_sentTwice(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		rdb.AddHook(redistest.Resend(func(cmd redis.Cmder) bool { return cmd.Name() == "set" }))
		e, r := startAt(t, rdb), request(t)
		le, err := e.TakeFree(t.Context(), &r)
		if redistest.Must(t, err); le == nil {
			t.Fatal("the lock is taken, by nobody")
		}
		release(t, le)
	})
}

// Who means to park takes no lock that is free after all.
func TestAhead_freeLock(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		e, r := start(t, s), request(t)
		r.Note, r.Line = "n", &Line{Yield: AtOnce, Ahead: true}
		le, err := take(e, r)
		var busy *Busy
		if !errors.As(err, &busy) || !busy.Parked {
			t.Errorf("got %v, %v; want parked", le, err)
		}
	})
}

// A mutex that goes from hand to hand keeps nothing of those who have left.
func TestHandOver_leavesNothing(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		e, r := start(t, s), inLine(request(t))
		r.Notes, r.Note = true, "0"
		held := must(t, e, r)
		for i := range 30 {
			next, in := r, make(chan struct{})
			next.Note, next.Line = fmt.Sprint(i+1), &Line{OnWait: func(time.Duration) { close(in) }}
			var wg sync.WaitGroup
			var le *Lease
			redistest.Go(&wg, func() {
				var err error
				if le, err = take(e, next); err != nil {
					t.Error(err)
				}
			})
			<-in
			release(t, held)
			if wg.Wait(); le == nil {
				t.Fatal("the next one has not got it")
			}
			held = le
		}
		if n := s.Client(t).HLen(t.Context(), r.Key+":info").Val(); n > 1 {
			t.Errorf("%d fields are left", n)
		}
		release(t, held)
	})
}

// A renewal that failed is tried again soon, not when the next one is due.
func TestRenewalAfterAFailure(t *testing.T) {
	t.Parallel()
	e, hook := hooked(t)
	r := request(t)
	r.TTL = time.Hour
	le := must(t, e, r)
	hook.Before(func(redis.Cmder) error { return errors.New("down") })
	le.renewals++
	if e.sendRenewals([]*Lease{le}); time.Until(le.renewAt) > 2*time.Second {
		t.Error("the next one is at", le.renewAt)
	}
}

// A lease that a message grants counts from when the ask before it was sent, which may be a while ago.
func TestGrantCountsFromTheAsk(t *testing.T) {
	t.Parallel()
	e, r, hook, in := start(t, redistest.Mini(t)), request(t), &redistest.FailHook{}, make(chan struct{})
	e.o.Client.(redis.UniversalClient).AddHook(hook)
	held := must(t, start(t, redistest.Mini(t)), r)
	r.TTL, r.NoRenew = maxGrant, true
	var sent atomic.Int64
	hook.Before(func(cmd redis.Cmder) error {
		if strings.Contains(cmd.String(), r.Key) {
			sent.Store(time.Now().UnixMicro())
		}
		return nil
	})
	r = inLine(r)
	r.Line.OnWait = func(time.Duration) { close(in) }
	var wg sync.WaitGroup
	var le *Lease
	var err error
	redistest.Go(&wg, func() { le, err = take(e, r) })
	<-in
	ago := func() time.Duration { return time.Since(time.UnixMicro(sent.Load())) }
	eventually(t, func() bool { return ago() > 2*r.margin(r.TTL) }, "an ask that is old")
	release(t, held)
	wg.Wait()
	redistest.Must(t, err)
	if late := time.Until(le.Deadline()) + ago() - r.TTL; late > 0 {
		t.Errorf("it counts for %s after its ask could have ended", late)
	}
	release(t, le)
}

// TestNoSender: while all senders hang, leases end in time. A renewal whose reply is late brings none back.
func TestNoSender(t *testing.T) {
	t.Parallel()
	e, r := start(t, redistest.Mini(t)), request(t)
	e.senders, r.TTL = 100, 3*time.Second
	le := must(t, e, r)
	ctx, end := context.WithTimeout(t.Context(), redistest.Patience)
	defer end()
	if <-le.Bind(ctx).Done(); ctx.Err() != nil {
		t.Error("it is held")
	}
	le.state = held // past its deadline
	if is, _ := e.sawRenewal(le, &redisx.Call{Reply: int64(1)}, r.TTL, le.takenAt); is {
		t.Error("it is held again")
	}
}

// TestCrowdOfFreeLocks: who gets a lock at once has not waited for it, however many ask at a time.
func TestCrowdOfFreeLocks(t *testing.T) {
	t.Parallel()
	e := start(t, redistest.StartMini(t)) // which no other test keeps busy
	var wg sync.WaitGroup
	ended, end := context.WithCancel(t.Context())
	end()
	for i := range 4 * maxFirstKeys {
		r := inLine(request(t))
		r.Key = fmt.Sprintf("automutex:{%s|%d}", redistest.Name(t), i)
		r.Line.OnWait = func(time.Duration) { t.Error("waits for a lock that is free") }
		r.Line.Within = ended // and nobody else waits
		redistest.Go(&wg, func() {
			le, err := take(e, r)
			for tries := 1; errors.Is(err, redisx.ErrBackend) && tries < 6; tries++ { // no reply came in time
				le, err = take(e, r)
			}
			if err == nil {
				_, err = le.Release(context.Background(), Ending{})
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

// TestFreeKeyBesideACrowd: a free key is had while a crowd has asked for another one, and no answer has come yet. The
// crowd sends few commands at a time.
func TestFreeKeyBesideACrowd(t *testing.T) {
	e := start(t, redistest.Mini(t))
	hook, stuck := &redistest.FailHook{}, make(chan struct{})
	e.o.Client.(redis.UniversalClient).AddHook(hook)
	crowd, free := inLine(request(t)), inLine(request(t))
	crowd.Key += ":crowd"
	var sent atomic.Int64
	hook.Before(func(cmd redis.Cmder) error {
		if strings.Contains(cmd.String(), crowd.Key) {
			sent.Add(1)
			<-stuck
		}
		return nil
	})
	unstick := sync.OnceFunc(func() { close(stuck) })
	t.Cleanup(unstick)
	var wg sync.WaitGroup
	for range 4 * maxFirstKeys {
		redistest.Go(&wg, func() { takesTurn(t, e, crowd) })
	}
	ask := func(n int) {
		eventually(t, func() bool {
			e.mu.Lock()
			defer e.mu.Unlock()
			return len(e.waiters) == n
		}, "%d ask", n)
	}
	ask(4 * maxFirstKeys)
	release(t, must(t, e, free))
	if n := sent.Load(); n > maxFirstAsks+maxSenders {
		t.Errorf("the crowd sends %d commands at a time", n)
	}
	late := inLine(crowd)
	late.Line.OnWait = func(time.Duration) { t.Error("waits, though Redis has said nothing") }
	ctx, end := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() { _, err := e.Take(ctx, &late); left <- err }()
	ask(4*maxFirstKeys + 1)
	end()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	unstick()
	wg.Wait()
}

// TestOrder_behindItsID: a task waits behind an earlier one that had its ID, as behind any other. It is no earlier run
// of its own.
func TestOrder_behindItsID(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		e := start(t, s)
		r := inLine(request(t))
		r.Ordered, r.Note = true, "default/same"
		var tickets []int64
		for _, nonce := range []string{"gone", "new"} {
			ticket, _, _, err := e.Stamp(t.Context(), r.Ref, r.Note, nonce, time.Hour, 0)
			redistest.Must(t, err)
			tickets = append(tickets, ticket)
		}
		r.Place = &Place{Nonce: "new", Ticket: tickets[1], Most: -1}
		r.Line.Yield = make(chan struct{})
		r.Line.OnWait = func(time.Duration) {
			for _, act := range []OrderAct{ActWithdraw, ActConfirm} { // a late confirm does not bring it back
				redistest.Must(t, e.Act(t.Context(), r.Ref, act, OrderItem{Nonce: "gone", Ticket: tickets[0], Note: r.Note}, 0))
			}
		}
		release(t, must(t, e, r))
		if head, err := e.Head(t.Context(), r.Ref); err != nil || head.Nonce == "gone" {
			t.Errorf("%+v, %v", head, err)
		}
	})
}

// stampLife is that of the stamps of ordered tasks: no look is due unless a test moves the clock.
const stampLife = 10 * time.Second

// ordered is a task of an ordered key, as its worker sees it.
type ordered struct {
	e *Engine
	r Request
}

// stamped are tasks of a key of their own, in order.
func stamped(t *testing.T, e *Engine, notes ...string) (tasks []ordered) {
	t.Helper()
	o := ordered{e, request(t)}
	for _, note := range notes {
		tasks = append(tasks, o.stamp(t, note))
	}
	return tasks
}

// stamp gives another task of o's key its place.
func (o ordered) stamp(t *testing.T, note string) ordered {
	t.Helper()
	ticket, _, _, err := o.e.Stamp(t.Context(), o.r.Ref, note, "n"+note, stampLife, 0)
	redistest.Must(t, err)
	return o.at(note, Place{Nonce: "n" + note, Ticket: ticket, Most: -1})
}

func (o ordered) at(note string, place Place) ordered {
	o.r.Ordered, o.r.Note, o.r.Place = true, note, &place
	return o
}

func (o ordered) runs(t *testing.T) *Lease {
	t.Helper()
	return must(t, o.e, o.at(o.r.Note, *o.r.Place).r)
}

// run is an attempt, from its arrival to its end.
func (o ordered) run(t *testing.T, outcome Outcome) {
	t.Helper()
	le := o.runs(t)
	le.End(outcome)
	release(t, le)
}

func (o ordered) parks(t *testing.T) {
	t.Helper()
	o.r.Line = &Line{Yield: AtOnce}
	_, err := o.e.Take(t.Context(), &o.r)
	if busy := (*Busy)(nil); !errors.As(err, &busy) || !busy.Parked {
		t.Fatalf("%s: %v, want parked", o.r.Note, err)
	}
}

func (o ordered) head(t *testing.T) Head {
	t.Helper()
	h, err := o.e.Head(t.Context(), o.r.Ref)
	redistest.Must(t, err)
	return h
}

// isGone acts on the first task that is to be looked for: a stamp for a full key names it.
func (o ordered) isGone(t *testing.T) {
	t.Helper()
	ticket, _, look, err := o.e.Stamp(t.Context(), o.r.Ref, "one too many", "too-many", stampLife, 1)
	if err != nil || ticket != 0 || len(look) == 0 {
		t.Fatalf("a stamp for a full key: %d, %v, %v", ticket, look, err)
	}
	redistest.Must(t, o.e.Act(t.Context(), o.r.Ref, ActGone, look[0], 0))
}

// TestOrder_unavoidable: what cannot be avoided, by its number in docs/guarantees.md. Each is as bad as it says there,
// and no worse.
func TestOrder_unavoidable(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		e := start(t, s)
		// 4: a retry that comes early runs.
		tasks := stamped(t, e, "a", "b")
		tasks[0].run(t, OutcomeStays)
		tasks[1].parks(t)
		tasks[0].run(t, OutcomeDone)
		tasks[1].run(t, OutcomeDone)
		// 6: a task that left runs late.
		tasks = stamped(t, e, "a", "b")
		tasks[0].run(t, OutcomeLeft)
		tasks[1].run(t, OutcomeDone)
		tasks[0].run(t, OutcomeDone)
		// 8: a lost lease lets two run. The late release of the first does nothing to the run after it.
		tasks = stamped(t, e, "a", "b")
		first := tasks[0].runs(t)
		breaks(t, e, first.request.Ref, BreakAll, 1)
		again := tasks[0].runs(t)
		first.End(OutcomeHeld)
		if _, err := first.Release(t.Context(), Ending{}); err != nil && !errors.Is(err, ErrNotHeld) {
			t.Error(err)
		}
		if h := tasks[0].head(t); h.Held() || !h.Runs {
			t.Fatalf("%+v, want at work", h)
		}
		again.End(OutcomeDone)
		release(t, again)
		tasks[1].run(t, OutcomeDone)
		// 9: a task without a stamp comes after those that are there, and runs again.
		plain := tasks[0].at("plain", Place{Nonce: "~plain", Most: -1})
		c := plain.stamp(t, "c")
		plain.parks(t)
		c.run(t, OutcomeDone)
		plain.run(t, OutcomeDone)
		plain.run(t, OutcomeDone)
		if h := plain.head(t); h.State != "" || h.Queued != 0 {
			t.Errorf("%+v is left", h)
		}
	})
	s, now := redistest.StartMini(t), time.Now()
	s.SetTime(t, now)
	e, pass := start(t, s), func(d time.Duration) { now = now.Add(d); s.SetTime(t, now); s.Mini().FastForward(d) }
	// 1: a redelivery after the mark has ended runs.
	tasks := stamped(t, e, "a")
	tasks[0].run(t, OutcomeDone)
	if _, err := e.Take(t.Context(), &tasks[0].r); !errors.Is(err, ErrOrderDone) {
		t.Errorf("delivered again: %v, want ErrOrderDone", err)
	}
	pass(6 * time.Minute)
	tasks[0].run(t, OutcomeDone)
	// 3: archived and deleted before a look counts as deleted.
	tasks = stamped(t, e, "a", "b")
	tasks[0].run(t, OutcomeStays)
	pass(6 * time.Second)
	tasks[0].isGone(t)
	tasks[1].run(t, OutcomeDone)
	// 5: an Enqueue that failed and lands late runs next.
	tasks = stamped(t, e, "ghost", "b")
	pass(stampLife + time.Second)
	tasks[0].isGone(t)
	tasks[1].run(t, OutcomeDone)
	tasks[0].run(t, OutcomeDone)
}

// startObeying is an engine that obeys the orders for a prefix of its own.
func startObeying(t *testing.T, rdb redisx.Client) *Engine {
	t.Helper()
	e := New(Options{Client: rdb, Prefix: redistest.Name(t), Owner: "test", Log: slog.New(slog.DiscardHandler),
		Obeys: true})
	t.Cleanup(e.Close)
	return e
}

// TestLeaves_pausedBeforeItStands: a pause that comes after a waiter's first ask and before it stands in line ends its
// wait.
func TestLeaves_pausedBeforeItStands(t *testing.T) {
	e := startObeying(t, redistest.Mini(t).Client(t))
	r := Request{Ref: Ref{Key: e.o.Prefix + ":{work}", Limit: 1}, TTL: 30 * time.Second}
	held := must(t, e, r)
	r = inLine(r)
	r.Line.AtPause = true
	r.Line.OnWait = func(time.Duration) {
		redistest.Must(t, e.Controls().Give(t.Context(), control.Pauses, "work", control.Control{Paused: true}))
		eventually(t, func() bool { return e.Controls().PauseOf(r.Key) != nil }, "news")
		e.AskAll()
	}
	within, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var busy *Busy
	if _, err := e.Take(within, &r); !errors.As(err, &busy) || busy.Pause == nil || busy.Cause != nil {
		t.Errorf("%v, want the wait's end", err)
	}
	if a, _, err := e.ask(t.Context(), e.newLease(&r, noLine), askTry, false, false); err != nil || a.Pause == nil {
		t.Errorf("%+v, %v; want the order that keeps it out", a, err)
	}
	release(t, held)
}

// TestPausedByEachCommand: while a lock is paused no command gives it to who waits. One of them does so after the
// pause.
func TestPausedByEachCommand(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb, ctx := s.Client(t), t.Context()
		e := startObeying(t, rdb)
		held := map[string]*Lease{}
		for _, by := range []string{"release", "break", "sweep"} {
			held[by] = must(t, e, asked(e.ref("work|"+by), ""))
			join(t, e, held[by].request.Ref, "w.1", "", time.Hour)
		}
		heads := map[string]ordered{}
		for _, by := range []string{"skip", "act"} {
			o := ordered{e, asked(e.ref("work|"+by), "")}
			heads[by] = o.stamp(t, "a")
			b := o.stamp(t, "b")
			arrives(t, e, o.r.Ref, "b", "nb", b.r.Place.Ticket, time.Hour, false)
		}
		redistest.Must(t, e.Controls().Give(ctx, control.Pauses, "work", control.Control{Paused: true}))
		release(t, held["release"])
		n, err := e.Break(ctx, held["break"].request.Ref, BreakHolders, held["break"].Token())
		redistest.Must(t, err)
		redistest.Must(t, rdb.Del(ctx, held["sweep"].request.Key+":holders").Err()) // it has died
		_, err = e.Sweep(ctx)
		redistest.Must(t, err)
		_, err = e.Skip(ctx, heads["skip"].r.Ref, "a", heads["skip"].r.Place.Ticket)
		redistest.Must(t, err)
		a := heads["act"].r.Place
		redistest.Must(t, e.Act(ctx, heads["act"].r.Ref, ActWithdraw, OrderItem{Nonce: a.Nonce, Ticket: a.Ticket, Note: "a"},
			0))
		count := func(want int) {
			t.Helper()
			for _, by := range []string{"release", "break", "sweep", "skip", "act"} {
				ref := e.ref("work|" + by)
				ref.Ordered = heads[by].e != nil
				if info := inspect(t, e, ref); info.Held != want {
					t.Errorf("%s: held by %d, want %d; %d broken", by, info.Held, want, n)
				}
			}
		}
		count(0)
		_, err = e.Controls().End(ctx, control.Pauses, "work")
		redistest.Must(t, err)
		for _, head := range heads {
			redistest.Must(t, e.Act(ctx, head.r.Ref, ActNone, OrderItem{}, 0))
		}
		_, err = e.Sweep(ctx)
		redistest.Must(t, err)
		count(1)
	})
}

// TestBrokenBeforeItIsHeld: a waiter whose grant is broken before it has seen it does not take the message of that
// grant for the lock.
func TestBrokenBeforeItIsHeld(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		e, r := start(t, s), request(t)
		le := must(t, e, r)
		waits := inLine(r)
		waits.Line.OnWait = func(time.Duration) {
			e.mu.Lock()
			var token string
			for token = range e.waiters {
			}
			e.mu.Unlock()
			at := time.Now().Add(time.Hour).UnixMicro() // after each reply
			e.deliver(message{token: token, fence: brokenFence, serverUS: at})
			e.deliver(message{token: token, fence: at - 1, serverUS: at - 1})
			e.mu.Lock()
			defer e.mu.Unlock()
			if e.waiters[token] == nil {
				t.Error("it holds what was broken")
			}
			delete(e.waiters, token)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if _, err := e.Take(ctx, &waits); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		release(t, le)
	})
}
