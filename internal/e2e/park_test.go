package e2e

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/engine"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// Park: what a task sees of it. Faults at each command are in examples/trust/simulate.
//
// A key that rig.hold took is released by a Guard, which then calls at once. After the release of one that rig.take
// took, the look-after of the Guard that parked calls.

// parks are rules whose tasks "work", keyed on id, park.
var parks = []automutex.Rule{{Task: "work", On: onID, Busy: automutex.Park}}

// heldRig is a rig with parks, whose key of id 1 is held.
func heldRig(t *testing.T, s *redistest.Server, o setup) (*rig, func()) {
	t.Helper()
	o.rules = parks
	r := start(t, s, o)
	lease := r.hold("work", "1")
	return r, func() { t.Helper(); r.free(lease) }
}

// awaitParked waits until asynq has filed the task as parked, no attempt spent.
func (r *rig) awaitParked(id string) *asynq.TaskInfo {
	r.t.Helper()
	info := r.awaitRetried(id, 0)
	if !strings.Contains(info.LastErr, "parked on ") {
		r.t.Fatalf("the task %s is not parked: last error %q", id, info.LastErr)
	}
	return info
}

// stored is what Redis has of a key's line.
func (r *rig) stored(scope string, parts ...string) engine.Info {
	r.t.Helper()
	m := r.lockOf(scope, parts...)
	info, err := engineOf(m).Inspect(context.Background(), refOf(m), 1)
	redistest.Must(r.t, err)
	return info
}

// awaitStored waits until so many stand in line in workers, and so many are parked or called.
func (r *rig) awaitStored(waiting, parked int, scope string, parts ...string) {
	r.t.Helper()
	var info engine.Info
	defer func() {
		if r.t.Failed() {
			r.t.Logf("stored of the line: %+v", info)
		}
	}()
	eventually(r.t, func() bool {
		info = r.stored(scope, parts...)
		return info.Waiting == waiting && info.Parked+info.Called == parked
	}, "%d wait and %d are parked on %s", waiting, parked, scope)
}

// operate does to a parked task what an operator does, who finds it on its way now and then, and does it again.
func (r *rig) operate(id string, do func(queue, id string) error) {
	r.t.Helper()
	var err error
	eventually(r.t, func() bool {
		err = do(r.queue, id)
		return err == nil
	}, "something is done to %s", id)
}

// finish waits for the next run, checks that it is that of the task, and has it return nil.
func (r *rig) finish(id string) {
	r.t.Helper()
	r.finishSpent(id, 0)
}

func (r *rig) finishSpent(id string, spent int) {
	r.t.Helper()
	r.nextIs(id).returns(nil)
	r.awaitSpent(id, asynq.TaskStateCompleted, spent)
}

// finishAll is finish for several tasks in any order: more than one may be
// called at once, and they come as asynq has it then.
func (r *rig) finishAll(ids ...string) {
	r.t.Helper()
	left := slices.Clone(ids)
	for len(left) > 0 {
		run := r.next()
		i := slices.Index(left, run.id)
		if i < 0 {
			r.t.Fatalf("%s runs, and not one of %v", run.id, left)
		}
		left = slices.Delete(left, i, i+1)
		run.returns(nil)
		r.awaitSpent(run.id, asynq.TaskStateCompleted, 0)
	}
}

