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
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/internal/stamp"
	"github.com/automutex/automutex/internal/tasknote"
	"github.com/automutex/automutex/lock"
)

// Tasks in order: what a user sees, and what can go wrong at the steps that docs/architecture.md has.

// orderRig is a rig whose tasks of type "work" run in order of their id, and a Client.
func orderRig(t *testing.T, s *redistest.Server, o setup) (*rig, *automutex.Client) {
	t.Helper()
	if o.rules = ofWork(o.rules); o.rules == nil {
		o.rules = []automutex.Rule{{Task: "work", On: onID, InOrder: true}}
	}
	if o.prefix == "" {
		o.prefix = redistest.Name(t)
	}
	if o.served == nil {
		o.served = atOnce
	}
	r := start(t, s, o)
	c, err := automutex.NewClient(r.rdb, r.client, automutex.Config{Rules: o.rules, Prefix: o.prefix})
	redistest.Must(t, err)
	return r, c
}

func eachOrder(t *testing.T, o setup, f func(t *testing.T, r *rig, c *automutex.Client)) {
	t.Helper()
	each(t, func(t *testing.T, s *redistest.Server) {
		r, c := orderRig(t, s, o)
		f(t, r, c)
	})
}

func (r *rig) enqueueInOrder(c *automutex.Client, id int, options ...asynq.Option) string {
	r.t.Helper()
	info, err := c.Enqueue(asynq.NewTask("work", fmt.Appendf(nil, `{"id":%d}`, id)), r.options(options)...)
	redistest.Must(r.t, err)
	return info.ID
}

// Tasks run in the order of their Enqueue calls, though each of them fails once, with many workers.
func TestInOrder_throughFailures(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		const keys, each = 3, 8
		var logs [keys]orderLog
		r, c := orderRig(t, s, setup{workers: 8, handler: func(ctx context.Context, task *asynq.Task) error {
			key, _ := strconv.Atoi(strings.Trim(string(task.Payload()), `{"id:}`))
			return logs[key].failOnce("")(ctx, task)
		}})
		var want [keys][]string
		for range each {
			for key := range keys {
				id := r.enqueueInOrder(c, key)
				want[key] = append(want[key], id, id)
			}
		}
		for key := range keys {
			logs[key].await(t, want[key]...)
		}
	})
}

// An archived head holds its key until an operator skips it; TestInOrder_isSeen has what is told of it.
func TestInOrder_holdKey(t *testing.T) {
	eachOrder(t, setup{workers: 3}, func(t *testing.T, r *rig, c *automutex.Client) {
		first, second := r.enqueueInOrder(c, 1, asynq.MaxRetry(0)), r.enqueueInOrder(c, 1)
		r.nextIs(first).returns(errors.New("broken"))
		if info := r.awaitArchived(first); info.LastErr != "broken" || info.Retried != 0 {
			t.Fatalf("%+v", info)
		}
		if info := r.awaitParked(second); !strings.Contains(info.LastErr,
			"behind task "+r.queue+"/"+first+", which is archived") || time.Until(info.NextProcessAt) < 4*time.Minute {
			t.Errorf("%q, back in %s", info.LastErr, time.Until(info.NextProcessAt))
		}
		r.none()
		skip := func(id string) error {
			return r.guard.SkipHead(t.Context(), r.lockOf("work", "1").Key(), r.queue+"/"+id)
		}
		if err := skip(second); err == nil {
			t.Fatal("skipped a task that is not the head")
		}
		redistest.Must(t, skip(first))
		run := r.next()
		if err := skip(second); err == nil || !strings.Contains(err.Error(), "runs now") {
			t.Fatalf("skipped a task that runs: %v", err)
		}
		r.ends(run)
	})
}

// MaxQueued bounds the tasks of a key.
func TestInOrder_full(t *testing.T) {
	eachOrder(t, setup{rules: []automutex.Rule{{On: onID, InOrder: true,
		MaxQueued: 2}}}, func(t *testing.T, r *rig, c *automutex.Client) {
		first, second := r.enqueueInOrder(c, 1), r.enqueueInOrder(c, 1)
		_, err := c.Enqueue(asynq.NewTask("work", []byte(`{"id":1}`)), asynq.Queue(r.queue))
		var full *automutex.FullError
		if !errors.Is(err, automutex.ErrFull) || !errors.As(err, &full) || full.Queued != 2 || full.Max != 2 {
			t.Fatalf("%v", err)
		}
		r.enqueueInOrder(c, 2) // another key
		for range 3 {
			r.next().returns(nil)
		}
		r.awaitDone(first)
		r.awaitDone(second)
		r.enqueueInOrder(c, 1)
		r.next().returns(nil)
	})
}

