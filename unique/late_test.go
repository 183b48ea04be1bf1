package unique

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/redistest"
)

// The enqueue of a producer is delivered late. Meanwhile its claim is waited for: two tasks for the key are never accepted.
func TestSupersede_waitsForALateEnqueue(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	s := redistest.Real(t)
	for _, until := range []Until{UntilStart, For(time.Hour)} {
		for _, duplicate := range []Duplicate{Replace, Postpone(time.Hour)} {
			rule := Rule{Task: "reindex", On: []string{"id"}, Until: until, Duplicate: duplicate}
			r := start(t, s, rule)
			proxy := redistest.NewProxy(t, s.Addr())
			slow := r.producer(proxy.Client(t, func(o *redis.UniversalOptions) { o.ReadTimeout = longest }), rule)
			r.must(slow.Enqueue(task("reindex", "warm", ""))) // its queue is known, its connections stand
			enqueue := proxy.Hold(func(command []string) bool {
				all := strings.Join(command, " ")
				return strings.Contains(all, "asynq:{"+r.queue+"}:t:") && (strings.Contains(all, ":pending") || strings.Contains(all, ":scheduled"))
			}, 1)
			late := make(chan answered, 1)
			go func() { // ends with the call, once its enqueue is released
				info, err := slow.Enqueue(task("reindex", "7", "late"))
				late <- answered{info, err}
			}()
			redistest.Eventually(t, longest, func() bool { return enqueue.Count() == 1 }, "the enqueue being under way")

			r.patience, r.grace = 20*time.Millisecond, time.Hour
			info, err := r.Enqueue(task("reindex", "7", "prompt"))
			if !errors.Is(err, ErrEnqueueUnderWay) || errors.Is(err, asynq.ErrDuplicateTask) {
				t.Errorf("%s, %s: beside an enqueue that is under way the answer is %v, %v", until, duplicate, info, err)
			}
			enqueue.Release()
			if got := <-late; got.err != nil {
				t.Errorf("%s, %s: the late enqueue: %v", until, duplicate, got.err)
			}
			r.patience = longest
			r.must(r.Enqueue(task("reindex", "7", "next")))
			if there := texts(r.tasks(r.queue, "reindex")); !slices.Equal(there, []string{"", "next"}) {
				t.Errorf("%s, %s: there are %q", until, duplicate, there)
			}
		}
	}
}