// What asynq shows of a parked task, and what nobody is told of it.
func TestPark_explainsItself(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s, setup{rules: parks, workers: 1, served: untouched(t)})
		m := r.others.Mutex("work", lock.Parts("1"), lock.Note("far/away"), lock.TTL(time.Minute))
		held, err := m.TryLock(t.Context())
		redistest.Must(t, err)
		var ids []string
		for i := range 2 {
			id := r.enqueueOne()
			ids = append(ids, id)
			began := time.Now()
			info := r.awaitParked(id)
			says(t, info.LastErr, `rule "work"`, "parked on "+m.Key()+",", fmt.Sprintf("place %d in line", i+1),
				"held by task far/away on somebody-else", "deadline in")
			event := r.awaitEvent(automutex.EventParked, id)
			busy := event.Busy
			if event.Rule != "work" || event.Key != m.Key() || event.Policy != automutex.Park || busy.Place != i ||
				busy.HolderTask != "far/away" || busy.Waited <= 0 {
				t.Errorf("got %+v of %+v", event, busy)
			}
			// Not before the holder's deadline, which is a minute away.
			if event.Delay < 55*time.Second || event.Delay > 10*time.Minute {
				t.Errorf("it comes back by itself after %s", event.Delay)
			}
			early, late := began.Add(event.Delay-2*time.Second), time.Now().Add(event.Delay)
			if info.NextProcessAt.Before(early) || info.NextProcessAt.After(late) {
				t.Errorf("asynq has it at %s, not within %s and %s", info.NextProcessAt, early, late)
			}
		}
		r.free(held)
		for _, id := range ids {
			r.finish(id)
			if event := r.awaitEvent(automutex.EventAcquired, id); event.Parked <= 0 {
				t.Errorf("it was parked, and got %+v", event)
			}
			kinds := r.seen.kindsOf(id)
			if !slices.Equal(kinds[:4], []automutex.EventKind{automutex.EventWaiting, automutex.EventWaited, automutex.EventBusy,
				automutex.EventParked}) {
				t.Errorf("events %v", kinds)
			}
		}
		r.awaitStored(0, 0, "work", "1")
	})
}

// It waits in its worker while another is free; when the last is taken, the newest goes, and one at a time.
func TestPark_yieldsTheLastWorker(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		r, free := heldRig(t, s, setup{workers: 3})
		older := r.enqueueOne()
		r.awaitEvent(automutex.EventWaiting, older) // the server knows
		newer := r.enqueueOne()
		r.awaitEvent(automutex.EventWaiting, newer)
		r.enqueue("other", nil) // takes the last one
		blocks := r.next()
		r.awaitParked(newer)
		r.awaitStored(1, 1, "work", "1")
		if event := r.awaitEvent(automutex.EventParked, newer); event.Busy.Waited <= 0 || event.Busy.Place != 1 {
			t.Errorf("it gave way with %+v", event.Busy)
		}
		r.enqueue("other", nil)
		blocksToo := r.next()
		r.awaitParked(older)
		r.awaitStored(0, 2, "work", "1")
		free()
		r.finishAll(older, newer)
		r.ends(blocks)
		r.ends(blocksToo)
	})
}

// With one worker it is never held for a wait, whoever has the key.
func TestPark_concurrencyOne(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		r, free := heldRig(t, s, setup{workers: 1})
		parked := r.enqueueOne()
		r.awaitParked(parked)
		r.finish(r.enqueue("other", nil)) // the worker is free
		r.finish(r.enqueue("work", map[string]int{"id": 2}))
		free()
		r.finish(parked)
		// Holder and successor in one server.
		a, b := r.enqueueOne(), r.enqueueOne()
		r.finish(a)
		r.finish(b)
	})
}

// Without ServerConfig nobody knows how many workers are free: it parks at once.
// asynq counts the attempt then, and the call comes all the same.
func TestPark_withoutServerConfig(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		r, free := heldRig(t, s, setup{plain: true})
		id := r.enqueueOne()
		info := r.awaitRetried(id, 1)
		if busy := r.awaitEvent(automutex.EventParked, id).Busy; busy.Waited != 0 ||
			!strings.Contains(info.LastErr, "parked on ") {
			t.Errorf("got %+v, %q", busy, info.LastErr)
		}
		// On its last attempt then, it goes on from its place, in its worker.
		last := r.enqueueOne(asynq.MaxRetry(1))
		r.awaitRetried(last, 1)
		r.rerun(last)
		r.awaitStored(1, 1, "work", "1")
		free()
		for _, id := range []string{last, id} {
			r.ends(r.nextIs(id))
		}
	})
}

