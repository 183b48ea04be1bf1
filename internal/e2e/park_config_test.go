package e2e

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// Park beside other settings of rules and guards, and what New makes of them.

// Names with what could be taken for a separator, in all three places.
func TestPark_oddNames(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		odd := []string{"a/b", "a|b|c", "100%|%2F", "two words\t", "größe 錠", "x{y}z", ", place 1 in line", "line\nbreak"}
		r := start(t, s, setup{
			workers: 1, queue: redistest.Name(t) + `/q|%2F {x} ü`,
			rules: []automutex.Rule{{Task: "work", Busy: automutex.Park, Key: func(_ context.Context, t *asynq.Task) ([]string, error) {
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
			run := r.stage.next(t)
			run.returns(nil)
			r.await(run.id, asynq.TaskStateCompleted)
		}
		for _, name := range odd {
			r.await(name, asynq.TaskStateCompleted)
			r.awaitStored(0, 0, "work", name, "x")
		}
	})
}

// bare is a client that only locks can be kept with.
type bare struct{ lock.Client }

func TestPark_new(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
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
			{bare{rdb}, automutex.Config{Rules: rules}, "automutex: Config.Inspector: is nil, and none can be made from a e2e.bare for the policy park of Rules[1], which is that of a rule without Busy"},
			{bare{rdb}, automutex.Config{Rules: rules, Inspector: inspector, WakeAtFront: true}, "automutex: Config.WakeAtFront: needs a redis.UniversalClient"},
		} {
			g, err := automutex.New(c.rdb, c.cfg)
			if c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) || c.want == "" && err != nil {
				t.Errorf("%T, %+v: %v", c.rdb, c.cfg, err)
			}
			if g != nil {
				if err := g.Close(t.Context()); err != nil {
					t.Error(err)
				}
			}
		}
	})
}

// Locks on a client that asynq could not use: the Inspector given brings tasks
// back.
func TestPark_inspectorGiven(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		inspector := asynq.NewInspectorFromRedisClient(s.Client(t))
		r, free := heldRig(t, s, setup{
			workers: 1, locks: bare{s.Client(t)}, guarded: func(c *automutex.Config) { c.Inspector = inspector },
		})
		id := r.enqueue("work", one)
		r.awaitParked(id)
		free()
		r.finish(id)
	})
}

// A woken task stands behind what is pending, unless WakeAtFront moves it: that
// knows how asynq keeps its pending tasks, which this test holds it to.
func TestPark_wakeAtFront(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, front := range []bool{false, true} {
			r, free := heldRig(t, s, setup{workers: 1, guarded: func(c *automutex.Config) { c.WakeAtFront = front }})
			parked := r.enqueue("work", one)
			r.awaitParked(parked)
			first := r.enqueue("other", nil)
			blocks := r.stage.next(t)
			pending := []string{r.enqueue("other", nil), r.enqueue("other", nil)}
			free()
			r.await(parked, asynq.TaskStatePending)
			if front {
				// Moved a moment after it was run.
				redistest.Eventually(t, patience, func() bool {
					last, err := r.rdb.LRange(t.Context(), "asynq:{"+r.queue+"}:pending", -1, -1).Result()
					return err == nil && slices.Equal(last, []string{parked})
				}, "it is moved to the end that asynq takes from")
			}
			order := append([]string{first}, pending...)
			if front {
				order = []string{first, parked, pending[0], pending[1]}
			} else {
				order = append(order, parked)
			}
			blocks.returns(nil)
			for _, id := range order[1:] {
				r.finish(id)
			}
			r.stop()
		}
	})
}
