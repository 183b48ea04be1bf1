package lock

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/redistest"
)

// noPipelines is a hook that, once on, sends no pipeline and notes the failure in no
// command.
type noPipelines struct{ on atomic.Bool }

func (*noPipelines) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (*noPipelines) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (n *noPipelines) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if n.on.Load() {
			return errors.New("open circuit")
		}
		return next(ctx, cmds)
	}
}

func TestPipelineThatWasNotSentIsNoRenewal(t *testing.T) {
	t.Parallel()
	for what, breakIt := range map[string]func(*redistest.Proxy, *noPipelines){
		"a hook fails":          func(_ *redistest.Proxy, hook *noPipelines) { hook.on.Store(true) },
		"no connection is made": func(p *redistest.Proxy, _ *noPipelines) { p.Refuse(true); p.Cut() },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			p := redistest.NewProxy(t, redistest.Real(t).Addr())
			rdb := p.Client(t, func(o *redis.UniversalOptions) {
				o.MaxRetries = -1
				redistest.DialOnce(o)
			})
			hook := new(noPipelines)
			rdb.AddHook(hook)
			m := newLocker(t, rdb).Mutex(redistest.Name(t), TTL(300*time.Millisecond))
			le := mustTry(t, m)
			ctx := le.Bind(t.Context())
			breakIt(p, hook)
			select {
			case <-ctx.Done():
				if cause := context.Cause(ctx); !errors.Is(cause, ErrLost) {
					t.Errorf("the context ended with %v, want ErrLost", cause)
				}
			case <-time.After(soon):
				t.Error("a lease that nobody renews is held beyond its deadline")
			}
			_, err := m.listLine(t.Context(), inside.Info{}, 1)
			if !errors.Is(err, ErrBackend) {
				t.Errorf("a look that was not sent: %v, want ErrBackend", err)
			}
		})
	}
}
