package e2e

import (
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
)

// comesBackToItsGroup is what asynq does with a task of a group whose retry is due: the task joins its group
// again, which asynq does not note among the groups of the queue. So nobody aggregates it.
func (r *rig) comesBackToItsGroup(id string) {
	r.t.Helper()
	if err := r.rdb.ZAdd(r.t.Context(), "asynq:{"+r.queue+"}:retry", redis.Z{Score: 1, Member: id}).Err(); err != nil {
		r.t.Fatal(err)
	}
	r.await(id, asynq.TaskStateAggregating)
	if groups, err := r.inspector.Groups(r.queue); err != nil || len(groups) != 0 {
		r.t.Errorf("asynq knows the groups %v, %v: then docs/guide.md may promise more", groups, err)
	}
}

// An operator runs a task of a group by hand, and its key is busy. A parked one is woken when its turn comes, though
// asynq has put it back into its group meanwhile.
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
		r := start(t, s, setup{rules: []automutex.Rule{{Task: "work", On: []string{"id"}, Busy: automutex.RetryIn(time.Hour)}}, served: comingBack})
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
