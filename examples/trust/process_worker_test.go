package trust

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/lock"
)

// processEnv tells a child that is a worker which one: a processWorker in JSON.
const processEnv = "AUTOMUTEX_TRUST_PROCESS"

func init() { children["process"] = processMain } //nolint:gochecknoinits // before TestMain looks

// processWorker is an asynq server in a process of its own, whose handlers write
// to a log and a guarded store in Redis what they do.
type processWorker struct {
	Addr, Queue, Prefix string
	Workers             int
	TTL                 time.Duration
}

// The task types, one for each policy.
var processTypes = []string{"wait", "retry", "park"}

func (w processWorker) rules() []automutex.Rule {
	on := []string{"id"}
	return []automutex.Rule{
		{Task: "wait", On: on, TTL: w.TTL, Busy: automutex.Retry, Wait: 5 * time.Second, Fence: true},
		{Task: "retry", On: on, TTL: w.TTL, Busy: automutex.Retry, Fence: true},
		{Task: "park", On: on, TTL: w.TTL, Busy: automutex.Park, Fence: true},
	}
}

// Names in Redis, all in one script's reach.
func (w processWorker) log() string    { return w.Prefix + "-log" }    // a list of processEvent, oldest first
func (w processWorker) store() string  { return w.Prefix + "-store" }  // for each key the highest fence it has seen
func (w processWorker) owners() string { return w.Prefix + "-owners" } // for each task the process that has it
func (w processWorker) let() string    { return w.Prefix + "-let" }    // numbers of tasks that need work no longer

// processTask is a task's payload.
type processTask struct {
	ID   string        `json:"id"`   // makes the key
	N    int           `json:"n"`    // one for each task
	Hold bool          `json:"hold"` // it works until it is let go, or its context ends
	Gate time.Duration `json:"gate"` // it puts its key on hold for so long, unless it was let go before
}

// processEvent is a line of the log. The fields up to Accepted are Redis' own:
// the log's order and times are those in which Redis ran the writes.
type processEvent struct {
	US       int64 `json:"-"`
	Accepted bool  `json:"-"` // the store took the write that came with it

	What   string           `json:"what"`
	PID    int              `json:"pid"`
	Key    string           `json:"key,omitempty"`
	Run    string           `json:"run,omitempty"`
	Fence  int64            `json:"fence,omitempty"`
	N      int              `json:"n,omitempty"`
	Stalls int64            `json:"stalls,omitempty"` // how often the process has stood still
	Cause  string           `json:"cause,omitempty"`  // what ended the handler's context
	Until  map[string]int64 `json:"until,omitempty"`  // of a stopped process: the deadlines of its leases, in us
}

// What happens.
const (
	processBegins   = "begins"   // a handler, with a first write to the store
	processEnds     = "ends"     // a handler, with a last write
	processHeld     = "held"     // a handler has put its key on hold
	processKilled   = "killed"   // is about to be
	processStopping = "stopping" // is about to be stopped
	processStopped  = "stopped"  // has been
	processResumed  = "resumed"  // is about to be
)

// The store refuses fences that are lower than one it has seen. Log and store
// are one write, so that the log tells in which order the store saw them.
var processWrite = redis.NewScript(`
local time = redis.call('TIME')
local accepted = 1
if tonumber(ARGV[2]) < tonumber(redis.call('HGET', KEYS[2], ARGV[1]) or '0') then
  accepted = 0
else
  redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
end
redis.call('RPUSH', KEYS[1], string.format('%d%06d %d %s', time[1], time[2], accepted, ARGV[3]))
return accepted`)

// write has the event logged and its fence put to the store.
func (w processWorker) write(rdb redis.UniversalClient, e *processEvent) error {
	line, err := json.Marshal(e)
	if err != nil {
		return err
	}
	// Not under the handler's context: what is tried after its end is what the
	// store is there for.
	accepted, err := processWrite.Run(context.Background(), rdb, []string{w.log(), w.store()}, e.Key, e.Fence, line).Int()
	e.Accepted = accepted == 1
	return err
}

