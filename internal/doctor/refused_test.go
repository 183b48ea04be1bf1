package doctor

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/fleet"
	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// has reports whether there is such a finding.
func has(all []Finding, level, what, text string) bool {
	for _, f := range all {
		if f.Level == level && f.What == what && strings.Contains(f.Text, text) {
			return true
		}
	}
	return false
}

// A command that a check needs and whose answer does not come ends the examination, with the findings until then. One
// that the user has no right to is a finding, unless the rules are to be held against the locks.
func TestExamine_commandFails(t *testing.T) {
	t.Parallel()
	const refused = redistest.ReplyError("NOPERM this user has no permissions to run the command")
	rules := []automutex.Rule{{Task: "pay", Busy: automutex.Park}}
	for _, c := range []struct {
		command           string
		after             int // so many times it goes well
		error             error
		ends              bool
		level, what, text string
	}{
		{"zadd", 0, io.EOF, true, Fine, "Redis", "version"},
		{"delex", 0, io.EOF, true, Fine, "Redis", "version"},
		{"delex", 0, refused, false, Note, "releases", "allow it with +delex"},
		{"publish", 1, io.EOF, true, Fine, "rights", "each of"},
		{"zrevrangebyscore", 1, io.EOF, true, Fine, "Pub/Sub", "arrived"},
		{"evalsha", 1, io.EOF, true, Fine, "Pub/Sub", "arrived"},
		{"scan", 1, io.EOF, true, Fine, "controls", "no scope or key is paused"},
		{"scan", 1, refused, true, Note, "order", "may not look for blocked keys: command"},
		{"time", 1, refused, true, Note, "fleet", "may not read what the processes run"},
		{"smembers", 0, io.EOF, true, Fine, "order", "no ordered key is blocked"},
		{"sismember", 0, io.EOF, true, Fine, "order", "no ordered key is blocked"},
	} {
		t.Run(c.command, func(t *testing.T) {
			t.Parallel()
			s := redistest.Real(t)
			rdb, hook, calls := s.Client(t), &redistest.FailHook{}, 0
			_, err := asynq.NewClientFromRedisClient(s.Client(t)).Enqueue(asynq.NewTask("other", nil), asynq.Queue("doctor"))
			redistest.Must(t, err)
			rdb.AddHook(hook)
			hook.Before(func(cmd redis.Cmder) error {
				if cmd.Name() != c.command {
					return nil
				}
				if calls++; calls <= c.after {
					return nil
				}
				return c.error
			})
			prefix := redistest.Name(t)
			all, err := Examine(t.Context(), rdb, Options{Prefix: prefix, Tasks: 1, Timeout: time.Minute, Config: &automutex.Config{Prefix: prefix, Rules: rules}})
			if !has(all, c.level, c.what, c.text) || (err != nil) != c.ends || c.ends && c.error == io.EOF && !errors.Is(err, lock.ErrBackend) {
				t.Errorf("%v; want %s %s %q in %+v", err, c.level, c.what, c.text, all)
			}
		})
	}
}

// What no check can begin with is refused.
func TestExamine_refuses(t *testing.T) {
	t.Parallel()
	rdb := redistest.Real(t).Client(t)
	if _, err := Examine(t.Context(), struct{ redis.UniversalClient }{rdb}, Options{Prefix: "x"}); err == nil || !strings.Contains(err.Error(), "is not known") {
		t.Errorf("a client of another kind: %v", err)
	}
	_, err := Examine(t.Context(), rdb, Options{Prefix: redistest.Name(t), Config: &automutex.Config{Rules: []automutex.Rule{{}}}})
	if wrong := (*automutex.FieldError)(nil); !errors.As(err, &wrong) {
		t.Errorf("a rule with a mistake: %v", err)
	}
}

// A proxy that swallows messages is found.
func TestPubSub_messageLost(t *testing.T) {
	t.Parallel()
	proxy := redistest.NewProxy(t, redistest.Real(t).Addr())
	proxy.DropMessages(true)
	d := &doctor{rdb: proxy.Client(t), Options: Options{Prefix: redistest.Name(t), Timeout: time.Second}}
	if err := d.pubsub(t.Context()); err != nil || !has(d.findings, Bad, "Pub/Sub", "a message sent did not arrive within 1s") {
		t.Errorf("%v, %+v", err, d.findings)
	}
}

