package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
)

// What becomes of a task whose key is not to be had, and of one that needs none; and what keys are made of.

var (
	errLater = errors.New("db: connection reset \xff")
	errNever = &automutex.KeyError{Task: "work", Field: "shop"}
)

// keyAnswers are what a function of a rule, or a Decode, may return, by the payload.
var keyAnswers = map[string]error{
	"later":         errLater,
	"never":         fmt.Errorf("looked: %w", errNever),
	"hour":          automutex.RetryAfter(time.Hour, errLater),
	"free":          fmt.Errorf("free of charge: %w", automutex.NoLock),
	"archive":       fmt.Errorf("no plan: %w", asynq.SkipRetry),
	"drop":          fmt.Errorf("no plan: %w", asynq.RevokeTask),
	"never, free":   &automutex.KeyError{Task: "work", Err: automutex.NoLock},
	"free, archive": fmt.Errorf("%w: %w", automutex.NoLock, asynq.SkipRetry),
	"later, free":   errors.Join(automutex.NoLock, errLater),
}

// keyFunctions give a rule for tasks of type "work" one function that keys need, which ends as fail does.
var keyFunctions = map[string]func(c *automutex.Config, fail func(*asynq.Task) error){
	"the rule's LimitOf": func(c *automutex.Config, fail func(*asynq.Task) error) {
		c.Rules[0].LimitOf = func(_ context.Context, t *asynq.Task) (int, error) { return 1, fail(t) }
	},
	"the rule's RateOf": func(c *automutex.Config, fail func(*asynq.Task) error) {
		c.Rules[0].Limit, c.Rules[0].RateOf = 1, func(_ context.Context, t *asynq.Task) (automutex.Rate, error) {
			return automutex.Rate{}, fail(t)
		}
	},
	"the rule's Cost": func(c *automutex.Config, fail func(*asynq.Task) error) {
		c.Rules[0].Limit, c.Rules[0].Rate = 1, automutex.Rate{Starts: 1000, Per: time.Millisecond}
		c.Rules[0].Cost = func(_ context.Context, t *asynq.Task) (int, error) { return 1, fail(t) }
	},
	"the rule's Key": func(c *automutex.Config, fail func(*asynq.Task) error) {
		c.Rules[0].Key = func(_ context.Context, t *asynq.Task) ([]string, error) { return []string{"k"}, fail(t) }
	},
	"Config.Decode": func(c *automutex.Config, fail func(*asynq.Task) error) {
		c.Rules[0].On = onID
		c.Decode = func(t *asynq.Task) ([]byte, error) { return []byte(`{"id":1}`), fail(t) }
	},
}

// A Key, LimitOf, RateOf, Cost and Decode end their task alike: what is no *KeyError has it come back, its attempt not
// spent; the log says once which function of which rule fails.
func TestKeyFailure(t *testing.T) {
	t.Parallel()
	for function, set := range keyFunctions {
		t.Run(function, func(t *testing.T) {
			each(t, func(t *testing.T, s *redistest.Server) {
				hour := time.Now().Hour() // it is logged once in an hour
				var works atomic.Bool
				rules := []automutex.Rule{{Task: "work", Name: "50%d", Busy: automutex.Skip}, {Task: "fine", Busy: automutex.Retry}}
				r := start(t, s, setup{rules: rules, guarded: func(c *automutex.Config) {
					set(c, func(t *asynq.Task) error {
						if string(t.Payload()) == "panics" {
							panic("the function's own fault")
						}
						if works.Load() {
							return nil
						}
						return keyAnswers[string(t.Payload())]
					})
				}})
				endsAtOnce(t, r, function)
				again := comesBackLater(t, r)
				r.finish(r.enqueue("fine", nil)) // is not of that rule
				last := r.enqueue("work", "later", asynq.MaxRetry(0))
				r.awaitEvent(automutex.EventBackendError, last)
				r.none()
				works.Store(true)
				r.finish(last)
				for _, id := range again {
					r.rerun(id)
					r.finish(id)
				}
				text := r.log.Text(slog.LevelInfo)
				for _, want := range []string{"a function fails with an error that is no *KeyError", "function=" + function,
					"rule=50%d"} {
					if strings.Count(text, want) != 1 && time.Now().Hour() == hour {
						t.Errorf("want %q once in\n%s", want, text)
					}
				}
			})
		})
	}
}

