package documented

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
	"github.com/automutex/automutex/unique"
)

func push(ctx context.Context, t *asynq.Task) error {
	wait, err := upstream.Push(ctx, t.Payload())
	if wait > 0 { // 429, with Retry-After
		if err := automutex.CloseGate(ctx, wait); err != nil {
			return err
		}
		return automutex.RetryAfter(wait, err)
	}
	return err
}

func oneScheduler(ctx context.Context) error {
	err := automutex.LeadScheduler(ctx, locker, "digest-scheduler", func() (*asynq.Scheduler, error) {
		scheduler := asynq.NewScheduler(redisOpt, nil)
		_, err := scheduler.Register("*/10 * * * *", asynq.NewTask("cron:digest", nil))
		return scheduler, err
	})
	return err
}

func outside(ctx context.Context, guard *automutex.Guard) error {
	lease, err := guard.Lock(ctx, "report", "acme") // or guard.LockFor(ctx, task)
	if err != nil {
		return err // a *lock.BusyError, if ctx ended while others held the key
	}
	defer lease.Unlock(ctx)
	return nil
}

// TestReadmeSnippets compares the Go of the README and the guides with files that
// compile: every line of every snippet stands in one of them, in order.
func TestReadmeSnippets(t *testing.T) {
	t.Parallel()
	_ = []any{push, enqueue, headline, shutdown, verify, plainLock, enqueueOnce, oneScheduler, deliver, outside}
	client := redis.NewClient(&redis.Options{Addr: "localhost:6379"}) // dials when it is used, and it is not
	t.Cleanup(func() { _ = client.Close() })
	if _, err := automutex.New(client, automutex.Config{Rules: moreRules()}); err != nil {
		t.Errorf("the README's rules: %v", err)
	}
	shared := []automutex.Rule{
		{Task: "report:", Scope: "report", On: []string{"tenant.id"}, Limit: 1, LeaveIdle: 1},
	}
	rules := slices.Concat(limitedRules(), codeRules(), shared)
	if _, err := automutex.New(client, automutex.Config{Rules: rules}); err != nil {
		t.Errorf("the guide's rules: %v", err)
	}
	producer, looker := asynq.NewClientFromRedisClient(client), asynq.NewInspectorFromRedisClient(client)
	if _, err := unique.New(producer, looker, client, unique.Config{Rules: uniqueRules()}); err != nil {
		t.Errorf("the README's rules of unique: %v", err)
	}
	for _, setUp := range []func(redis.UniversalClient) (*automutex.Guard, error){deliveries, documents} {
		if _, err := setUp(client); err != nil {
			t.Errorf("the rules of docs/migrating.md: %v", err)
		}
	}
	compiled := ""
	for _, file := range []string{
		"internal/documented/example_test.go", "internal/documented/example_readme_test.go", "automutextest/example_test.go",
		"metrics/example_test.go", "web/example_test.go", "web/check/beside/main.go", "web/check/beside/mount_test.go",
		"examples/quickstart/main.go", "examples/encodings/main.go",
	} {
		compiled += squeeze(read(t, file))
	}
	for page, least := range map[string]int{"README.md": 2, "docs/guide.md": 12, "docs/operations.md": 2,
		"docs/migrating.md": 2} {
		blocks := strings.Split(read(t, page), "```go\n")[1:] // without what stands before the first
		for _, block := range blocks {
			snippet, _, closed := strings.Cut(block, "```")
			if !closed || !strings.Contains(compiled, squeeze(snippet)) {
				t.Errorf("this snippet of %s is in no file that compiles:\n%s", page, snippet)
			}
		}
		if len(blocks) < least {
			t.Errorf("found %d snippets in %s, not %d", len(blocks), page, least)
		}
	}
}

