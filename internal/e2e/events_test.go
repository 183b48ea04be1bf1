package e2e

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/keys"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// Every kind of event, with every field that has a meaning for it and no other.
func TestEvents_fields(t *testing.T) {
	t.Parallel()
	redistest.EachSingle(t, func(t *testing.T, s *redistest.Server) {
		p, locks := behindProxy(t, s)
		r := start(t, s, setup{locks: locks, rules: []automutex.Rule{
			{Name: "turns", On: onID, MaxHold: soon, Busy: automutex.Retry},
			{Task: "skip", Name: "skip", On: onID, Busy: automutex.Skip},
		}})
		// is checks an event. Of Waited, Held and Delay, which nobody knows, it checks that those are set which want has.
		is := func(want automutex.Event, id string, err error) (got automutex.Event) {
			t.Helper()
			got = r.awaitEvent(want.Kind, id)
			same := got
			for _, d := range [][2]time.Duration{{got.Waited, want.Waited}, {got.Held, want.Held}, {got.Delay, want.Delay}} {
				if (d[0] > 0) != (d[1] > 0) || d[0] < d[1] {
					t.Errorf("%s: %+v, want %s at least", want.Kind, got, d[1])
				}
			}
			same.Waited, same.Held, same.Delay, same.Err, same.Busy = want.Waited, want.Held, want.Delay, nil, nil
			want.Queue, want.TaskID = r.queue, id
			if same != want || !errors.Is(got.Err, err) || (got.Busy != nil) != (want.Kind == automutex.EventBusy) {
				t.Errorf("got  %+v\nwant %+v, %v", got, want, err)
			}
			return got
		}
		const least = soon / 2 // a busy machine may come to the task some time after it has the lock
		of := func(kind automutex.EventKind) automutex.Event {
			return automutex.Event{Kind: kind, Rule: "turns", Key: r.lockOf("work", "1").Key(), Task: "work"}
		}
		held := func(kind automutex.EventKind, d time.Duration) automutex.Event {
			e := of(kind)
			e.Held = d
			return e
		}

		id := r.enqueueOne()
		run := r.next()
		acquired := of(automutex.EventAcquired)
		acquired.Waited = 1
		is(acquired, id, nil)
		run.cut()
		is(held(automutex.EventOverdue, 1), id, context.Canceled)
		is(held(automutex.EventLost, least), id, lock.ErrLost)
		run.returns(nil)
		is(held(automutex.EventReleased, least), id, nil)

		lease := r.take("work", "1")
		id = r.enqueueOne()
		retried, busy := of(automutex.EventRetried), of(automutex.EventBusy)
		retried.Policy, busy.Policy, retried.Delay = automutex.Retry, automutex.Retry, time.Second
		is(retried, id, nil)
		if b := is(busy, id, nil).Busy; b == nil || b.Key != busy.Key || b.Rule != "turns" {
			t.Errorf("got %+v", b)
		}
		r.free(lease)
		r.take("skip", "1")
		id = r.enqueue("skip", one)
		key := r.lockOf("skip", "1").Key()
		is(automutex.Event{Kind: automutex.EventSkipped, Rule: "skip", Key: key, Task: "skip", Policy: automutex.Skip}, id,
			nil)

		id = r.enqueue("work", `{}`)
		if e := r.awaitEvent(automutex.EventKeyError, id); e.Err == nil || e.Key != "" || e.Task != "work" ||
			e.Queue != r.queue {
			t.Errorf("got %+v", e)
		}
		away(p)
		is(of(automutex.EventBackendError), r.enqueueOne(), lock.ErrBackend)
		p.Heal()
	})
}