// Names with what could be taken for a separator, in all three places.
func TestPark_oddNames(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		odd := []string{"a/b", "a|b|c", "100%|%2F", "two words\t", "größe 錠", "x{y}z", ", place 1 in line", "line\nbreak"}
		r := start(t, s, setup{
			workers: 1, queue: redistest.Name(t) + `/q|%2F {x} ü`,
			rules: []automutex.Rule{{Task: "work", Busy: automutex.Park,
				Key: func(_ context.Context, t *asynq.Task) ([]string, error) {
					return []string{string(t.Payload()), "x"}, nil
				}}},
		})
		var leases []*lock.Lease
		for _, name := range odd {
			leases = append(leases, r.hold("work", name, "x"))
			id := r.enqueue("work", name, asynq.TaskID(name))
			r.awaitParked(id)
		}
		for _, lease := range leases {
			r.free(lease)
		}
		for range odd { // in whatever order they were looked after
			r.ends(r.next())
		}
		for _, name := range odd {
			r.awaitDone(name)
			r.awaitStored(0, 0, "work", name, "x")
		}
	})
}

// bare is a client that only locks can be kept with.
type bare struct{ lock.Client }

func TestPark_new(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		rdb := s.Client(t)
		inspector := asynq.NewInspectorFromRedisClient(rdb)
		rules := []automutex.Rule{{Task: "retries", Busy: automutex.Retry}, {Task: "parks", Busy: automutex.Park}}
		for _, c := range []struct {
			rdb  lock.Client
			cfg  automutex.Config
			want string // in the error; "": none
		}{
			{rdb, automutex.Config{Rules: rules}, ""},
			{rdb, automutex.Config{Rules: rules, WakeAtFront: true}, ""},
			{bare{rdb}, automutex.Config{Rules: rules, Inspector: inspector}, ""},
			{bare{rdb}, automutex.Config{Rules: rules[:1], WakeAtFront: true}, ""},
			{bare{rdb}, automutex.Config{MinReplicas: 1}, "automutex: Config.MinReplicas: lock: MinReplicas does not go with " +
				"a e2e.bare"},
			{bare{rdb}, automutex.Config{Rules: rules}, "automutex: Config.Inspector: is nil, and none can be made from a " +
				"e2e.bare for the policy park of Rules[1], which is that of a rule without Busy"},
			{bare{rdb}, automutex.Config{Rules: rules, Inspector: inspector, WakeAtFront: true},
				"automutex: Config.WakeAtFront: needs a redis.UniversalClient"},
		} {
			g, err := automutex.New(c.rdb, c.cfg)
			if c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) || c.want == "" && err != nil {
				t.Errorf("%T, %+v: %v", c.rdb, c.cfg, err)
			}
			if g != nil {
				redistest.Must(t, g.Close(t.Context()))
			}
		}
	})
}

// A woken task stands behind what is pending, unless WakeAtFront moves it: that
// knows how asynq keeps its pending tasks, which this test holds it to.
func TestPark_wakeAtFront(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		for tries := 0; tries < 10; tries++ {
			front := tries > 0
			r, free := heldRig(t, s, setup{workers: 1, guarded: func(c *automutex.Config) { c.WakeAtFront = front }})
			parked := r.enqueueOne()
			r.awaitParked(parked)
			r.enqueue("other", nil)
			blocks := r.next()
			pending := []string{r.enqueue("other", nil), r.enqueue("other", nil)}
			free()
			r.await(parked, asynq.TaskStatePending)
			if front { // a Guard moves it a moment after it was called, and tries that for two seconds
				atFront := func() bool {
					last, err := r.rdb.LRange(t.Context(), "asynq:{"+r.queue+"}:pending", -1, -1).Result()
					return err == nil && slices.Equal(last, []string{parked})
				}
				for began := time.Now(); !atFront() && time.Since(began) < 3*time.Second; {
					<-time.After(2 * time.Millisecond)
				}
			}
			blocks.returns(nil)
			var order []string
			for range 3 {
				run := r.next()
				order = append(order, run.id)
				r.ends(run)
			}
			at := slices.Index(order, parked)
			if behind := slices.Delete(slices.Clone(order), at, at+1); !slices.Equal(behind, pending) || !front && at != 2 {
				t.Fatalf("ran %q; woken was %q, pending before it %q", order, parked, pending)
			}
			if r.stop(); at == 0 {
				return
			}
		}
		t.Error("a woken task was not moved to the front, nine times")
	})
}