// A task whose key is not the one that it was enqueued for, since the worker's rule differs or its payload was changed,
// gives up its place there, so that those behind it run, and comes after the tasks of its new key.
func TestInOrder_enqueuedForAnotherKey(t *testing.T) {
	eachOrder(t, setup{workers: 4}, func(t *testing.T, r *rig, c *automutex.Client) {
		older, err := automutex.NewClient(r.rdb, r.client, automutex.Config{Rules: []automutex.Rule{{Task: "work",
			On: []string{"was"}, InOrder: true}}, Prefix: r.cfg.Prefix})
		redistest.Must(t, err)
		first := r.enqueueInOrder(c, 1)
		running := r.nextIs(first)
		moved, err := older.Enqueue(asynq.NewTask("work", []byte(`{"id":1,"was":9}`)), asynq.Queue(r.queue),
			asynq.Retention(time.Hour))
		redistest.Must(t, err)
		behind := r.enqueueInOrder(c, 9)
		r.nextIs(behind).returns(nil) // at once, not when the stamp before it is overdue
		eventually(t, func() bool {   // behind may have waited as well, until moved gave up its place
			return slices.ContainsFunc(r.seen.list(automutex.EventWaiting),
				func(e automutex.Event) bool { return e.TaskID == moved.ID })
		}, "the task has come to its new key")
		second := r.enqueueInOrder(c, 1)
		r.none()
		running.returns(nil)
		r.ends(r.nextIs(moved.ID))
		r.ends(r.nextIs(second))
		if n := strings.Count(r.log.String(), "or for another key, since the rules of producer and worker differ"); n != 1 {
			t.Errorf("%d warnings:\n%s", n, r.log.String())
		}
	})
}

// orderLog keeps which tasks ran, each time that they began.
type orderLog struct {
	mu     sync.Mutex
	starts []string
}

// failOnce is a handler whose tasks fail the first time that they run: the one with that ID, or all of them.
func (l *orderLog) failOnce(which string) asynq.HandlerFunc {
	return func(ctx context.Context, _ *asynq.Task) error {
		id, _ := asynq.GetTaskID(ctx)
		l.mu.Lock()
		defer l.mu.Unlock()
		again := slices.Contains(l.starts, id)
		l.starts = append(l.starts, id)
		if !again && (which == id || which == "") {
			return errors.New("broken")
		}
		return nil
	}
}

func (l *orderLog) await(t *testing.T, want ...string) {
	t.Helper()
	eventually(t, func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.starts) >= len(want)
	}, "%d runs", len(want))
	l.mu.Lock()
	defer l.mu.Unlock()
	if !slices.Equal(l.starts, want) {
		t.Errorf("ran\n%q, want\n%q", l.starts, want)
	}
}

// Keys and IDs may have any text: zero bytes, bars, braces, what is no UTF-8. So with hashed keys.
func TestInOrder_anyText(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		for _, secret := range []string{"", testSecret} {
			rules := []automutex.Rule{{Task: "work", InOrder: true, Key: func(context.Context, *asynq.Task) ([]string, error) {
				return []string{"a\x00b|c{d}%s", "é\u2028"}, nil
			}}}
			log := &orderLog{}
			hash := func(c *automutex.Config) { c.HashKeys = secret }
			r := start(t, s, setup{rules: rules, workers: 3, guarded: hash, served: atOnce, handler: log.failOnce("")})
			c, err := automutex.NewClient(r.rdb, r.client, automutex.Config{Rules: rules, Prefix: r.cfg.Prefix,
				HashKeys: secret})
			redistest.Must(t, err)
			var want []string
			for i := range 3 {
				id := fmt.Sprintf("%d\x00|é{}%%", i)
				r.enqueueInOrder(c, 1, asynq.TaskID(id))
				want = append(want, id, id)
			}
			log.await(t, want...)
		}
	})
}

// Tasks of one key in several queues are in one order; another task with the same ID in another queue is another task.
func TestInOrder_severalQueues(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		second := redistest.Name(t)
		log := &orderLog{}
		r, c := orderRig(t, s, setup{workers: 3, served: func(c *asynq.Config) {
			atOnce(c)
			c.Queues[second] = 1
		}, handler: log.failOnce("b")})
		r.enqueueInOrder(c, 1, asynq.TaskID("a"))
		r.enqueueInOrder(c, 1, asynq.TaskID("b"), asynq.Queue(second))
		r.enqueueInOrder(c, 1, asynq.TaskID("c"))
		r.enqueueInOrder(c, 1, asynq.TaskID("c"), asynq.Queue(second))
		r.enqueueInOrder(c, 1, asynq.TaskID("d"))
		log.await(t, "a", "b", "b", "c", "c", "d")
	})
}

