// Package golden holds what one version writes and another one reads: the bytes in Redis, and what each
// operation costs in commands, bytes on the wire and allocations. The files in testdata are compared with
// what happens now; go test ./internal/golden -update writes them anew, and their diff is read by
// whoever reviews the change (VERSIONING.md, "To change what is stored").
package golden

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/history"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
	"github.com/automutex/automutex/lock/pool"
	"github.com/automutex/automutex/unique"
)

var update = flag.Bool("update", false, "write the golden files anew")

func TestMain(m *testing.M) { redistest.Main(m) }

// compare holds got against the file of that name: can a process of the last release misread it? See VERSIONING.md.
func compare(t *testing.T, name, got string) {
	t.Helper()
	redistest.Golden(t, *update, filepath.Join("testdata", name), got)
}

// What differs from run to run: tokens, tickets, times, fences.
var (
	token  = regexp.MustCompile(`[A-Za-z0-9_-]{16}\.[a-z0-9]{11,13}\b`)
	number = regexp.MustCompile(`\d{12,}(\.\d+)?`)
	nonce  = regexp.MustCompile(`\b[0-9a-f]{8}-[0-9a-f-]{27}\b`)
	taskID = regexp.MustCompile(`:[a-z0-9]{16}$`)
	stamp  = regexp.MustCompile(`\d{4}-\d\d-\d\dT[0-9:.]+Z`)
)

func plain(text string) string {
	text = token.ReplaceAllString(text, "CHANNEL.NONCE")
	text = nonce.ReplaceAllString(text, "UUID")
	text = taskID.ReplaceAllString(text, ":NONCE")
	text = stamp.ReplaceAllString(text, "TIME")
	// which of the two came first is chance
	text = regexp.MustCompile(`default/(one|two)\b`).ReplaceAllString(text, "default/ID")
	return number.ReplaceAllStringFunc(text, func(n string) string {
		return fmt.Sprintf("<%d digits>", len(strings.Split(n, ".")[0]))
	})
}

// band is a score without what the clock decides: its first digit and its magnitude.
func band(score float64) string {
	if score < 1000 && score > -1000 {
		return fmt.Sprint(score)
	}
	return fmt.Sprintf("%.0e", score)
}

// dump is everything in Redis that is not asynq's.
func dump(t *testing.T, rdb redis.UniversalClient) string {
	t.Helper()
	ctx := context.Background()
	var out strings.Builder
	keys := rdb.Keys(ctx, "*").Val()
	slices.Sort(keys)
	for _, key := range keys {
		if strings.HasPrefix(key, "asynq:") {
			continue
		}
		kind, ttl := rdb.Type(ctx, key).Val(), "a TTL"
		if rdb.PTTL(ctx, key).Val() < 0 {
			ttl = "no TTL"
		}
		fmt.Fprintf(&out, "  %s (%s, %s)\n", plain(key), kind, ttl)
		switch kind {
		case "string":
			fmt.Fprintf(&out, "    %q\n", plain(rdb.Get(ctx, key).Val()))
		case "zset":
			for _, z := range rdb.ZRangeWithScores(ctx, key, 0, -1).Val() {
				fmt.Fprintf(&out, "    %-8s %q\n", band(z.Score), plain(fmt.Sprint(z.Member)))
			}
		case "stream":
			for _, entry := range rdb.XRange(ctx, key, "-", "+").Val() {
				fmt.Fprintf(&out, "    %q\n", plain(fmt.Sprint(entry.Values)))
			}
		case "hash":
			fields := rdb.HGetAll(ctx, key).Val()
			lines := make([]string, 0, len(fields))
			for name, value := range fields {
				lines = append(lines, fmt.Sprintf("    %q: %q\n", plain(name), plain(value)))
			}
			slices.Sort(lines) // tokens are random
			out.WriteString(strings.Join(lines, ""))
		}
	}
	return out.String()
}

func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		redistest.Must(t, err)
		return v
	}
}

