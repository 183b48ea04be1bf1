package unique

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
)

// longest is the patience of rules in tests, too.
const longest = redistest.Patience

// rig is a Client for one test, with a queue and a prefix of its own. Its queue
// has no workers unless serve is called.
type rig struct {
	workers   int // of serve; 0: 300
	t         *testing.T
	s         *redistest.Server
	prefix    string
	queue     string
	rdb       redis.UniversalClient
	plain     *asynq.Client
	inspector *asynq.Inspector
	*Client
}

// own is s, or a miniredis of the test's own: it runs one script at a time and
// slowly, and a test that asks much of it would hold up all others.
func own(t *testing.T, s *redistest.Server) *redistest.Server {
	if s.Kind() == redistest.KindMini {
		return redistest.StartMini(t)
	}
	return s
}

// start makes a rig. Rules without a Queue get its own.
func start(t *testing.T, s *redistest.Server, rules ...Rule) *rig {
	t.Helper()
	r := &rig{t: t, s: s, prefix: redistest.Name(t), queue: redistest.Name(t), rdb: s.Client(t)}
	r.plain = asynq.NewClientFromRedisClient(r.rdb)
	r.inspector = asynq.NewInspectorFromRedisClient(r.rdb)
	r.Client = r.producer(r.rdb, rules...)
	return r
}

// producer is another Client on the rig's prefix and queue.
func (r *rig) producer(rdb redis.UniversalClient, rules ...Rule) *Client {
	r.t.Helper()
	rules = slices.Clone(rules)
	for i := range rules {
		if rules[i].Queue == "" {
			rules[i].Queue = r.queue
		}
	}
	c, err := New(asynq.NewClientFromRedisClient(rdb), asynq.NewInspectorFromRedisClient(rdb), rdb, Config{Prefix: r.prefix, Rules: rules})
	if err != nil {
		r.t.Fatal(err)
	}
	return c
}

// orderedProducer is a producer over a Client of the root package, whose rules for the same tasks have InOrder.
func (r *rig) orderedProducer(rdb redis.UniversalClient, rules ...Rule) *Client {
	r.t.Helper()
	ordered, rules := make([]automutex.Rule, len(rules)), slices.Clone(rules)
	for i := range rules {
		ordered[i], rules[i].Queue = automutex.Rule{Task: rules[i].Task, On: []string{"id"}, InOrder: true, OnArchive: automutex.Continue}, r.queue
	}
	through, err := automutex.NewClient(rdb, asynq.NewClientFromRedisClient(rdb), automutex.Config{Prefix: r.prefix, Rules: ordered, Private: true})
	redistest.Must(r.t, err)
	c, err := New(through, asynq.NewInspectorFromRedisClient(rdb), rdb, Config{Prefix: r.prefix, Rules: rules})
	redistest.Must(r.t, err)
	return c
}

// serve starts a worker on queues of the rig; guard is nil for one without.
func (r *rig) serve(h asynq.HandlerFunc, guard *automutex.Guard, queues ...string) {
	r.t.Helper()
	if len(queues) == 0 {
		queues = []string{r.queue}
	}
	cfg := asynq.Config{
		Concurrency: cmp.Or(r.workers, 300), Queues: map[string]int{}, TaskCheckInterval: redistest.CheckEvery,
		DelayedTaskCheckInterval: 50 * time.Millisecond,
		RetryDelayFunc:           func(int, error, *asynq.Task) time.Duration { return time.Hour },
		ShutdownTimeout:          longest, Logger: redistest.Silent{},
	}
	for _, q := range queues {
		cfg.Queues[q] = 1
	}
	handler := asynq.Handler(h)
	if guard != nil {
		cfg, handler = guard.ServerConfig(cfg), guard.Middleware(handler)
	}
	server := asynq.NewServerFromRedisClient(r.rdb, cfg)
	if err := server.Start(handler); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		closed := make(chan error, 1)
		if guard == nil {
			closed <- nil
		} else {
			go func() { closed <- guard.Close(context.Background()) }()
		}
		server.Shutdown()
		if err := <-closed; err != nil {
			r.t.Error(err)
		}
	})
}