// An ID may be used again as soon as asynq has forgotten the task that had it.
func TestInOrder_usedAgain(t *testing.T) {
	eachOrder(t, setup{workers: 2}, func(t *testing.T, r *rig, c *automutex.Client) {
		for range 3 {
			id := r.enqueueInOrder(c, 1, asynq.TaskID("same"), asynq.Retention(0))
			r.next().returns(nil)
			r.awaitDropped(id)
		}
		// An archived one that holds the key, deleted, and its ID used again: the hold stays until it is skipped.
		first := r.enqueueInOrder(c, 1, asynq.TaskID("same"), asynq.MaxRetry(0))
		r.next().returns(errors.New("broken"))
		r.awaitArchived(first)
		r.operate(first, r.inspector.DeleteTask)
		r.enqueueInOrder(c, 1, asynq.TaskID("same"))
		eventually(t, func() bool {
			info, err := r.inspector.GetTaskInfo(r.queue, "same")
			return err == nil && strings.Contains(info.LastErr,
				"behind an earlier task with the same ID ("+r.queue+"/same), which is gone: skip it to go on")
		}, "it is behind the earlier one")
		blocked, err := r.guard.Blocked(t.Context())
		if err != nil || len(blocked) != 1 || !strings.Contains(blocked[0].Why, "gone from asynq") {
			t.Fatalf("%+v, %v", blocked, err)
		}
		redistest.Must(t, r.guard.SkipHead(t.Context(), blocked[0].Key, blocked[0].Task))
		r.finish("same")
	})
}

// A task without the field of an Optional rule has no place in order, and runs beside those that have one.
func TestInOrder_optional(t *testing.T) {
	eachOrder(t, setup{rules: []automutex.Rule{{On: onID, Optional: true,
		InOrder: true}}}, func(t *testing.T, r *rig, c *automutex.Client) {
		first, second := r.enqueueInOrder(c, 1), r.enqueueInOrder(c, 1)
		run := r.nextIs(first)
		for _, payload := range []string{`{}`, `{"id":null}`} {
			info, err := c.Enqueue(asynq.NewTask("work", []byte(payload)), asynq.Queue(r.queue), asynq.MaxRetry(5),
				asynq.Retention(time.Hour))
			redistest.Must(t, err)
			r.finish(info.ID)
		}
		run.returns(nil)
		r.finish(second)
	})
}

func (r *rig) deadProducer(id int, deadline time.Duration) {
	r.t.Helper()
	m := r.lockOf("work", strconv.Itoa(id))
	_, _, _, err := engineOf(m).Stamp(context.Background(), refOf(m), tasknote.Of(r.queue, "ghost"), stamp.NewNonce(),
		deadline, 0)
	redistest.Must(r.t, err)
}

// A producer that dies after its stamp keeps a key waiting until the stamp's deadline, and no longer.
func TestInOrder_producerDiesAfterItsStamp(t *testing.T) {
	eachOrder(t, setup{workers: 2, rules: []automutex.Rule{{On: onID, InOrder: true,
		MaxQueued: 2}}}, func(t *testing.T, r *rig, c *automutex.Client) {
		r.deadProducer(1, 300*time.Millisecond)
		r.finish(r.enqueueInOrder(c, 1))
		r.deadProducer(2, time.Millisecond)
		r.deadProducer(2, time.Millisecond)
		time.Sleep(5 * time.Millisecond) // Redis' clock passes the deadline
		r.finish(r.enqueueInOrder(c, 2))
	})
}

// A head that an operator deletes, or archives under Continue, does not stop its key for good.
func TestInOrder_operators(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		for name, act := range map[string]func(i *asynq.Inspector, queue, id string) error{
			"delete": (*asynq.Inspector).DeleteTask, "archive": (*asynq.Inspector).ArchiveTask,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				rules := []automutex.Rule{{Task: "work", On: onID, InOrder: true, OnArchive: automutex.Continue}}
				r, c := orderRig(t, s, setup{workers: 2, rules: rules, served: comingBack})
				first, second := r.enqueueInOrder(c, 1), r.enqueueInOrder(c, 1)
				r.next().returns(errors.New("broken"))
				r.await(first, asynq.TaskStateRetry)
				r.awaitParked(second)
				r.operate(first, func(queue, id string) error { return act(r.inspector, queue, id) })
				r.finish(second) // by the look at a head that does not come
			})
		}
	})
}