// endsAtOnce has tasks meet what ends them, with and without attempts left.
func endsAtOnce(t *testing.T, r *rig, function string) {
	t.Helper()
	for _, attempts := range []int{3, 0} {
		for _, says := range []string{"never", "archive", "never, free", "free, archive"} {
			id := r.enqueue("work", says, asynq.MaxRetry(attempts))
			info := r.awaitArchived(id)
			if event := r.awaitEvent(automutex.EventKeyError, id); !errors.Is(event.Err, keyAnswers[says]) ||
				len(r.seen.kindsOf(id)) != 1 {
				t.Errorf("%s: %+v, of %q", says, event, r.seen.kindsOf(id))
			}
			want := `automutex: rule "50%d": ` + function + " failed: no plan"
			if says == "archive" && !strings.Contains(info.LastErr, want) || info.Retried > 0 {
				t.Errorf("%s, %d retries left: %q; want %q", says, attempts, info.LastErr, want)
			}
		}
		r.awaitDropped(r.enqueue("work", "drop", asynq.MaxRetry(attempts)))
		r.none()
		ids := []string{r.enqueue("work", "free", asynq.MaxRetry(attempts)),
			r.enqueue("work", "free", asynq.MaxRetry(attempts))}
		for _, run := range []*run{r.next(), r.next()} { // at once
			if _, ok := automutex.Lease(run.ctx); ok {
				t.Error("it has a lease")
			}
			defer run.returns(nil)
		}
		if kinds := slices.Concat(r.seen.kindsOf(ids[0]), r.seen.kindsOf(ids[1])); len(kinds) > 0 {
			t.Errorf("events %v", kinds)
		}
	}
	panics := r.enqueue("work", "panics")
	says(t, r.awaitRetried(panics, 1).LastErr, "the function's own fault")
	text := r.log.Text(slog.LevelWarn)
	if !strings.Contains(text, "it is archived") || !strings.Contains(text, "it is dropped") ||
		strings.Contains(text, "no *KeyError") {
		t.Errorf("logged: %s", text)
	}
}

// comesBackLater gives the tasks that asynq is to run again.
func comesBackLater(t *testing.T, r *rig) (ids []string) {
	t.Helper()
	for payload, most := range map[string]time.Duration{"later": 30 * time.Second, "later, free": 30 * time.Second,
		"hour": time.Hour} {
		id := r.enqueue("work", payload)
		ids = append(ids, id)
		info := r.awaitRetried(id, 0)
		says(t, info.LastErr, "connection reset", `rule "50%d"`)
		delay := r.awaitEvent(automutex.EventRetried, id).Delay
		if delay < max(time.Second, most-30*time.Second) || delay > most+time.Second { // an hour is spread, too
			t.Errorf("%s: it comes back after %s", payload, delay)
		}
		if event := r.awaitEvent(automutex.EventBackendError, id); !errors.Is(event.Err, errLater) || event.Rule != "50%d" {
			t.Errorf("%s: got %+v", payload, event)
		}
	}
	info := r.awaitArchived(r.enqueue("work", "hour", asynq.MaxRetry(0)))
	says(t, info.LastErr, "to be run again after 1h0m0s")
	return ids
}

// Of several keys that cannot be made the strongest reason counts, and not the order of the rules. NoLock of one rule
// leaves the others.
func TestKeyFailure_severalRules(t *testing.T) {
	t.Parallel()
	says := func(err error) automutex.KeyFunc {
		return func(context.Context, *asynq.Task) ([]string, error) { return nil, err }
	}
	guard := newGuard(t, redistest.Mini(t), &redistest.Log{}, &events{},
		automutex.Rule{Task: "work", Name: "a", Scope: "a", Key: says(errLater)},
		automutex.Rule{Task: "work", Name: "b", Scope: "b", Key: says(errNever)},
		automutex.Rule{Task: "krow", Name: "c", Scope: "c", Key: says(errNever)},
		automutex.Rule{Task: "krow", Name: "d", Scope: "d", Key: says(errLater)},
		automutex.Rule{Task: "free", Name: "e", Scope: "e", Key: says(automutex.NoLock)},
		automutex.Rule{Task: "free", Name: "f", Scope: "f", On: onID})
	handler := guard.Middleware(asynq.HandlerFunc(func(context.Context, *asynq.Task) error { return nil }))
	for _, task := range []string{"work", "krow"} {
		if err := handler.ProcessTask(t.Context(), asynq.NewTask(task, nil)); !errors.Is(err, errNever) ||
			!errors.Is(err, asynq.SkipRetry) {
			t.Errorf("%s: %v", task, err)
		}
	}
	keys, err := guard.Keys(t.Context(), asynq.NewTask("free", []byte(`{"id":1}`)))
	if err != nil || len(keys) != 1 || !strings.Contains(keys[0], "{f|1}") {
		t.Errorf("got %v, %v", keys, err)
	}
}

