package unique

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
)

// workerEnv makes this test binary a worker that the stress tests kill: the
// variable's value is a stressWorker in JSON.
const workerEnv = "AUTOMUTEX_TEST_UNIQUE_WORKER"

// stressWorker is an asynq server whose handlers succeed, fail, archive or hang,
// as the payload says, and note in Redis what they see.
type stressWorker struct {
	Addrs         []string
	Queue, Prefix string
	Last          bool // no task hangs, and those that failed come back at once
}

// stressTask is what the payload says.
type stressTask struct {
	ID     string `json:"id"`     // makes the key
	Number string `json:"number"` // one for each enqueue
	Do     string `json:"do"`
}

// What the workers note: the IDs of tasks that a worker has had, before any lock
// or claim, and the numbers of those whose handler began. In asynq's slot, so that
// one script sees them together with its lists.
func (w stressWorker) seen() string { return "{" + w.Queue + "}:seen" }
func (w stressWorker) ran() string  { return "{" + w.Queue + "}:ran" }

func workerMain() {
	var w stressWorker
	if err := json.Unmarshal([]byte(os.Getenv(workerEnv)), &w); err != nil {
		panic(err)
	}
	rdb := redis.NewUniversalClient(&redis.UniversalOptions{Addrs: w.Addrs})
	server, _, err := w.start(rdb)
	if err != nil {
		panic(err)
	}
	_, _ = io.Copy(io.Discard, os.Stdin) // ends with the parent, if nobody kills us before
	server.Stop()
}

func (w stressWorker) start(rdb redis.UniversalClient) (*asynq.Server, *automutex.Guard, error) {
	guard, err := automutex.New(rdb, automutex.Config{
		Prefix: w.Prefix, Logger: slog.New(slog.DiscardHandler),
		Rules: []automutex.Rule{{Task: "stress", On: []string{"id"}, TTL: 500 * time.Millisecond, Busy: automutex.Retry, Wait: 5 * time.Second}},
	})
	if err != nil {
		return nil, nil, err
	}
	server := asynq.NewServerFromRedisClient(rdb, guard.ServerConfig(asynq.Config{
		Concurrency: 20, Queues: map[string]int{w.Queue: 1},
		TaskCheckInterval: redistest.CheckEvery, DelayedTaskCheckInterval: 50 * time.Millisecond,
		RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return 0 },
		Logger:         redistest.Silent{},
	}))
	guarded := guard.Middleware(asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) error {
		var task stressTask
		if err := json.Unmarshal(t.Payload(), &task); err != nil {
			return err
		}
		if err := rdb.SAdd(ctx, w.ran(), task.Number).Err(); err != nil {
			return err
		}
		retried, _ := asynq.GetRetryCount(ctx)
		switch {
		case task.Do == "archive":
			return asynq.SkipRetry
		case task.Do == "fail" && retried == 0:
			return errors.New("once")
		case task.Do == "hang" && !w.Last:
			select { // long enough to be killed in
			case <-ctx.Done():
			case <-time.After(50 * time.Millisecond):
			}
		}
		return nil
	}))
	return server, guard, server.Start(asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) error {
		id, _ := asynq.GetTaskID(ctx)
		if err := rdb.SAdd(ctx, w.seen(), id).Err(); err != nil {
			return err
		}
		return guarded.ProcessTask(ctx, t)
	}))
}

// process runs the worker as a process of its own; kill ends it by SIGKILL.
func (w stressWorker) process(t *testing.T) (kill func()) {
	t.Helper()
	text, err := json.Marshal(w)
	redistest.Must(t, err)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), workerEnv+"="+string(text))
	cmd.Stderr = os.Stderr
	if _, err := cmd.StdinPipe(); err != nil { // closed when this process ends
		t.Fatal(err)
	}
	redistest.Must(t, cmd.Start())
	var once sync.Once
	kill = func() {
		once.Do(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
	}
	t.Cleanup(kill)
	return kill
}

// Eight producers, 50 keys, and workers that succeed, fail, archive and are
// killed. 1,000 enqueues for each producer on a real Redis and without the race
// detector, fewer elsewhere.
func TestStress(t *testing.T) {
	redistest.RealTime(t)
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		s = own(t, s)
		for _, c := range []struct {
			until     Until
			duplicate Duplicate
			each      int // enqueues of a producer
			small     int // elsewhere
		}{
			{UntilDone, Reject, 1000, 15},
			{UntilStart, Reject, 1000, 15},
			{UntilDone, Replace, 60, 0},
			{UntilStart, Replace, 60, 10},
		} {
			switch {
			case s.Kind() != redistest.KindReal:
				c.each = c.small
			case raced || !redistest.All():
				c.each = min(c.each, 200)
			}
			if c.each > 0 {
				t.Run(c.until.String()+", "+c.duplicate.String(), func(t *testing.T) { stress(t, s, c.until, c.duplicate, c.each) })
			}
		}
	})
}

