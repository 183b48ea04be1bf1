package unique

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/claims"
	"github.com/automutex/automutex/internal/redistest"
)

type document struct {
	ID string `json:"document_id"`
}

// New reports everything at once, each with the rule and the field.
func TestNew_refuses(t *testing.T) {
	t.Parallel()
	rdb := redistest.Mini(t).Client(t)
	client, inspector := asynq.NewClientFromRedisClient(rdb), asynq.NewInspectorFromRedisClient(rdb)
	_, err := New(nil, nil, nil, Config{Prefix: "a{b", Rules: []Rule{
		{}, {Task: "blank queue", Queue: " "},
		{Task: "window", Until: For(0)}, {Task: "delay", Duplicate: Postpone(-time.Second)},
		{Task: "bound", Duplicate: Postpone(time.Minute), MaxPostpone: time.Second},
		{Task: "no bound", MaxPostpone: time.Second},
		{Task: "reindex", On: []string{"document"}, Payload: document{}},
		{Task: "path", On: []string{"a..b"}},
		{Task: "both", On: []string{"a"}, Key: automutex.Fields("a")}, {Task: "header", OnHeaders: []string{""}},
		{Task: "twice", On: []string{"a"}}, {Task: "twice", On: []string{"a"}},
		{Task: "report:a", Scope: "report", Queue: "low"},
		{Task: "report:b", Scope: "report", Until: UntilStart, Duplicate: Postpone(time.Second), KeepArchived: true},
		{Task: "far bound", Duplicate: Postpone(time.Minute), MaxPostpone: 50 * 365 * 24 * time.Hour},
	}})
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{
		"the client is nil", "asynq.Inspector is nil", "the Redis client is nil", "Config.Prefix",
		`rule "" (Rules[0]): Task:`, `rule "blank queue" (Rules[1]): Queue:`, `rule "window" (Rules[2]): Until: For(0s)`,
		`rule "delay" (Rules[3]): Duplicate: Postpone(-1s)`,
		`rule "bound" (Rules[4]): MaxPostpone: 1s is less than the delay of Postpone(1m0s): raise it`,
		`rule "no bound" (Rules[5]): MaxPostpone:`,
		`rule "reindex" (Rules[6]): On[0]: "document"`, `document_id`, `rule "path" (Rules[7]): On[0]:`,
		`rule "both" (Rules[8]): Key:`,
		`rule "header" (Rules[9]): OnHeaders[0]:`, `rule "twice" (Rules[11]): Task: is that of Rules[10]`,
		`rule "report:b" (Rules[13]): Queue: is default, but rule "report:a" (Rules[12]) has low`,
		`(Rules[13]): Until: is until start`, `(Rules[13]): Duplicate:`, `(Rules[13]): MaxPostpone:`,
		`(Rules[13]): KeepArchived:`,
		`rule "far bound" (Rules[14]): MaxPostpone: 438000h0m0s is too long: at most`,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not say %q", want)
		}
	}
	for line := range strings.Lines(err.Error()) {
		if !strings.HasPrefix(line, "unique: ") {
			t.Errorf("a line does not say who reports it: %s", line)
		}
	}
	if t.Failed() {
		t.Log(err)
	}
	for _, none := range []automutex.Enqueuer{(*asynq.Client)(nil), (*automutex.Client)(nil)} {
		if _, err := New(none, inspector, rdb, Config{}); err == nil || !strings.Contains(err.Error(), "the client is nil") {
			t.Errorf("%T: %v", none, err)
		}
	}
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": "localhost:0"}})
	t.Cleanup(func() { _ = ring.Close() })
	if _, err := New(client, inspector, ring, Config{}); err == nil || !strings.Contains(err.Error(), "Ring") {
		t.Errorf("a Ring: %v", err)
	}
	if _, err := New(client, inspector, rdb, Config{Rules: []Rule{
		{Task: "report:a", Scope: "report"}, {Task: "report:b", Scope: "report"}, {Task: "report:", On: onID},
		{Task: "reindex", On: []string{"document_id"}, Payload: document{}, Until: UntilStart,
			Duplicate: Postpone(time.Second)},
		{Task: "digest", Until: For(time.Millisecond), Duplicate: Replace},
	}}); err != nil {
		t.Errorf("good rules: %v", err)
	}
	for wait, want := range map[time.Duration]time.Duration{0: DefaultWait, NoWait: 0, time.Minute: time.Minute} {
		c, err := New(client, inspector, rdb, Config{Wait: wait})
		if err != nil || c.patience != want {
			t.Errorf("Wait %s: waits %s, %v", wait, c.patience, err)
		}
	}
}