// Under Allow a task runs without the key that cannot be made, and under those of other rules.
func TestAllow_noKey(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s, setup{rules: []automutex.Rule{
			{Task: "measured", On: onID, Busy: automutex.Allow},
			{Task: "both", Name: "allow", Scope: "allow", On: []string{"idd"}, Busy: automutex.Allow},
			{Task: "both", Name: "retry", Scope: "retry", On: onID, Busy: automutex.Retry},
			{Task: "later", Key: func(context.Context, *asynq.Task) ([]string, error) { return nil, errLater },
				Busy: automutex.Allow},
		}})
		for taskType, payload := range map[string]string{"measured": "not JSON", "both": `{"id":1}`, "later": ""} {
			id := r.enqueue(taskType, payload)
			run := r.next()
			event := r.awaitEvent(automutex.EventKeyError, id)
			if event.Policy != automutex.Allow || event.Rule == "" || event.Err == nil {
				t.Errorf("%s: %+v", taskType, event)
			}
			if _, ok := automutex.LeaseOf(run.ctx, "retry"); ok != (taskType == "both") {
				t.Errorf("%s: the lease of the other rule: %t", taskType, ok)
			}
			r.ends(run)
		}
		id := r.enqueue("both", `{"idd":1}`) // the rule that enforces has no key
		r.awaitArchived(id)
		r.none()
		r.wantKinds(id, automutex.EventKeyError)
	})
}

// The limit of a task's key is what its field says, and an operator's limit wins. A limit of 0 archives.
func TestLimitOf(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s, setup{rules: []automutex.Rule{
			{On: onID, LimitField: &automutex.LimitField{Path: "plan.max", Default: 1, Most: 2}, Busy: automutex.Skip},
			{Task: "none", LimitOf: func(context.Context, *asynq.Task) (int, error) { return 0, nil }},
		}})
		larger := `{"id": 1, "plan": {"max": 7}}`
		r.enqueue("work", larger)
		r.enqueue("work", larger)
		first, second := r.next(), r.next()
		r.awaitEvent(automutex.EventSkipped, r.enqueue("work", larger))
		r.enqueue("work", `{"id": 2}`)
		third := r.next()
		r.awaitEvent(automutex.EventSkipped, r.enqueue("work", `{"id": 2}`))
		redistest.Must(t, r.guard.Controls().SetLimit(t.Context(), "work|1", 3, ""))
		r.enqueue("work", larger)
		fourth := r.next()
		for _, run := range []*run{first, second, third, fourth} {
			run.returns(nil)
		}
		says(t, r.awaitArchived(r.enqueue("none", nil)).LastErr, "LimitOf gave 0")
	})
}

// The rate of a task's key is what its RateOf says, and it counts for as many starts as its Cost says. What is out of
// bounds archives.
func TestRateOf_cost(t *testing.T) {
	t.Parallel()
	type task struct{ Tenant, Starts, Cost int }
	of := func(t *asynq.Task) (its task) { _ = json.Unmarshal(t.Payload(), &its); return its }
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, busy := range []automutex.Policy{automutex.Skip, automutex.Park} {
			r := start(t, s, setup{rules: []automutex.Rule{{On: []string{"Tenant"}, Limit: automutex.Unlimited,
				RateOf: func(_ context.Context, t *asynq.Task) (automutex.Rate, error) {
					n := of(t).Starts
					return automutex.Rate{Starts: n, Per: time.Duration(n) * time.Hour, Burst: 2 * n}, nil
				},
				Cost: func(_ context.Context, t *asynq.Task) (int, error) { return of(t).Cost, nil }, Busy: busy}}})
			for _, test := range []struct {
				task task
				runs bool
			}{
				{task{1, 1, 0}, true}, {task{1, 1, 1}, true}, {task{1, 1, 7}, true}, {task{1, 1, 0}, false},
				{task{2, 2, 3}, true}, {task{2, 2, 1}, true}, {task{2, 2, 1}, false}, // its plan is another
				{task{3, 0, 9}, true}, {task{3, 0, 9}, true}, // has none
			} {
				id := r.enqueue("work", test.task)
				if test.runs {
					r.finish(id)
				} else if b := r.awaitEvent(automutex.EventBusy, id).Busy; b.Reason != automutex.ReasonRate {
					t.Errorf("%s, %+v: %+v", busy, test, b)
				}
			}
			for want, its := range map[string]task{"RateOf gave -1 per -1h": {1, -1, 1},
				"Cost gave a number that is not 0":          {1, 1, -1},
				"Cost gave a number that is not 0 to 87600": {1, 1, 87601}} {
				says(t, r.awaitArchived(r.enqueue("work", its)).LastErr, want)
			}
		}
	})
}