// A task that is delivered again after it was done does not run again.
func TestInOrder_redelivery(t *testing.T) {
	eachOrder(t, setup{workers: 2}, func(t *testing.T, r *rig, c *automutex.Client) {
		id := r.enqueueInOrder(c, 1, asynq.Retention(0))
		run := r.next()
		info, err := r.inspector.GetTaskInfo(r.queue, id)
		redistest.Must(t, err)
		run.returns(nil)
		r.awaitDropped(id)
		// The same task, as the recoverer delivers it when its end was not stored.
		again := asynq.NewTaskWithHeaders("work", info.Payload, info.Headers, asynq.Queue(r.queue), asynq.TaskID(id),
			asynq.MaxRetry(info.MaxRetry), asynq.Retention(time.Hour))
		_, err = r.client.Enqueue(again)
		redistest.Must(t, err)
		r.awaitDone(id)
		r.none()
		// A copy of the header in another task is no stamp: that task runs.
		other, err := r.client.Enqueue(asynq.NewTaskWithHeaders("work", info.Payload, info.Headers), asynq.Queue(r.queue),
			asynq.Retention(time.Hour))
		redistest.Must(t, err)
		r.finish(other.ID)
	})
}

// A task of a plain client joins at its arrival, and is warned of once for each type.
func TestInOrder_plainClient(t *testing.T) {
	eachOrder(t, setup{workers: 3, rules: []automutex.Rule{
		{On: onID, InOrder: true},
		{Task: "play", On: onID, InOrder: true},
	}}, func(t *testing.T, r *rig, c *automutex.Client) {
		r.enqueueInOrder(c, 1)
		run := r.next()
		plain := r.enqueueOne()
		eventually(t, func() bool {
			head, err := engineOf(r.lockOf("work")).Head(t.Context(), refOf(r.lockOf("work", "1")))
			return err == nil && head.Queued == 2
		}, "the plain task has come")
		second := r.enqueueInOrder(c, 1)
		r.ends(run)
		r.finish(plain)
		r.finish(second)
		r.finish(r.enqueueOne())
		r.finish(r.enqueue("play", one))
		if n := strings.Count(r.log.Text(-8), "was not enqueued through automutex.NewClient"); n != 2 {
			t.Errorf("%d warnings, want one for each type:\n%s", n, r.log.Text(-8))
		}
	})
}

// With Continue the next task runs when one is archived.
func TestInOrder_continue(t *testing.T) {
	eachOrder(t, setup{workers: 2, rules: []automutex.Rule{{On: onID, InOrder: true,
		OnArchive: automutex.Continue}}}, func(t *testing.T, r *rig, c *automutex.Client) {
		first, second, third := r.enqueueInOrder(c, 1), r.enqueueInOrder(c, 1), r.enqueueInOrder(c, 1)
		r.next().returns(fmt.Errorf("broken: %w", asynq.SkipRetry))
		r.awaitArchived(first)
		run := r.nextIs(second)
		run.returns(asynq.RevokeTask)
		r.awaitDropped(second)
		r.finish(third)
	})
}

// After the loss of all keys the stamps put the tasks in order again.
func TestInOrder_lostKeys(t *testing.T) {
	eachOrder(t, setup{workers: 3, served: atOnce}, func(t *testing.T, r *rig, c *automutex.Client) {
		r.enqueueInOrder(c, 1)
		second := r.enqueueInOrder(c, 1)
		run := r.next()
		eventually(t, func() bool { return len(r.seen.list(automutex.EventWaiting)) == 1 }, "the second one waits")
		key := r.lockOf("work", "1").Key() // all that is stored, by hand
		redistest.Must(t, r.rdb.Del(t.Context(), key, key+":holders", key+":line", key+":info", key+":order",
			key+":marks").Err())
		// Nobody knows of the first one any more, so the second runs beside it: docs/guarantees.md says so.
		eventually(t, func() bool { return r.stage.count() >= 2 }, "the second one runs")
		third := r.enqueueInOrder(c, 1)
		r.ends(run)
		r.finish(second)
		r.finish(third)
	})
}