// Contention is no news: an operator's log stays empty, whatever the policy.
func TestEvents_quietLog(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		policies := []automutex.Policy{automutex.Retry, automutex.RetryIn(time.Minute), automutex.Skip, automutex.Archive,
			automutex.Fail, automutex.Allow, automutex.AfterFailure(answers)}
		var rules []automutex.Rule
		for i, policy := range policies {
			rules = append(rules, automutex.Rule{Task: fmt.Sprintf("%d: %s", i, policy), Busy: policy})
		}
		rules = append(rules, automutex.Rule{Task: "waits", Wait: time.Minute, Busy: automutex.Retry})
		r := start(t, s, setup{rules: rules})
		for _, rule := range rules {
			r.enqueue(rule.Task, nil)
			run := r.next()
			id := r.enqueue(rule.Task, nil)
			last := ""
			if rule.Task != "waits" {
				r.awaitEvent(automutex.EventBusy, id)
			} else {
				r.awaitLine(1, rule.Task)
				last = id
			}
			run.returns(nil)
			if last != "" || rule.Busy == automutex.Allow {
				r.next().returns(nil)
			}
		}
		r.stop()
		if text := r.log.Text(slog.LevelInfo); text != "" {
			t.Errorf("logged: %s", text)
		}
	})
}

// The context of an event is the task's: a tracer finds its span there.
func TestJoinObservers(t *testing.T) {
	t.Parallel()
	type key struct{}
	var called []string
	observer := func(name string) func(context.Context, automutex.Event) {
		return func(ctx context.Context, e automutex.Event) {
			called = append(called, fmt.Sprint(name, " ", e.Kind, " ", ctx.Value(key{})))
		}
	}
	guard, err := automutex.New(redistest.Mini(t).Client(t), automutex.Config{
		Rules: []automutex.Rule{{Task: "work"}}, Prefix: redistest.Name(t),
		Observe: automutex.JoinObservers(observer("a"), nil, observer("b")),
	})
	redistest.Must(t, err)
	handler := guard.Middleware(asynq.HandlerFunc(func(context.Context, *asynq.Task) error { return nil }))
	redistest.Must(t, handler.ProcessTask(context.WithValue(t.Context(), key{}, "mine"), asynq.NewTask("work", nil)))
	redistest.Must(t, guard.Close(t.Context()))
	if want := []string{"a acquired mine", "b acquired mine", "a released mine", "b released mine"}; !slices.Equal(called,
		want) {
		t.Errorf("called %q, want %q", called, want)
	}
	automutex.JoinObservers()(t.Context(), automutex.Event{})
	automutex.JoinObservers(nil)(t.Context(), automutex.Event{})
}

// wantPolicy reports an error if an event of the task names another policy as the one that applied.
func (r *rig) wantPolicy(id string, want automutex.Policy) {
	r.t.Helper()
	for _, event := range r.seen.list(automutex.EventBusy, automutex.EventSkipped, automutex.EventRetried,
		automutex.EventParked, automutex.EventReplaced) {
		if event.TaskID == id && event.Policy != want {
			r.t.Errorf("%s names the policy %s, want %s", event.Kind, event.Policy, want)
		}
	}
}

