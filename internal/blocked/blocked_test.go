package blocked

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/engine"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/internal/stamp"
)

// Each state of the first task of a key, and of that task in asynq, is told with what ends it; nothing is told of one
// that asynq delivers by itself.
func TestWhy(t *testing.T) {
	t.Parallel()
	gone, away := asynq.ErrTaskNotFound, errors.New("no answer")
	const paused = "is paused; unpause it or skip the task"
	info := func(state asynq.TaskState) *asynq.TaskInfo {
		return &asynq.TaskInfo{Queue: "q", State: state, LastErr: "boom", NextProcessAt: time.Now().Add(time.Hour)}
	}
	for _, c := range []struct {
		state string
		runs  bool
		info  *asynq.TaskInfo
		err   error
		queue string
		want  string // the beginning; empty: nothing
	}{
		{"", false, nil, gone, "", ""},
		{"a", true, info(asynq.TaskStateActive), nil, "", ""},
		{"h", false, nil, gone, "", "is archived, and since then gone from asynq; skip it to go on"},
		{"h", false, info(asynq.TaskStatePending), nil, "", "was archived, and is now pending"},
		{"h", false, info(asynq.TaskStateArchived), nil, "", "is archived; run it again or skip it to go on: boom"},
		{"h", false, nil, away, "", "is archived; run it again or skip it to go on"},
		{"a", false, nil, gone, "", "is gone from asynq; the next task goes on in a moment"},
		{"a", false, nil, away, "", ""},
		{"a", false, info(asynq.TaskStatePending), nil, "", ""},
		{"a", false, info(asynq.TaskStateRetry), nil, "", "has gone back without a run, and comes in "},
		{"af", false, info(asynq.TaskStateRetry), nil, "", "failed and is retried in "},
		{"i", false, info(asynq.TaskStateRetry), nil, "", ""},
		{"i", false, nil, gone, "", "is gone from asynq; the next task goes on in a moment"},
		{"a", false, info(asynq.TaskStateActive), nil, "", "is active in asynq, and does not hold its key"},
		{"i", false, info(asynq.TaskStateActive), nil, "", "is active in asynq"},
		{"w", false, info(asynq.TaskStateActive), nil, "", "is active in asynq, and does not hold its key"},
		{"a", false, info(asynq.TaskStateScheduled), nil, "", "is scheduled, and comes in 1h0m0s"},
		{"i", false, info(asynq.TaskStatePending), nil, paused, "waits in queue q, which is paused; unpause it or skip " +
			"the task"},
		{"a", false, info(asynq.TaskStatePending), nil, paused, "waits in queue q, "},
		{"h", false, info(asynq.TaskStatePending), nil, paused, "was archived, and is now pending"},
	} {
		got := Why(Seen{Head: engine.Head{State: c.state[:min(1, len(c.state))], Runs: c.runs, Nonce: "~",
			Failed: strings.HasSuffix(c.state, "f")}, Info: c.info, Gone: c.err == gone,
			Queue: c.queue})
		if !strings.HasPrefix(got, c.want) || (got == "") != (c.want == "") {
			t.Errorf("%+v: %q", c, got)
		}
	}
	for _, seen := range []Seen{
		{Head: engine.Head{State: "a"}, Info: info(asynq.TaskStateActive)},
		{Head: engine.Head{State: "w"}, Info: info(asynq.TaskStateActive)}, {Head: engine.Head{State: "i"}, Gone: true},
	} {
		seen.Head.Since = time.Now()
		if why := Why(seen); why != "" {
			t.Errorf("a task that has just come: %q", why)
		}
	}
	if why := Whys(nil, []engine.Head{{Note: "default/1", State: "a"}})[0]; why != "" {
		t.Errorf("without an Inspector: %q", why)
	}
}