// Every form that docs/redis.md describes and a public call makes.
func TestGolden_stored(t *testing.T) {
	s := redistest.StartReal(t)
	rdb := s.Client(t)
	ctx := context.Background()
	lease := must[*lock.Lease](t)
	var out strings.Builder
	for _, c := range []struct {
		name string
		play func(t *testing.T, l *lock.Locker)
	}{
		{"a mutex that nobody waits for", func(t *testing.T, l *lock.Locker) {
			lease(l.Mutex("report", lock.Parts("acme", "a|b"), lock.Note("q/id")).TryLock(ctx))
		}},
		{"a long lease", func(t *testing.T, l *lock.Locker) {
			lease(l.Mutex("report", lock.TTL(time.Hour)).TryLock(ctx))
		}},
		{"two of a semaphore", func(t *testing.T, l *lock.Locker) {
			lease(l.Semaphore("report", 2).TryLock(ctx))
			lease(l.Semaphore("report", 2).TryLock(ctx))
		}},
		{"one waits", func(t *testing.T, l *lock.Locker) {
			lease(l.Mutex("report").TryLock(ctx))
			m := l.Mutex("report", lock.Note("q/second"))
			waits, cancel := context.WithCancel(ctx)
			done := make(chan struct{})
			go func() { defer close(done); _, _ = m.Lock(waits) }()
			t.Cleanup(func() { cancel(); <-done })
			redistest.Eventually(t, redistest.Patience, func() bool { n, err := m.Waiting(ctx); return n == 1 && err == nil },
				"one in line")
		}},
		{"a cooldown", func(t *testing.T, l *lock.Locker) {
			le := lease(l.Mutex("report").TryLock(ctx))
			redistest.Must(t, le.Cooldown(ctx, time.Hour))
		}},
		{"a rate", func(t *testing.T, l *lock.Locker) {
			le := lease(l.Mutex("report", lock.Rate(1, time.Hour, 1)).TryLock(ctx))
			redistest.Must(t, le.Unlock(ctx))
		}},
		{"a pause and a limit", func(t *testing.T, l *lock.Locker) {
			redistest.Must(t, errors.Join(l.Controls().Pause(ctx, "report", time.Time{}, "repair"), l.Controls().SetLimit(ctx,
				"report|acme", 3, "plan")))
		}},
		{"a pool", func(t *testing.T, l *lock.Locker) {
			p := pool.New(l, "licences")
			must[int](t)(p.Put(ctx, "a b", "c"))
			must[*pool.Lease](t)(p.Take(ctx))
		}},
		{"a run and a wait in the history", func(t *testing.T, l *lock.Locker) {
			w, key, end := history.New(rdb, "automutex", "owner", 10, slog.Default()), l.Mutex("report").Key(), time.Now()
			w.Add(key, history.Run{Task: "q/one", Outcome: "done", Came: end.Add(-3 * time.Second), Start: end, End: end})
			w.Add(key, history.Run{Task: "q/two", Outcome: "skipped", Came: end.Add(-2 * time.Second), End: end})
			w.Close(ctx)
			redistest.Eventually(t, redistest.Patience, func() bool {
				return rdb.ZCard(ctx, "automutex:{stats}:histories").Val() == 1
			}, "the history is written")
		}},
		{"claims", func(t *testing.T, l *lock.Locker) {
			client, inspector := asynq.NewClientFromRedisClient(rdb), asynq.NewInspectorFromRedisClient(rdb)
			once := must[*unique.Client](t)(unique.New(client, inspector, rdb, unique.Config{Rules: []unique.Rule{
				{Task: "start", On: []string{"k"}, Until: unique.UntilStart},
				{Task: "window", On: []string{"k"}, Until: unique.For(time.Hour)},
			}}))
			for _, task := range []string{"start", "window"} {
				must[*asynq.TaskInfo](t)(once.Enqueue(asynq.NewTask(task, []byte(`{"k":1}`))))
			}
		}},
		{"a task at work and a parked one", func(t *testing.T, l *lock.Locker) { park(t, s, rdb) }},
	} {
		redistest.Must(t, rdb.FlushAll(ctx).Err())
		t.Run(c.name, func(t *testing.T) {
			l := lock.New(rdb, lock.Options{Owner: "owner"})
			defer func() { _ = l.Close() }()
			c.play(t, l)
			fmt.Fprintf(&out, "%s\n%s\n", c.name, dump(t, rdb))
		})
	}
	compare(t, "stored.txt", out.String())
}

// park has two tasks of one key on a server: one at work, one parked.
func park(t *testing.T, s *redistest.Server, rdb redis.UniversalClient) {
	t.Helper()
	guard := must[*automutex.Guard](t)(automutex.New(rdb, automutex.Config{
		Owner: "owner", Rules: []automutex.Rule{{Task: "work", On: []string{"k"}, Busy: automutex.Park,
			TTL: 3 * time.Second}},
	}))
	srv := asynq.NewServerFromRedisClient(s.Client(t), guard.ServerConfig(asynq.Config{
		Concurrency: 2, TaskCheckInterval: 20 * time.Millisecond, LogLevel: asynq.FatalLevel,
	}))
	mux, over := asynq.NewServeMux(), make(chan struct{})
	mux.Use(guard.Middleware)
	mux.HandleFunc("work", func(context.Context, *asynq.Task) error { <-over; return nil })
	redistest.Must(t, srv.Start(mux))
	t.Cleanup(func() {
		close(over)
		go func() { _ = guard.Close(context.Background()) }()
		srv.Shutdown()
	})
	client := asynq.NewClientFromRedisClient(rdb)
	for _, id := range []string{"one", "two"} {
		must[*asynq.TaskInfo](t)(client.Enqueue(asynq.NewTask("work", []byte(`{"k":1}`)), asynq.TaskID(id)))
	}
	redistest.Eventually(t, redistest.Patience, func() bool {
		return rdb.ZCard(context.Background(), "automutex:{work|1}:parked").Val() == 1
	}, "a parked task")
}
