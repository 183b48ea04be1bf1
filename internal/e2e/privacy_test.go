package e2e

import (
	"cmp"
	"errors"
	"fmt"
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

// testSecret hashes keys in tests.
const testSecret = "a secret of more than sixteen bytes"

// What a payload holds that nobody is to read but the handler, and the one field
// that makes the key.
const (
	keyValue      = "mona@example.com"
	privateNumber = "4111111111111111"
	privateText   = "do not tell"
)

// private are tasks' payloads. The number is where KeyOf wants a small one.
var private = fmt.Sprintf(`{"email":%q,"card":%s,"note":%q}`, keyValue, privateNumber, privateText)

// What a task's payload holds is not told: in no log line, event, error that
// asynq stores, and in nothing of ours in Redis. The value that makes the key is
// the exception where keys are readable, and none with Config.HashKeys.
func TestPrivacy_nothingOfThePayload(t *testing.T) {
	t.Parallel()
	for name, secret := range map[string]string{"readable": "", "hashed": testSecret} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redistest.Each(t, func(t *testing.T, s *redistest.Server) {
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

// tellAll has a guard say what it can say, by way of every policy and fault, and
// gives all of it.
func tellAll(t *testing.T, s *redistest.Server, secret string) string {
	policies := map[string]automutex.Policy{
		"retry": automutex.Retry, "skip": automutex.Skip, "archive": automutex.Archive, "fail": automutex.Fail, "park": automutex.Park, "replace": automutex.Replace, "allow": automutex.Allow,
	}
	rules := []automutex.Rule{
		{Task: "lost", On: []string{"email"}, Busy: automutex.Retry},
		{Task: "overdue", On: []string{"email"}, Busy: automutex.Retry},
		{Task: "newest", On: []string{"email"}, Busy: automutex.Replace, Wait: time.Minute},
		{Task: "nofield", On: []string{"email", "phone"}, Busy: automutex.Retry},
		{Task: "unfit", Key: automutex.KeyOf(func(v struct{ Card int8 }) []string { return []string{fmt.Sprint(v.Card)} }), Busy: automutex.Retry},
		{Task: "unread", Key: automutex.KeyOf(func(v struct{ Note time.Time }) []string { return []string{v.Note.String()} }), Busy: automutex.Retry},
	}
	for name, policy := range policies {
		rules = append(rules, automutex.Rule{Task: name, On: []string{"email"}, Busy: policy, Wait: time.Duration(len(name)) * time.Millisecond})
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
			fmt.Fprintln(&told, r.await(id, asynq.TaskStateArchived).LastErr)
		case "skip":
			r.await(id, asynq.TaskStateCompleted)
		case "allow":
			r.stage.next(t).returns(nil)
			r.await(id, asynq.TaskStateCompleted)
		case "park":
			// It waits in its worker while another one is free; see what is stored.
			r.awaitEvent(automutex.EventWaiting, id)
			storedText(t, &told, s, r)
			r.free(lease)
			r.stage.next(t).returns(nil)
			r.await(id, asynq.TaskStateCompleted)
			continue
		default:
			fmt.Fprintln(&told, r.await(id, asynq.TaskStateRetry).LastErr)
		}
		storedText(t, &told, s, r)
		r.free(lease)
	}

	// Who is replaced, loses the lease, runs past its end, or has no key.
	older := r.enqueue("newest", private)
	run := r.stage.next(t)
	r.enqueue("newest", private)
	run.returns(run.awaitEnd(t))
	r.awaitEvent(automutex.EventReplaced, older)
	r.stage.next(t).returns(nil)

	id := r.enqueue("lost", private)
	run = r.stage.next(t)
	redistest.Must(t, r.rdb.Del(t.Context(), keys.HashedKey(secret, r.cfg.Prefix, "lost", keyValue)).Err())
	run.returns(nil)
	r.awaitEvent(automutex.EventLost, id)

	id = r.enqueue("overdue", private)
	run = r.stage.next(t)
	run.cut()
	r.awaitEvent(automutex.EventOverdue, id)
	run.returns(nil)

	for _, name := range []string{"nofield", "unfit", "unread"} {
		info := r.await(r.enqueue(name, private), asynq.TaskStateArchived)
		if !strings.Contains(info.LastErr, "no key for task") {
			t.Errorf("%s is archived with %q", name, info.LastErr)
		}
		fmt.Fprintln(&told, info.LastErr)
	}
	if info := r.await(r.enqueue("nofield", "{"+private), asynq.TaskStateArchived); true {
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
		automutex.EventAcquired, automutex.EventWaiting, automutex.EventBusy, automutex.EventSkipped, automutex.EventRetried, automutex.EventReplaced, automutex.EventReleased,
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
	if err == nil || !strings.HasPrefix(err.Error(), "automutex: Config.HashKeys: ") || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("got %v", err)
	}
}
