package engine

import (
	"context"
	"time"

	"github.com/automutex/automutex/internal/redisx"
)

// The newest wins: a newer arrival at a lock may ask older holders and waiters to stop. The request is only a message: a holder keeps its
// lease until it releases it, and the newer one waits for that.

func (r *Ref) arrivals() []string { return []string{r.Key + ":arrivals", r.Key + ":seen"} }

// Arrive returns when the work with that note first came to the lock, and stores that with the first call: isNew. A later arrival has a
// higher number, and no two have the same. It is kept for so long after the last call.
func (e *Engine) Arrive(ctx context.Context, r Ref, note string, keep time.Duration) (arrival int64, isNew bool, err error) {
	reply, err := e.call(ctx, arriveScript, r.arrivals(), note, keep.Milliseconds())
	if err != nil {
		return 0, false, err
	}
	f := fieldsOf(reply)
	arrival, isNew = f.num(0), f.num(1) == 1
	if f.wrong || arrival <= 0 {
		return 0, false, redisx.Failed("arrive", r.Key, unexpected(reply))
	}
	return arrival, isNew, nil
}

// Forget deletes the arrival: if the work comes again it is new.
func (e *Engine) Forget(ctx context.Context, r Ref, note string) error {
	_, err := e.code(ctx, 1, forgetScript, r.arrivals(), note)
	return err
}

// Stop asks older holders and waiters to stop, as many as must so that the arrival is among the newest, and returns how it stands. The
// request may be lost, and new holders may come: while the caller waits it calls Stop about once a second.
func (e *Engine) Stop(ctx context.Context, r Ref, arrival int64) (Standing, error) {
	if err := e.Know(ctx, r.Key); err != nil {
		return First, err
	}
	n, err := e.code(ctx, int64(BehindWaiters), stopScript, r.keys(), int64(e.limit(&r)), arrival)
	return Standing(n), err
}
