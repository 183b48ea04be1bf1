package unique

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/keys"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// longest is the patience of rules in tests, too.
const longest = redistest.Patience

var each = redistest.EachInParallel

func eventually(t *testing.T, is func() bool, what string, args ...any) {
	t.Helper()
	redistest.Eventually(t, longest, is, what, args...)
}

// rig is a Client for one test, with a queue and a prefix of its own. Its queue has no workers unless serve is called.
type rig struct {
	workers   int // of serve; 0: 300
	isFailure func(error) bool
	retryIn   time.Duration
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
	r := &rig{t: t, s: s, retryIn: time.Hour, prefix: redistest.Name(t), queue: redistest.Name(t), rdb: s.Client(t)}
	r.plain = asynq.NewClientFromRedisClient(r.rdb)
	r.inspector = asynq.NewInspectorFromRedisClient(r.rdb)
	r.Client = r.producer(r.rdb, rules...)
	return r
}

// producer is another Client on the rig's prefix and queue.
func (r *rig) producer(rdb redis.UniversalClient, rules ...Rule) *Client {
	r.t.Helper()
	c, err := r.over(rdb, asynq.NewClientFromRedisClient(rdb), rules...)
	redistest.Must(r.t, err)
	return c
}

// over is a producer over a client.
func (r *rig) over(rdb redis.UniversalClient, client automutex.Enqueuer, rules ...Rule) (*Client, error) {
	rules = slices.Clone(rules)
	for i := range rules {
		rules[i].Queue = cmp.Or(rules[i].Queue, r.queue)
	}
	return New(client, asynq.NewInspectorFromRedisClient(rdb), rdb, Config{Prefix: r.prefix, Rules: rules})
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
		RetryDelayFunc:           func(int, error, *asynq.Task) time.Duration { return r.retryIn },
		ShutdownTimeout:          longest, Logger: redistest.Silent{}, IsFailure: r.isFailure,
	}
	for _, q := range queues {
		cfg.Queues[q] = 1
	}
	handler := asynq.Handler(h)
	if guard != nil {
		cfg, handler = guard.ServerConfig(cfg), guard.Middleware(handler)
	}
	server := asynq.NewServerFromRedisClient(r.rdb, cfg)
	redistest.Must(r.t, server.Start(handler))
	r.t.Cleanup(func() { r.shutDown(server, guard) })
}

func (r *rig) shutDown(server *asynq.Server, guard *automutex.Guard) {
	r.t.Helper()
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
}

// guard makes a Guard on the rig's prefix.
func (r *rig) guard(rules ...automutex.Rule) *automutex.Guard {
	r.t.Helper()
	g, err := automutex.New(r.rdb, automutex.Config{Rules: rules, Prefix: r.prefix, Logger: slog.New(slog.DiscardHandler)})
	redistest.Must(r.t, err)
	return g
}

func succeed(context.Context, *asynq.Task) error { return nil }

var onID = []string{"id"} // of the payload: the key of the rules in the tests

func task(taskType, id, text string) *asynq.Task {
	return asynq.NewTask(taskType, fmt.Appendf(nil, `{"id":%q,"text":%q}`, id, text))
}

func (r *rig) must(info *asynq.TaskInfo, err error) *asynq.TaskInfo {
	r.t.Helper()
	redistest.Must(r.t, err)
	return info
}

// enqueue enqueues a task with the ID 7, which is to be accepted.
func (r *rig) enqueue(taskType, text string, opts ...asynq.Option) *asynq.TaskInfo {
	r.t.Helper()
	return r.must(r.Enqueue(task(taskType, "7", text), opts...))
}

// refuses checks that another task with the ID 7 is a duplicate of the one with that ID.
func (r *rig) refuses(taskType, text, id string, state asynq.TaskState) {
	r.t.Helper()
	info, err := r.Enqueue(task(taskType, "7", text))
	r.mustBeDuplicate(info, err, id, state)
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
		i.ListPendingTasks, i.ListActiveTasks, i.ListScheduledTasks, i.ListRetryTasks, i.ListArchivedTasks,
		i.ListCompletedTasks,
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
	asynq.TaskStatePending, asynq.TaskStateActive, asynq.TaskStateScheduled, asynq.TaskStateRetry,
	asynq.TaskStateAggregating,
}

