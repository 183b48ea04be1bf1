package automutextest

import (
	"context"
	"strings"
	"testing"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
)

// work is a task of the type that most rules here are for.
func work(payload string) *asynq.Task { return asynq.NewTask("work", []byte(payload)) }

const (
	one   = `{"id": 1}`
	two   = `{"id": 2}`
	noKey = `{}`
)

// turns is one rule for work, keyed on id, with changes.
func turns(change ...func(*automutex.Rule)) automutex.Config {
	rule := automutex.Rule{Task: "work", Name: "turns", On: []string{"id"}, Busy: automutex.Retry}
	for _, f := range change {
		f(&rule)
	}
	return automutex.Config{Rules: []automutex.Rule{rule}}
}

func busy(p automutex.Policy) func(*automutex.Rule) {
	return func(r *automutex.Rule) { r.Busy = p }
}

func TestNew_refuses(t *testing.T) {
	t.Parallel()
	fails(t, func(t testing.TB) {
		New(t, automutex.Config{Prefix: "{", Rules: []automutex.Rule{{Task: ""}, {Task: "a", Limit: -1}}})
	}, "Rules[0]", "Task", "Rules[1]", "Limit", "Prefix")
}

// What every function says of a guard or a task that cannot be used.
func TestBadInput(t *testing.T) {
	t.Parallel()
	handler := asynq.HandlerFunc(func(context.Context, *asynq.Task) error { return nil })
	for name, use := range map[string]func(t testing.TB, g *Guard, task *asynq.Task){
		"Hold":       func(t testing.TB, g *Guard, task *asynq.Task) { Hold(t, g, task) },
		"ShareKey":   func(t testing.TB, g *Guard, task *asynq.Task) { ShareKey(t, g, work(one), task) },
		"ShareNoKey": func(t testing.TB, g *Guard, task *asynq.Task) { ShareNoKey(t, g, work(two), task) },
	} {
		g := New(t, turns())
		fails(t, func(t testing.TB) { use(t, nil, work(one)) }, name, "there is no guard", "automutextest.New")
		fails(t, func(t testing.TB) { use(t, &Guard{}, work(one)) }, name, "there is no guard")
		fails(t, func(t testing.TB) { use(t, g, nil) }, name, "the task is nil")
		fails(t, func(t testing.TB) { use(t, g, work(noKey)) }, name, `"id"`, "missing")
		fails(t, func(t testing.TB) { use(t, g, work("\xff")) }, name, "JSON")
		fails(t, func(t testing.TB) { use(t, g, asynq.NewTask("other", nil)) }, name, "no rule", `"other"`, "unguarded")
	}
	g := New(t, turns())
	fails(t, func(t testing.TB) { Serve(t, nil, handler) }, "Serve", "there is no guard")
	fails(t, func(t testing.TB) { Serve(t, g, nil) }, "Serve", "handler is nil")
	by := func(*asynq.Task) string { return "" }
	fails(t, func(t testing.TB) { Watch(t, nil, handler, by) }, "Watch", "there is no guard")
	fails(t, func(t testing.TB) { Watch(t, g, nil, by) }, "Watch", "nil")
	fails(t, func(t testing.TB) { Watch(t, g, handler, nil) }, "Watch", "nil")
	for _, share := range []func(testing.TB, *Guard, ...*asynq.Task){ShareKey, ShareNoKey} {
		fails(t, func(t testing.TB) { share(t, g) }, "two or more")
		fails(t, func(t testing.TB) { share(t, g, work(one)) }, "two or more")
	}
}

func TestShare(t *testing.T) {
	t.Parallel()
	transfer := func(from, to string) *asynq.Task {
		return asynq.NewTask("transfer", []byte(`{"from": "`+from+`", "to": "`+to+`"}`))
	}
	g := New(t, automutex.Config{Rules: []automutex.Rule{
		{Task: "work", Name: "turns", On: []string{"id"}, Busy: automutex.Retry},
		{Task: "transfer", Name: "from", Scope: "account", On: []string{"from"}},
		{Task: "transfer", Name: "to", Scope: "account", On: []string{"to"}},
	}})
	ab, bc, cd := transfer("a", "b"), transfer("b", "c"), transfer("c", "d")

	ShareKey(t, g, work(one), work(`{"id": "1", "more": 2}`), work(`{"id": 1.0}`))
	ShareKey(t, g, ab, bc)
	ShareNoKey(t, g, work(one), work(two), ab)
	ShareNoKey(t, g, ab, cd)

	fails(t, func(t testing.TB) { ShareKey(t, g, work(one), work(two)) },
		"share no key", "{work|1}", "{work|2}", `rule "turns"`, `{\"id\": 2}`)
	fails(t, func(t testing.TB) { ShareKey(t, g, ab, bc, cd) }, "share no key", "{account|a}", "{account|d}", `rule "to"`)
	fails(t, func(t testing.TB) { ShareNoKey(t, g, work(one), work(two), work(one)) }, "share the key automutex:{work|1}", `rule "turns"`)
	fails(t, func(t testing.TB) { ShareNoKey(t, g, ab, bc) }, "share the key automutex:{account|b}")
	huge := work(`{"id": 1, "more": "` + strings.Repeat("x", 1<<20) + `"}`)
	if got := record(t, func(t testing.TB) { ShareNoKey(t, g, huge, huge) }); len(got) > 2000 || !strings.Contains(got, "bytes)") {
		t.Errorf("a failure of %d bytes", len(got))
	}
}
