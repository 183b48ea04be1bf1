package e2e

import (
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

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// operatorTable is a rig with six ordered keys of three tasks each. The first task of an even key runs until release is closed, and
// then fails once; that of an odd key has failed, and is retried in eight seconds.
type operatorTable struct {
	*rig
	c       *automutex.Client
	release chan struct{}

	mu    sync.Mutex
	tasks [6][]string     // by key: IDs, in the order of their Enqueue calls
	runs  map[string]int  // by ID: how often it began
	done  map[string]bool // it has returned nil
	over  map[string]bool // an operator has ended it, or may have

	did  int  // how often an operator was not refused
	keep bool // what an operator has ended stays so: it left the order, or its key was lost
}

func newOperatorTable(t *testing.T, s *redistest.Server, onArchive automutex.OnArchive) *operatorTable {
	o := &operatorTable{release: make(chan struct{}), runs: map[string]int{}, done: map[string]bool{}, over: map[string]bool{}}
	// Three of the workers run first tasks, so the tasks behind them park, and asynq does with them what it is told.
	o.rig, o.c = orderRig(t, s, setup{workers: 4, rules: []automutex.Rule{{Task: "work", On: []string{"id"}, InOrder: true, OnArchive: onArchive}}, handler: asynq.HandlerFunc(o.handle), served: func(c *asynq.Config) {
		comingBack(c)
		c.RetryDelayFunc = func(_ int, _ error, task *asynq.Task) time.Duration {
			if keyOf(task)%2 == 0 {
				return 0
			}
			return 8 * time.Second
		}
	}})
	for key := range o.tasks {
		for range 3 {
			o.add(key)
		}
	}
	redistest.Eventually(t, patience, func() bool {
		o.mu.Lock()
		defer o.mu.Unlock()
		return !slices.ContainsFunc(o.tasks[:], func(ids []string) bool { return o.runs[ids[0]] == 0 })
	}, "the first task of each key has begun")
	return o
}

func keyOf(task *asynq.Task) (key int) {
	if _, err := fmt.Sscanf(string(task.Payload()), `{"id":%d}`, &key); err != nil {
		panic(err)
	}
	return key
}

func (o *operatorTable) add(key int) {
	o.t.Helper()
	o.mu.Lock() // until the task is noted: its handler may begin before Enqueue has returned
	defer o.mu.Unlock()
	o.tasks[key] = append(o.tasks[key], o.enqueueInOrder(o.c, key))
}

// handle judges that every task before this one has ended.
func (o *operatorTable) handle(ctx context.Context, task *asynq.Task) error {
	id, _ := asynq.GetTaskID(ctx)
	key := keyOf(task)
	o.mu.Lock()
	o.runs[id]++
	for _, before := range o.tasks[key][:slices.Index(o.tasks[key], id)] {
		if !o.done[before] && !o.over[before] {
			o.t.Errorf("key %d: %s begins before %s has ended; enqueued: %q", key, id, before, o.tasks[key])
		}
	}
	first := o.runs[id] == 1 && o.tasks[key][0] == id
	o.mu.Unlock()
	if first && key%2 == 0 {
		select {
		case <-o.release:
		case <-ctx.Done():
		}
	}
	if first {
		return errors.New("broken")
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.done[id] = true
	return nil
}

func (o *operatorTable) ids(key int) []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.tasks[key])
}

// at calls act for a task of each key, and lets it end those that it takes from asynq.
func (o *operatorTable) at(place int, act func(key int, id string) error) {
	for key := range o.tasks {
		id := o.ids(key)[place]
		o.ends(func() error { return act(key, id) }, id)
	}
}

// ends calls act, which may delete these tasks; none: any task.
func (o *operatorTable) ends(act func() error, ids ...string) {
	o.t.Helper()
	if len(ids) == 0 {
		for key := range o.tasks {
			ids = append(ids, o.ids(key)...)
		}
	}
	o.mark(true, ids...) // before it is done, since the next one may begin before act returns
	if err := act(); err == nil {
		o.did++
	} else {
		o.t.Log(err) // refused: each means says whether it may be
	}
	for _, id := range ids {
		if o.keep {
			continue
		}
		if _, err := o.inspector.GetTaskInfo(o.queue, id); err == nil {
			o.mark(false, id)
		}
	}
}

func (o *operatorTable) mark(over bool, ids ...string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, id := range ids {
		o.over[id] = over
	}
}

