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
	"strconv"
	"sync"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
)

// orderProcess is a producer or a worker of TestOrder_killed, as its process gets it.
type orderProcess struct {
	Name     string
	Producer bool
	Locks    string // host:port of Redis, through a proxy
	Asynq    string
	Ledger   string // another Redis, which no fault hits
	Prefix   string
	Keys     int
	Every    time.Duration // a producer's pause between two tasks
}

// orderProcessEnv has an orderProcess, as JSON.
const orderProcessEnv = "AUTOMUTEX_TRUST_ORDER"

func init() { //nolint:gochecknoinits // before TestMain looks
	children["order"] = func() {
		var p orderProcess
		if err := json.Unmarshal([]byte(os.Getenv(orderProcessEnv)), &p); err != nil {
			panic(err)
		}
		if err := p.run(); err != nil {
			fmt.Fprintln(os.Stderr, p.Name, err)
			os.Exit(1)
		}
	}
}

const orderQueue = "order"

// config is one for producers and workers alike.
func (p *orderProcess) config() automutex.Config {
	return automutex.Config{
		Rules:  []automutex.Rule{{Task: "work", On: []string{"key"}, TTL: 3 * time.Second, InOrder: true, OnArchive: automutex.Continue}},
		Prefix: p.Prefix, Owner: p.Name, Logger: slog.New(slog.DiscardHandler),
	}
}

// run serves, or produces, until standard input ends.
func (p *orderProcess) run() error {
	books := redis.NewClient(&redis.Options{Addr: p.Ledger})
	tasks := redis.NewClient(&redis.Options{Addr: p.Asynq})
	locks := redis.NewClient(&redis.Options{Addr: p.Locks, ReadTimeout: 500 * time.Millisecond})
	over, end := context.WithCancel(context.Background())
	go func() { // ends with standard input
		defer end()
		_, _ = io.Copy(io.Discard, os.Stdin) // its end is what counts
	}()
	book := orderBook{books}
	if p.Producer {
		return p.produce(over, book, locks, tasks)
	}
	cfg := p.config()
	cfg.Inspector = asynq.NewInspectorFromRedisClient(tasks)
	guard, err := automutex.New(locks, cfg)
	if err != nil {
		return err
	}
	server := asynq.NewServerFromRedisClient(tasks, guard.ServerConfig(asynq.Config{
		Concurrency: 6, Queues: map[string]int{orderQueue: 1}, TaskCheckInterval: 100 * time.Millisecond,
		DelayedTaskCheckInterval: 300 * time.Millisecond, ShutdownTimeout: 5 * time.Second, Logger: silence{},
		RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return rand.N(1500 * time.Millisecond) },
	}))
	worker := &orderWorker{p: p, book: book}
	guarded := guard.Middleware(asynq.HandlerFunc(worker.handle))
	if err := server.Start(asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) error {
		id, _ := asynq.GetTaskID(ctx)
		book.at(p.Name, id) // so that the test finds what a killed process has left
		err := guarded.ProcessTask(ctx, t)
		book.left(p.Name, id)
		return err
	})); err != nil {
		return err
	}
	<-over.Done()
	var closed sync.WaitGroup
	closed.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = guard.Close(ctx) // an error is that handlers still run
	})
	server.Shutdown()
	closed.Wait()
	return nil
}

// orderTask is a payload.
type orderTask struct {
	Key string `json:"key"`
	Do  string `json:"do"`
	MS  int    `json:"ms"`
}

// orderDo are what handlers do, for one task each of 20; the rest succeeds.
var orderDo = []string{"fails twice", "fails twice", "panics", "later", "never"}

// produce enqueues one task after the other.
func (p *orderProcess) produce(over context.Context, book orderBook, locks, tasks *redis.Client) error {
	client, err := automutex.NewClient(locks, asynq.NewClientFromRedisClient(tasks), p.config())
	if err != nil {
		return err
	}
	for n := 0; over.Err() == nil; n++ {
		task := orderTask{Key: strconv.Itoa(rand.N(p.Keys)), MS: rand.N(30), Do: "succeeds"}
		if i := rand.N(20); i < len(orderDo) {
			task.Do = orderDo[i]
		}
		payload, err := json.Marshal(task)
		if err != nil {
			return err
		}
		id := fmt.Sprintf("%s-%d", p.Name, n)
		book.asks(id, task.Key)
		_, err = client.Enqueue(asynq.NewTask("work", payload), asynq.Queue(orderQueue), asynq.TaskID(id), asynq.MaxRetry(100_000), asynq.Timeout(time.Minute))
		if err == nil {
			book.returned(id)
		}
		time.Sleep(p.Every/2 + rand.N(p.Every))
	}
	return nil
}

type orderWorker struct {
	p    *orderProcess
	book orderBook
}

var errOrder = errors.New("order: the handler fails")

// handle does what the payload says. It writes down the end before asynq, or the Guard, knows of it.
func (w *orderWorker) handle(ctx context.Context, t *asynq.Task) error {
	var task orderTask
	if err := json.Unmarshal(t.Payload(), &task); err != nil {
		return err
	}
	id, _ := asynq.GetTaskID(ctx)
	run := w.book.begins(id, w.p.Name)
	select {
	case <-time.After(time.Duration(task.MS) * time.Millisecond): // the work
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
	case task.Do == "never":
		w.book.ends(id, w.p.Name)
		return errors.Join(errOrder, asynq.SkipRetry)
	}
	w.book.ends(id, w.p.Name)
	return nil
}

// orderBook is what processes write down, each step with a number that grows.
type orderBook struct{ rdb *redis.Client }

func (b orderBook) must(err error) {
	if err != nil {
		panic(err) // no fault hits the ledger
	}
}

// stepLua writes a number that grows into a hash, under an ID; ARGV[3]: also when there is one.
var stepLua = redis.NewScript(`
local n = redis.call('INCR', 'clock')
if ARGV[3] == '1' then redis.call('HSET', KEYS[1], ARGV[1], n .. ARGV[2]) else redis.call('HSETNX', KEYS[1], ARGV[1], n .. ARGV[2]) end
return n`)

func (b orderBook) asks(id, key string) {
	b.must(stepLua.Run(context.Background(), b.rdb, []string{"asked"}, id, " "+key, "0").Err())
}

func (b orderBook) returned(id string) {
	b.must(stepLua.Run(context.Background(), b.rdb, []string{"returned"}, id, "", "0").Err())
}

// begins gives the number of the run.
func (b orderBook) begins(id, proc string) int64 {
	ctx := context.Background()
	run, err := b.rdb.HIncrBy(ctx, "runs", id, 1).Result()
	b.must(err)
	b.must(stepLua.Run(ctx, b.rdb, []string{"began"}, fmt.Sprintf("%s %d", id, run), " "+proc, "0").Err())
	return run
}

func (b orderBook) ends(id, proc string) {
	b.must(stepLua.Run(context.Background(), b.rdb, []string{"ended"}, id, " "+proc, "0").Err())
}

func (b orderBook) at(proc, id string) {
	b.must(b.rdb.SAdd(context.Background(), "at "+proc, id).Err())
}
func (b orderBook) left(proc, id string) {
	b.must(b.rdb.SRem(context.Background(), "at "+proc, id).Err())
}

// silence is an asynq.Logger.
type silence struct{}

func (silence) Debug(...any)      {}
func (silence) Info(...any)       {}
func (silence) Warn(...any)       {}
func (silence) Error(...any)      {}
func (silence) Fatal(args ...any) { panic(fmt.Sprint(args...)) }