// The rules under "A missing field", "Lock by a header" and "One for each user, ten in all" in docs/guide.md.
func TestGuideRules(t *testing.T) {
	t.Parallel()
	keys := func(task *asynq.Task, rules []automutex.Rule) string {
		t.Helper()
		maker, err := automutex.NewKeyMaker(automutex.Config{Rules: rules})
		redistest.Must(t, err)
		made, err := maker.Keys(t.Context(), task)
		redistest.Must(t, err)
		return strings.Join(made, " ")
	}
	optional := []automutex.Rule{
		{Task: "photo:resize", On: []string{"album_id"}, Optional: true},
	}
	header := []automutex.Rule{{Task: "mail:send", OnHeaders: []string{"tenant"}}}
	task := asynq.NewTaskWithHeaders("mail:send", []byte("\xff"), map[string]string{"tenant": "acme"})
	rules := []automutex.Rule{
		{Task: "export", Name: "export of a user", Scope: "export-user", On: []string{"user_id"}},
		{Task: "export", Name: "all exports", Scope: "export-all", Limit: 10},
	}
	for got, want := range map[string]string{
		keys(asynq.NewTask("photo:resize", []byte(`{}`)), optional):             "",
		keys(asynq.NewTask("photo:resize", []byte(`{"album_id":7}`)), optional): "automutex:{photo:resize|7}",
		keys(task, header): "automutex:{mail:send|acme}",
		keys(asynq.NewTask("export", []byte(`{"user_id":7}`)), rules): "automutex:{export-user|7} automutex:{export-all}",
	} {
		if got != want {
			t.Errorf("keys %q, want %q", got, want)
		}
	}
}

// squeeze takes the indentation and empty lines out.
func squeeze(s string) string {
	var b strings.Builder
	for line := range strings.Lines(s) {
		if line = strings.TrimSpace(line); line != "" {
			b.WriteString(line + "\n")
		}
	}
	return b.String()
}

// What the guide says under "Pause and limit" of a repair calls its function when every process obeys the pause and the
// tenant's running report has ended, and resumes afterwards. The tenant's name is one
// that stands escaped in its key.
func TestGuide_repairWaitsForRunningTasks(t *testing.T) {
	t.Parallel()
	const tenant = "50% |~acme"
	s := redistest.Mini(t)
	guard, err := automutex.New(s.Client(t), automutex.Config{
		Logger: slog.New(slog.DiscardHandler),
		Rules:  []automutex.Rule{{Task: "report:", Scope: "report", On: []string{"tenant.id"}, Limit: 3}},
	})
	redistest.Must(t, err)
	t.Cleanup(func() { _ = guard.Close(context.Background()) })
	quiet := lock.Options{Logger: slog.New(slog.DiscardHandler)}
	repairer, elsewhere := lock.New(s.Client(t), quiet), lock.New(s.Client(t), quiet)
	t.Cleanup(func() { _, _ = repairer.Close(), elsewhere.Close() })
	report := elsewhere.Semaphore("report", 3, lock.Parts(tenant))
	running, err := report.TryLock(t.Context())
	redistest.Must(t, err)

	var ended, called atomic.Bool
	begun, failed, done := time.Now(), errors.New("f failed"), make(chan error, 1)
	go func() {
		done <- repair(t.Context(), guard, repairer, tenant, func() error {
			called.Store(true)
			if took := time.Since(begun); took < lock.ControlDelay {
				t.Errorf("f was called %s after the pause: other processes obey within %s", took, lock.ControlDelay)
			}
			if !ended.Load() {
				t.Error("f was called while a report of the tenant was running")
			}
			return failed
		})
	}()
	redistest.Eventually(t, redistest.Patience, func() bool {
		lease, err := report.TryLock(t.Context())
		if err == nil {
			err = lease.Unlock(t.Context())
		}
		var busy *lock.BusyError
		return errors.As(err, &busy) && busy.Reason == lock.ReasonPaused
	}, "the pause, in another process")
	redistest.Eventually(t, redistest.Patience, func() bool {
		return called.Load() ||
			time.Since(begun) > lock.ControlDelay+time.Second
	}, "the time that a change takes")
	ended.Store(true)
	if err := running.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-done; !errors.Is(err, failed) {
		t.Errorf("repair: %v, want the error of f", err)
	}
	if list, err := guard.Controls().List(t.Context()); err != nil || len(list) > 0 {
		t.Errorf("left in force: %v, %v", list, err)
	}
}
