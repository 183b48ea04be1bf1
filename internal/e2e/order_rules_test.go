package e2e

import (
	"context"
	"slices"
	"sync"
	"testing"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
)

// A deployment changes an ordered rule while its tasks are queued: old and new workers share the queue for a while, then the
// old ones stop. Every task is done, none twice, and no two of a key at once while both kinds of worker have the same key. The
// tasks of the old rule run in their order, and so do those of the new one, if both are in order and have the same key.
func TestInOrder_rulesChange(t *testing.T) {
	t.Parallel()
	ordered := automutex.Rule{Task: "work", On: []string{"id"}, InOrder: true}
	plain := automutex.Rule{Task: "work", On: []string{"id"}}
	continues := ordered
	continues.OnArchive = automutex.Continue
	for name, change := range map[string]struct {
		was, is automutex.Rule
		hashed  string // HashKeys is new: the new workers have other keys
	}{
		"no longer in order": {was: ordered, is: plain},
		"in order from now":  {was: plain, is: ordered},
		"continue":           {was: ordered, is: continues},
		"hash keys":          {was: ordered, is: ordered, hashed: "a secret of at least thirty-two bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			if change.was.InOrder != change.is.InOrder {
				redistest.Long(t) // a parked task comes back by itself
			}
			t.Parallel()
			redistest.Each(t, func(t *testing.T, s *redistest.Server) {
				var mu sync.Mutex
				var ran []string
				running, overlaps, began := 0, 0, make(chan struct{})
				goOn := make(chan struct{})
				handler := func(ctx context.Context, _ *asynq.Task) error {
					id, _ := asynq.GetTaskID(ctx)
					mu.Lock()
					if ran = append(ran, id); len(ran) == 1 {
						close(began)
					}
					if running++; running > 1 {
						overlaps++
					}
					mu.Unlock()
					<-goOn
					mu.Lock()
					defer mu.Unlock()
					running--
					return nil
				}
				hashed := func(c *automutex.Config) { c.HashKeys = change.hashed }
				old, before := orderRig(t, s, setup{rules: []automutex.Rule{change.was}, handler: handler, workers: 3})
				was := []string{old.enqueueInOrder(before, 1)}
				<-began
				for range 3 {
					was = append(was, old.enqueueInOrder(before, 1))
				}
				next := start(t, s, setup{rules: []automutex.Rule{change.is}, handler: handler, workers: 3, queue: old.queue, prefix: old.cfg.Prefix, guarded: hashed, served: comingBack})
				after, err := automutex.NewClient(next.rdb, next.client, automutex.Config{Rules: []automutex.Rule{change.is}, Prefix: old.cfg.Prefix, HashKeys: change.hashed})
				redistest.Must(t, err)
				var is []string
				for range 3 {
					is = append(is, old.enqueueInOrder(after, 1))
				}
				close(goOn)
				old.shutdown()
				for _, id := range slices.Concat(was, is) {
					redistest.Eventually(t, 2*patience, func() bool {
						info, err := next.inspector.GetTaskInfo(next.queue, id)
						return err == nil && info.State == asynq.TaskStateCompleted
					}, "done: %s", id)
				}
				mu.Lock()
				defer mu.Unlock()
				if len(ran) != len(was)+len(is) || overlaps > 0 && change.hashed == "" {
					t.Errorf("%d runs of %d tasks, %d began beside another", len(ran), len(was)+len(is), overlaps)
				}
				for _, ids := range [][]string{was, is} {
					order := slices.DeleteFunc(slices.Clone(ran), func(id string) bool { return !slices.Contains(ids, id) })
					if change.was.InOrder && change.is.InOrder && change.hashed == "" && !slices.Equal(order, ids) {
						t.Errorf("ran %q, enqueued %q", order, ids)
					}
				}
				if blocked, err := next.guard.Blocked(t.Context()); err != nil || len(blocked) > 0 {
					t.Errorf("%+v, %v stand", blocked, err)
				}
			})
		})
	}
}
