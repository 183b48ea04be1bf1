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
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
)

// Producers and workers of tasks in order are killed, one each second, and their connections to the locks' Redis are cut and
// lose replies. The oracle knows only which Enqueue calls returned: no task begins before all of its key have
// ended whose Enqueue had returned before its own began; none is lost, and no key stands still.
func TestOrder_killed(t *testing.T) {
	redistest.RealTime(t)
	t.Parallel()
	length := size(15*time.Second, 10*time.Minute)
	dice := rand.New(rand.NewPCG(seed(t), 26))
	w := newOrderWorld(t)
	defer w.explain()
	began := time.Now()
	for second := 1; time.Since(began) < length; second++ {
		time.Sleep(time.Until(began.Add(time.Duration(second) * time.Second)))
		w.kill(dice.IntN(len(w.procs)))
		if proxy := w.proxies[dice.IntN(len(w.proxies))]; dice.IntN(2) == 0 {
			proxy.Cut()
		} else {
			proxy.DropReplies(1 + dice.IntN(3))
		}
	}
	w.end(true)
	redistest.Eventually(t, patienceOfOrder, func() bool { return len(w.left()) == 0 }, "all tasks that were enqueued end")
	w.end(false)
	broken, again := w.judge()
	for i, text := range broken {
		if i < 20 {
			t.Error(text)
		}
	}
	ctx := context.Background()
	t.Logf("%s: enqueued %d, ended %d, runs %d, workers killed %d, producers killed %d; order broken %d times, %d runs after the end, of tasks whose process was killed",
		length, w.book.HLen(ctx, "returned").Val(), w.book.HLen(ctx, "ended").Val(), w.book.HLen(ctx, "began").Val(), w.kills[0], w.kills[1], len(broken), again)
}

// patienceOfOrder is longer than asynq takes to find what a killed process had, if that was killed before it told of the
// task: a lease of 30 s, which asynq lets be over for 30 s more, and a look each minute. So a key stands for up to two minutes.
const patienceOfOrder = 4 * time.Minute

// orderWorld has the processes.
type orderWorld struct {
	t         *testing.T
	rdb       *redis.Client // of asynq
	book      *redis.Client
	plans     []orderProcess
	procs     []*redistest.Child
	proxies   []*redistest.Proxy
	lives     int
	kills     [2]int // of workers and of producers
	killed    map[string]bool
	inspector *asynq.Inspector
}

func newOrderWorld(t *testing.T) *orderWorld {
	t.Helper()
	s, books := redistest.StartReal(t), redistest.StartReal(t)
	straight := func(s *redistest.Server) *redis.Client {
		rdb := redis.NewClient(&redis.Options{Addr: s.Addr()})
		t.Cleanup(func() { _ = rdb.Close() })
		return rdb
	}
	w := &orderWorld{t: t, rdb: straight(s), book: straight(books), killed: map[string]bool{}}
	w.inspector = asynq.NewInspectorFromRedisClient(w.rdb)
	prefix := redistest.Name(t)
	for i := range 5 {
		w.proxies = append(w.proxies, redistest.NewProxy(t, s.Addr()))
		w.plans = append(w.plans, orderProcess{
			Producer: i >= 3, Locks: w.proxies[i].Addr(), Asynq: s.Addr(), Ledger: books.Addr(), Prefix: prefix, Keys: 12, Every: 60 * time.Millisecond,
		})
		w.procs = append(w.procs, nil)
		w.start(i)
	}
	return w
}

func (w *orderWorld) start(i int) {
	w.lives++
	p := w.plans[i]
	w.plans[i].Name = fmt.Sprintf("%s-%d", map[bool]string{false: "worker", true: "producer"}[p.Producer], w.lives)
	text, err := json.Marshal(w.plans[i])
	if err != nil {
		w.t.Fatal(err)
	}
	w.procs[i] = redistest.StartChild(w.t, childEnv+"=order", orderProcessEnv+"="+string(text))
}

// kill kills a process, and starts the next. What a worker had asynq finds only after 30 s to a minute and a half; here
// the leases of its tasks are made to look over, so that the next server finds them as it starts.
func (w *orderWorld) kill(i int) {
	ctx, name := context.Background(), w.plans[i].Name
	w.procs[i].Kill()
	w.killed[name] = true
	if w.plans[i].Producer {
		w.kills[1]++
	} else {
		w.kills[0]++
		for _, id := range w.book.SMembers(ctx, "at "+name).Val() {
			if err := w.rdb.ZAddXX(ctx, "asynq:{"+orderQueue+"}:lease", redis.Z{Score: 1, Member: id}).Err(); err != nil {
				w.t.Error(err)
			}
		}
	}
	w.start(i)
}

// end has the producers end, or the workers.
func (w *orderWorld) end(producers bool) {
	for i, p := range w.plans {
		if p.Producer == producers {
			w.procs[i].End(w.t, patienceOfOrder)
		}
	}
}

// left are the tasks whose Enqueue returned, and which have not ended.
func (w *orderWorld) left() (ids []string) {
	ended := w.book.HGetAll(context.Background(), "ended").Val()
	for id := range w.book.HGetAll(context.Background(), "returned").Val() {
		if _, ok := ended[id]; !ok {
			ids = append(ids, id)
		}
	}
	return ids
}