// A queue that goes during the examination has no tasks.
func TestKinds_queueGone(t *testing.T) {
	t.Parallel()
	s := redistest.StartMini(t)
	admin, rdb, hook := s.Client(t), s.Client(t), &redistest.FailHook{}
	for _, queue := range []string{"gone", "stays"} {
		_, err := asynq.NewClientFromRedisClient(admin).Enqueue(asynq.NewTask("pay", nil), asynq.Queue(queue))
		redistest.Must(t, err)
	}
	rdb.AddHook(hook)
	hook.After(func(cmd redis.Cmder) error {
		if cmd.Name() == "smembers" {
			return admin.SRem(t.Context(), "asynq:queues", "gone").Err()
		}
		return nil
	})
	trials, err := newKeyTrials(automutex.Config{})
	redistest.Must(t, err)
	d := &doctor{rdb: rdb, Options: Options{Tasks: 10}}
	kinds, queues, err := d.kinds(t.Context(), trials)
	if err != nil || len(queues) != 2 || kinds["pay"] == nil || kinds["pay"].tasks != 1 {
		t.Errorf("%v, %v, %+v", err, queues, kinds)
	}
}

// Of many blocked keys some are named, and the others counted.
func TestBlocked_many(t *testing.T) {
	t.Parallel()
	s := redistest.Real(t)
	rdb, prefix := s.Client(t), redistest.Name(t)
	locker := lock.New(rdb, lock.Options{Prefix: prefix})
	t.Cleanup(func() { _ = locker.Close() })
	for i := range mostBlocked + 2 {
		parts, note := lock.Parts(fmt.Sprint(i)), fmt.Sprintf("default/%s-%d", prefix, i)
		key := locker.Mutex("orders", parts).Key()
		ticket, _, _, err := inner.Stamp(t.Context(), inner.ByOrder(locker, key), note, "n", 0, 0)
		redistest.Must(t, err)
		lease, err := locker.Mutex("orders", parts, lock.Note(note), inner.InOrder(inside.Place{Nonce: "n", Ticket: ticket, Most: -1})).TryLock(t.Context())
		redistest.Must(t, err)
		inner.EndOrder(lease, inside.OutcomeHeld)
		redistest.Must(t, lease.Unlock(t.Context()))
	}
	all, err := Examine(t.Context(), rdb, Options{Prefix: prefix, Timeout: time.Minute})
	redistest.Must(t, err)
	named := 0
	for _, f := range all {
		if f.Level == Bad && f.What == "order" {
			named++
		}
	}
	if named != mostBlocked || !has(all, Note, "order", "and 2 more keys; automutex blocked lists all") {
		t.Errorf("%d are named: %+v", named, all)
	}
}

// Workers whose rules exclude each other have no rules to hold against the tasks.
func TestFleet_noOneSet(t *testing.T) {
	t.Parallel()
	s := redistest.Real(t)
	rdb, prefix := s.Client(t), redistest.Name(t)
	for _, scopes := range [][2]string{{"x", "y"}, {"y", "x"}} { // each takes its locks in an order of its own
		var rules []fleet.Rule
		for _, scope := range scopes {
			rules = append(rules, fleet.Rule{Name: scopes[0] + scope, Task: "task-" + scopes[0], Scope: scope, Limit: 1})
		}
		worker := fleet.New(rdb, prefix, fleet.Process{Kind: fleet.Worker, Owner: "worker:" + scopes[0]}, rules)
		worker.Begin()
		t.Cleanup(func() { worker.Close(t.Context()) })
	}
	redistest.Eventually(t, redistest.Patience, func() bool {
		f, err := fleet.Read(t.Context(), rdb, prefix)
		return err == nil && len(f.Sets) == 2
	}, "both say what they run")
	all, err := Examine(t.Context(), rdb, Options{Prefix: prefix, Timeout: time.Minute})
	if err != nil || !has(all, Note, "rules", "makes no one set of rules") {
		t.Errorf("%v, %+v", err, all)
	}
}