// texts gives what tasks say.
func texts(infos []*asynq.TaskInfo) (all []string) {
	for _, info := range infos {
		all = append(all, textOf(info.Payload))
	}
	slices.Sort(all)
	return all
}

func textOf(payload []byte) string {
	_, text, _ := strings.Cut(string(payload), `"text":"`)
	return strings.TrimSuffix(text, `"}`)
}

func (r *rig) await(queue, id string, state asynq.TaskState) {
	r.t.Helper()
	eventually(r.t, func() bool {
		info, err := r.inspector.GetTaskInfo(queue, id)
		return err == nil && info.State == state
	}, "task %s being %s", id, state)
}

func (r *rig) awaitGone(queue, id string) {
	r.t.Helper()
	eventually(r.t, func() bool {
		_, err := r.inspector.GetTaskInfo(queue, id)
		return errors.Is(err, asynq.ErrTaskNotFound)
	}, "task %s being gone", id)
}

// record keeps what the handlers of a test were given, in order.
type record struct {
	mu  sync.Mutex // guards ran
	ran []string
}

func (r *record) add(task *asynq.Task) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ran = append(r.ran, textOf(task.Payload()))
	return len(r.ran)
}

func (r *record) all() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.ran)
}

// claimKey is the Redis key of the claim of the tasks with the ID 7.
func (r *rig) claimKey(taskType string) string { return keys.Key(r.prefix, taskType, "7") + ":claim" }

// its is the lock of the tasks with the ID 7.
func (r *rig) its(taskType string) *lock.Lock {
	locker := lock.New(r.rdb, lock.Options{Prefix: r.prefix})
	r.t.Cleanup(func() { _ = locker.Close() })
	return locker.Mutex(taskType, lock.Parts("7"))
}

// hold takes that lock, as another task would.
func (r *rig) hold(taskType string) (letGo func()) {
	r.t.Helper()
	lease, err := r.its(taskType).Lock(r.t.Context())
	redistest.Must(r.t, err)
	return func() { _ = lease.Unlock(context.Background()) }
}

// awaitLine waits until one task waits for that lock.
func (r *rig) awaitLine(taskType string) {
	r.t.Helper()
	eventually(r.t, func() bool {
		n, err := r.its(taskType).Waiting(r.t.Context())
		return n == 1 && err == nil
	}, "one in line for %s", taskType)
}

// age makes the claim of a key that old.
func (r *rig) age(taskType string, age time.Duration) {
	r.t.Helper()
	stored := r.rdb.Get(r.t.Context(), r.claimKey(taskType)).Val()
	since, rest, ok := strings.Cut(stored, " ")
	if _, err := strconv.ParseInt(since, 10, 64); err != nil || !ok {
		r.t.Fatalf("the claim is %q", stored)
	}
	older := time.Now().Add(-age).UnixMilli()
	redistest.Must(r.t, r.rdb.Set(r.t.Context(), r.claimKey(taskType), fmt.Sprint(older, " ", rest), redis.KeepTTL).Err())
}

// isEnqueue tells asynq's scripts that make a task: the key of the task comes first, its message among the arguments.
func isEnqueue(cmd redis.Cmder, queue string) bool {
	args := cmd.Args()
	if !strings.HasPrefix(cmd.Name(), "eval") || len(args) < 6 {
		return false
	}
	key, _ := args[3].(string)
	list, _ := args[4].(string)
	return strings.HasPrefix(key, "asynq:{"+queue+"}:t:") && (strings.HasSuffix(list, ":pending") ||
		strings.HasSuffix(list, ":scheduled"))
}

// hooked is a client of the rig's Redis that asks before each command.
func (r *rig) hooked(before func(redis.Cmder) error) redis.UniversalClient {
	hook := &redistest.FailHook{}
	hook.Before(before)
	rdb := r.s.Client(r.t)
	rdb.AddHook(hook)
	return rdb
}