// explain logs, if the test has failed, what is left and where it stands.
func (w *orderWorld) explain() {
	if !w.t.Failed() {
		return
	}
	for _, id := range w.left() {
		info, err := w.inspector.GetTaskInfo(orderQueue, id)
		w.t.Logf("left: %s: %+v %v", id, info, err)
	}
	for key := range w.plans[0].Keys {
		name := fmt.Sprintf("%s:{work|%d}", w.plans[0].Prefix, key)
		w.t.Log(name, w.rdb.ZRange(context.Background(), name, 0, 30).Val())
	}
}

// judge holds each run against the calls that had returned. again: how often a task ran after its end, because the
// process was killed that had written it down.
func (w *orderWorld) judge() (broken []string, again int) {
	ctx := context.Background()
	number := func(text string) (n int, rest string) {
		first, rest, _ := strings.Cut(text, " ")
		n, err := strconv.Atoi(first)
		if err != nil {
			w.t.Fatal(err)
		}
		return n, rest
	}
	type book struct {
		id              string
		returned, ended int // 0: not
		endedBy         string
	}
	byKey, asked, keys, books := map[string][]*book{}, map[string]int{}, map[string]string{}, map[string]*book{}
	returned, ended := w.book.HGetAll(ctx, "returned").Val(), w.book.HGetAll(ctx, "ended").Val()
	for id, text := range w.book.HGetAll(ctx, "asked").Val() {
		b := &book{id: id}
		asked[id], keys[id] = number(text)
		if text, ok := returned[id]; ok {
			b.returned, _ = number(text)
		}
		if text, ok := ended[id]; ok {
			b.ended, b.endedBy = number(text)
		}
		books[id] = b
		byKey[keys[id]] = append(byKey[keys[id]], b)
	}
	for run, text := range w.book.HGetAll(ctx, "began").Val() {
		id, _, _ := strings.Cut(run, " ")
		at, by := number(text)
		if b := books[id]; b.ended > 0 && b.ended < at {
			again++
			if !w.killed[b.endedBy] {
				broken = append(broken, fmt.Sprintf("%s runs again on %s at %d, after %s ended it at %d, which was not killed", id, by, at, b.endedBy, b.ended))
			}
		}
		for _, first := range byKey[keys[id]] {
			if first.returned > 0 && first.returned < asked[id] && (first.ended == 0 || first.ended > at) {
				broken = append(broken, fmt.Sprintf("key %s: %s begins at %d, and %s ends at %d, whose Enqueue returned at %d, before %d",
					keys[id], id, at, first.id, first.ended, first.returned, asked[id]))
			}
		}
	}
	return broken, again
}

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
		DelayedTaskCheckInterval: 300 * time.Millisecond, ShutdownTimeout: 5 * time.Second, Logger: redistest.Silent{},
		RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return rand.N(1500 * time.Millisecond) },
	}))
	guarded := guard.Middleware(asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) error { return p.handle(ctx, book, t) }))
	if err := server.Start(asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) error {
		id, _ := asynq.GetTaskID(ctx)
		book.must(books.SAdd(context.Background(), "at "+p.Name, id).Err()) // so that the test finds what a killed process has left
		err := guarded.ProcessTask(ctx, t)
		book.must(books.SRem(context.Background(), "at "+p.Name, id).Err())
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
		book.note("asked", id, task.Key)
		_, err = client.Enqueue(asynq.NewTask("work", payload), asynq.Queue(orderQueue), asynq.TaskID(id), asynq.MaxRetry(100_000), asynq.Timeout(time.Minute))
		if err == nil {
			book.note("returned", id, "")
		}
		time.Sleep(p.Every/2 + rand.N(p.Every))
	}
	return nil
}

var errOrder = errors.New("order: the handler fails")

// handle does what the payload says. It writes down the end before asynq, or the Guard, knows of it.
func (p *orderProcess) handle(ctx context.Context, book orderBook, t *asynq.Task) error {
	var task orderTask
	if err := json.Unmarshal(t.Payload(), &task); err != nil {
		return err
	}
	id, _ := asynq.GetTaskID(ctx)
	run := book.begins(id, p.Name)
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
		book.note("ended", id, p.Name)
		return errors.Join(errOrder, asynq.SkipRetry)
	}
	book.note("ended", id, p.Name)
	return nil
}

// orderBook is what processes write down, each step with a number that grows.
type orderBook struct{ rdb *redis.Client }

func (b orderBook) must(err error) {
	if err != nil {
		panic(err) // no fault hits the ledger
	}
}

// note writes a number that grows into one of the hashes asked, returned, began and ended, under an ID, with what else is to
// be known: once.
func (b orderBook) note(hash, id, more string) {
	b.must(noteLua.Run(context.Background(), b.rdb, []string{hash}, id, more).Err())
}

var noteLua = redis.NewScript(`return redis.call('HSETNX', KEYS[1], ARGV[1], redis.call('INCR', 'clock') .. ' ' .. ARGV[2])`)

// begins gives the number of the run.
func (b orderBook) begins(id, proc string) int64 {
	run, err := b.rdb.HIncrBy(context.Background(), "runs", id, 1).Result()
	b.must(err)
	b.note("began", fmt.Sprintf("%s %d", id, run), proc)
	return run
}
