package trust

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
)

const (
	orderQueue = "order"
	// patienceOfOrder is longer than asynq takes to find what a killed process had, if that was killed before it told of the
	// task: a lease of 30 s, which asynq lets be over for 30 s more, and a look each minute. So a key stands for up to two minutes.
	patienceOfOrder = 4 * time.Minute
)

// orderWorker is a process of TestOrder_killed, which gets it as JSON in orderEnv.
type orderWorker struct {
	Name, Prefix string
	Locks        string // host:port of Redis, through a proxy
	Asynq        string
	Book         string // another Redis, which no fault hits: the list book, and a set of the tasks that each worker has had
}

const orderEnv = "AUTOMUTEX_TRUST_ORDER"

// orderTask is a payload: the N-th task of a key, from 1 on.
type orderTask struct {
	Key   int
	N     int
	Do    string
	Ended bool // in the book: it has ended, else it begins
}

func (t orderTask) id() string { return fmt.Sprintf("%d-%d", t.Key, t.N) }

var (
	errOrder = errors.New("order: the handler fails")
	// orderDo are what handlers do, for one task each of 20; the rest succeeds.
	orderDo = []string{"fails twice", "fails twice", "panics", "later", "never"}
)

func orderConfig(owner, prefix string) automutex.Config {
	return automutex.Config{
		Rules:  []automutex.Rule{{Task: "work", On: []string{"Key"}, TTL: 3 * time.Second, InOrder: true, OnArchive: automutex.Continue}},
		Prefix: prefix, Owner: owner, Logger: slog.New(slog.DiscardHandler),
	}
}

// Workers of tasks in order are killed, one each second, and their connections to the locks' Redis are cut and lose replies: no
// task begins before the one before it has ended, none is lost, and no key stands still.
func TestOrder_killed(t *testing.T) {
	redistest.RealTime(t)
	t.Parallel()
	ctx, length := context.Background(), size(15*time.Second, 10*time.Minute)
	dice := rand.New(rand.NewPCG(seed(t), 26))
	s, books := redistest.StartReal(t), redistest.StartReal(t)
	rdb, book := redis.NewClient(&redis.Options{Addr: s.Addr()}), redis.NewClient(&redis.Options{Addr: books.Addr()})
	t.Cleanup(func() { _, _ = rdb.Close(), book.Close() })
	prefix := redistest.Name(t)
	client, err := automutex.NewClient(rdb, asynq.NewClientFromRedisClient(rdb), orderConfig("producer", prefix))
	redistest.Must(t, err)

	var proxies [3]*redistest.Proxy
	var workers [3]*redistest.Child
	lives := 0
	var names [3]string
	start := func(i int) {
		lives++
		names[i] = fmt.Sprintf("worker-%d", lives)
		text, err := json.Marshal(orderWorker{names[i], prefix, proxies[i].Addr(), s.Addr(), books.Addr()})
		redistest.Must(t, err)
		workers[i] = redistest.StartChild(t, childEnv+"=order", orderEnv+"="+string(text))
	}
	for i := range workers {
		proxies[i] = redistest.NewProxy(t, s.Addr())
		start(i)
	}
	sent := map[int]int{}      // by key
	mayRun := map[string]int{} // by ID: of each killed worker that had it before, one
	for began, next := time.Now(), time.Second; time.Since(began) < length; {
		task := orderTask{Key: dice.IntN(12)}
		if i := dice.IntN(20); i < len(orderDo) {
			task.Do = orderDo[i]
		}
		sent[task.Key]++
		task.N = sent[task.Key]
		payload, err := json.Marshal(task)
		redistest.Must(t, err)
		_, err = client.Enqueue(asynq.NewTask("work", payload), asynq.Queue(orderQueue), asynq.TaskID(task.id()), asynq.MaxRetry(100_000), asynq.Timeout(time.Minute))
		redistest.Must(t, err)
		if time.Since(began) > next {
			next += time.Second
			i := dice.IntN(len(workers))
			workers[i].Kill()
			// What a worker had asynq finds only after 30 s to a minute and a half; here the leases of its tasks are made to look
			// over, so that the next server finds them as it starts.
			for _, id := range book.SMembers(ctx, "at "+names[i]).Val() {
				redistest.Must(t, rdb.ZAddXX(ctx, "asynq:{"+orderQueue+"}:lease", redis.Z{Score: 1, Member: id}).Err())
				mayRun[id]++
			}
			start(i)
			if proxy := proxies[dice.IntN(len(proxies))]; dice.IntN(2) == 0 {
				proxy.Cut()
			} else {
				proxy.DropReplies(1 + dice.IntN(3))
			}
		}
		time.Sleep(time.Duration(dice.IntN(50)) * time.Millisecond)
	}

	done, again, read := map[int]int{}, 0, 0
	redistest.Eventually(t, patienceOfOrder, func() bool {
		for _, text := range book.LRange(ctx, "book", int64(read), -1).Val() {
			read++
			var step orderTask
			redistest.Must(t, json.Unmarshal([]byte(text), &step))
			switch {
			case step.N > done[step.Key]+1:
				t.Errorf("key %d: task %d begins or ends, and task %d has not ended", step.Key, step.N, done[step.Key]+1)
			case step.N == done[step.Key]+1 && step.Ended:
				done[step.Key]++
			case step.N <= done[step.Key] && !step.Ended:
				again++ // its worker was killed when it had written down the end
				if mayRun[step.id()]--; mayRun[step.id()] < 0 {
					t.Errorf("key %d: task %d begins after its end, and no worker was killed that had it", step.Key, step.N)
				}
			}
		}
		return fmt.Sprint(done) == fmt.Sprint(sent)
	}, "all tasks end: %d lives of workers; %v have ended of %v", lives, &done, &sent)
	for _, w := range workers {
		w.End(t, patienceOfOrder)
	}
	killed := lives - len(workers)
	if again > 6*killed {
		t.Errorf("%d runs after the end of their tasks, and %d workers were killed, with 6 tasks each", again, killed)
	}
	t.Logf("%s: %d runs and ends, %d workers killed, %d runs after the end", length, read, killed, again)
}