// What an ordered task cannot have is refused, and nothing is enqueued.
func TestInOrder_refusedOptions(t *testing.T) {
	t.Parallel()
	s := redistest.Mini(t)
	r, c := orderRig(t, s, setup{})
	later := time.Now().Add(time.Hour)
	for option, opt := range map[string]asynq.Option{
		"ProcessAt, or ProcessIn": asynq.ProcessIn(time.Hour), "ProcessAt": asynq.ProcessAt(later),
		"Deadline": asynq.Deadline(later),
		"Group":    asynq.Group("g"), "Unique": asynq.Unique(time.Hour),
	} {
		given := map[string]func() (*asynq.TaskInfo, error){
			"at Enqueue": func() (*asynq.TaskInfo, error) {
				return c.Enqueue(asynq.NewTask("work", []byte(`{"id":1}`)), asynq.Queue(r.queue), opt)
			},
			"at NewTask": func() (*asynq.TaskInfo, error) {
				return c.Enqueue(asynq.NewTask("work", []byte(`{"id":1}`), asynq.Queue(r.queue), opt))
			},
		}
		for where, enqueue := range given {
			_, err := enqueue()
			if want := `rule "work" is InOrder, and task "work" has the option asynq.` +
				option; !strings.Contains(fmt.Sprint(err), want) {
				t.Errorf("%s %s: %v", option, where, err)
			}
		}
	}
	var wrong *automutex.KeyError
	if _, err := c.Enqueue(asynq.NewTask("work", []byte(`{}`)), asynq.Queue(r.queue)); !errors.As(err, &wrong) {
		t.Errorf("without a key: %v", err)
	}
	head, err := engineOf(r.lockOf("work")).Head(t.Context(), refOf(r.lockOf("work", "1")))
	if err != nil || head.Queued != 0 {
		t.Errorf("%+v, %v", head, err)
	}
}

// A task of a plain client on its last attempt holds a worker while it waits for its turn, since asynq would archive
// it.
func TestInOrder_plainLastAttempt(t *testing.T) {
	eachOrder(t, setup{workers: 2}, func(t *testing.T, r *rig, c *automutex.Client) {
		r.enqueueInOrder(c, 1)
		run := r.next()
		plain := r.enqueue("work", `{"id":1}`, asynq.MaxRetry(0))
		r.awaitEvent(automutex.EventWaiting, plain)
		r.await(plain, asynq.TaskStateActive)
		r.ends(run)
		r.finish(plain)
	})
}

// A producer that forges the header of automutex.Client, whatever key it puts there, has its own task run under the key
// of its payload.
func TestInOrder_forgedStamp(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		r, c := orderRig(t, s, setup{workers: 4})
		held := r.take("held")
		r.enqueueInOrder(c, 1)
		begun := r.next()
		second := r.enqueueInOrder(c, 1)
		foreign := r.cfg.Prefix + "-other:{asynq}"
		rdb := s.Client(t)
		redistest.Must(t, rdb.ZAdd(t.Context(), foreign, redis.Z{Score: 1, Member: "h:as a holder's that has expired"}).Err())
		for i, key := range []string{
			foreign, "asynq:{" + r.queue + "}:pending", r.lockOf("held").Key(), r.lockOf("work", "1").Key(),
			r.lockOf("nobody's").Key(), r.cfg.Prefix + ":{control}", r.cfg.Prefix + ":{}", "", "\x00{}\n", "automutex:{a}:pool",
		} {
			forged := stamp.New(tasknote.Of(r.queue, fmt.Sprint("forged", i)), 5)
			forged.Nonce, forged.Ticket, forged.Key = stamp.NewNonce(), 1, key
			headers := map[string]string{stamp.Header: forged.Text(asynq.NewTask("", nil))}
			info, err := r.client.Enqueue(asynq.NewTaskWithHeaders("work", fmt.Appendf(nil, `{"id":"forged%d"}`, i), headers),
				asynq.Queue(r.queue), asynq.TaskID(fmt.Sprint("forged", i)), asynq.MaxRetry(6), asynq.Retention(time.Hour))
			redistest.Must(t, err)
			r.finish(info.ID)
		}
		if got, err := rdb.ZRange(t.Context(), foreign, 0, -1).Result(); err != nil || len(got) != 1 {
			t.Errorf("%s has %v, %v", foreign, got, err)
		}
		if n := rdb.Exists(t.Context(), r.lockOf("nobody's").Key()).Val(); n != 0 {
			t.Error("a lock that nobody asked for is stored")
		}
		if err := held.Extend(context.Background(), lock.DefaultTTL); err != nil {
			t.Errorf("the lock that others hold: %v", err)
		}
		r.ends(begun)
		r.finish(second)
	})
}

