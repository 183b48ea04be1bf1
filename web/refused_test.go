package web

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/fleet"
	"github.com/automutex/automutex/internal/keys"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// fail makes the named commands fail with an error.
func fail(hook *redistest.FailHook, err error, names ...string) {
	hook.Before(func(cmd redis.Cmder) error {
		if slices.Contains(names, cmd.Name()) {
			return err
		}
		return nil
	})
}

// A view shows why Redis refused a command that it needs.
func TestViews_refusedCommand(t *testing.T) {
	t.Parallel()
	const refused = "NOPERM this user has no permissions"
	claim := func(t *testing.T, v *site) {
		t.Helper()
		redistest.Must(t, v.rdb.Set(t.Context(), keys.Key(v.prefix, "index", "7")+":claim", "1 2 enqueued - q/1", time.Minute).Err())
	}
	for name, c := range map[string]struct {
		path, command string
		before        func(*testing.T, *site)
		error         error
		want          string
	}{
		"key, time":       {"/key?key=a", "time", func(t *testing.T, v *site) { t.Helper(); v.hold(v.locker.Mutex("a")); v.wait(v.locker.Mutex("a")) }, redistest.ReplyError(refused), refused},
		"unique, time":    {"/unique", "time", claim, redistest.ReplyError(refused), "the claims: "},
		"unique, get":     {"/unique", "get", claim, redistest.ReplyError(refused), "the claims: "},
		"processes":       {"/processes", "zrevrangebyscore", nil, redistest.ReplyError(refused), refused},
		"doctor":          {"/doctor", "info", nil, io.EOF, "Redis has closed the connection; examine again"},
		"rules, counts":   {"/rules", "hgetall", nil, redistest.ReplyError(refused), refused},
		"overview, fleet": {"/", "zrevrangebyscore", nil, redistest.ReplyError(refused), "Pauses and limits"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			hook := &redistest.FailHook{}
			v, _ := recorded(t, redistest.Real(t), hook)
			v.page.rdb.AddHook(hook)
			if c.before != nil {
				c.before(t, v)
			}
			fail(hook, c.error, c.command)
			t.Cleanup(func() { hook.Before(nil) })
			v.post("/doctor", nil)
			v.get(c.path).want(200, c.want)
		})
	}
}

// An action that Redis refuses has failed, with the reason, and the lock is as it was.
func TestDo_refusedByRedis(t *testing.T) {
	t.Parallel()
	for name, form := range map[string]url.Values{
		"break of a holder": {"action": {"break"}, "token": {"some"}},
		"break of a gate":   {"action": {"break"}, "gate": {"1"}},
		"delete":            {"action": {"delete"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v, seen := operator(t, redistest.Real(t))
			hook := &redistest.FailHook{}
			v.page.rdb.AddHook(hook)
			m := v.locker.Mutex("a")
			v.hold(m)
			fail(hook, redistest.ReplyError("NOPERM no rights"), "eval", "evalsha", "script")
			t.Cleanup(func() { hook.Before(nil) })
			form.Set("key", m.Key())
			sent := v.post("/locks/do", form).want(303)
			hook.Before(nil)
			v.get(sent.header.Get("Location")).want(200, form.Get("action")+" failed: ", "NOPERM no rights")
			if seen.last(t).Err == nil {
				t.Error("Audit was told of a success")
			}
			if held, err := m.Locked(t.Context()); err != nil || !held {
				t.Errorf("held: %v, %v", held, err)
			}
		})
	}
}

// A key of another program is named wherever an operator asks about it, and an order that it keeps from being
// given is in the timeline as failed.
func TestDo_keyOfAnotherProgram(t *testing.T) {
	t.Parallel()
	v, _ := recorded(t, redistest.Real(t), &redistest.FailHook{})
	a := v.locker.Mutex("a").Key()
	redistest.Must(t, v.rdb.RPush(t.Context(), a, "x").Err())
	redistest.Must(t, v.rdb.Set(t.Context(), v.prefix+":{control}", "x", time.Minute).Err())
	v.get("/do?action=break&from=keys&key=b&key="+url.QueryEscape(a)).want(http.StatusBadGateway, "Another program has written to the key", "Nothing was done.")
	v.post("/do", url.Values{"action": {"resume"}, "target": {"b"}}).want(303)
	v.get("/key?key=b").want(200, "<b>resume</b>: <bdi>failed: ", "something else than controls is stored")
}