// guard makes a Guard on the rig's prefix.
func (r *rig) guard(rules ...automutex.Rule) *automutex.Guard {
	r.t.Helper()
	g, err := automutex.New(r.rdb, automutex.Config{Rules: rules, Prefix: r.prefix, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		r.t.Fatal(err)
	}
	return g
}

// task makes a task; the payload's id is the key of the rules in the tests.
func task(taskType, id, text string) *asynq.Task {
	return asynq.NewTask(taskType, fmt.Appendf(nil, `{"id":%q,"text":%q}`, id, text))
}

func (r *rig) must(info *asynq.TaskInfo, err error) *asynq.TaskInfo {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
	return info
}

// mustBeDuplicate checks that a task was rejected for the one with that ID.
func (r *rig) mustBeDuplicate(info *asynq.TaskInfo, err error, id string, state asynq.TaskState) {
	r.t.Helper()
	var dup *DuplicateError
	if info != nil || !errors.As(err, &dup) || !errors.Is(err, asynq.ErrDuplicateTask) {
		r.t.Fatalf("got %v, %v, want a *DuplicateError", info, err)
	}
	if dup.ID != id || dup.State != state || dup.Queue != r.queue {
		r.t.Fatalf("in the way is %q in %q, %s; want %q, %s", dup.ID, dup.Queue, dup.State, id, state)
	}
}

// tasks lists the tasks of a type in a queue, in any state.
func (r *rig) tasks(queue, taskType string, states ...asynq.TaskState) (found []*asynq.TaskInfo) {
	r.t.Helper()
	i, all := r.inspector, asynq.PageSize(10_000)
	lists := []func(string, ...asynq.ListOption) ([]*asynq.TaskInfo, error){
		i.ListPendingTasks, i.ListActiveTasks, i.ListScheduledTasks, i.ListRetryTasks, i.ListArchivedTasks, i.ListCompletedTasks,
	}
	groups, err := i.Groups(queue)
	if err != nil && !errors.Is(err, asynq.ErrQueueNotFound) {
		r.t.Fatal(err)
	}
	for _, g := range groups {
		lists = append(lists, func(q string, o ...asynq.ListOption) ([]*asynq.TaskInfo, error) {
			return i.ListAggregatingTasks(q, g.Group, o...)
		})
	}
	for _, list := range lists {
		infos, err := list(queue, all)
		if err != nil && !errors.Is(err, asynq.ErrQueueNotFound) {
			r.t.Fatal(err)
		}
		for _, info := range infos {
			if info.Type == taskType && (len(states) == 0 || slices.Contains(states, info.State)) {
				found = append(found, info)
			}
		}
	}
	return found
}

var live = []asynq.TaskState{
	asynq.TaskStatePending, asynq.TaskStateActive, asynq.TaskStateScheduled, asynq.TaskStateRetry, asynq.TaskStateAggregating,
}

// texts gives what tasks say.
func texts(infos []*asynq.TaskInfo) (all []string) {
	for _, info := range infos {
		_, text, _ := strings.Cut(string(info.Payload), `"text":"`)
		all = append(all, strings.TrimSuffix(text, `"}`))
	}
	slices.Sort(all)
	return all
}

func (r *rig) await(queue, id string, state asynq.TaskState) {
	r.t.Helper()
	redistest.Eventually(r.t, longest, func() bool {
		info, err := r.inspector.GetTaskInfo(queue, id)
		return err == nil && info.State == state
	}, "task %s being %s", id, state)
}

func (r *rig) awaitGone(queue, id string) {
	r.t.Helper()
	redistest.Eventually(r.t, longest, func() bool {
		_, err := r.inspector.GetTaskInfo(queue, id)
		return errors.Is(err, asynq.ErrTaskNotFound)
	}, "task %s being gone", id)
}

// killed is a redis.Hook beneath a producer that dies: after so many commands of
// its own, nothing that it sends arrives.
type killed struct {
	redistest.FailHook
	mu   sync.Mutex // guards left and sent
	left int
	sent []string
}

func newKilled(after int) *killed {
	k := &killed{left: after}
	k.Before(func(cmd redis.Cmder) error {
		if slices.Contains([]string{"hello", "client", "select", "cluster", "command", "readonly", "ping"}, cmd.Name()) {
			return nil
		}
		k.mu.Lock()
		defer k.mu.Unlock()
		if k.left--; k.left < 0 {
			return errKilled
		}
		k.sent = append(k.sent, cmd.Name())
		return nil
	})
	return k
}

// commands are those that it sent; what it does in the background goes on.
func (k *killed) commands() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.sent)
}

var errKilled = errors.New("the producer is dead")
