package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
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

// orderOracle knows nothing but which Enqueue calls returned before which others began, and what ran. A task must not
// begin before all tasks of its key have ended whose Enqueue had returned when its own began.
type orderOracle struct {
	mu     sync.Mutex
	before map[string][]string // by task: the tasks that must have ended
	known  map[string][]string // by key: the tasks whose Enqueue has returned
	ended  map[string]bool     // done, or archived under Continue
	broken []string
}

// begins says that an Enqueue begins; id is its task's.
func (o *orderOracle) begins(key, id string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.before[id] = slices.Clone(o.known[key])
}

func (o *orderOracle) returned(key, id string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.known[key] = append(o.known[key], id)
}

// runs says that the handler of a task begins. It may have run before, if asynq lost a reply: see docs/guarantees.md.
func (o *orderOracle) runs(id string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, first := range o.before[id] {
		if !o.ended[first] {
			o.broken = append(o.broken, fmt.Sprintf("%s runs before %s has ended", id, first))
		}
	}
}

func (o *orderOracle) ends(id string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ended[id] = true
}

// missing returns the tasks whose Enqueue returned and which have not ended.
func (o *orderOracle) missing() (ids []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, known := range o.known {
		ids = append(ids, slices.DeleteFunc(slices.Clone(known), func(id string) bool { return o.ended[id] })...)
	}
	return ids
}

// Two servers and two producers, whose replies get lost and whose connections break, and handlers that fail: the order
// holds, and every task ends.
func TestInOrder_stress(t *testing.T) {
	t.Parallel()
	const keys, each, producers = 4, 6, 2
	s := redistest.StartReal(t)
	var proxies []*redistest.Proxy
	for range 3 {
		proxies = append(proxies, redistest.NewProxy(t, s.Addr()))
	}
	fault := func() {
		switch proxy := proxies[rand.N(len(proxies))]; rand.N(6) {
		case 0:
			proxy.Cut()
		case 1, 2:
			proxy.DropReplyTo(func(command []string) bool { return strings.HasPrefix(command[0], "EVAL") }, 1+rand.N(3))
		}
	}
	// after a reply that was lost
	soonAgain := func(o *redis.UniversalOptions) { o.ReadTimeout, o.MaxRetries = 500*time.Millisecond, 10 }
	oracle := &orderOracle{before: map[string][]string{}, known: map[string][]string{}, ended: map[string]bool{}}
	o := setup{
		rules: []automutex.Rule{{On: onID, InOrder: true, OnArchive: automutex.Continue}},
		queue: redistest.Name(t), prefix: redistest.Name(t), workers: 5, served: atOnce,
		// A dequeue whose reply is lost keeps its task from everybody for two minutes, so asynq's own commands get through.
		guarded: func(c *automutex.Config) { c.Inspector = asynq.NewInspectorFromRedisClient(s.Client(t)) },
		handler: func(ctx context.Context, _ *asynq.Task) error {
			id, _ := asynq.GetTaskID(ctx)
			retried, _ := asynq.GetRetryCount(ctx)
			oracle.runs(id)
			fault()
			time.Sleep(rand.N(3 * time.Millisecond)) // the work
			switch n := rand.N(20); {
			case n < 3:
				if retried >= 3 {
					oracle.ends(id) // archived
				}
				return errors.New("broken")
			case n == 3:
				return automutex.RetryAfter(0, nil)
			case ctx.Err() != nil:
				return ctx.Err()
			}
			oracle.ends(id)
			return nil
		},
	}
	for _, proxy := range proxies[:2] {
		o.locks = proxy.Client(t, soonAgain)
		start(t, s, o)
	}
	rdb := proxies[2].Client(t, soonAgain)
	client, err := automutex.NewClient(rdb, asynq.NewClientFromRedisClient(rdb),
		automutex.Config{Rules: ofWork(o.rules), Prefix: o.prefix})
	redistest.Must(t, err)
	var enqueuing sync.WaitGroup
	for p := range producers {
		redistest.Go(&enqueuing, func() {
			for i := range keys * each {
				key, id := fmt.Sprint(i%keys), fmt.Sprintf("%d-%d", p, i)
				fault()
				oracle.begins(key, id)
				_, err := client.Enqueue(asynq.NewTask("work", []byte(`{"id":`+key+`}`)), asynq.Queue(o.queue), asynq.TaskID(id),
					asynq.MaxRetry(3), asynq.Timeout(time.Minute))
				if err == nil {
					oracle.returned(key, id)
				}
			}
		})
	}
	enqueuing.Wait()
	for left := len(oracle.missing()); left > 0; left = len(oracle.missing()) { // a slow machine takes long for them all
		eventually(t, func() bool { return len(oracle.missing()) < left }, "another task ends")
	}
	oracle.mu.Lock()
	defer oracle.mu.Unlock()
	for _, text := range oracle.broken {
		t.Error(text)
	}
}