func TestString(t *testing.T) {
	t.Parallel()
	for want, got := range map[string]string{
		"until done": Until{}.String(), "until start": UntilStart.String(), "for 10m0s": For(10 * time.Minute).String(),
		"until 9": Until{kind: 9}.String(),
		"reject":  Duplicate{}.String(), "join": Join.String(), "replace": Replace.String(),
		"postpone by 5s": Postpone(5 * time.Second).String(), "duplicate 9": Duplicate{kind: 9}.String(),
	} {
		if got != want {
			t.Errorf("%q is called %q", want, got)
		}
	}
	if UntilDone != (Until{}) || Reject != (Duplicate{}) || Postpone(1) != Postpone(1) || For(1) == For(2) {
		t.Error("values do not compare")
	}
}

// Bad input gets an error that names the field, and nothing is enqueued.
func TestEnqueue_badInput(t *testing.T) {
	t.Parallel()
	r := start(t, redistest.Mini(t), Rule{Task: "reindex", On: onID, OnHeaders: []string{"tenant"}},
		Rule{Task: "plain", On: onID},
		Rule{Task: "start", On: onID, Until: UntilStart}, Rule{Task: "replace", On: onID, Duplicate: Replace})
	refused := func(what, want string, info *asynq.TaskInfo, err error) {
		t.Helper()
		if info != nil || err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "unique: ") {
			t.Errorf("%s: got %v, %v; want an error with %q", what, info, err, want)
		}
	}
	do := func(what, want string, task *asynq.Task, opts ...asynq.Option) {
		t.Helper()
		info, err := r.Enqueue(task, opts...)
		refused(what, want, info, err)
		results := r.EnqueueAll(t.Context(), []*asynq.Task{task}, opts...)
		refused(what+", of many", want, results[0].Info, results[0].Err)
	}
	do("no task", "task is nil", nil)
	do("a TaskID", `TaskID("x")`, task("plain", "7", ""), asynq.TaskID("x"))
	do("a Unique", "Unique(1m0s)", task("plain", "7", ""), asynq.Unique(time.Minute))
	do("another queue",
		`Queue("critical"): the tasks of the rule go to the queue "`+r.queue+`"; leave the option out, or set Rule.Queue to "critical"`,
		task("plain", "7", ""), asynq.Queue("critical"))
	do("a nil option", "option is nil", task("plain", "7", ""), nil)
	do("no field", `, or set its Optional`, asynq.NewTask("plain", []byte(`{}`)))
	do("no JSON", `"plain"`, asynq.NewTask("plain", []byte(`{`)))
	do("no header", `header "tenant"`, task("reindex", "7", ""))
	for _, name := range []string{"plain", "start", "replace"} {
		do("a group without a name, "+name, "group", task(name, "7", ""), asynq.Group(" "))
	}
	_, err := r.Enqueue(asynq.NewTask("plain", []byte(`{}`)))
	if !errors.As(err, new(*automutex.KeyError)) {
		t.Errorf("%v is no *KeyError", err)
	}
	for _, name := range []string{"plain", "start", "replace", "reindex"} {
		if found := r.tasks(r.queue, name); len(found) > 0 {
			t.Errorf("%d tasks were enqueued", len(found))
		}
	}
	if keys := r.rdb.Keys(t.Context(), r.prefix+"*").Val(); len(keys) > 0 {
		t.Errorf("left behind: %q", keys)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, name := range []string{"plain", "start", "replace"} {
		if info, err := r.EnqueueContext(ctx, task(name, "7", "")); err == nil && name != "plain" {
			t.Errorf("%s: enqueued %v under a context that has ended", name, info)
		}
	}
}

// The keys are those of a Guard whose rule has an equal Task, Scope and On, and whose Decode is the same.
func TestKeys_equalTheGuards(t *testing.T) {
	t.Parallel()
	r := start(t, redistest.Mini(t))
	decode := func(t *asynq.Task) ([]byte, error) {
		_, payload, _ := strings.Cut(string(t.Payload()), " ")
		return []byte(payload), nil
	}
	once := []Rule{
		{Task: "report:", Scope: "report", On: []string{"tenant.id"}}, {Task: "warm"},
		{Task: "reindex", On: onID, OnHeaders: []string{"h"}}, {Task: "func", Key: automutex.Fields("a", "b")},
	}
	var equal []automutex.Rule
	for _, r := range once {
		equal = append(equal, automutex.Rule{Task: r.Task, Scope: r.Scope, On: r.On, OnHeaders: r.OnHeaders, Key: r.Key})
	}
	c, err := New(r.plain, r.inspector, r.rdb, Config{Prefix: r.prefix, Rules: once, Decode: decode})
	redistest.Must(t, err)
	g, err := automutex.NewKeyMaker(automutex.Config{Prefix: r.prefix, Rules: equal, Decode: decode})
	redistest.Must(t, err)
	for _, task := range []*asynq.Task{
		asynq.NewTask("report:daily", []byte(`v1 {"tenant":{"id":1.0}}`)), asynq.NewTask("warm", nil),
		asynq.NewTaskWithHeaders("reindex", []byte(`v1 {"id":"a|b"}`), map[string]string{"h": "x y"}),
		asynq.NewTask("func", []byte(`v1 {"a":"1","b":{"c":1}}`)),
	} {
		keys, err := g.Keys(t.Context(), task)
		redistest.Must(t, err)
		info := r.must(c.Enqueue(task))
		if info.ID != claims.TaskID(keys[0]) || info.Queue != "default" {
			t.Errorf("the task %s in %s, the key %s", info.ID, info.Queue, keys[0])
		}
	}
}