// A later key whose gate another task's RateOf has closed keeps a task out before it takes its first one, for as long
// as that rate says; under Park it goes by its own rate from when it has its place.
func TestRateOf_ofALaterKey(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		for _, busy := range []automutex.Policy{automutex.Retry, automutex.Park} {
			r := start(t, s, setup{rules: []automutex.Rule{{Task: "work", Scope: "first", Busy: busy}, {Task: "work",
				Scope: "later", Limit: automutex.Unlimited, Busy: busy,
				RateOf: func(_ context.Context, t *asynq.Task) (automutex.Rate, error) {
					per, err := time.ParseDuration(string(t.Payload()))
					return automutex.Rate{Starts: 1, Per: per}, err
				}}}})
			r.finish(r.enqueue("work", "1h"))
			id := r.enqueue("work", "10ms")
			if busy == automutex.Park {
				r.finish(id)
			} else if e := r.awaitEvent(automutex.EventRetried, id); e.Delay < 59*time.Minute || r.locked("first") {
				t.Errorf("%+v", e)
			}
		}
	})
}

// unwrap is a Decode that counts its calls: a word stands before the JSON.
func unwrap(calls *atomic.Int64) func(*asynq.Task) ([]byte, error) {
	return func(t *asynq.Task) ([]byte, error) {
		calls.Add(1)
		_, rest, _ := bytes.Cut(t.Payload(), []byte(" "))
		return rest, nil
	}
}

// Every way to make a key from the payload reads what Decode returned, once for all rules; headers and the type stay.
func TestDecode(t *testing.T) {
	t.Parallel()
	type order struct {
		ID   int    `json:"id"`
		Shop string `json:"shop"`
	}
	var calls atomic.Int64
	maker, err := automutex.NewKeyMaker(automutex.Config{Decode: unwrap(&calls), Rules: []automutex.Rule{
		{Task: "work", Scope: "on", On: onID, Payload: order{}},
		{Task: "work", Name: "on2", Scope: "on2", On: []string{"shop"}, OnHeaders: []string{"tenant"}},
		{Task: "work", Name: "fields", Scope: "fields", Key: automutex.Fields("id")},
		{Task: "work", Name: "typed", Scope: "typed",
			Key: automutex.KeyOf(func(o order) []string { return []string{o.Shop} })},
		{Task: "work", Name: "own", Scope: "own", Key: func(_ context.Context, t *asynq.Task) ([]string, error) {
			return []string{t.Type(), t.Headers()["tenant"], string(t.Payload())}, nil
		}},
		{Task: "work", Name: "all", Scope: "all"},
		{Task: "header", OnHeaders: []string{"tenant"}},
		{Task: "on", On: onID},
		{Task: "typed", Name: "typed only",
			Key: automutex.KeyOf(func(v struct{ ID string }) []string { return []string{v.ID} })},
	}})
	redistest.Must(t, err)
	const envelope = `v1 {"id": 7, "shop": "a"}`
	for taskType, want := range map[string][]string{
		"work":   {`{on|7}`, `{on2|a|acme}`, `{fields|7}`, `{typed|a}`, `{own|work|acme|`, `{all}`},
		"header": {`{header|acme}`},
	} {
		calls.Store(0)
		task := asynq.NewTaskWithHeaders(taskType, []byte(envelope), map[string]string{"tenant": "acme"})
		keys, err := maker.Keys(t.Context(), task)
		redistest.Must(t, err)
		for i, want := range want {
			says(t, keys[i], want)
		}
		if n := calls.Load(); n > 1 || taskType == "header" && n > 0 || string(task.Payload()) != envelope {
			t.Errorf("%s: Decode was called %d times, and left %s", taskType, n, task.Payload())
		}
	}
	for _, c := range []struct{ task, payload, want string }{
		{"on", "v1 id=7",
			`automutex: no key for task "on": field "id": the payload is not JSON (byte 1); set Rule.Key or Rule.OnHeaders for ` +
				`other encodings, or Config.Decode for JSON in an envelope`},
		{"on", "v1", "the payload is empty; enqueue the task with a value there"},
		{"on", "v1 {\"id\":\"\xff\"}", "the payload is not valid UTF-8; set Rule.Key or Rule.OnHeaders for other " +
			"encodings, or Config.Decode"},
		{"on", "v1 {}", `field "id" is missing`},
		{"typed", "v1 id=7", "or Config.Decode for JSON"},
	} {
		var never *automutex.KeyError
		_, err := maker.Keys(t.Context(), asynq.NewTask(c.task, []byte(c.payload)))
		if !errors.As(err, &never) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: got %v, want %s", c.payload, err, c.want)
		}
	}
}

