package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
)

// What Config.Decode returns is what rules read. The envelope of these tests is a word
// before the JSON; each word is one way in which Decode ends.

var (
	errBusyStore = errors.New("keystore: connection reset \xff")
	envelope     = []byte(`v1 {"id": 7, "shop": "a"}`)
)

// unwrap is a Decode that counts its calls.
func unwrap(calls *atomic.Int64) func(*asynq.Task) ([]byte, error) {
	return func(t *asynq.Task) ([]byte, error) {
		calls.Add(1)
		word, rest, _ := bytes.Cut(t.Payload(), []byte(" "))
		switch string(word) {
		case "v1":
			return rest, nil
		case "busy":
			return nil, errBusyStore
		case "never":
			return nil, fmt.Errorf("unwrapped: %w", &automutex.KeyError{Task: t.Type(), Field: "envelope"})
		case "free":
			return nil, fmt.Errorf("unwrapped: %w", automutex.NoLock)
		}
		panic("the envelope's own fault")
	}
}

// decoding is a Guard with that Decode.
func decoding(t *testing.T, calls *atomic.Int64, rules ...automutex.Rule) *automutex.Guard {
	t.Helper()
	guard, err := automutex.New(redistest.Mini(t).Client(t), automutex.Config{Rules: rules, Prefix: redistest.Name(t), Logger: (&redistest.Log{}).Logger(), Decode: unwrap(calls)})
	redistest.Must(t, err)
	t.Cleanup(func() { _ = guard.Close(context.Background()) })
	return guard
}

// Every way to make a key from the payload reads what Decode returned, once for all
// rules; headers and the type stay.
func TestDecode_everyKeyReadsIt(t *testing.T) {
	t.Parallel()
	var calls atomic.Int64
	type order struct {
		ID   int    `json:"id"`
		Shop string `json:"shop"`
	}
	guard := decoding(t, &calls,
		automutex.Rule{Task: "work", Scope: "on", On: []string{"id"}, Payload: order{}, Busy: automutex.Retry},
		automutex.Rule{Task: "work", Name: "on2", Scope: "on2", On: []string{"shop"}, OnHeaders: []string{"tenant"}, Busy: automutex.Retry},
		automutex.Rule{Task: "work", Name: "fields", Scope: "fields", Key: automutex.Fields("id"), Busy: automutex.Retry},
		automutex.Rule{Task: "work", Name: "typed", Scope: "typed", Key: automutex.KeyOf(func(o order) []string { return []string{o.Shop} }), Busy: automutex.Retry},
		automutex.Rule{Task: "work", Name: "own", Scope: "own", Key: func(_ context.Context, t *asynq.Task) ([]string, error) {
			return []string{t.Type(), t.Headers()["tenant"], string(t.Payload())}, nil
		}, Busy: automutex.Retry},
		automutex.Rule{Task: "work", Name: "all", Scope: "all", Busy: automutex.Retry})
	task := asynq.NewTaskWithHeaders("work", envelope, map[string]string{"tenant": "acme"})
	keys, err := guard.Keys(t.Context(), task)
	redistest.Must(t, err)
	for i, want := range []string{`{on|7}`, `{on2|a|acme}`, `{fields|7}`, `{typed|a}`, `{own|work|acme|`, `{all}`} {
		if !strings.Contains(keys[i], want) {
			t.Errorf("key %d is %s, want %s", i, keys[i], want)
		}
	}
	if n := calls.Load(); n != 1 {
		t.Errorf("Decode was called %d times for one task", n)
	}
	if string(task.Payload()) != string(envelope) {
		t.Errorf("the task has the payload %s now", task.Payload())
	}
}

// Rules that do not read the payload do not have it decoded.
func TestDecode_notForRulesWithoutPayload(t *testing.T) {
	t.Parallel()
	var calls atomic.Int64
	guard := decoding(t, &calls, automutex.Rule{Task: "work", Scope: "a", OnHeaders: []string{"tenant"}, Busy: automutex.Retry}, automutex.Rule{Task: "work", Name: "b", Scope: "b", Busy: automutex.Retry})
	keys, err := guard.Keys(t.Context(), asynq.NewTaskWithHeaders("work", []byte("never"), map[string]string{"tenant": "acme"}))
	if err != nil || len(keys) != 2 || calls.Load() != 0 {
		t.Errorf("got %v, %v, %d calls", keys, err, calls.Load())
	}
}

// What Decode returns may be no JSON either; the error says whose it is.
func TestDecode_returnsNoJSON(t *testing.T) {
	t.Parallel()
	var calls atomic.Int64
	guard := decoding(t, &calls, automutex.Rule{Task: "on", On: []string{"id"}, Busy: automutex.Retry}, automutex.Rule{Task: "typed", Key: automutex.KeyOf(func(v struct{ ID string }) []string { return []string{v.ID} }), Busy: automutex.Retry})
	for payload, want := range map[string]string{
		"v1 id=7":              `automutex: no key for task "on": field "id": the payload that Config.Decode returned is not JSON (byte 1); have Config.Decode return JSON, or set Rule.Key or Rule.OnHeaders for other encodings`,
		"v1":                   "the payload that Config.Decode returned is empty; have Config.Decode",
		"v1 {\"id\":\"\xff\"}": "the payload that Config.Decode returned is not valid UTF-8; have Config.Decode",
		"v1 {}":                `field "id" is missing`,
	} {
		_, err := guard.Keys(t.Context(), asynq.NewTask("on", []byte(payload)))
		var never *automutex.KeyError
		if !errors.As(err, &never) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %s", payload, err, want)
		}
	}
	if _, err := guard.Keys(t.Context(), asynq.NewTask("typed", []byte("v1 id=7"))); err == nil || !strings.Contains(err.Error(), "or Config.Decode for JSON") {
		t.Errorf("got %v", err)
	}
}

