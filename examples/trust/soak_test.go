package trust

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// The whole system at once, for a long time and in bad weather: servers in this
// process and in others, producers with and without package unique, all
// policies, faults at random. In the end everything has come to rest, and the
// books balance: of each task that was enqueued it is known what became of it,
// nothing was on a key beside another, nothing is left behind.
func TestSoak(t *testing.T) {
	if *soakFor > 0 {
		soakOnAndOn(t, *soakFor)
		return
	}
	redistest.RealTime(t)
	t.Parallel()
	soakOnce(t, seed(t), size(2000, 115_000), size(50, 150), nil)
}

// soakOnce plays one plan. watch may be nil; it is called before the first task.
func soakOnce(t *testing.T, s uint64, tasks, perFault int, watch func(*soakWorld, *soakConductor)) {
	t.Helper()
	plan := newSoakPlan(s, tasks, perFault)
	row := found(t, "soak", "all policies, unique, and faults at random")
	t.Logf("seed %d, plan %s", s, plan.sum())

	w := newSoakWorld(t)
	books := newSoakBooks(plan.steps)
	var calls atomic.Int64
	conductor := &soakConductor{world: w, books: books, enqueued: &calls}
	if watch != nil {
		watch(w, conductor)
	}
	began := time.Now()
	w.produce(plan.steps, books, &calls, func() { conductor.run(plan.faults) })
	produced := time.Since(began)
	w.settle()

	result := books.balance(w.evidence())
	result.report(t)
	overlaps, explained := w.ledger.overlaps(t)
	for _, o := range overlaps {
		t.Errorf("overlap: %s", o)
	}
	for _, early := range w.ledger.soon(t) {
		t.Errorf("cooldown: %s", early)
	}
	w.lookForKeysWithoutTTL()
	held := w.leftBehind()

	ctx := context.Background()
	counts := w.ledger.rdb.HGetAll(ctx, "counts").Val()
	row.notef("seed %d", s)
	row.notef("enqueued %d, refused as duplicates %d", len(books.accepted), len(books.rejected))
	row.notef("%s", strings.Join(result.print(), ", "))
	row.notef("lost %d", result.fates["lost"])
	row.notef("overlaps %d", len(overlaps))
	row.notef("keys without TTL %d, locks held at the end %d", w.forever.Load(), held)
	row.notef("goroutines leaked by %d of %d processes", w.leaked.Load(), w.looked.Load()+w.leaked.Load())
	row.notef("faults %d, workers killed %d, restarted %d", conductor.happened.Load(), w.killed.Load(), w.restarted.Load())
	row.notef("leases lost %d", w.ledger.lost())
	t.Logf("enqueued in %s; refused %v, unsure %d; %v; overlaps that a lost lease explains: %d; %d runs succeeded; workers saw %v",
		produced.Round(time.Millisecond), books.refused, len(books.unsure), result.print(), explained,
		w.ledger.rdb.SCard(ctx, "runs that succeeded").Val(), counts)
}

// soakProducers enqueue beside each other.
const soakProducers = 6

// soakCrowd is how many tasks may be under way before producers wait.
func soakCrowd() int { return size(400, 600) }

// produce enqueues the plan's tasks while faults has faults happen.
func (w *soakWorld) produce(steps []soakStep, books *soakBooks, calls *atomic.Int64, faults func()) {
	var crowded atomic.Bool
	through := make(chan struct{}) // closed when the producers are
	var rest sync.WaitGroup
	rest.Go(faults)
	rest.Go(func() { // keeps the queues from growing; ends with the producers
		look := time.NewTicker(20 * time.Millisecond)
		defer look.Stop()
		for looks := 0; ; looks++ {
			select {
			case <-look.C:
			case <-through:
				return
			}
			b, err := w.backlog()
			if err != nil {
				w.fail(err)
			}
			crowded.Store(b.rest() > soakCrowd())
			if looks%10 == 0 {
				w.lookForKeysWithoutTTL()
			}
		}
	})
	var producers sync.WaitGroup
	for p := range soakProducers {
		producers.Go(func() {
			look := time.NewTicker(10 * time.Millisecond)
			defer look.Stop()
			for i := p; i < len(steps); i += soakProducers {
				for crowded.Load() {
					<-look.C
				}
				w.enqueue(steps[i], books)
				calls.Add(1)
			}
		})
	}
	producers.Wait()
	close(through)
	rest.Wait()
}

// enqueue makes one call, and has it written down what it was answered.
func (w *soakWorld) enqueue(s soakStep, books *soakBooks) {
	payload, err := json.Marshal(s.soakTask)
	if err != nil {
		w.fail(err)
		return
	}
	opts := []asynq.Option{asynq.Queue(s.Queue), asynq.MaxRetry(s.MaxRetry), asynq.Timeout(s.Timeout)}
	if s.In > 0 {
		opts = append(opts, asynq.ProcessIn(s.In))
	}
	enqueue := w.client.Enqueue
	if soakKindOf(s.Kind).once != nil {
		enqueue = w.once.Enqueue
	}
	called := time.Now()
	info, err := enqueue(asynq.NewTask(s.Kind, payload), opts...)
	var keyErr *automutex.KeyError
	var other soakTask
	switch {
	case errors.Is(err, asynq.ErrDuplicateTask):
		books.reject(s.N)
	case errors.As(err, &keyErr) && s.Do == "bad":
		books.refuse("without a key")
	case err != nil:
		books.doubt(s.N)
		books.refuse("error: " + err.Error())
	case len(info.Payload) == 0:
		// Join of one that is not there yet, as its producer has only claimed the
		// key; or this one, twice, as the first answer was lost.
		books.doubt(s.N)
	case json.Unmarshal(info.Payload, &other) == nil && other.N != s.N:
		books.reject(s.N) // Join gives the one that is there
	default:
		books.accept(s.N, called)
	}
}

// lookForKeysWithoutTTL finds what would stay for ever if all died now.
func (w *soakWorld) lookForKeysWithoutTTL() {
	ctx := context.Background()
	keys := w.rdb.Scan(ctx, 0, w.prefix+":*", 1000).Iterator()
	for keys.Next(ctx) {
		if ttl, err := w.rdb.TTL(ctx, keys.Val()).Result(); err == nil && ttl == -1 {
			w.forever.Add(1)
			w.fail(fmt.Errorf("the key %s has no TTL", keys.Val()))
		}
	}
	if err := keys.Err(); err != nil {
		w.fail(err)
	}
}

// leftBehind counts the locks that somebody holds or waits for although all
// servers have closed, which a killed worker does for a TTL at most.
func (w *soakWorld) leftBehind() (held int) {
	w.t.Helper()
	ctx := context.Background()
	locker := lock.New(w.rdb, lock.Options{Prefix: w.prefix})
	defer func() {
		if err := locker.Close(); err != nil {
			w.t.Error(err)
		}
	}()
	deadline := time.Now().Add(soakTTL + time.Second)
	for {
		var left []inside.Info
		for info, err := range inner.List(ctx, locker) {
			if err != nil {
				w.t.Fatal(err)
			}
			left = append(left, info)
		}
		if len(left) == 0 {
			return 0
		}
		if time.Now().After(deadline) {
			for _, info := range left {
				w.t.Errorf("left behind: %+v", info)
			}
			return len(left)
		}
		<-time.After(20 * time.Millisecond)
	}
}
