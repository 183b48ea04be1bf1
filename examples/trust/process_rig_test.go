package trust

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// processRig has workers as processes, for one test: a queue and names of its
// own on the shared redis-server.
type processRig struct {
	t         *testing.T
	w         processWorker
	rdb       redis.UniversalClient
	client    *asynq.Client
	inspector *asynq.Inspector
	locker    *lock.Locker

	mu       sync.Mutex // guards accepted; the test and a producer enqueue
	accepted []string   // the task with number n is accepted[n]: its type and key
}

func newProcessRig(t *testing.T, ttl time.Duration, workers int) *processRig {
	t.Helper()
	s := redistest.Real(t)
	rdb := s.Client(t)
	r := &processRig{
		t: t, rdb: rdb, client: asynq.NewClientFromRedisClient(rdb), inspector: asynq.NewInspectorFromRedisClient(rdb),
		w: processWorker{Addr: s.Addr(), Queue: redistest.Name(t), Prefix: redistest.Name(t), Workers: workers, TTL: ttl},
	}
	r.locker = lock.New(rdb, lock.Options{Prefix: r.w.Prefix})
	t.Cleanup(func() { _ = r.locker.Close() })
	return r
}

// start starts a worker process.
func (r *processRig) start() *redistest.Child {
	r.t.Helper()
	text, err := json.Marshal(r.w)
	if err != nil {
		r.t.Fatal(err)
	}
	return redistest.StartChild(r.t, childEnv+"=process", processEnv+"="+string(text))
}

// enqueue gives the number of a new task.
func (r *processRig) enqueue(taskType string, task processTask) int {
	r.mu.Lock()
	task.N = len(r.accepted)
	r.accepted = append(r.accepted, taskType+":"+task.ID)
	r.mu.Unlock()
	payload, err := json.Marshal(task)
	if err == nil {
		_, err = r.client.Enqueue(asynq.NewTask(taskType, payload), asynq.Queue(r.w.Queue), asynq.MaxRetry(1000), asynq.Timeout(time.Hour))
	}
	if err != nil {
		r.t.Errorf("enqueue: %v", err)
	}
	return task.N
}

// note puts an event of the test's own into the log.
func (r *processRig) note(e processEvent) {
	r.t.Helper()
	if err := r.w.write(r.rdb, &e); err != nil {
		r.t.Fatal(err)
	}
}

func (r *processRig) kill(c *redistest.Child) {
	r.t.Helper()
	r.note(processEvent{What: processKilled, PID: c.PID()})
	c.Kill()
}

// stop stops a worker until resume. What it holds then is noted: others have to
// wait for the ends of these leases.
func (r *processRig) stop(c *redistest.Child) {
	r.t.Helper()
	r.note(processEvent{What: processStopping, PID: c.PID()})
	c.Pause(r.t)
	// Redis' time is read first, so that a deadline is never noted too late.
	now, err := r.rdb.Time(context.Background()).Result()
	if err != nil {
		r.t.Fatal(err)
	}
	until := map[string]int64{}
	for _, key := range r.keys() {
		taskType, id, _ := strings.Cut(key, ":")
		holders, err := r.locker.Mutex(taskType, lock.Parts(id)).Holders(context.Background())
		if err != nil {
			r.t.Fatal(err)
		}
		for _, h := range holders {
			if h.Owner == strconv.Itoa(c.PID()) {
				until[key] = now.Add(h.ExpiresIn).UnixMicro()
			}
		}
	}
	r.note(processEvent{What: processStopped, PID: c.PID(), Until: until})
}

func (r *processRig) resume(c *redistest.Child) {
	r.t.Helper()
	r.note(processEvent{What: processResumed, PID: c.PID()})
	c.Resume(r.t)
}

// keys gives the keys of all tasks.
func (r *processRig) keys() (keys []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	seen := map[string]bool{}
	for _, key := range r.accepted {
		if !seen[key] {
			seen[key] = true
			keys = append(keys, key)
		}
	}
	return keys
}

