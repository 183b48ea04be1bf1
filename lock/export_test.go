package lock

import (
	"context"
	"errors"
	"time"

	"github.com/automutex/automutex/internal/engine"
	"github.com/automutex/automutex/internal/inside"
)

// Refused is the error of who may park: the *BusyError, and what only the engine says.
type Refused struct {
	*BusyError
	Parked bool
	InLine time.Duration
}

func (r *Refused) Unwrap() error { return r.BusyError }

// LockOrPark waits in line, and parks when parkNow is closed.
func LockOrPark(ctx context.Context, m *Lock, parkNow <-chan struct{}) (*Lease, error) {
	h := *inside.At(m)
	if h.Err != nil {
		return nil, h.Err
	}
	r := h.Request
	r.Line = &engine.Line{Yield: parkNow}
	le, err := h.Engine.Take(ctx, &r)
	if busy := (*engine.Busy)(nil); errors.As(err, &busy) {
		return nil, &Refused{m.busyOr(err).(*BusyError), busy.Parked, busy.InLine}
	}
	if err != nil {
		return nil, err
	}
	return &Lease{inside.Make(le)}, nil
}