// Optional is for the fields of the key: a task without the field of its LimitField is archived.
func TestRule_optionalLimit(t *testing.T) {
	eachRig(t, setup{rules: []automutex.Rule{{On: onID, Optional: true,
		LimitField: &automutex.LimitField{Path: "tenant.max"}, Busy: automutex.Retry}}}, func(t *testing.T, r *rig) {
		r.awaitArchived(r.enqueueOne())
		r.finish(r.enqueue("work", map[string]any{"tenant": map[string]int{"max": 2}}))
	})
}

// With Optional a task without the field takes no lock of the rule; a field that is no value for a key, or that is
// there in another letter case, still archives.
func TestRule_optional(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		g := newGuard(t, s, &redistest.Log{}, &events{},
			automutex.Rule{Task: "work", Name: "tenant", Scope: "tenant", On: []string{"tenant"}, OnHeaders: []string{"region"},
				Optional: true, Busy: automutex.Retry}, automutex.Rule{Task: "work", Name: "id", Scope: "id", On: onID,
				Busy: automutex.Retry})
		headers := map[string]string{"region": "eu"}
		for payload, want := range map[string]int{
			`{"id":1,"tenant":"a"}`: 2, `{"id":1}`: 1, `{"id":1,"tenant":null}`: 1, `{"id":1,"tenant":""}`: 1,
		} {
			if keys, err := g.Keys(t.Context(), asynq.NewTaskWithHeaders("work", []byte(payload), headers)); err != nil ||
				len(keys) != want {
				t.Errorf("%s: %d keys, %v, want %d", payload, len(keys), err, want)
			}
		}
		if keys, err := g.Keys(t.Context(), asynq.NewTask("work", []byte(`{"id":1,"tenant":"a"}`))); err != nil ||
			len(keys) != 1 {
			t.Errorf("without the header: %d keys, %v", len(keys), err)
		}
		for _, payload := range []string{"", " ", "null", "{}", "7", `""`, "no JSON"} { // the last one is archived
			for _, on := range []string{"tenant", "."} {
				maker, err := automutex.NewKeyMaker(automutex.Config{Rules: []automutex.Rule{{Task: "work", On: []string{on},
					Optional: true}}})
				redistest.Must(t, err)
				missing := strings.Contains(" null \"\"", payload) || on != "." && payload != "no JSON"
				if keys, err := maker.Keys(t.Context(), asynq.NewTask("work", []byte(payload))); missing != (err == nil &&
					len(keys) == 0) {
					t.Errorf("%q of %q: %q, %v", on, payload, keys, err)
				}
			}
		}
		for _, payload := range []string{"", `{"tenant":"a"}`, `{"id":1,"tenant":1e999999}`, `{"id":1,"Tenant":"a"}`,
			`no JSON`} {
			var never *automutex.KeyError
			if _, err := g.Keys(t.Context(), asynq.NewTaskWithHeaders("work", []byte(payload), headers)); !errors.As(err,
				&never) {
				t.Errorf("%s: %v", payload, err)
			} else if named := strings.HasSuffix(err.Error(), "; enqueue the task with a value there, or change the rule's "+
				"On, or set its Optional"); named != (payload == "" || payload == `{"tenant":"a"}`) {
				t.Errorf("%s names Optional: %t: %v", payload, named, err)
			}
		}
	})
}