// Two tasks whose envelopes differ take turns by what is inside, and their handlers
// get the envelopes.
func TestDecode_middleware(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		var calls atomic.Int64
		r := start(t, s, decodingSetup(&calls, automutex.Rule{Task: "work", On: []string{"id"}, Wait: time.Hour, Busy: automutex.Retry}))
		first := r.enqueue("work", "v1 {\"id\":7}")
		run := r.stage.next(t)
		second := r.enqueue("work", "v1 {\"id\":7.0, \"more\":1}")
		r.awaitEvent(automutex.EventWaiting, second)
		if got := string(run.task.Payload()); got != "v1 {\"id\":7}" {
			t.Errorf("the handler got the payload %q", got)
		}
		run.returns(nil)
		r.await(first, asynq.TaskStateCompleted)
		r.finish(second)
		if n := calls.Load(); n != 2 {
			t.Errorf("Decode was called %d times for two tasks", n)
		}
	})
}

// Its errors end as those of a KeyFunc do.
func TestDecode_errors(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		var calls atomic.Int64
		r := start(t, s, decodingSetup(&calls, automutex.Rule{Task: "work", On: []string{"id"}, Busy: automutex.Skip}))

		id := r.enqueue("work", "busy")
		info := r.awaitRetried(id, 0)
		if !strings.Contains(info.LastErr, `rule "work": Config.Decode failed: keystore: connection reset`) {
			t.Errorf("the last error is %q", info.LastErr)
		}
		if event := r.awaitEvent(automutex.EventBackendError, id); !errors.Is(event.Err, errBusyStore) || event.Rule != "work" {
			t.Errorf("got %+v", event)
		}

		id = r.enqueue("work", "never")
		if info := r.await(id, asynq.TaskStateArchived); !strings.Contains(info.LastErr, "envelope") {
			t.Errorf("the last error is %q", info.LastErr)
		}
		r.awaitEvent(automutex.EventKeyError, id)

		id = r.enqueue("work", "panics")
		if info := r.awaitRetried(id, 1); !strings.Contains(info.LastErr, "the envelope's own fault") {
			t.Errorf("the last error is %q", info.LastErr)
		}

		r.stage.none(t)
		ids := []string{r.enqueue("work", "free"), r.enqueue("work", "free")}
		runs := []*run{r.stage.next(t), r.stage.next(t)} // at once
		for _, run := range runs {
			if _, ok := automutex.Lease(run.ctx); ok {
				t.Error("it has a lease")
			}
			run.returns(nil)
		}
		for _, id := range ids {
			r.await(id, asynq.TaskStateCompleted)
		}
	})
}

// Without attempts left the task tries again in its worker.
func TestDecode_failsOnTheLastAttempt(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		var calls atomic.Int64
		o := decodingSetup(&calls, automutex.Rule{Task: "work", On: []string{"id"}, Busy: automutex.Retry})
		guarded := o.guarded
		o.guarded = func(c *automutex.Config) {
			guarded(c)
			decode := c.Decode
			c.Decode = func(task *asynq.Task) ([]byte, error) {
				payload, err := decode(task)
				if calls.Load() == 1 {
					return nil, errBusyStore
				}
				return payload, err
			}
		}
		r := start(t, s, o)
		id := r.enqueue("work", string(envelope), asynq.MaxRetry(0))
		r.awaitEvent(automutex.EventBackendError, id)
		r.finish(id)
		if n := calls.Load(); n != 2 {
			t.Errorf("Decode was called %d times", n)
		}
	})
}

// Under Allow the task runs without the locks that need what Decode returns, and with
// those that do not.
func TestDecode_allow(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		var calls atomic.Int64
		r := start(t, s, decodingSetup(&calls,
			automutex.Rule{Task: "work", Name: "measured", Scope: "measured", On: []string{"id"}, Busy: automutex.Allow},
			automutex.Rule{Task: "work", Name: "typed", Scope: "typed", Key: automutex.Fields("id"), Busy: automutex.Allow},
			automutex.Rule{Task: "work", Name: "all", Scope: "all", Busy: automutex.Retry}))
		for _, word := range []string{"busy", "never"} {
			id := r.enqueue("work", word)
			run := r.stage.next(t)
			for name, want := range map[string]bool{"measured": false, "typed": false, "all": true} {
				if _, ok := automutex.LeaseOf(run.ctx, name); ok != want {
					t.Errorf("%s: has a lease of rule %q: %t, want %t", word, name, ok, want)
				}
			}
			var rules []string
			for _, e := range r.seen.list(automutex.EventKeyError) {
				if e.TaskID == id {
					rules = append(rules, e.Rule)
				}
			}
			if !slices.Equal(rules, []string{"measured", "typed"}) {
				t.Errorf("%s: told of no key for %v", word, rules)
			}
			run.returns(nil)
			r.await(id, asynq.TaskStateCompleted)
		}
	})
}

// decodingSetup is a rig whose guard has that Decode.
func decodingSetup(calls *atomic.Int64, rules ...automutex.Rule) setup {
	return setup{rules: rules, guarded: func(c *automutex.Config) { c.Decode = unwrap(calls) }}
}