// The process that released is gone before it has called anybody: the one that parked repeats the call.
func TestPark_releaserKilled(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		var hook redistest.FailHook
		var vain atomic.Int64
		hook.Before(func(redis.Cmder) error {
			vain.Add(1)
			return errors.New("this process is dead")
		})
		dead := s.Client(t)
		dead.AddHook(&hook)
		a := start(t, s, setup{rules: parks, workers: 1, guarded: func(c *automutex.Config) {
			c.Inspector = asynq.NewInspectorFromRedisClient(dead)
		}})
		b := start(t, s, setup{rules: parks, workers: 1, prefix: a.cfg.Prefix})
		a.enqueueOne()
		run := a.next()
		first := b.enqueueOne()
		b.awaitParked(first)
		second := b.enqueueOne()
		b.awaitParked(second)
		a.ends(run)
		eventually(t, func() bool { // on a busy machine, b may see the release first
			info, err := b.inspector.GetTaskInfo(b.queue, first)
			return vain.Load() > 0 || err == nil && info.State != asynq.TaskStateRetry
		}, "the release calls")
		b.finishAll(first, second)
	})
}

// The key comes free after the parked task's handler has returned, before asynq has filed its retry: the task, called
// while it is active, keeps its place.
func TestPark_releaseBeforeFiling(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		filing, filed := make(chan struct{}), make(chan struct{})
		let := sync.OnceFunc(func() { close(filed) })
		var files, looks atomic.Int64
		hook, watch, inspected := &redistest.FailHook{}, &redistest.FailHook{}, s.Client(t)
		hook.Before(func(cmd redis.Cmder) error {
			if args := cmd.Args(); len(args) > 6 && strings.HasSuffix(fmt.Sprint(args[6]), ":retry") && files.Add(1) == 1 {
				close(filing)
				<-filed
			}
			return nil
		})
		watch.Before(func(redis.Cmder) error { looks.Add(1); return nil })
		inspected.AddHook(watch)
		r := start(t, s, setup{
			rules: parks, workers: 2, hook: hook,
			guarded: func(c *automutex.Config) { c.Inspector = asynq.NewInspectorFromRedisClient(inspected) },
		})
		t.Cleanup(let) // before the server stops
		r.enqueueOne()
		run := r.next()
		id := r.enqueueOne()
		<-filing
		r.ends(run)
		before := looks.Load()
		eventually(t, func() bool { return looks.Load() >= before+8 }, "the task is looked at, active")
		if info := r.stored("work", "1"); info.Parked+info.Called != 1 {
			t.Errorf("its place is gone: %+v", info)
		}
		let()
		r.finish(id)
	})
}

// A paused queue keeps its tasks, and nobody else's.
func TestPark_pausedQueue(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		a := start(t, s, setup{rules: parks, workers: 1})
		b := start(t, s, setup{rules: parks, workers: 1, prefix: a.cfg.Prefix})
		lease := a.take("work", "1")
		var paused, others []string
		for range 2 {
			paused = append(paused, a.enqueueOne())
			a.awaitParked(paused[len(paused)-1])
			others = append(others, b.enqueueOne())
			b.awaitParked(others[len(others)-1])
		}
		redistest.Must(t, a.inspector.PauseQueue(a.queue))
		a.free(lease)
		b.finishAll(others...)
		for _, id := range paused {
			if info, err := a.inspector.GetTaskInfo(a.queue, id); err != nil || info.State != asynq.TaskStateRetry {
				t.Errorf("in the paused queue: %+v, %v", info, err)
			}
		}
		a.none()
		a.awaitStored(0, 2, "work", "1")
		redistest.Must(t, a.inspector.UnpauseQueue(a.queue))
		a.finishAll(paused...)
		a.awaitStored(0, 0, "work", "1")
	})
}