// recover is what asynq's recoverer would do 30 s to two minutes later: what the
// dead had comes back. asynq keeps until when a worker may have a task; where
// that is long ago, the next server to start retries it. dead tells of a process;
// a task that no process has written itself to yet is left to asynq.
func (r *processRig) recover(dead func(pid string) bool) {
	r.t.Helper()
	owners, err := r.rdb.HGetAll(context.Background(), r.w.owners()).Result()
	if err != nil {
		r.t.Fatal(err)
	}
	for id, pid := range owners {
		if dead(pid) {
			r.lapse(id)
		}
	}
}

func (r *processRig) lapse(id string) {
	r.t.Helper()
	if err := r.rdb.ZAddXX(context.Background(), "asynq:{"+r.w.Queue+"}:lease", redis.Z{Score: 1, Member: id}).Err(); err != nil {
		r.t.Fatal(err)
	}
	if err := r.rdb.HDel(context.Background(), r.w.owners(), id).Err(); err != nil {
		r.t.Fatal(err)
	}
}

// worked tells whether the queue has nothing left to do.
func (r *processRig) worked() bool {
	q, err := r.inspector.GetQueueInfo(r.w.Queue) // all at one moment
	return err == nil && q.Pending+q.Active+q.Scheduled+q.Retry == 0
}

// events gives the log so far.
func (r *processRig) events() []processEvent {
	r.t.Helper()
	lines, err := r.rdb.LRange(context.Background(), r.w.log(), 0, -1).Result()
	if err != nil {
		r.t.Fatal(err)
	}
	return parseProcessLog(r.t, lines)
}

// await waits until the log has an event of that task, of that process if it
// is given.
func (r *processRig) await(what string, n int, pid int) (found processEvent) {
	r.t.Helper()
	redistest.Eventually(r.t, time.Minute, func() bool {
		for _, e := range r.events() {
			if e.What == what && e.N == n && (pid == 0 || e.PID == pid) {
				found = e
				return true
			}
		}
		return false
	}, "task %d %s", n, what)
	return found
}

// balanced checks the books when all is done, notes them in the row, and waits
// until no key is left.
func (r *processRig) balanced(row *row) *processBooks {
	r.t.Helper()
	redistest.Eventually(r.t, time.Minute, r.worked, "all tasks being done")
	events := r.events()
	b := balance(events)
	for _, what := range append(b.overlaps, b.wrong...) {
		r.t.Error(what)
	}
	lost, again := 0, 0
	r.mu.Lock()
	for n, key := range r.accepted {
		switch done := b.done[n]; {
		case done == 0:
			lost++
			r.t.Errorf("%s: task %d never ran to success: %+v", key, n, slices.DeleteFunc(slices.Clone(events), func(e processEvent) bool { return e.N != n || e.Run == "" }))
		case done > 1:
			again++
		}
	}
	accepted := len(r.accepted)
	r.mu.Unlock()
	if q, err := r.inspector.GetQueueInfo(r.w.Queue); err != nil || q.Archived > 0 {
		r.t.Errorf("the queue at the end: %+v, %v", q, err)
	}
	// What the last dead process held lasts a TTL and a second for its key.
	var left []string
	redistest.Eventually(r.t, r.w.TTL+10*time.Second, func() bool {
		var err error
		left, err = r.rdb.Keys(context.Background(), r.w.Prefix+":*").Result()
		left = slices.DeleteFunc(left, func(key string) bool { // what says who runs here lasts for minutes
			return strings.Contains(key, ":{fleet}:")
		})
		return err == nil && len(left) == 0
	}, "no key left; what is there: %v", &left)
	row.notef("tasks %d", accepted)
	row.notef("lost %d", lost)
	row.notef("succeeded twice %d", again)
	row.notef("runs %d", b.runs)
	row.notef("cut off by a kill %d", b.cut)
	row.notef("overtaken while stopped %d", b.overtaken)
	row.notef("told %d", b.told)
	row.notef("writes refused by the fence %d", b.refused)
	row.notef("overlaps %d", len(b.overlaps))
	row.notef("keys left %d", len(left))
	return b
}

// processID is a key's id: one of n.
func processID(i int) string { return fmt.Sprint("e", i) }
