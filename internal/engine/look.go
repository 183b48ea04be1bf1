package engine

import (
	"context"

	"github.com/automutex/automutex/internal/control"
	"github.com/automutex/automutex/internal/redisx"
)

// Look returns the first of several locks that is paused, or whose closed gate keeps the caller out, and why; shut is
// nil if there is none. It is one exchange, which is waited for if ctx ends. After an error at is the lock that could
// not be asked for. held: the caller holds them all, so no rate counts, and a cooldown does.
func (e *Engine) Look(ctx context.Context, locks []Ref, held bool) (at int, shut *Busy, err error) {
	if err := e.life.Enter(); err != nil {
		return 0, nil, err
	}
	defer e.life.Done()
	calls := make([]*redisx.Call, len(locks))
	for i := range locks {
		r := &locks[i]
		b, err := e.known(ctx, r)
		if err != nil {
			return i, nil, err
		}
		if b.Pause != nil {
			return i, pausedBy(b), nil
		}
		if held {
			b.Slots = control.MaxLimit
		}
		calls[i] = &redisx.Call{Script: gatesScript, Keys: r.keys()[:6], Args: []any{int64(b.Slots)}}
	}
	e.conn.Pipeline(context.WithoutCancel(ctx), calls)
	for i, c := range calls {
		if c.Err != nil {
			return i, nil, redisx.Failed("look", c.Keys[0], c.Err)
		}
		a, ok := parseAsk([]any{int64(0), int64(0), int64(0), c.Reply}, false)
		switch {
		case !ok:
			return i, nil, wrongReply("look", c.Keys[0], c.Reply)
		case a.Gate > 0 && (!held || a.Reason != ReasonRate):
			return i, &Busy{Answer: a}, nil
		}
	}
	return 0, nil, nil
}