// The task behind an entry is gone, and another of its ID is there: whatever
// that is, it is not run before its time, nor again.
func TestPark_revivesNobody(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		r, free := heldRig(t, s, setup{workers: 1})
		runs := func(err error) func(id string) {
			return func(id string) {
				r.enqueue("other", nil, asynq.TaskID(id))
				r.nextIs(id).returns(err)
			}
		}
		others := map[asynq.TaskState]func(id string){
			asynq.TaskStateScheduled: func(id string) { r.enqueueOne(asynq.TaskID(id), asynq.ProcessIn(time.Hour)) },
			asynq.TaskStateCompleted: runs(nil),
			asynq.TaskStateRetry:     runs(errors.New("its own")),
			asynq.TaskStateArchived:  runs(asynq.SkipRetry),
		}
		for state := range others {
			r.enqueueOne(asynq.TaskID(state.String()))
			r.awaitParked(state.String())
		}
		last := r.enqueueOne()
		r.awaitParked(last)
		for state, begins := range others {
			r.operate(state.String(), r.inspector.DeleteTask)
			begins(state.String())
			r.await(state.String(), state)
		}
		free()
		r.finish(last)
		r.awaitStored(0, 0, "work", "1")
		for state := range others {
			if info := r.await(state.String(), state); info.Retried > 1 {
				t.Errorf("%s: %+v", state, info)
			}
		}
		r.wantRuns(len(others)) // all but the scheduled one, and the last
	})
}

// The Redis of the locks restarts without its data, that of asynq does not:
// nobody knows of the line any more, and asynq brings its tasks back.
func TestPark_linesLost(t *testing.T) {
	t.Parallel()
	s, locks := redistest.Real(t), redistest.StartReal(t)
	rdb := s.Client(t)
	prefix := redistest.Name(t)
	r := start(t, s, setup{
		rules: parks, workers: 1, prefix: prefix,
		// asynq could not use it: the Inspector wakes
		locks:   bare{locks.Client(t, func(o *redis.UniversalOptions) { o.MaxRetries = -1 })},
		guarded: func(c *automutex.Config) { c.Inspector = asynq.NewInspectorFromRedisClient(rdb) },
	})
	others := lock.New(locks.Client(t), lock.Options{Prefix: prefix, Logger: slog.New(slog.DiscardHandler)})
	t.Cleanup(func() { _ = others.Close() })
	began := time.Now()
	_, err := others.Mutex("work", lock.Parts("1")).TryLock(t.Context())
	redistest.Must(t, err)
	ids := []string{r.enqueueOne(), r.enqueueOne()}
	for _, id := range ids {
		// The holder might live on for the 30 s of its lease.
		if until := r.awaitParked(id).NextProcessAt.Sub(began); until < 25*time.Second || until > 10*time.Minute {
			t.Errorf("asynq has it in %s", until)
		}
	}
	locks.Restart(t)
	for _, id := range ids {
		eventually(t, func() bool {
			r.nudge(id) // the connection was broken still
			return len(r.stage.started) > 0
		}, "%s comes back", id)
		r.finish(id)
	}
}

// comesBackToItsGroup is what asynq does with a task of a group whose retry is due: the task joins its group
// again, which asynq does not note among the groups of the queue. So nobody aggregates it.
func (r *rig) comesBackToItsGroup(id string) {
	r.t.Helper()
	redistest.Must(r.t, r.rdb.ZAdd(r.t.Context(), "asynq:{"+r.queue+"}:retry", redis.Z{Score: 1, Member: id}).Err())
	r.await(id, asynq.TaskStateAggregating)
	if groups, err := r.inspector.Groups(r.queue); err != nil || len(groups) != 0 {
		r.t.Errorf("asynq knows the groups %v, %v: then docs/guide.md may promise more", groups, err)
	}
}

