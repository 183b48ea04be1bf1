package web

import (
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
	for name, c := range map[string]struct {
		path, command string
		before        func(*testing.T, *site)
		error         error
		want          string
	}{
		"key, time":       {"/key?key=a", "time", func(t *testing.T, v *site) { t.Helper(); v.hold(v.locker.Mutex("a")); v.wait(v.locker.Mutex("a")) }, redistest.ReplyError(refused), refused},
		"keys, closed":    {"/keys", "scan", nil, io.EOF, "Redis has closed the connection; the page tries again"},
		"overview, fleet": {"/", "zrevrangebyscore", nil, redistest.ReplyError(refused), "Pauses and limits"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			hook := &redistest.FailHook{}
			v := serve(t, redistest.Real(t), Options{})
			v.page.rdb.AddHook(hook)
			if c.before != nil {
				c.before(t, v)
			}
			fail(hook, c.error, c.command)
			t.Cleanup(func() { hook.Before(nil) })
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
			v.post("/locks/do", form).want(502, form.Get("action")+" failed: ", "NOPERM no rights")
			hook.Before(nil)
			if seen.last(t).Err == nil {
				t.Error("Audit was told of a success")
			}
			if held, err := m.Locked(t.Context()); err != nil || !held {
				t.Errorf("held: %v, %v", held, err)
			}
		})
	}
}

// A key of another program is named where an operator asks about it, and keeps orders from being given.
func TestDo_keyOfAnotherProgram(t *testing.T) {
	t.Parallel()
	v, _ := operator(t, redistest.Real(t))
	a := v.locker.Mutex("a").Key()
	redistest.Must(t, v.rdb.RPush(t.Context(), a, "x").Err())
	redistest.Must(t, v.rdb.Set(t.Context(), v.prefix+":{control}", "x", time.Minute).Err())
	v.get("/locks/do?action=break&key="+url.QueryEscape(a)).want(http.StatusBadGateway, "Another program has written to the key", "Nothing was done.")
	v.post("/locks/do", url.Values{"action": {"resume"}, "target": {"b"}}).want(502, "resume failed: ", "something else than controls is stored")
	v.get("/locks/key?key=b").want(200, "resume: failed: ")
}

// A form that cannot be read does nothing, and a long reason is cut.
func TestDo_hostileForms(t *testing.T) {
	t.Parallel()
	v, seen := operator(t, redistest.Mini(t))
	v.do(http.MethodPost, "/locks/do", strings.NewReader("key=%zz"), func(r *http.Request) {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}).want(400, "The form could not be read. Nothing was done.")
	v.post("/locks/do", url.Values{"action": {"sweep"}, "why": {strings.Repeat("é", maxWhy+1)}}).want(303)
	if why := seen.last(t).Why; why != strings.Repeat("é", maxWhy) {
		t.Errorf("the reason is %q", why)
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
	v.get("/keys?closed=1").want(200, ">many</bdi>").without(">shared</bdi>")
	v.get("/").want(200, "paused until somebody resumes it", "opens in ")
	v.get("/keys?rule=two").want(200, "<bdi>one, two</bdi>").without(">many</bdi>")
	v.get("/do?action=pause&target=many").want(200).without("Nor is there such a lock now.")
	v.hold(v.locker.Mutex("tenant", lock.Parts("x")))
	redistest.Eventually(t, patience, func() bool {
		return !strings.Contains(v.get("/do?action=pause&target=tenant").body, "Nor is there such a lock now.")
	}, "the scope of a lock is known")
	v.get("/do?action=pause&target=nobody").want(200, "Nor is there such a lock now.")
}
