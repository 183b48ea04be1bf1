package lock

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/keytext"
	"github.com/automutex/automutex/internal/redistest"
)

// gate is a hook that notes the sizes of pipelines and keeps them until opened.
type gate struct {
	mu    sync.Mutex // guards sizes
	sizes []int
	open  chan struct{}
	fail  error // in the place of what a pipeline gives
}

func (g *gate) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (g *gate) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (g *gate) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if cmds[0].Name() != "set" {
			return next(ctx, cmds) // that of a new connection
		}
		g.mu.Lock()
		g.sizes = append(g.sizes, len(cmds))
		g.mu.Unlock()
		<-g.open
		if g.fail != nil {
			for _, cmd := range cmds {
				cmd.SetErr(g.fail)
			}
			return g.fail
		}
		return next(ctx, cmds)
	}
}

func (g *gate) seen() []int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.sizes)
}

// Claims that come at once travel together, one of each key is taken, and each
// caller gets its own answer; an error is every caller's.
func TestGather(t *testing.T) {
	t.Parallel()
	s := redistest.Mini(t)
	for _, fail := range []error{nil, redistest.ReplyError("READONLY you can't write against a read only replica")} {
		g := &gate{open: make(chan struct{}), fail: fail}
		rdb := s.Client(t)
		rdb.AddHook(g)
		l := newLocker(t, rdb)
		name := redistest.Name(t)
		const callers, keys = 20, 5
		var wg sync.WaitGroup
		taken, errs := make([]bool, callers), make([]error, callers)
		call := func(i int) {
			taken[i], errs[i] = l.claim(keytext.Key("p", name, fmt.Sprint(i%keys))).TakeFree(t.Context(), fmt.Sprint(i), time.Minute)
		}
		for i := range maxSenders {
			redistest.Go(&wg, func() { call(i) })
		}
		redistest.Eventually(t, soon, func() bool { return len(g.seen()) == maxSenders }, "the first callers sending")
		for i := maxSenders; i < callers; i++ {
			redistest.Go(&wg, func() { call(i) })
		}
		redistest.Eventually(t, soon, func() bool {
			l.gather.mu.Lock()
			defer l.gather.mu.Unlock()
			return len(l.gather.masters[nil].waiting) == callers-maxSenders
		}, "the others waiting")
		close(g.open)
		wg.Wait()
		if got := g.seen(); !slices.Equal(got, []int{1, 1, callers - maxSenders}) {
			t.Errorf("sent %v together", got)
		}
		winners := 0
		for i := range callers {
			if taken[i] {
				winners++
			}
			if (errs[i] != nil) != (fail != nil) {
				t.Errorf("caller %d: %v", i, errs[i])
			}
		}
		if want := map[bool]int{true: keys, false: 0}[fail == nil]; winners != want {
			t.Errorf("%d of %d keys were taken", winners, want)
		}
		redistest.Eventually(t, soon, func() bool {
			l.gather.mu.Lock()
			defer l.gather.mu.Unlock()
			return len(l.gather.masters) == 0
		}, "the end of all senders")
	}
}

// Many at once, on every server: one of each key, and nobody is forgotten.
func TestGather_many(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t))
		name := redistest.Name(t)
		const callers, rounds, keys = 16, 30, 8
		var mu sync.Mutex // guards winners
		winners := map[string]int{}
		var wg sync.WaitGroup
		for i := range callers {
			redistest.Go(&wg, func() {
				for round := range rounds {
					key := fmt.Sprint(round, ".", i%keys)
					taken, err := l.claim(keytext.Key("p", name, key)).TakeFree(t.Context(), fmt.Sprint(i), time.Minute)
					if err != nil {
						t.Errorf("%s: %v", key, err)
					}
					if taken {
						mu.Lock()
						winners[key]++
						mu.Unlock()
					}
				}
			})
		}
		wg.Wait()
		for key, n := range winners {
			if n != 1 {
				t.Errorf("%s was taken %d times", key, n)
			}
		}
		if len(winners) != keys*rounds {
			t.Errorf("%d of %d keys were taken", len(winners), keys*rounds)
		}
	})
}