// An operator runs a task of a group by hand, and its key is busy.
func TestGroup_runByHandAndParked(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r, free := heldRig(t, s, setup{served: comingBack, workers: 1})
		id := r.enqueue("work", map[string]any{"id": "1"}, asynq.Group("g"))
		r.rerun(id)
		r.awaitParked(id)
		r.comesBackToItsGroup(id)
		free()
		r.finish(id)
	})
}

// Under Retry it waits in its group until the next task of that group comes, or until it is run by hand again.
func TestGroup_runByHandAndReturned(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s, setup{rules: []automutex.Rule{{Task: "work", On: onID,
			Busy: automutex.RetryIn(time.Hour)}}, served: comingBack})
		lease := r.hold("work", "1")
		id := r.enqueue("work", map[string]any{"id": "1"}, asynq.Group("g"))
		r.rerun(id)
		r.awaitRetried(id, 0)
		r.comesBackToItsGroup(id)
		r.enqueue("work", map[string]any{"id": "2"}, asynq.Group("g"))
		if groups, err := r.inspector.Groups(r.queue); err != nil || len(groups) != 1 || groups[0].Size != 2 {
			t.Errorf("with the next task of the group, asynq has %+v, %v", groups, err)
		}
		r.free(lease)
		r.rerun(id)
		r.finish(id)
	})
}

// The head of the line was called and finds no worker: others take and give back the key meanwhile, at once.
func TestPark_allWorkersBusy(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		r, free := heldRig(t, s, setup{workers: 1})
		head := r.enqueueOne()
		r.awaitParked(head)
		r.enqueue("other", nil)
		blocks := r.next()
		// as somebody does who deletes a queue that is empty
		redistest.Must(t, r.rdb.SRem(t.Context(), "asynq:queues", r.queue).Err())
		free()
		r.await(head, asynq.TaskStatePending)
		for range 5 {
			r.free(r.take("work", "1"))
		}
		r.ends(blocks)
		r.finish(head)
		r.awaitStored(0, 0, "work", "1")
	})
}

// A parked task is woken, and ends before it comes to the Middleware: the next ones are woken.
func TestPark_endsUnseen(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		rule automutex.Rule
		ends []string
	}{
		"parked": {automutex.Rule{Task: "work", On: onID}, []string{"deadline", "skip", "fail", "panic", "drop", "deadline"}},
		"in order": {automutex.Rule{Task: "work", On: onID, InOrder: true, OnArchive: automutex.Continue},
			[]string{"skip", "drop", "drop"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redistest.Each(t, func(t *testing.T, s *redistest.Server) {
				dead := map[string]string{} // by ID
				var ends map[string]string  // dead, once no task comes to the Middleware that is in it
				var passing sync.RWMutex    // guards ends; a check may call the head while the key is held
				r, client := orderRig(t, s, setup{rules: []automutex.Rule{c.rule}, workers: 1, served: func(*asynq.Config) {},
					wrap: func(g *automutex.Guard, h asynq.Handler) asynq.Handler {
						guarded := g.Middleware(h)
						return asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
							id, _ := asynq.GetTaskID(ctx)
							passing.RLock()
							defer passing.RUnlock()
							switch ends[id] {
							case "":
								return guarded.ProcessTask(ctx, task)
							case "panic":
								panic("an outer middleware")
							case "fail":
								return errors.New("refused")
							case "drop":
								return nil // no function of asynq sees this end
							}
							return asynq.SkipRetry
						})
					}})
				held := r.take("work", "1")
				deadline := time.Now().Add(4 * time.Second)
				for _, how := range c.ends {
					var options []asynq.Option
					if how == "deadline" {
						options = append(options, asynq.Deadline(deadline))
					}
					id := "dead " + how + redistest.Name(t)
					dead[id] = how
					r.enqueueInOrder(client, 1, append(options, asynq.TaskID(id))...)
					eventually(t, func() bool {
						info, err := r.inspector.GetTaskInfo(r.queue, id)
						// at its deadline
						return err == nil && (info.State == asynq.TaskStateRetry || info.State == asynq.TaskStateScheduled ||
							how == "deadline" && info.State == asynq.TaskStateArchived)
					}, "%s parks", id)
				}
				live := []string{r.enqueueInOrder(client, 1), r.enqueueInOrder(client, 1)}
				if c.rule.InOrder {
					r.awaitParked(live[0])
					r.awaitParked(live[1])
				} else { // others were parked when they were enqueued
					r.await(live[1], asynq.TaskStateScheduled)
					eventually(t, func() bool { return time.Now().After(deadline) }, "the deadline passes")
				}
				passing.Lock()
				ends = dead
				passing.Unlock()
				r.free(held)
				r.finishAll(live...)
			})
		})
	}
}

