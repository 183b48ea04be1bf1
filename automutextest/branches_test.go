package automutextest

import (
	"context"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/redistest"
)

// What ends while Redis is away fails the test.
func TestRelease_noRedis(t *testing.T) {
	t.Parallel()
	fails(t, func(t testing.TB) {
		g := New(t, turns())
		resume := Pause(t, g, "work")
		if err := g.Redis().Close(); err != nil {
			t.Fatal(err)
		}
		resume()
	}, "Pause", "client is closed")
}

// Without a number of workers of its own a server has as many as asynq gives it.
func TestServe_defaultWorkers(t *testing.T) {
	t.Parallel()
	g := New(t, turns())
	server := Serve(t, g, g.Middleware(returns(nil)), func(c *asynq.Config) { c.Concurrency = 0 })
	if n := g.servers[0].workers; n != runtime.NumCPU() {
		t.Errorf("%d workers", n)
	}
	server.Enqueue(t, work(one)).Becomes(t, Done)
}

// A task in a queue that no server fetches from is on no way to a handler, and a Redis that does not answer is an error.
func TestOnTheirWay(t *testing.T) {
	t.Parallel()
	g := New(t, turns())
	Serve(t, g, g.Middleware(returns(nil)))
	enqueue := func(queue string) {
		t.Helper()
		_, err := asynq.NewClientFromRedisClient(g.Redis()).Enqueue(work(one), asynq.Queue(queue), asynq.ProcessIn(0))
		redistest.Must(t, err)
	}
	enqueue("elsewhere")
	none := func(string, string) bool { return false }
	redistest.Eventually(t, patience, func() bool { is, err := g.onTheirWay(none); return err == nil && !is }, "nothing is on its way")
	hook := &redistest.FailHook{}
	g.Redis().AddHook(hook)
	g.servers[0].queues["elsewhere"] = 1
	for _, c := range []struct {
		command string
		after   int
	}{{"smembers", 0}, {"sismember", 0}, {"sismember", 1}} {
		calls := 0
		hook.Before(func(cmd redis.Cmder) error {
			if cmd.Name() == c.command && slices.Contains(cmd.Args(), any("elsewhere")) == (c.command == "sismember") {
				if calls++; calls > c.after {
					return redistest.ReplyError("ERR away")
				}
			}
			return nil
		})
		if _, err := g.onTheirWay(none); err == nil || !strings.Contains(err.Error(), "ERR away") {
			t.Errorf("%s, after %d: %v", c.command, c.after, err)
		}
	}
	hook.Before(nil)
}

// A run whose context has ended waits for no others.
func TestWatch_contextEnded(t *testing.T) {
	t.Parallel()
	g := New(t, turns())
	runs := Watch(t, g, returns(nil), everything)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	shortest := time.Hour
	for range 20 { // the machine may be busy for some of them
		began := time.Now()
		if err := runs.ProcessTask(ctx, work(one)); err != nil {
			t.Fatal(err)
		}
		shortest = min(shortest, time.Since(began))
	}
	if shortest >= linger {
		t.Errorf("each took %s or more", shortest)
	}
}

// A task that asynq runs twice at once is running until both have ended.
func TestWatch_sameTaskTwice(t *testing.T) {
	t.Parallel()
	g := New(t, turns())
	runs := Watch(t, g, returns(nil), everything)
	first, second := &run{task: work(one), queue: "q", id: "1"}, &run{task: work(one), queue: "q", id: "1"}
	runs.enter("a", first)
	runs.enter("a", second)
	for i, ended := range []*run{first, second} {
		runs.leave("a", ended)
		if is := runs.isRunning("q", "1"); is != (i == 0) {
			t.Errorf("after the end of %d: running %v", i+1, is)
		}
	}
}

// A failure names why a run had no key.
func TestRuns_keys(t *testing.T) {
	t.Parallel()
	g := New(t, turns())
	runs := Watch(t, g, returns(nil), everything)
	for want, task := range map[string]*asynq.Task{`field "id" is missing`: work(noKey), "no rule is for it": asynq.NewTask("other", nil)} {
		if got := runs.keys(&run{task: task}); !strings.Contains(got, want) {
			t.Errorf("%q does not say %q", got, want)
		}
	}
	server := Serve(t, g, returns(nil))
	fails(t, func(t testing.TB) { server.Enqueue(t, work(noKey)).Becomes(t, HandedBack) }, "is done", `field "id" is missing`)
}

// logged keeps what a test logs.
type logged struct {
	testing.TB
	lines []any
}

func (l *logged) Log(args ...any) { l.lines = append(l.lines, args...) }
func (*logged) Helper()           {}

// Before Go 1.25 a record of the Guard is a line of the test's log.
func TestLineLog(t *testing.T) {
	t.Parallel()
	to := &logged{}
	if n, err := (lineLog{to}).Write([]byte("a record\n")); n != 9 || err != nil || !slices.Equal(to.lines, []any{any("a record")}) {
		t.Errorf("%d, %v, %q", n, err, to.lines)
	}
}