// A task is gone only if asynq works in that Redis and does not have it: a queue that asynq does not list may be read
// by servers, and its tasks be there.
func TestFind(t *testing.T) {
	t.Parallel()
	s := redistest.StartMini(t)
	rdb := s.Client(t)
	client, inspector := asynq.NewClientFromRedisClient(rdb), asynq.NewInspectorFromRedisClient(rdb)
	gone := func(of redis.UniversalClient, queue, id string) bool {
		t.Helper()
		_, gone, err := Find(inspector, of, queue, id)
		if err == nil {
			t.Errorf("%s/%s is there", queue, id)
		}
		return gone
	}
	if gone(rdb, "orders", "1") || gone(nil, "orders", "1") {
		t.Error("gone from a Redis that asynq does not use")
	}
	for _, queue := range []string{"orders", "other"} {
		_, err := client.Enqueue(asynq.NewTask("pay", nil), asynq.Queue(queue), asynq.TaskID("1"))
		redistest.Must(t, err)
	}
	if !gone(rdb, "orders", "2") || !gone(nil, "orders", "2") {
		t.Error("a task that asynq does not have is not gone")
	}
	redistest.Must(t, rdb.SRem(t.Context(), "asynq:queues", "orders").Err())
	if !gone(rdb, "orders", "2") || !gone(nil, "orders", "1") {
		t.Error("in a queue that is not listed, and that no server serves")
	}
	elsewhere := s.Client(t, func(o *redis.UniversalOptions) { o.DB = 5 })
	if info, gone, err := Find(asynq.NewInspectorFromRedisClient(elsewhere), rdb, "orders", "1"); info != nil || gone ||
		!errors.Is(err, asynq.ErrQueueNotFound) || !strings.Contains(err.Error(), "database") {
		t.Errorf("an Inspector elsewhere, and the queue not listed there: %v, gone %v, %v", info, gone, err)
	}
	redistest.Must(t, elsewhere.SAdd(t.Context(), "asynq:queues", "orders").Err())
	if info, gone, err := Find(asynq.NewInspectorFromRedisClient(elsewhere), rdb, "orders", "1"); info != nil || gone ||
		!errors.Is(err, asynq.ErrTaskNotFound) {
		t.Errorf("an Inspector elsewhere, and the queue listed there: %v, gone %v, %v", info, gone, err)
	}
	redistest.Must(t, rdb.SRem(t.Context(), "asynq:queues", "orders").Err())
	if info, gone, err := Find(inspector, rdb, "orders", "1"); err != nil || gone || info.ID != "1" {
		t.Errorf("a task that is there, in a queue that is not listed: %v, gone %v, %v", info, gone, err)
	}
	if _, err := inspector.GetTaskInfo("orders", "1"); err != nil {
		t.Errorf("its queue is still not listed: %v", err)
	}
	redistest.Must(t, rdb.SRem(t.Context(), "asynq:queues", "orders").Err())
	server := asynq.NewServerFromRedisClient(rdb, asynq.Config{Queues: map[string]int{"orders": 1},
		Logger: redistest.Silent{}, TaskCheckInterval: redistest.CheckEvery})
	redistest.Must(t, server.Start(asynq.NotFoundHandler()))
	t.Cleanup(server.Shutdown)
	redistest.Eventually(t, redistest.Patience, func() bool { return !gone(nil, "orders", "2") },
		"a server serves the queue")
	broken, hook := s.Client(t), &redistest.FailHook{}
	broken.AddHook(hook)
	hook.Before(func(redis.Cmder) error { return errors.New("no answer") })
	if gone(broken, "orders", "2") {
		t.Error("gone without an answer")
	}
}

// What a look at the head finds, and what follows.
func TestOrderedKey_follows(t *testing.T) {
	t.Parallel()
	const note = "q/id"
	mine := stamp.New(note, 3)
	mine.Nonce, mine.Ticket, mine.Key = stamp.NewNonce(), 7, "automutex:{work|1}"
	info := func(state asynq.TaskState, lastErr string) *asynq.TaskInfo {
		return &asynq.TaskInfo{State: state, LastErr: lastErr,
			Headers: map[string]string{stamp.Header: mine.Text(asynq.NewTask("", nil))}}
	}
	other := info(asynq.TaskStatePending, "")
	other.Headers = nil
	overdue := info(asynq.TaskStateRetry, ParkedOn(mine.Key))
	overdue.Deadline = time.Now().Add(-time.Second)
	item := engine.OrderItem{Nonce: mine.Nonce, Note: note}
	joined := item
	joined.Nonce = stamp.Unstamped(note) // at its arrival
	for name, one := range map[string]struct {
		info *asynq.TaskInfo
		key  string
		want engine.OrderAct
	}{
		"the ID used again":       {info(asynq.TaskStateRetry, ""), mine.Key, engine.ActGone},
		"stamped for another key": {info(asynq.TaskStateRetry, ""), "automutex:{work|2}", engine.ActPresent},
		"without a stamp":         {other, mine.Key, engine.ActPresent},
	} {
		if act, _ := (OrderedKey{Key: engine.Ref{Key: one.key}, Holds: true}).follows(one.info, false, nil,
			joined); act != one.want {
			t.Errorf("joined at its arrival, %s: %q, want %q", name, act, one.want)
		}
	}
	for name, one := range map[string]struct {
		info  *asynq.TaskInfo
		err   error
		holds bool
		want  engine.OrderAct
	}{
		"not found":            {nil, asynq.ErrTaskNotFound, true, engine.ActGone},
		"no queue":             {nil, asynq.ErrQueueNotFound, true, engine.ActGone},
		"no answer":            {nil, errors.New("away"), true, lookFailed},
		"another task":         {other, nil, true, engine.ActGone},
		"archived, hold":       {info(asynq.TaskStateArchived, ""), nil, true, engine.ActArchived},
		"archived, continue":   {info(asynq.TaskStateArchived, ""), nil, false, engine.ActLeft},
		"overdue, hold":        {overdue, nil, true, engine.ActArchived},
		"overdue, continue":    {overdue, nil, false, engine.ActLeft},
		"completed":            {info(asynq.TaskStateCompleted, ""), nil, true, engine.ActLeft},
		"parked here":          {info(asynq.TaskStateRetry, ParkedOn(mine.Key)), nil, true, lookWake},
		"parked elsewhere":     {info(asynq.TaskStateRetry, ParkedOn("automutex:{x}")), nil, true, engine.ActPresent},
		"failed":               {info(asynq.TaskStateRetry, "broken"), nil, true, engine.ActPresent},
		"pending":              {info(asynq.TaskStatePending, ""), nil, true, engine.ActPresent},
		"active":               {info(asynq.TaskStateActive, ""), nil, true, engine.ActPresent},
		"scheduled by a human": {info(asynq.TaskStateScheduled, ""), nil, true, engine.ActPresent},
	} {
		o := OrderedKey{Key: engine.Ref{Key: mine.Key}, Holds: one.holds}
		if act, _ := o.follows(one.info, errors.Is(one.err, asynq.ErrTaskNotFound) ||
			errors.Is(one.err, asynq.ErrQueueNotFound), one.err, item); act != one.want {
			t.Errorf("%s: %q, want %q", name, act, one.want)
		}
	}
}