func processMain() {
	var w processWorker
	if err := json.Unmarshal([]byte(os.Getenv(processEnv)), &w); err != nil {
		panic(err)
	}
	rdb := redis.NewClient(&redis.Options{Addr: w.Addr, ReadTimeout: time.Minute})
	guard, err := automutex.New(redis.NewClient(&redis.Options{Addr: w.Addr}), automutex.Config{
		Rules: w.rules(), Prefix: w.Prefix, Owner: fmt.Sprint(os.Getpid()), Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		panic(err)
	}
	server := asynq.NewServerFromRedisClient(rdb, guard.ServerConfig(asynq.Config{
		Concurrency: w.Workers, Queues: map[string]int{w.Queue: 1}, LogLevel: asynq.FatalLevel,
		TaskCheckInterval: 20 * time.Millisecond, DelayedTaskCheckInterval: 100 * time.Millisecond,
		RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return 0 },
	}))
	h := &processHandler{w: w, rdb: rdb}
	go h.pulse()
	guarded := guard.Middleware(h)
	if err := server.Start(asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) error {
		// Before the guard: who dies in line has had the task, too.
		id, _ := asynq.GetTaskID(ctx)
		if err := rdb.HSet(ctx, w.owners(), id, os.Getpid()).Err(); err != nil {
			return err
		}
		err := guarded.ProcessTask(ctx, t)
		return errorOr(err, rdb.HDel(context.WithoutCancel(ctx), w.owners(), id).Err())
	})); err != nil {
		panic(err)
	}
	_, _ = io.Copy(io.Discard, os.Stdin) // until the test wants it to end, if nobody kills us before
	closed := make(chan error, 1)
	go func() { closed <- guard.Close(context.Background()) }()
	server.Shutdown()
	if err := <-closed; err != nil {
		panic(err)
	}
}

func errorOr(err, other error) error {
	if err != nil {
		return err
	}
	return other
}

type processHandler struct {
	w      processWorker
	rdb    redis.UniversalClient
	runs   atomic.Int64
	stalls atomic.Int64
}

// pulse counts how often the process stood still for half a TTL or longer:
// stopped by the test, or left without a processor by a busy machine. It ends
// with the process.
func (h *processHandler) pulse() {
	last := time.Now()
	for now := range time.Tick(h.w.TTL / 20) {
		if now.Sub(last) > h.w.TTL/2 {
			h.stalls.Add(1)
		}
		last = now
	}
}

// ProcessTask writes when it begins and when it ends, also when its context has
// ended before: it is for the store to refuse that.
func (h *processHandler) ProcessTask(ctx context.Context, t *asynq.Task) error {
	var task processTask
	if err := json.Unmarshal(t.Payload(), &task); err != nil {
		return err
	}
	fence, err := automutex.Fence(ctx)
	if err != nil {
		return err
	}
	e := processEvent{
		What: processBegins, PID: os.Getpid(), Key: t.Type() + ":" + task.ID, N: task.N, Fence: fence,
		Run: fmt.Sprint(os.Getpid(), ".", h.runs.Add(1)), Stalls: h.stalls.Load(),
	}
	if err := h.w.write(h.rdb, &e); err != nil {
		return err
	}
	if task.Gate > 0 && !h.rdb.SIsMember(ctx, h.w.let(), task.N).Val() {
		if err := automutex.CloseGate(ctx, task.Gate); err != nil {
			return err
		}
		e.What = processHeld
		if err := h.w.write(h.rdb, &e); err != nil {
			return err
		}
	}
	h.work(ctx, task)
	e.What, e.Stalls = processEnds, h.stalls.Load()
	if cause := context.Cause(ctx); cause != nil {
		e.Cause = cause.Error()
	}
	err = h.w.write(h.rdb, &e)
	switch {
	case err != nil:
		return err
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case !e.Accepted:
		return lock.ErrLost
	}
	return nil
}

// work lasts until a held task is let go.
func (h *processHandler) work(ctx context.Context, task processTask) {
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if !task.Hold || h.rdb.SIsMember(ctx, h.w.let(), task.N).Val() {
			return
		}
	}
}