func stress(t *testing.T, s *redistest.Server, until Until, duplicate Duplicate, each int) {
	const producers, keys = 8, 50
	rule := Rule{Task: "stress", On: []string{"id"}, Until: until, Duplicate: duplicate}
	r := start(t, s, rule)
	w := stressWorker{Addrs: s.Addrs(), Queue: r.queue, Prefix: r.prefix}

	// The first ones come before any worker, so that there are duplicates among them
	// however fast the workers are: with 40 of 50 keys drawn that is certain enough,
	// and the draws are the same each time.
	const first = 40
	var tried atomic.Int64
	backlog := make(chan struct{}) // closed by the producer that tries the first-th
	working := make(chan struct{}) // closed when a task has run; the other ones come after that

	// Workers are killed and replaced until the producers are through.
	var stop atomic.Bool
	var kills int
	var workers sync.WaitGroup
	redistest.Go(&workers, func() {
		<-backlog // every producer tries as often as it is to, whatever the answers
		look := time.NewTicker(5 * time.Millisecond)
		defer look.Stop()
		started := sync.OnceFunc(func() { close(working) })
		defer started() // in any case: producers wait for it
		for !stop.Load() {
			kill := w.process(t)
			began := time.Now()
			for !stop.Load() && time.Since(began) < 1200*time.Millisecond {
				if r.rdb.SCard(t.Context(), w.ran()).Val() > 0 {
					started()
				}
				r.watch(until, duplicate)
				<-look.C
			}
			kill()
			kills++
		}
	})

	var accepted sync.Map // number to key
	var count, refused atomic.Int64
	var wg sync.WaitGroup
	for p := range producers {
		// A client that sends a deletion again when the answer is late can hit a task
		// that came in between, see the doc; a machine that is slow is not to be that.
		c := r.producer(s.Client(t, func(o *redis.UniversalOptions) { o.ReadTimeout = longest }), rule)
		c.grace = time.Second
		redistest.Go(&wg, func() {
			random := rand.New(rand.NewPCG(uint64(p), 1))
			for i := range each {
				st := stressTask{ID: fmt.Sprint(random.IntN(keys)), Number: fmt.Sprintf("%d.%d", p, i), Do: []string{"ok", "ok", "fail", "archive", "hang"}[random.IntN(5)]}
				payload, _ := json.Marshal(st)
				_, err := c.Enqueue(asynq.NewTask("stress", payload), asynq.MaxRetry(10))
				switch {
				case err == nil:
					accepted.Store(st.Number, st.ID)
					count.Add(1)
				case errors.Is(err, asynq.ErrDuplicateTask):
					refused.Add(1)
				default:
					t.Errorf("enqueue %s: %v", st.Number, err)
				}
				n := tried.Add(1)
				if n == first {
					close(backlog)
				}
				if n >= first {
					<-working
				}
			}
		})
	}
	wg.Wait()
	stop.Store(true)
	workers.Wait()

	r.workOff(w)

	ran := map[string]bool{}
	for _, number := range r.rdb.SMembers(t.Context(), w.ran()).Val() {
		ran[number] = true
	}
	lost := 0
	accepted.Range(func(number, key any) bool {
		if !ran[number.(string)] {
			lost++
		}
		return true
	})
	if duplicate == Reject && lost > 0 {
		t.Errorf("%d of %d tasks that were accepted never ran", lost, count.Load())
	}
	if int64(lost) >= count.Load() || refused.Load() == 0 && duplicate == Reject {
		t.Errorf("%d accepted, %d refused, %d superseded: not what this test is about", count.Load(), refused.Load(), lost)
	}
	t.Logf("%d accepted, %d refused, %d superseded, %d ran, %d workers killed", count.Load(), refused.Load(), lost, len(ran), kills)

	server, guard := r.lastWorker(w)
	t.Cleanup(func() { r.shutDown(server, guard) })

	// No key is blocked: what crashed producers and workers left is given up.
	r.grace = time.Second
	last := map[string]bool{}
	for key := range keys {
		number := fmt.Sprintf("last.%d", key)
		payload := fmt.Appendf(nil, `{"id":"%d","number":%q,"do":"ok"}`, key, number)
		redistest.Eventually(t, longest, func() bool {
			_, err := r.Enqueue(asynq.NewTask("stress", payload))
			return err == nil
		}, "key %d being free", key)
		last[number] = true
	}
	redistest.Eventually(t, longest, func() bool {
		for number := range last {
			if !r.rdb.SIsMember(t.Context(), w.ran(), number).Val() {
				return false
			}
		}
		return true
	}, "a last task running for every key")
}