// A parked task whose Deadline has passed is not waited for, also while no worker is free to end it.
func TestPark_overdue(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		r := start(t, s, setup{rules: parks, workers: 1})
		r.guard.ServerConfig(asynq.Config{TaskCheckInterval: time.Minute}) // it may take a minute to arrive
		held := r.take("work", "1")
		deadline := time.Now().Add(2 * time.Second)
		for range 3 {
			r.enqueueOne(asynq.Deadline(deadline))
		}
		live := r.enqueueOne()
		r.awaitParked(live)
		blocks := r.enqueue("other", nil)
		run := r.nextIs(blocks)
		eventually(t, func() bool { return time.Now().After(deadline.Add(time.Second)) }, "the deadline passes")
		r.free(held)
		r.awaitStored(0, 1, "work", "1")
		run.returns(nil)
		r.finish(live)
	})
}

// A Client parks the tasks of a key that has parked ones: asynq has them as scheduled until their turn comes, or until
// they are to start. It leaves those alone that have another time or fate, and after a failure does not ask again.
func TestPark_enqueued(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		r, c := orderRig(t, s, setup{rules: parks, workers: 1})
		held := r.take("work", "1")
		ids := []string{r.enqueueInOrder(c, 1)}
		r.awaitParked(ids[0])
		comesIn := func(least, most time.Duration, options ...asynq.Option) {
			t.Helper()
			began := time.Now()
			ids = append(ids, r.enqueueInOrder(c, 1, options...))
			info, err := r.inspector.GetTaskInfo(r.queue, ids[len(ids)-1])
			redistest.Must(t, err)
			in, scheduled := info.NextProcessAt.Sub(began), info.State == asynq.TaskStateScheduled
			if scheduled != (most > 0) || scheduled && (in < least || in > most) {
				t.Errorf("%v: %s, in %s", options, info.State, in)
			}
			if scheduled && len(options) > 0 {
				redistest.Must(t, r.inspector.DeleteTask(r.queue, info.ID))
				ids = ids[:len(ids)-1]
			}
		}
		comesIn(4*time.Second, 20*time.Second)
		comesIn(time.Second, 4*time.Second, automutex.StartBy(time.Now().Add(3*time.Second)))
		comesIn(4*time.Second, 20*time.Second)
		comesIn(time.Minute, time.Hour, asynq.ProcessIn(time.Hour))
		comesIn(0, 0, asynq.Unique(time.Hour))
		comesIn(0, 0, asynq.Deadline(time.Now().Add(time.Hour)))
		dials := 0
		away := redis.NewClient(&redis.Options{MaxRetries: -1,
			Dialer: func(context.Context, string, string) (net.Conn, error) { dials++; return nil, net.ErrClosed }})
		t.Cleanup(func() { _ = away.Close() })
		c, err := automutex.NewClient(away, r.client, automutex.Config{Rules: parks, Prefix: r.cfg.Prefix})
		redistest.Must(t, err)
		comesIn(0, 0)
		asked := dials
		comesIn(0, 0)
		if asked == 0 || dials != asked {
			t.Errorf("Redis was dialled %d times, then %d", asked, dials-asked)
		}
		r.free(held)
		r.finishAll(ids...)
	})
}
