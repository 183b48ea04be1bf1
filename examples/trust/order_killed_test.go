package trust

import (
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/redistest"
)

var orderFor = flag.Duration("order", 0, "how long TestOrder_killed goes on; 0: a quarter of a minute")

// Producers and workers of tasks in order are killed, one each second, and their connections to the locks' Redis are cut and
// lose replies. The oracle knows only which Enqueue calls returned: no task begins before all of its key have
// ended whose Enqueue had returned before its own began; none is lost, and no key stands still.
func TestOrder_killed(t *testing.T) {
	redistest.RealTime(t)
	t.Parallel()
	length := cmp.Or(*orderFor, 15*time.Second)
	dice := rand.New(rand.NewPCG(seed(t), 26))
	row := &row{t}
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
		if second%60 == 0 && *orderFor > 0 {
			fmt.Printf("order %s: %s\n", time.Since(began).Round(time.Second), w.sum())
		}
	}
	for i, p := range w.plans {
		if p.Producer {
			w.procs[i].End(t, patienceOfOrder)
		}
	}
	left := func() string { return strings.Join(w.left(), " ") }
	redistest.Eventually(t, patienceOfOrder, func() bool { return left() == "" }, "all tasks that were enqueued end")
	for i, p := range w.plans {
		if !p.Producer {
			w.procs[i].End(t, patienceOfOrder)
		}
	}
	broken, again := w.judge()
	for i, text := range broken {
		if i < 20 {
			t.Error(text)
		}
	}
	row.notef("%s killed each second", length.Round(time.Second))
	row.notef("%s", w.sum())
	row.notef("order broken %d, lost %d", len(broken), len(w.left()))
	row.notef("runs after the end, of killed processes %d", again)
	t.Logf("%s: %s; order broken %d times, %d lost, %d runs after the end, of tasks whose process was killed", length, w.sum(), len(broken), len(w.left()), again)
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
	for i, id := range w.left() {
		if i >= 20 {
			break
		}
		info, err := w.inspector.GetTaskInfo(orderQueue, id)
		if err != nil {
			w.t.Logf("left: %s: %v", id, err)
			continue
		}
		w.t.Logf("left: %s: %s, %s, retried %d, last error %q, next %s", id, info.Payload, info.State, info.Retried, info.LastErr, info.NextProcessAt)
	}
	for key := range w.plans[0].Keys {
		name := fmt.Sprintf("%s:{work|%d}", w.plans[0].Prefix, key)
		w.t.Log(name, w.rdb.ZRange(context.Background(), name, 0, 30).Val())
	}
}

func (w *orderWorld) sum() string {
	ctx := context.Background()
	return fmt.Sprintf("enqueued %d, ended %d, runs %d, workers killed %d, producers killed %d",
		w.book.HLen(ctx, "returned").Val(), w.book.HLen(ctx, "ended").Val(), w.book.HLen(ctx, "began").Val(), w.kills[0], w.kills[1])
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