// A task without a key is enqueued each time: its Key or Config.Decode answers NoLock, or it lacks the field of an
// Optional rule.
func TestEnqueue_withoutAKey(t *testing.T) {
	t.Parallel()
	r := start(t, redistest.Mini(t))
	reset := errors.New("connection reset")
	answer := func(t *asynq.Task) error {
		switch string(t.Payload()) {
		case "free":
			return automutex.NoLock
		case "busy":
			return reset
		}
		return nil
	}
	for _, until := range []Until{UntilDone, UntilStart} {
		for name, cfg := range map[string]Config{
			"Key": {Rules: []Rule{{Key: func(_ context.Context, t *asynq.Task) ([]string, error) {
				return []string{"k"},
					answer(t)
			}}}},
			"Decode": {Rules: []Rule{{On: onID}}, Decode: func(t *asynq.Task) ([]byte, error) {
				return bytes.TrimPrefix(t.Payload(), []byte("v1 ")), answer(t)
			}},
			"Optional": {Rules: []Rule{{On: onID, Optional: true}}},
		} {
			cfg.Prefix, name = r.prefix, name+" "+until.String()
			cfg.Rules[0].Task, cfg.Rules[0].Queue, cfg.Rules[0].Until = name, r.queue, until
			c, err := New(r.plain, r.inspector, r.rdb, cfg)
			redistest.Must(t, err)
			enqueue := func(payload string) error {
				_, err := c.Enqueue(asynq.NewTask(name, []byte(payload)))
				return err
			}
			free, busy := "free", "busy"
			if cfg.Rules[0].Optional {
				free, busy = `{"id":""}`, `no JSON`
			}
			for range 2 {
				redistest.Must(t, enqueue(free))
			}
			if err := enqueue(busy); !errors.Is(err, reset) && (!cfg.Rules[0].Optional ||
				!errors.As(err, new(*automutex.KeyError))) {
				t.Errorf("%s: %v", name, err)
			}
			redistest.Must(t, enqueue(`{"id":7}`))
			if err := enqueue(`{"id":7}`); !errors.Is(err, asynq.ErrDuplicateTask) {
				t.Errorf("%s: with a key: %v", name, err)
			}
			if n := len(r.tasks(r.queue, name)); n != 3 {
				t.Errorf("%s: %d tasks, want 3", name, n)
			}
		}
	}
}

// The rule's queue and ID hold, and the task's own options are kept. A task without a rule is asynq's alone.
func TestOptions(t *testing.T) {
	t.Parallel()
	r := start(t, redistest.Mini(t), Rule{Task: "a", On: onID}, Rule{Task: "b", On: onID, Until: UntilStart},
		Rule{Task: "c", On: onID, Duplicate: Replace})
	for _, name := range []string{"a", "b", "c"} {
		made := asynq.NewTask(name, []byte(`{"id":1}`), asynq.MaxRetry(3), asynq.Queue("elsewhere"), asynq.TaskID("own"))
		info := r.must(r.Enqueue(made, asynq.Timeout(7*time.Second), asynq.Queue(r.queue)))
		if info.Queue != r.queue || info.MaxRetry != 3 || info.Timeout != 7*time.Second || info.ID == "own" {
			t.Errorf("%s: %+v", name, info)
		}
		_, err := r.Enqueue(made)
		if name != "c" {
			r.mustBeDuplicate(nil, err, info.ID, asynq.TaskStatePending)
		}
		info = r.enqueue("mail", "", asynq.Queue(r.queue+"2"), asynq.TaskID(name))
		if info.Queue != r.queue+"2" || info.ID != name {
			t.Errorf("without a rule: %+v", info)
		}
	}
}
