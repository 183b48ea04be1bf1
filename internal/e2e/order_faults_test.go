package e2e

import (
	"slices"
	"testing"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/exchange"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/internal/wire"
)

// Tasks in order, with a fault at a single command.

// sends tells whether a command runs that script, with that argument if it is not empty.
func sends(command []string, script *exchange.Script, argument string) bool {
	return len(command) > 3 && (command[1] == script.SHA || command[1] == script.Source) && (argument == "" || slices.Contains(command[3:], argument))
}

// A skip whose reply is lost is sent again by go-redis: the operator hears that the task is skipped, the next one is
// woken, and there is one event.
func TestInOrder_skipLosesItsReply(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		r, c := orderRig(t, s, setup{workers: 2})
		first, second, third := r.enqueueInOrder(c, 1), r.enqueueInOrder(c, 1), r.enqueueInOrder(c, 1)
		r.stage.next(t).returns(asynq.SkipRetry)
		r.await(first, asynq.TaskStateArchived)
		r.awaitParked(second)
		r.awaitParked(third)
		proxy := redistest.NewProxy(t, s.Addr())
		rdb := proxy.Client(t)
		redistest.Must(t, rdb.Ping(t.Context()).Err())
		seen := &events{}
		operator, err := automutex.New(rdb, automutex.Config{Rules: r.cfg.Rules, Prefix: r.cfg.Prefix, Observe: seen.observe})
		redistest.Must(t, err)
		defer func() { redistest.Must(t, operator.Close(t.Context())) }()
		proxy.DropReplyTo(func(command []string) bool { return sends(command, wire.OrderActScript, "skip") }, 1)
		key := r.lockOf("work", "1").Key()
		if err := operator.SkipHead(t.Context(), key, r.queue+"/"+first); err != nil {
			t.Fatalf("it was skipped: %v", err)
		}
		if n := proxy.Commands(); n["EVALSHA"] < 2 {
			t.Errorf("%v: the reply was not lost", n)
		}
		if all := seen.list(automutex.EventHeadSkipped); len(all) != 1 || all[0].TaskID != first {
			t.Errorf("%+v, want one event", all)
		}
		r.finish(second)
		r.finish(third)
		if err := operator.SkipHead(t.Context(), key, r.queue+"/"+first); err == nil {
			t.Errorf("a later skip of the same ID: %v", err)
		}
	})
}
