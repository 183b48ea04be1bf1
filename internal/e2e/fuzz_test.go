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
	"testing"
	"unicode/utf8"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
)

// badPayloads are what producers have been seen to send, and what nobody should.
var badPayloads = []string{
	"", " ", "null", "{}", "[]", `"id"`, "7", "{", `{"id"`, `{"id":`, `{"id":1`, `{"id":1}}`, `{"id":1} {"id":2}`, "\xef\xbb\xbf{\"id\":1}",
	`{"id":null}`, `{"id":""}`, `{"id":"\u0000"}`, "{\"id\":\"\x00\"}", "{\"id\":\"\xff\"}", `{"id":"\ud800"}`, `{"id":"\udc00\ud800"}`,
	`{"id":"\ud83d\ude00"}`, `{"id":1,"id":2}`, `{"ID":1}`, `{"\u0069d":1}`, `{"id":1e400}`, `{"id":1e-400}`, `{"id":-0}`, `{"id":1e99999999999999999999}`,
	`{"id":123456789012345678901234567890}`, `{"id":{"b":[1,{}],"a":null}}`, `{"id":{"a":1,"a":1}}`, `{"id":[[[[[[]]]]]]}`, `{"id":NaN}`, `{"id":"a|b}{c~%7C"}`,
	`{"id":"'; redis.call('FLUSHALL') --"}`, `{"id":"` + strings.Repeat("x", 5000) + `"}`, `{"id":` + strings.Repeat("9", 401) + `}`,
	`{"id":` + strings.Repeat("[", 101) + strings.Repeat("]", 101) + `}`, strings.Repeat("[", 20_000), `{"id":"\u202e"}`, "\x80\x04}q\x00.", "<id>7</id>", "id=7",
	`{"id":1,"note":300}`, `{"id":true,"note":{}}`, `{"id":1,"note":"\xff"}`,
}

// badRules take keys from all that a producer decides on. The last one's error
// has the payload in it, as careless functions' errors have, and is no *KeyError:
// its tasks come back.
var badRules = []automutex.Rule{
	{Task: "path", On: []string{"id", `a\.b.0`}, Busy: automutex.Retry},
	{Task: "field", On: []string{"id"}, Busy: automutex.Retry},
	{Task: "header", OnHeaders: []string{"tenant"}, Busy: automutex.Retry},
	{Task: "both", Name: "one", Scope: "one", On: []string{"id"}, Busy: automutex.Retry},
	{Task: "both", Name: "two", Scope: "two", On: []string{"note"}, OnHeaders: []string{"tenant"}, Busy: automutex.Retry},
	{Task: "typed", Key: automutex.KeyOf(func(v struct {
		ID   any
		Note int8
	}) []string {
		return []string{fmt.Sprint(v.ID)}
	}), Busy: automutex.Retry},
	{Task: "raw", Key: func(_ context.Context, t *asynq.Task) ([]string, error) { return []string{string(t.Payload())}, nil }, Busy: automutex.Retry},
	{Task: "says", Key: func(_ context.Context, t *asynq.Task) ([]string, error) {
		return nil, fmt.Errorf("no shop %s", t.Payload())
	}, Busy: automutex.Retry},
	{Task: "itself", Key: func(_ context.Context, t *asynq.Task) ([]string, error) {
		return nil, fmt.Errorf("%s: %w", t.Payload(), &automutex.KeyError{Task: t.Type(), Field: string(t.Payload())})
	}, Busy: automutex.Retry},
	{Task: "", Busy: automutex.Retry}, // stands for a task without a rule; New never sees it
}

// FuzzPayload: whatever the payload, the headers and the rest of a task's type, the
// handler runs with the locks that the task needs, or does not run and the task is
// archived with a *KeyError, or handed back, as asynq can file it. It never panics, never runs
// unguarded, and leaves nothing in Redis.
func FuzzPayload(f *testing.F) {
	for i, payload := range badPayloads {
		f.Add([]byte(payload), badPayloads[(i+5)%len(badPayloads)], payload, i, i%2 == 0)
	}
	s := redistest.StartMini(f)
	rdb := s.Client(f)
	mux := asynq.NewServeMux() // which tasks have a rule, by asynq's own matching
	for _, rule := range badRules[:len(badRules)-1] {
		if rule.Name != "two" {
			mux.Handle(rule.Task, asynq.NotFoundHandler())
		}
	}
	guards := map[bool]*automutex.Guard{}
	for _, hashed := range []bool{false, true} {
		// Private: the keys of the fleet, written a second after the first task, would be taken for what a task left.
		cfg := automutex.Config{Private: true, Rules: badRules[:len(badRules)-1], Logger: slog.New(slog.DiscardHandler)}
		if hashed {
			cfg.HashKeys = testSecret
		}
		guard, err := automutex.New(rdb, cfg)
		if err != nil {
			f.Fatal(err)
		}
		f.Cleanup(func() { _ = guard.Close(context.Background()) })
		guards[hashed] = guard
	}
	f.Fuzz(func(t *testing.T, payload []byte, tenant, more string, which int, hashed bool) {
		guard, rule := guards[hashed], badRules[uint(which)%uint(len(badRules))]
		task := asynq.NewTaskWithHeaders(rule.Task+more, payload, map[string]string{"tenant": tenant, more: tenant})
		_, pattern := mux.Handler(task)
		matched := pattern != ""
		keys, keyless := guard.Keys(t.Context(), task)
		ran := 0
		handler := asynq.HandlerFunc(func(ctx context.Context, got *asynq.Task) error {
			ran++
			if !bytes.Equal(got.Payload(), payload) {
				t.Errorf("the handler is given %q", got.Payload())
			}
			held := s.Mini().Keys() // sorted
			if want := slices.Sorted(slices.Values(keys)); !slices.Equal(held, slices.Compact(want)) {
				t.Errorf("it runs, and Redis has %q, not its keys %q", held, want)
			}
			if _, ok := automutex.Lease(ctx); ok != matched {
				t.Errorf("a lease: %v, a rule: %v", ok, matched)
			}
			return nil
		})
		err := guard.Middleware(handler).ProcessTask(context.Background(), task)
		if err == nil && (ran != 1 || keyless != nil || matched && len(keys) == 0) {
			t.Errorf("done: it ran %d times, with the keys %q (%v)", ran, keys, keyless)
		}
		if rule.Task == "says" && matched {
			if isFailure := guard.ServerConfig(asynq.Config{}).IsFailure; isFailure(err) || ran > 0 || keyless == nil || !utf8.ValidString(err.Error()) {
				t.Errorf("it ran %d times, and is not handed back: %v", ran, err)
			}
		} else if err != nil {
			var keyErr *automutex.KeyError
			if !errors.As(err, &keyErr) || ran > 0 || keyless == nil || !errors.Is(err, asynq.SkipRetry) || !matched {
				t.Errorf("it ran %d times, and ends with %T: %v; keys %q (%v)", ran, err, err, keys, keyless)
			} else if keyErr.Task != task.Type() || !utf8.ValidString(err.Error()) {
				t.Errorf("asynq cannot file %q", err)
			}
		}
		if ran == 1 && rule.On != nil && !json.Valid(payload) {
			t.Errorf("it ran under the keys %q, although %q is no JSON", keys, payload)
		}
		for _, key := range keys {
			if hashed && len(payload) > 20 && strings.Contains(key, string(payload)) {
				t.Errorf("the hashed key %q tells the payload", key)
			}
		}
		if left := s.Mini().Keys(); len(left) > 0 {
			t.Errorf("%q is left", left)
		}
	})
}
