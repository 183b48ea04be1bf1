package exchange

import (
	"context"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
)

// Call is one script call of a pipeline, and its result.
type Call struct {
	Keys []string
	Args []any

	Reply any
	Err   error
}

// Pipeline runs s for each call in one round trip (one per node). Every call ends with a
// reply or an error. A server that does not run a script by its hash says so for each
// command; Pipeline sends those again by EVAL.
func (c *Conn) Pipeline(ctx context.Context, s *Script, calls []*Call) {
	bound := c.boundContext(ctx, time.Now())
	mine := slices.Clone(calls)
	_, err := c.within(ctx, bound, func() (any, error) {
		c.runAll(bound, s, mine)
		return nil, nil //nolint:nilnil // each call carries its own result
	})
	if err != nil {
		// The goroutine of the exchange may still write to its calls, so the caller gets
		// new ones.
		for i := range calls {
			noteLeftBehind(calls[i].Args)
			calls[i] = &Call{Keys: calls[i].Keys, Err: err}
		}
	}
}

func (c *Conn) runAll(ctx context.Context, s *Script, calls []*Call) {
	send := func(calls []*Call, queue func(p redis.Pipeliner, keys []string, args []any) *redis.Cmd) {
		p := c.rdb.Pipeline()
		cmds := make([]*redis.Cmd, len(calls))
		for i, x := range calls {
			cmds[i] = queue(p, x.Keys, x.Args)
		}
		_, failed := p.Exec(ctx)
		for i, x := range calls {
			x.Reply, x.Err = replyOf(cmds[i], failed)
			c.unreached(x.Err)
		}
	}
	bySource := calls
	if !c.denied.noHash.Load() {
		send(calls, func(p redis.Pipeliner, keys []string, args []any) *redis.Cmd {
			return p.EvalSha(ctx, s.SHA, keys, args...)
		})
		bySource = nil
		for _, x := range calls {
			if c.denied.mustSendSource(x.Err) {
				noteNotRun(x.Args)
				bySource = append(bySource, x)
			}
		}
	}
	if len(bySource) > 0 {
		send(bySource, func(p redis.Pipeliner, keys []string, args []any) *redis.Cmd {
			return p.Eval(ctx, s.Source, keys, args...)
		})
	}
	for _, x := range calls {
		x.Err = c.denied.describe(s, x.Err)
	}
}