// A task says which one it is behind and why: one that failed, and one that is archived.
func TestInOrder_isSeen(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		r, c := orderRig(t, s, setup{workers: 3, served: comingBack})
		first := r.enqueueInOrder(c, 1, asynq.MaxRetry(1))
		second := r.enqueueInOrder(c, 1)
		run := r.next()
		seen := func() automutex.Blocked {
			t.Helper()
			keys, err := r.guard.Blocked(t.Context())
			if err != nil || len(keys) != 1 {
				t.Fatalf("%v, %v", keys, err)
			}
			return keys[0]
		}
		run.returns(errors.New("the bank is closed"))
		r.await(first, asynq.TaskStateRetry)
		if e := seen(); e.Task != r.queue+"/"+first || e.Behind != 1 ||
			!strings.Contains(e.Why, "failed and is retried in") || !strings.Contains(e.Why, "the bank is closed") {
			t.Errorf("%+v", e)
		}
		redistest.Must(t, r.inspector.RunTask(r.queue, first))
		r.next().returns(errors.New("no such account"))
		r.awaitArchived(first)
		e := seen()
		if e.Task != r.queue+"/"+first || !strings.Contains(e.Why, "is archived; run it again or skip it to go on: no "+
			"such account") {
			t.Errorf("%+v", e)
		}
		got := r.awaitEvent(automutex.EventBlocked, first)
		if got.Key != e.Key || got.Rule != "work" || got.Task != "work" || got.Err == nil ||
			!strings.Contains(got.Err.Error(), "no such account") {
			t.Errorf("%+v", got)
		}
		if text := r.log.Text(slog.LevelWarn); strings.Count(text, "is archived and holds its key") != 1 ||
			!strings.Contains(text, e.Key) {
			t.Errorf("logged: %s", text)
		}
		redistest.Must(t, r.guard.SkipHead(t.Context(), e.Key, r.queue+"/"+first))
		if got := r.awaitEvent(automutex.EventHeadSkipped, first); got.Key != e.Key || got.Rule != "work" ||
			got.Queue != r.queue {
			t.Errorf("%+v", got)
		}
		r.finish(second)
		if n := len(r.seen.list(automutex.EventBlocked)); n != 1 {
			t.Errorf("%d events that the key is blocked, want 1", n)
		}
	})
}

// A task whose queue is paused, or served by nobody, keeps the tasks behind it waiting: operators are told so.
func TestInOrder_behindAQuietQueue(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		quiet := redistest.Name(t)
		r, c := orderRig(t, s, setup{workers: 1})
		first := r.enqueueInOrder(c, 1, asynq.Queue(quiet))
		second := r.enqueueInOrder(c, 1)
		r.awaitParked(second)
		blocked := func(why string) string {
			t.Helper()
			keys, err := r.guard.Blocked(t.Context())
			redistest.Must(t, err)
			if len(keys) != 1 || keys[0].Task != quiet+"/"+first || keys[0].Behind != 1 || keys[0].Why != why {
				t.Fatalf("want %q, is %+v", why, keys)
			}
			return keys[0].Key
		}
		key := blocked("waits in queue " + quiet + ", which no server serves; start one or skip the task")
		redistest.Must(t, r.inspector.PauseQueue(quiet))
		blocked("waits in queue " + quiet + ", which is paused; unpause it or skip the task")
		redistest.Must(t, r.guard.SkipHead(t.Context(), key, quiet+"/"+first))
		r.finish(second)
	})
}

// Locks on another Redis than asynq's, and nobody has said so: the Inspector sees no task, and takes none for gone.
func TestInOrder_inspectorElsewhere(t *testing.T) {
	t.Parallel()
	const elsewhere = "are the locks on another Redis, or in another database, than asynq?"
	s, other := redistest.Mini(t), redistest.StartMini(t)
	rules := []automutex.Rule{{Task: "work", On: onID, InOrder: true, MaxQueued: 2}}
	r := start(t, s, setup{rules: rules, workers: 3, locks: other.Client(t)})
	log := &redistest.Log{}
	c, err := automutex.NewClient(other.Client(t), r.client, automutex.Config{Rules: rules, Prefix: r.cfg.Prefix,
		Logger: log.Logger()})
	redistest.Must(t, err)
	first := r.enqueueInOrder(c, 1)
	r.nextIs(first).returns(errors.New("not now"))
	r.await(first, asynq.TaskStateRetry)
	r.awaitParked(r.enqueueInOrder(c, 1))
	eventually(t, func() bool { // from the first look on, 5 s later
		_, err := c.Enqueue(asynq.NewTask("work", []byte(`{"id":1}`)), asynq.Queue(r.queue))
		if !errors.Is(err, automutex.ErrFull) {
			t.Fatalf("%v, want ErrFull: the first two are not done", err)
		}
		return strings.Contains(log.String(), "does not see the queue") && strings.Contains(log.String(), elsewhere)
	}, "the producer has looked")
	r.none()
	if n := strings.Count(r.log.Text(slog.LevelWarn),
		"a key in order stands when its next task is deleted; "+elsewhere); n != 1 {
		t.Errorf("%d warnings", n)
	}
}