// goOn lets all keys go on, as an operator does who wants them to: who has failed is run again, who is archived is skipped. It
// returns when all tasks have ended.
func (o *operatorTable) goOn() {
	o.t.Helper()
	close(o.release)
	for key := range o.tasks {
		o.add(key) // it shows that the key does not stand
	}
	redistest.Eventually(o.t, patience, func() bool {
		for key := range o.tasks {
			first := o.ids(key)[0]
			if info, err := o.inspector.GetTaskInfo(o.queue, first); err == nil && info.State == asynq.TaskStateRetry && info.LastErr == "broken" {
				_ = o.inspector.RunTask(o.queue, first) // it may come by itself at that moment
			}
		}
		heads, err := o.guard.Blocked(context.Background())
		if err != nil {
			return false
		}
		for _, head := range heads {
			id := head.Task[len(o.queue)+1:]
			if info, err := o.inspector.GetTaskInfo(o.queue, id); err == nil && info.State == asynq.TaskStateArchived {
				o.mark(true, id)
				if o.guard.SkipHead(context.Background(), head.Key, head.Task) != nil {
					o.mark(false, id)
				}
			}
		}
		o.mu.Lock()
		defer o.mu.Unlock()
		for key := range o.tasks {
			if !o.done[o.tasks[key][len(o.tasks[key])-1]] {
				return false
			}
		}
		return true
	}, "the last task of each key is done")
}

func (o *operatorTable) keyName(key int) string { return o.lockOf("work", strconv.Itoa(key)).Key() }

// Every means that an operator has, at each place of a key, leaves the order as it is.
func TestInOrder_everyOperator(t *testing.T) {
	t.Parallel()
	n := func(_ int, err error) error { return err }
	at := func(act func(o *operatorTable, key int, id string) error) func(o *operatorTable) {
		return func(o *operatorTable) {
			for _, place := range []int{2, 1, 0} {
				o.at(place, func(key int, id string) error { return act(o, key, id) })
			}
		}
	}
	queue := func(acts ...func(i *asynq.Inspector, queue string) error) func(o *operatorTable) {
		return func(o *operatorTable) {
			for _, act := range acts {
				o.ends(func() error { return act(o.inspector, o.queue) })
			}
		}
	}
	for name, means := range map[string]func(o *operatorTable){
		"delete":  at(func(o *operatorTable, _ int, id string) error { return o.inspector.DeleteTask(o.queue, id) }),
		"archive": at(func(o *operatorTable, _ int, id string) error { return o.inspector.ArchiveTask(o.queue, id) }),
		"run":     at(func(o *operatorTable, _ int, id string) error { return o.inspector.RunTask(o.queue, id) }),
		"cancel":  at(func(o *operatorTable, _ int, id string) error { return o.inspector.CancelProcessing(id) }),
		"archive, and run": at(func(o *operatorTable, _ int, id string) error {
			return errors.Join(o.inspector.ArchiveTask(o.queue, id), o.inspector.RunTask(o.queue, id))
		}),
		"skip": at(func(o *operatorTable, key int, id string) error {
			if err := o.guard.SkipHead(context.Background(), o.keyName(key), o.queue+"/"+id); err != nil {
				return err
			}
			return o.inspector.DeleteTask(o.queue, id) // else it would run late, as docs/guarantees.md says
		}),
		"break": at(func(o *operatorTable, key int, _ string) error {
			return n(o.lockOf("work", strconv.Itoa(key)).BreakAll(context.Background()))
		}),
		"pause and resume": at(func(o *operatorTable, key int, _ string) error {
			o.pauseTarget(o.keyName(key), time.Time{})
			o.resumeTarget(o.keyName(key))
			return nil
		}),
		"limit": at(func(o *operatorTable, key int, _ string) error {
			return o.guard.Controls().SetLimit(context.Background(), o.keyName(key), 4, "repair")
		}),
		"pause the queue":           queue((*asynq.Inspector).PauseQueue, (*asynq.Inspector).UnpauseQueue),
		"delete the queue":          queue(func(i *asynq.Inspector, queue string) error { return i.DeleteQueue(queue, false) }),
		"delete the queue by force": queue(func(i *asynq.Inspector, queue string) error { return i.DeleteQueue(queue, true) }),
		"archive all": queue(
			func(i *asynq.Inspector, queue string) error { return n(i.ArchiveAllPendingTasks(queue)) },
			func(i *asynq.Inspector, queue string) error { return n(i.ArchiveAllRetryTasks(queue)) }),
		"archive all, and run all": queue(
			func(i *asynq.Inspector, queue string) error { return n(i.ArchiveAllRetryTasks(queue)) },
			func(i *asynq.Inspector, queue string) error { return n(i.RunAllArchivedTasks(queue)) }),
		"run all": queue(func(i *asynq.Inspector, queue string) error { return n(i.RunAllRetryTasks(queue)) }),
		"sweep": func(o *operatorTable) {
			l := lock.New(o.rdb, lock.Options{Prefix: o.cfg.Prefix}) // others may have a client that cannot walk keys
			o.ends(func() error { return n(inner.Sweep(context.Background(), l)) })
			redistest.Must(o.t, l.Close())
		},
		"delete the lock": at(func(o *operatorTable, key int, _ string) error {
			return o.lockOf("work", strconv.Itoa(key)).Delete(context.Background())
		}),
		"lose the key": at(func(o *operatorTable, key int, _ string) error {
			return o.rdb.Del(context.Background(), o.keyName(key)).Err()
		}),
		"delete all completed": queue(func(i *asynq.Inspector, queue string) error { return n(i.DeleteAllCompletedTasks(queue)) }),
		"change the payload": at(func(o *operatorTable, _ int, id string) error { // asynq does so for scheduled tasks only, and none is
			return o.inspector.UpdateTaskPayload(o.queue, id, []byte(`{"id":0}`))
		}),
		"delete all": queue(
			func(i *asynq.Inspector, queue string) error { return n(i.DeleteAllRetryTasks(queue)) },
			func(i *asynq.Inspector, queue string) error { return n(i.DeleteAllPendingTasks(queue)) },
			func(i *asynq.Inspector, queue string) error { return n(i.DeleteAllArchivedTasks(queue)) }),
	} {
		for _, onArchive := range []automutex.OnArchive{automutex.HoldKey, automutex.Continue} {
			t.Run(name+", "+onArchive.String(), func(t *testing.T) {
				t.Parallel()
				redistest.Each(t, func(t *testing.T, s *redistest.Server) {
					o := newOperatorTable(t, s, onArchive)
					lost := name == "delete the lock" || name == "lose the key"
					o.keep = lost || onArchive == automutex.Continue && strings.Contains(name, "archive")
					for key := range o.tasks {
						if lost { // any of its tasks may overtake any other, as docs/guarantees.md says
							o.mark(true, o.ids(key)...)
						}
					}
					means(o)
					if refused := strings.HasPrefix(name, "delete the queue") || name == "change the payload"; refused != (o.did == 0) { // tasks run
						t.Errorf("done %d times", o.did)
					}
					o.goOn()
				})
			})
		}
	}
}