// A wait in line is told of when it begins and when it ends, whatever ends it.
func TestWaiting_events(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		for name, o := range map[string]struct {
			rule automutex.Rule
			end  func(r *rig, id string, free func())
			then []automutex.EventKind
		}{
			"granted": {automutex.Rule{Wait: time.Minute, Busy: automutex.Retry}, func(_ *rig, _ string, free func()) { free() },
				[]automutex.EventKind{automutex.EventAcquired, automutex.EventReleased}},
			"in vain": {automutex.Rule{Wait: 900 * time.Millisecond, Busy: automutex.Retry}, func(*rig, string, func()) {},
				[]automutex.EventKind{automutex.EventBusy, automutex.EventRetried}},
			"closed": {automutex.Rule{Wait: time.Minute, Busy: automutex.Retry}, func(r *rig, _ string, _ func()) {
				if err := r.guard.Close(context.Background()); err != nil {
					r.t.Error(err)
				}
			}, []automutex.EventKind{automutex.EventRetried}},
			"the task's context ends": {automutex.Rule{Wait: time.Minute, Busy: automutex.Retry},
				func(r *rig, id string, _ func()) {
					// A server that has only begun may not listen for it yet.
					eventually(r.t, func() bool {
						return r.inspector.CancelProcessing(id) == nil && len(r.seen.list(automutex.EventWaited)) > 0
					}, "the wait of %s ends with its context", id)
				}, nil},
			"the last worker is wanted": {automutex.Rule{Busy: automutex.Park}, func(r *rig, _ string, _ func()) {
				r.enqueue("another", nil)
				r.next()
			}, []automutex.EventKind{automutex.EventBusy, automutex.EventParked}},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				r, free := busyRig(t, s, o.rule, setup{workers: 2})
				came, id := time.Now(), r.enqueueOne()
				began := r.awaitEvent(automutex.EventWaiting, id)
				if want := (automutex.Event{
					Kind: automutex.EventWaiting, Rule: "work", Key: r.lockOf("work", "1").Key(), Task: "work", Queue: r.queue,
					TaskID: id,
				}); began != want {
					t.Errorf("got  %+v\nwant %+v", began, want)
				}
				o.end(r, id, free)
				ended := r.awaitEvent(automutex.EventWaited, id)
				if ended.Waited <= 0 || ended.Waited > time.Since(came) || o.rule.Wait < time.Second &&
					time.Since(came) < o.rule.Wait {
					t.Errorf("waited %s of %s", ended.Waited, o.rule.Wait)
				}
				if began.Kind, began.Waited = automutex.EventWaited, ended.Waited; ended != began {
					t.Errorf("got  %+v\nwant %+v", ended, began)
				}
				if name == "granted" {
					r.next().returns(nil)
				}
				want := append([]automutex.EventKind{automutex.EventWaiting, automutex.EventWaited}, o.then...)
				var kinds []automutex.EventKind
				eventually(t, func() bool {
					kinds = r.seen.kindsOf(id)
					return len(kinds) >= len(want)
				}, "as many events as %v", want)
				r.stop()
				if kinds = r.seen.kindsOf(id); !slices.Equal(kinds, want) {
					t.Errorf("events %v, want %v", kinds, want)
				}
			})
		}
	})
}

// An Observe that panics costs its task nothing, and leaves no lock behind, also on a goroutine of the Guard's own.
func TestObserve_panics(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		for _, kind := range []automutex.EventKind{automutex.EventAcquired, automutex.EventReleased, automutex.EventOverdue} {
			r := start(t, s, setup{rules: []automutex.Rule{{Busy: automutex.Retry}},
				guarded: func(c *automutex.Config) {
					c.Observe = automutex.JoinObservers(c.Observe, func(_ context.Context, e automutex.Event) {
						if e.Kind == kind {
							panic("the observer's own fault")
						}
					})
				}})
			id := r.enqueue("work", nil)
			if run := r.next(); kind == automutex.EventOverdue {
				run.cut()
				r.awaitEvent(kind, id)
				r.stage.end()
			} else {
				r.ends(run)
			}
			eventually(t, func() bool { return !r.locked("work") }, "no lease is left")
		}
	})
}

// A function of AfterFailure that panics costs its task an attempt as a handler does, and what it holds already is
// given back.
func TestRule_functionsPanic(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		panics := automutex.AfterFailure(func(context.Context, *asynq.Task,
			*automutex.BusyError) error {
			panic("the rule's own fault")
		})
		r := start(t, s, setup{rules: []automutex.Rule{
			{Name: "first", Scope: "first", TTL: time.Hour, Busy: automutex.Retry},
			{Name: "second", Scope: "second", Busy: panics},
		}})
		held := r.take("second")
		id := r.enqueue("work", nil)
		says(t, r.awaitRetried(id, 1).LastErr, "the rule's own fault")
		r.wantLocked(false, "first")
		r.free(held)
		r.rerun(id)
		r.finishSpent(id, 1)
	})
}