// A task of an ordered key that another rule ends unrun leaves its place at once: were each looked for first, eight of
// them would take longer than the test has.
func TestInOrder_endedByAnotherRule(t *testing.T) {
	t.Parallel()
	for busy, state := range map[automutex.Policy]asynq.TaskState{
		automutex.Skip: asynq.TaskStateCompleted, automutex.Archive: asynq.TaskStateArchived,
	} {
		t.Run(busy.String(), func(t *testing.T) {
			each(t, func(t *testing.T, s *redistest.Server) {
				r, c := orderRig(t, s, setup{workers: 2, rules: []automutex.Rule{
					{Name: "order", Scope: "order", On: onID, InOrder: true, OnArchive: automutex.Continue},
					{Name: "other", Scope: "other", Busy: busy},
				}, handler: func(context.Context, *asynq.Task) error { t.Error("it runs"); return nil }})
				held := r.take("other")
				var last string
				for range 8 {
					last = r.enqueueInOrder(c, 1)
				}
				r.await(last, state)
				r.free(held)
			})
		})
	}
}

// So does one for which no key of another rule can be made, and which never comes to its ordered lock: before it is
// archived there is room for the next one.
func TestInOrder_noKeyForAnotherRule(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		r, c := orderRig(t, s, setup{workers: 2, rules: []automutex.Rule{
			{Name: "order", Scope: "order", On: onID, InOrder: true, OnArchive: automutex.Continue, MaxQueued: 1},
			{Name: "other", Scope: "other", On: []string{"tenant"}},
			{Name: "asks", Scope: "asks", LimitOf: func(ctx context.Context, _ *asynq.Task) (int, error) {
				if _, worker := asynq.GetTaskID(ctx); !worker {
					t.Error("the producer asks for more than the ordered key")
				}
				return 1, nil
			}},
		}})
		for range 5 {
			r.awaitArchived(r.enqueueInOrder(c, 1))
		}
	})
}

// Who waits for the lock of an ordered key in no order, as package lock does, and the tasks of a rule of which InOrder
// was taken out, takes turns with the tasks in order: it has the lock after the one that holds it, and before the next.
func TestInOrder_besideAPlainWaiter(t *testing.T) {
	eachOrder(t, setup{workers: 4}, func(t *testing.T, r *rig, c *automutex.Client) {
		ids := []string{r.enqueueInOrder(c, 1), r.enqueueInOrder(c, 1), r.enqueueInOrder(c, 1)}
		for i, id := range ids[:2] {
			run := r.nextIs(id)
			eventually(t, func() bool { return len(r.seen.list(automutex.EventWaiting)) >= 2 },
				"the others wait in their workers")
			got := make(chan *lock.Lease, 1)
			go func() {
				lease, err := r.lockOf("work", "1").Lock(t.Context())
				if err != nil {
					t.Error(err)
				}
				got <- lease
			}()
			r.awaitStored(1, 0, "work", "1")
			run.returns(nil)
			select {
			case lease := <-got:
				r.free(lease)
			case run := <-r.stage.started:
				t.Fatalf("%d: %s runs before the waiter", i, run.id)
			case <-time.After(patience):
				t.Fatal("nobody gets the lock")
			}
		}
		r.finish(ids[2])
	})
}

// A task in order that parks behind who holds its key in no order is called as soon as that leaves, also when it is the
// only one.
func TestInOrder_parkedBehindAPlainHolder(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		r, c := orderRig(t, s, setup{workers: 1, served: func(*asynq.Config) {}}) // nothing returns by itself
		for n := 1; n <= 2; n++ {
			held := r.take("work", "1")
			var ids []string
			for range n {
				ids = append(ids, r.enqueueInOrder(c, 1))
				r.awaitParked(ids[len(ids)-1])
			}
			r.free(held)
			for _, id := range ids {
				r.finish(id)
			}
		}
	})
}