// A form that cannot be read does nothing, and a long reason is cut.
func TestDo_hostileForms(t *testing.T) {
	t.Parallel()
	v, seen := operator(t, redistest.Mini(t))
	for path, text := range map[string]string{"/locks/do": "The form could not be read. Nothing was done.", "/locks/unique": "The form could not be read."} {
		v.do(http.MethodPost, path, strings.NewReader("key=%zz"), func(r *http.Request) {
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		}).want(400, text)
	}
	v.post("/locks/do", url.Values{"action": {"sweep"}, "why": {strings.Repeat("é", maxWhy+1)}}).want(303)
	if why := seen.last(t).Why; why != strings.Repeat("é", maxWhy) {
		t.Errorf("the reason is %q", why)
	}
}

// A key that looks like that of a claim and has something else does not hide the claims.
func TestClaims_somethingElse(t *testing.T) {
	t.Parallel()
	v := serve(t, redistest.Real(t), Options{})
	for id, value := range map[string]string{"odd": "soon 2 enqueued - q/odd", "short": "1 2", "good": "1 2 enqueued - q/good"} {
		redistest.Must(t, v.rdb.Set(t.Context(), keys.Key(v.prefix, "index", id)+":claim", value, time.Minute).Err())
	}
	v.get("/unique").want(200, "index|good").without("index|odd", "index|short", `role="alert"`)
}

// When its time is up between two answers of Redis, the walk gives what it has found.
func TestClaims_timeIsUp(t *testing.T) {
	t.Parallel()
	v := serve(t, redistest.Real(t), Options{})
	pipe := v.rdb.Pipeline()
	for i := range 3 * scanCount { // so that one SCAN is not enough
		pipe.Set(t.Context(), fmt.Sprint(v.prefix, i), "x", time.Minute)
	}
	_, err := pipe.Exec(t.Context())
	redistest.Must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	hook, scans := &redistest.FailHook{}, 0
	v.page.rdb.AddHook(hook)
	hook.Before(func(cmd redis.Cmder) error {
		if cmd.Name() != "scan" {
			return nil
		}
		if scans++; scans == 1 {
			return nil
		}
		cancel()
		return context.Canceled
	})
	if _, more, err := v.page.claimKeys(ctx); err != nil || !more || scans != 2 {
		t.Errorf("%v, more: %v after %d scans", err, more, scans)
	}
}

// What a worker of hashed keys does is found, and its keys are not made up without the secret.
func TestKeys_hashedElsewhere(t *testing.T) {
	t.Parallel()
	v := serve(t, redistest.StartMini(t), Options{})
	fleetOf(t, v.rdb, v.prefix, 1, func(p *fleet.Process, _ *fleet.Rule) { p.Hashed = true })
	_, err := asynq.NewClientFromRedisClient(v.rdb).Enqueue(asynq.NewTask("report", nil), asynq.TaskID("task-1"))
	redistest.Must(t, err)
	v.get("/keys?q=task-1").want(200, "its keys are hashed, and the page does not have the secret")
	v.post("/unique", url.Values{"type": {"report"}, "payload": {"{}"}}).want(200, "the processes hash their keys")
}

// A paused lock, a lock with several holders and a rule that shares its scope are shown as such.
func TestViews_states(t *testing.T) {
	t.Parallel()
	rules := []automutex.Rule{{Name: "one", Task: "a", Scope: "shared"}, {Name: "two", Task: "other", Scope: "shared"}}
	v := serve(t, redistest.Mini(t), Options{Rules: rules, Access: func(*http.Request) Access { return AccessOperate }})
	v.hold(v.locker.Mutex("shared"))
	many := v.locker.Semaphore("many", 3)
	v.hold(many)
	v.hold(many)
	redistest.Must(t, v.hold(many).Cooldown(t.Context(), time.Hour))
	redistest.Must(t, v.locker.Controls().Pause(t.Context(), "many", time.Time{}, ""))
	v.find("/keys", "and 1 more").want(200, `<span class="tag order">paused</span>`)
	v.get("/keys?closed=1&sort=key").want(200, "closed=1&amp;sort=key", ">many</bdi>").without(">shared</bdi>")
	v.get("/").want(200, "1 pause")
	v.get("/metrics").want(200, `automutex_locks_held{rule="one, two"} 1`)
	v.get("/do?action=pause&target=many").want(200).without("Nor is there such a lock now.")
	v.hold(v.locker.Mutex("tenant", lock.Parts("x")))
	v.page.sampler.mu.Lock()
	v.page.sampler.current = nil // so that the next look is waited for
	v.page.sampler.mu.Unlock()
	redistest.Eventually(t, patience, func() bool {
		return !strings.Contains(v.get("/do?action=pause&target=tenant").body, "Nor is there such a lock now.")
	}, "the scope of a lock is known")
	v.get("/do?action=pause&target=nobody").want(200, "Nor is there such a lock now.")
}