const testSecret = "a secret of more than sixteen bytes"

// What a payload holds that nobody is to read but the handler, and the one field that makes the key.
const (
	keyValue      = "mona@example.com"
	privateNumber = "4111111111111111"
	privateText   = "do not tell"
)

// private are tasks' payloads. The number is where KeyOf wants a small one.
var private = fmt.Sprintf(`{"email":%q,"card":%s,"note":%q}`, keyValue, privateNumber, privateText)

// What a task's payload holds is not told: in no log line, event, error that asynq stores, and in nothing of ours in
// Redis.
func TestPrivacy_nothingOfThePayload(t *testing.T) {
	t.Parallel()
	for name, secret := range map[string]string{"readable": "", "hashed": testSecret} {
		t.Run(name, func(t *testing.T) {
			each(t, func(t *testing.T, s *redistest.Server) {
				told := tellAll(t, s, secret)
				for _, value := range []string{privateNumber, privateText, privateNumber[:8], "do%20not"} {
					if i := strings.Index(told, value); i >= 0 {
						t.Errorf("%q is told: %s", value, told[max(0, i-300):i+len(value)])
					}
				}
				if got := strings.Contains(told, keyValue); got != (secret == "") {
					i := max(0, strings.Index(told, keyValue))
					t.Errorf("the key's value is told: %v; %s", got, told[max(0, i-300):min(len(told), i+100)])
				}
				if strings.Contains(told, testSecret) {
					t.Error("the secret itself is told")
				}
			})
		})
	}
}