// workOff has a worker that is not killed do what is left. Tasks that killed ones
// had are given to it at once, not when their leases have run out. A command of
// a killed one may still arrive after that, so there may have to be another.
func (r *rig) workOff(w stressWorker) {
	r.t.Helper()
	lease := "asynq:{" + r.queue + "}:lease"
	done := func() bool {
		q, err := r.inspector.GetQueueInfo(r.queue) // all at one moment
		return err == nil && q.Pending+q.Active+q.Scheduled+q.Retry == 0
	}
	redistest.Eventually(r.t, 4*longest, func() bool {
		for _, id := range r.rdb.ZRange(context.Background(), lease, 0, -1).Val() {
			r.rdb.ZAddXX(context.Background(), lease, redis.Z{Score: 1, Member: id})
		}
		server, guard := r.lastWorker(w)
		for began := time.Now(); !done() && time.Since(began) < 10*time.Second; {
			<-time.After(5 * time.Millisecond)
		}
		r.shutDown(server, guard)
		return done()
	}, "the queue being worked off")
}

func (r *rig) lastWorker(w stressWorker) (*asynq.Server, *automutex.Guard) {
	r.t.Helper()
	w.Last = true
	server, guard, err := w.start(r.rdb)
	if err != nil {
		r.t.Fatal(err)
	}
	return server, guard
}

func (r *rig) shutDown(server *asynq.Server, guard *automutex.Guard) {
	r.t.Helper()
	closed := make(chan error, 1)
	go func() { closed <- guard.Close(context.Background()) }()
	server.Shutdown()
	if err := <-closed; err != nil {
		r.t.Error(err)
	}
}

// watch looks at all tasks of the queue at one moment, and fails the test when
// there are too many for a key: of live ones under UntilDone, of those that no
// worker has had under UntilStart. While Replace and Postpone put one in the
// place of another there may be two, of which one does not run yet.
func (r *rig) watch(until Until, duplicate Duplicate) {
	w := stressWorker{Queue: r.queue}
	q := "asynq:{" + r.queue + "}:"
	reply, err := r.rdb.Eval(context.Background(), `
local found = {}
local function add(where, ids)
  for _, id in ipairs(ids) do
    local seen = redis.call('SISMEMBER', KEYS[5], id)
    found[#found + 1], found[#found + 2], found[#found + 3] = where, id, seen
  end -- of one list
end
add('pending', redis.call('LRANGE', KEYS[1], 0, -1))
add('active', redis.call('LRANGE', KEYS[2], 0, -1))
add('scheduled', redis.call('ZRANGE', KEYS[3], 0, -1))
add('retry', redis.call('ZRANGE', KEYS[4], 0, -1))
return found`, []string{q + "pending", q + "active", q + "scheduled", q + "retry", w.seen()}).Slice()
	if err != nil {
		r.t.Errorf("watch: %v", err)
		return
	}
	tasks := map[string][]string{} // by key
	for i := 0; i < len(reply); i += 3 {
		where, id, seen := reply[i].(string), reply[i+1].(string), reply[i+2].(int64) == 1
		if until == UntilStart && (seen || where == "active") || duplicate != Reject && where == "scheduled" {
			continue
		}
		key := id[:strings.IndexByte(id, '}')]
		tasks[key] = append(tasks[key], where+" "+id)
	}
	for key, all := range tasks {
		if len(all) > 1 && duplicate != Reject {
			// A task that another one has superseded may still wait in a worker: it never begins, since the
			// claim is not its own. One that has begun keeps the claim.
			stored := r.rdb.Get(context.Background(), key+"}:claim").Val()
			all = slices.DeleteFunc(all, func(task string) bool {
				where, id, _ := strings.Cut(task, " ")
				return where == "active" && stored != "" && !strings.HasSuffix(stored, "/"+id)
			})
		}
		if len(all) > 1 {
			r.t.Errorf("%s, %s: at one moment %s has %q", until, duplicate, key, all)
		}
	}
}