// InOrder was taken out of a rule while tasks of a key were in order, one of them archived: what is left of the order
// hides nothing that parks on the key. Only a call brings a task back here within the hour.
func TestPark_besideWhatIsLeftOfAnOrder(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		ordered := automutex.Rule{Task: "work", On: onID, InOrder: true}
		for _, archived := range []bool{false, true} {
			old, c := orderRig(t, s, setup{rules: []automutex.Rule{ordered}, workers: 2})
			if archived {
				id := old.enqueueInOrder(c, 1, asynq.MaxRetry(0))
				old.nextIs(id).returns(errors.New("broken"))
				old.awaitArchived(id)
			}
			old.stop()
			left := old.enqueueInOrder(c, 1)
			plain := ordered
			plain.InOrder = false
			r := start(t, s, setup{rules: []automutex.Rule{plain}, workers: 1, queue: old.queue, prefix: old.cfg.Prefix})
			r.finish(left)
			for range 3 {
				held := r.take("work", "1")
				ids := []string{r.enqueueOne(), r.enqueueOne()}
				for _, id := range ids {
					r.awaitParked(id)
				}
				r.free(held)
				r.finishAll(ids...)
			}
		}
	})
}

// A task within a task, which has the outer one's ID and maybe its headers, has no place of its own, and gives up none:
// the outer task fails once, and its successor waits. Two within one take turns. LastAttempt is the outer task's.
func TestInOrder_taskWithinATask(t *testing.T) {
	each(t, func(t *testing.T, s *redistest.Server) {
		for _, rule := range []automutex.Rule{
			{Task: "inner", On: []string{"n"}, InOrder: true}, {Task: "inner", On: []string{"n"}},
			{Task: "inner", On: []string{"n"}, Limit: 2}, {Task: "inner", Busy: automutex.Retry, Wait: patience},
			{Task: "another"},
		} {
			var mu sync.Mutex
			var log []string
			mux := asynq.NewServeMux()
			mux.HandleFunc("work", func(ctx context.Context, task *asynq.Task) error {
				id, _ := asynq.GetTaskID(ctx)
				within := func() error {
					return mux.ProcessTask(ctx, asynq.NewTaskWithHeaders("inner", []byte(`{"n":1}`), task.Headers()))
				}
				beside := make(chan error, 1)
				go func() { beside <- within() }()
				err := errors.Join(within(), <-beside)
				if most, _ := asynq.GetMaxRetry(ctx); most == 0 {
					return nil // whatever its inner tasks have returned
				} else if err != nil {
					t.Errorf("%+v: within %s: %v", rule, id, err)
				}
				mu.Lock()
				defer mu.Unlock()
				if log = append(log, fmt.Sprint(id, automutex.LastAttempt(ctx))); len(log)%2 == 1 {
					return errors.New("the first attempt")
				}
				return nil
			})
			mux.HandleFunc("inner", func(ctx context.Context, _ *asynq.Task) error {
				mu.Lock()
				defer mu.Unlock()
				retried, _ := asynq.GetRetryCount(ctx)
				if most, _ := asynq.GetMaxRetry(ctx); most == 0 {
					return errors.New("archives nothing, and holds no key")
				} else if automutex.LastAttempt(ctx) != (retried == 1) {
					t.Errorf("%+v: LastAttempt within attempt %d: %t", rule, retried, retried != 1)
				}
				return nil
			})
			r, c := orderRig(t, s, setup{rules: []automutex.Rule{{On: onID, InOrder: true}, rule},
				wrap: func(g *automutex.Guard, _ asynq.Handler) asynq.Handler { mux.Use(g.Middleware); return mux }})
			first, second := r.enqueueInOrder(c, 1, asynq.MaxRetry(1)), r.enqueueInOrder(c, 1, asynq.MaxRetry(1))
			r.awaitDone(first)
			r.awaitDone(second)
			want := []string{first + "false", first + "true", second + "false", second + "true"}
			if !slices.Equal(log, want) {
				t.Errorf("%+v: ran %v, want %v", rule, log, want)
			}
			r.awaitDone(r.enqueue("work", `{"id":2}`, asynq.MaxRetry(0)))
			if held := r.seen.list(automutex.EventBlocked); len(held) > 0 {
				t.Errorf("%+v: %+v", rule, held)
			}
			r.stop()
		}
	})
}