// tellAll has a guard say what it can say, by way of every policy and fault, and gives all of it.
func tellAll(t *testing.T, s *redistest.Server, secret string) string {
	policies := map[string]automutex.Policy{
		"retry": automutex.Retry, "skip": automutex.Skip, "archive": automutex.Archive, "fail": automutex.Fail,
		"park": automutex.Park, "replace": automutex.Replace, "allow": automutex.Allow,
	}
	rules := []automutex.Rule{
		{Task: "lost", On: []string{"email"}, Busy: automutex.Retry},
		{Task: "overdue", On: []string{"email"}, Busy: automutex.Retry},
		{Task: "newest", On: []string{"email"}, Busy: automutex.Replace, Wait: time.Minute},
		{Task: "nofield", On: []string{"email", "phone"}, Busy: automutex.Retry},
		{Task: "unfit", Key: automutex.KeyOf(func(v struct{ Card int8 }) []string { return []string{fmt.Sprint(v.Card)} }),
			Busy: automutex.Retry},
		{Task: "unread", Key: automutex.KeyOf(func(v struct{ Note time.Time }) []string { return []string{v.Note.String()} }),
			Busy: automutex.Retry},
	}
	for name, policy := range policies {
		rules = append(rules, automutex.Rule{Task: name, On: []string{"email"}, Busy: policy,
			Wait: time.Duration(len(name)) * time.Millisecond})
	}
	fail := &redistest.FailHook{}
	locks := s.Client(t)
	locks.AddHook(fail)
	r := start(t, s, setup{rules: rules, locks: locks, guarded: func(c *automutex.Config) { c.HashKeys = secret }})
	var told strings.Builder

	// Everybody finds the key busy; last errors are what asynq shows.
	others := lock.New(s.Client(t), lock.Options{Prefix: r.cfg.Prefix, HashKeys: secret, Logger: r.log.Logger()})
	t.Cleanup(func() { _ = others.Close() })
	for name := range policies {
		lease, err := others.Mutex(name, lock.Parts(keyValue)).TryLock(t.Context())
		redistest.Must(t, err)
		id := r.enqueue(name, private)
		switch name {
		case "archive":
			fmt.Fprintln(&told, r.awaitArchived(id).LastErr)
		case "skip":
			r.awaitDone(id)
		case "allow":
			r.finish(id)
		case "park":
			// It waits in its worker while another one is free; see what is stored.
			r.awaitEvent(automutex.EventWaiting, id)
			storedText(t, &told, s, r)
			r.free(lease)
			r.finish(id)
			continue
		default:
			fmt.Fprintln(&told, r.await(id, asynq.TaskStateRetry).LastErr)
		}
		storedText(t, &told, s, r)
		r.free(lease)
	}

	// Who is replaced, loses the lease, runs past its end, or has no key.
	older := r.enqueue("newest", private)
	run := r.next()
	r.enqueue("newest", private)
	run.returns(run.awaitEnd(t))
	r.awaitEvent(automutex.EventReplaced, older)
	r.next().returns(nil)

	id := r.enqueue("lost", private)
	run = r.next()
	redistest.Must(t, r.rdb.Del(t.Context(), keys.HashedKey(secret, r.cfg.Prefix, "lost", keyValue)).Err())
	run.returns(nil)
	r.awaitEvent(automutex.EventLost, id)

	id = r.enqueue("overdue", private)
	run = r.next()
	run.cut()
	r.awaitEvent(automutex.EventOverdue, id)
	run.returns(nil)

	for _, name := range []string{"nofield", "unfit", "unread"} {
		info := r.awaitArchived(r.enqueue(name, private))
		says(t, info.LastErr, "no key for task")
		fmt.Fprintln(&told, info.LastErr)
	}
	if info := r.awaitArchived(r.enqueue("nofield", "{"+private)); true {
		fmt.Fprintln(&told, info.LastErr)
	}

	// Redis refuses everything.
	fail.Before(func(redis.Cmder) error { return errors.New("refused") })
	fmt.Fprintln(&told, r.await(r.enqueue("retry", private), asynq.TaskStateRetry).LastErr)
	fail.Before(nil)

	for _, e := range r.seen.list() {
		fmt.Fprintf(&told, "%+v %v %v\n", e, e.Err, cmp.Or(e.Busy, &automutex.BusyError{}))
	}
	told.WriteString(r.log.Text(-100))
	for _, kind := range []automutex.EventKind{
		automutex.EventAcquired, automutex.EventWaiting, automutex.EventBusy, automutex.EventSkipped, automutex.EventRetried,
		automutex.EventReplaced, automutex.EventReleased,
		automutex.EventLost, automutex.EventOverdue, automutex.EventKeyError, automutex.EventBackendError,
	} {
		if len(r.seen.list(kind)) == 0 {
			t.Errorf("this test brings about no event %q", kind)
		}
	}
	return told.String()
}

// storedText writes down the names and members of everything of the guard's in
// Redis. (asynq keeps the payloads themselves.)
func storedText(t *testing.T, w *strings.Builder, s *redistest.Server, r *rig) {
	t.Helper()
	before := w.Len()
	for _, addr := range s.Addrs() {
		node := redis.NewClient(&redis.Options{Addr: addr})
		keys, err := node.Keys(t.Context(), r.cfg.Prefix+":*").Result()
		redistest.Must(t, err)
		for _, key := range keys {
			members, err := r.rdb.ZRange(t.Context(), key, 0, -1).Result()
			fmt.Fprintln(w, key, members, err)
		}
		redistest.Must(t, node.Close())
	}
	if w.Len() == before {
		t.Error("nothing is stored")
	}
}

// A secret that can be guessed is refused, and not told.
func TestPrivacy_shortSecret(t *testing.T) {
	t.Parallel()
	_, err := automutex.New(redistest.Mini(t).Client(t), automutex.Config{HashKeys: "hunter2"})
	if err == nil || !strings.HasPrefix(err.Error(), "automutex: Config.HashKeys: ") ||
		strings.Contains(err.Error(), "hunter2") {
		t.Errorf("got %v", err)
	}
}