// WakeAtFront, which puts a woken task before what is pending in its queue, leaves the order as it is.
func TestInOrder_wakeAtFront(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		log := &orderLog{}
		r, c := orderRig(t, s, setup{workers: 2, guarded: func(c *automutex.Config) { c.WakeAtFront = true }, handler: func(ctx context.Context, _ *asynq.Task) error {
			if id, nth := log.begins(ctx); nth == 1 && strings.HasPrefix(id, "fails") {
				return errors.New("broken")
			}
			return nil
		}})
		var want []string
		for i := range 12 {
			id := fmt.Sprintf("%s-%d", []string{"fails", "runs", "runs"}[i%3], i)
			want = append(want, id)
			if i%3 == 0 {
				want = append(want, id)
			}
			r.enqueueInOrder(c, 1, asynq.TaskID(id))
		}
		log.await(t, want...)
	})
}

// Locks on another Redis than asynq's, and nobody has said so: the Inspector sees no task, and takes none for gone. The
// order stands, in workers and producers, and the log says why.
func TestInOrder_inspectorElsewhere(t *testing.T) {
	t.Parallel()
	s, other := redistest.Mini(t), redistest.StartMini(t)
	rules := []automutex.Rule{{Task: "work", On: []string{"id"}, InOrder: true, MaxQueued: 2}}
	r, _ := orderRig(t, s, setup{rules: rules, workers: 3, locks: other.Client(t), served: func(c *asynq.Config) {
		c.RetryDelayFunc = func(int, error, *asynq.Task) time.Duration { return time.Hour }
	}})
	log := &redistest.Log{}
	c, err := automutex.NewClient(other.Client(t), r.client, automutex.Config{Rules: rules, Prefix: r.cfg.Prefix, Logger: log.Logger()})
	redistest.Must(t, err)
	first := r.enqueueInOrder(c, 1)
	r.stage.nextIs(t, first).returns(errors.New("not now"))
	r.await(first, asynq.TaskStateRetry)
	r.awaitParked(r.enqueueInOrder(c, 1))
	redistest.Eventually(t, patience, func() bool { // from the first look on, 5 s later
		_, err := c.Enqueue(asynq.NewTask("work", []byte(`{"id":1}`)), asynq.Queue(r.queue))
		if !errors.Is(err, automutex.ErrFull) {
			t.Fatalf("%v, want ErrFull: the first two are not done", err)
		}
		return strings.Contains(log.String(), "does not see the queue") && strings.Contains(r.log.Text(slog.LevelDebug), "could not be looked at")
	}, "producer and worker have looked")
	r.stage.none(t)
	if n := strings.Count(r.log.Text(slog.LevelWarn), "a key in order stands"); n != 1 {
		t.Errorf("%d warnings", n)
	}
}