func init() { //nolint:gochecknoinits // before TestMain looks
	children["order"] = func() {
		var w orderWorker
		err := json.NewDecoder(strings.NewReader(os.Getenv(orderEnv))).Decode(&w)
		if err == nil {
			err = w.serve()
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, w.Name, err)
			os.Exit(1)
		}
	}
}

// serve works until standard input ends.
func (w *orderWorker) serve() error {
	book, tasks := redis.NewClient(&redis.Options{Addr: w.Book}), redis.NewClient(&redis.Options{Addr: w.Asynq})
	cfg := orderConfig(w.Name, w.Prefix)
	cfg.Inspector = asynq.NewInspectorFromRedisClient(tasks)
	guard, err := automutex.New(redis.NewClient(&redis.Options{Addr: w.Locks, ReadTimeout: 500 * time.Millisecond}), cfg)
	if err != nil {
		return err
	}
	server := asynq.NewServerFromRedisClient(tasks, guard.ServerConfig(asynq.Config{
		Concurrency: 6, Queues: map[string]int{orderQueue: 1}, TaskCheckInterval: 100 * time.Millisecond,
		DelayedTaskCheckInterval: 300 * time.Millisecond, ShutdownTimeout: 5 * time.Second, Logger: redistest.Silent{},
		RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return rand.N(1500 * time.Millisecond) },
	}))
	guarded := guard.Middleware(asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) error { return handleInOrder(ctx, book, t) }))
	if err := server.Start(asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) error {
		id, _ := asynq.GetTaskID(ctx)
		must(book.SAdd(context.Background(), "at "+w.Name, id).Err()) // so that the test finds what a killed process has left
		return guarded.ProcessTask(ctx, t)
	})); err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, os.Stdin) // its end is what counts
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = guard.Close(ctx) // an error is that handlers still run
	}()
	server.Shutdown()
	<-closed
	return nil
}

func must(err error) {
	if err != nil {
		panic(err) // no fault hits the book
	}
}

// handleInOrder does what the payload says. It writes down the end before asynq, or the Guard, knows of it.
func handleInOrder(ctx context.Context, book *redis.Client, t *asynq.Task) error {
	var task orderTask
	if err := json.Unmarshal(t.Payload(), &task); err != nil {
		return err
	}
	note := func() {
		text, err := json.Marshal(task)
		must(errors.Join(err, book.RPush(context.Background(), "book", text).Err()))
	}
	note()
	run, err := book.Incr(context.Background(), "runs of "+task.id()).Result()
	must(err)
	select {
	case <-time.After(rand.N(30 * time.Millisecond)): // the work
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	switch {
	case task.Do == "fails twice" && run <= 2:
		return errOrder
	case task.Do == "panics" && run <= 1:
		panic(errOrder)
	case task.Do == "later" && run <= 1:
		return automutex.RetryAfter(rand.N(time.Second), errOrder)
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	task.Ended = true
	note()
	if task.Do == "never" {
		return errors.Join(errOrder, asynq.SkipRetry)
	}
	return nil
}
