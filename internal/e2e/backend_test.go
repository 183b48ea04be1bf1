package e2e

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// The locks' Redis away while asynq's is there: a proxy stands between the guard and the server.

// behindProxy is what the guard's client goes through. It fails fast.
func behindProxy(t *testing.T, s *redistest.Server) (*redistest.Proxy, lock.Client) {
	t.Helper()
	p := redistest.NewProxy(t, s.Addr())
	return p, p.Client(t, func(o *redis.UniversalOptions) { o.MaxRetries = -1 })
}

func away(p *redistest.Proxy) {
	p.Refuse(true)
	p.Cut()
}

func TestBackend_away(t *testing.T) {
	t.Parallel()
	redistest.EachSingle(t, func(t *testing.T, s *redistest.Server) {
		p, locks := behindProxy(t, s)
		policies := []automutex.Policy{automutex.Retry, automutex.RetryIn(time.Hour), automutex.Skip, automutex.Archive,
			automutex.Fail, automutex.Replace, automutex.Allow, automutex.AfterFailure(answers)}
		var rules []automutex.Rule
		for _, policy := range policies {
			rules = append(rules,
				automutex.Rule{Task: policy.String(), Busy: policy},
				automutex.Rule{Task: "wait: " + policy.String(), Busy: policy, Wait: time.Minute})
		}
		r := start(t, s, setup{rules: rules, locks: locks, served: untouched(t)})
		away(p)
		var ids []string
		for _, rule := range rules {
			ids = append(ids, r.enqueue(rule.Task, nil))
		}
		for i, id := range ids {
			info := r.awaitRetried(id, 0)
			event := r.awaitEvent(automutex.EventBackendError, id)
			if !errors.Is(event.Err, lock.ErrBackend) || event.Rule != rules[i].Task || event.Key == "" {
				t.Errorf("%s: got %+v", rules[i].Task, event)
			}
			says(t, info.LastErr, event.Key)
			if e := r.awaitEvent(automutex.EventRetried, id); e.Delay < time.Second || e.Delay > 30*time.Second ||
				!errors.Is(e.Err, lock.ErrBackend) {
				t.Errorf("%s: it comes back after %s: %v", rules[i].Task, e.Delay, e.Err)
			}
		}
		r.none()
		r.noEvents(automutex.EventBusy, automutex.EventSkipped, automutex.EventAcquired)

		p.Heal()
		r.stage.end() // handlers return at once
		for _, id := range ids {
			eventually(t, func() bool {
				r.nudge(id) // a connection from before may hand it back once more
				info, err := r.inspector.GetTaskInfo(r.queue, id)
				return err == nil && info.State == asynq.TaskStateCompleted
			}, "completed: %s", id)
		}
		// Once for each outage, not for each task.
		if log := r.log.Text(0); strings.Count(log, "cannot be asked") != 1 || strings.Count(log, "answers again") != 1 {
			t.Errorf("logged: %s", log)
		}
	})
}

// A key that no replica knows is not taken: the task goes back unspent, and runs when the replica is there again.
func TestBackend_notReplicated(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	s, locks := redistest.Mini(t), redistest.StartReal(t)
	replica := redistest.StartReplica(t, locks)
	r := start(t, s, setup{rules: []automutex.Rule{{Busy: automutex.Skip}}, served: comingBack,
		locks: locks.Client(t), guarded: func(c *automutex.Config) { c.MinReplicas = 1 }})
	replica.Pause(t)
	id := r.enqueue("work", nil)
	r.awaitRetried(id, 0)
	if event := r.awaitEvent(automutex.EventBackendError, id); !errors.Is(event.Err, lock.ErrNotReplicated) {
		t.Errorf("the event says %v", event.Err)
	}
	r.none()
	replica.Resume(t)
	r.finish(id)
}

// A key in Redis that is no lock is neither free nor busy, and disturbs no other.
func TestBackend_foreignKey(t *testing.T) {
	eachRig(t, setup{rules: []automutex.Rule{{On: onID, Busy: automutex.Skip}}}, func(t *testing.T, r *rig) {
		key := r.lockOf("work", "1").Key()
		redistest.Must(t, r.rdb.LPush(t.Context(), key, "another program's").Err())
		id := r.enqueueOne()
		for i := range 3 {
			r.awaitRetried(id, 0)
			r.finish(r.enqueue("work", map[string]int{"id": i + 2}))
			r.rerun(id)
		}
		r.awaitRetried(id, 0)
		r.awaitEvent(automutex.EventBackendError, id)
		r.none()
		if text := r.log.Text(0); strings.Count(text, "cannot be asked for locks") > 1 {
			t.Errorf("log: %s", text)
		}
		redistest.Must(t, r.rdb.Del(t.Context(), key).Err())
		r.rerun(id)
		r.finish(id)
	})
}
