// Package operate has what operators and single calls do: it runs a script for a caller, walks all
// locks, and reads keys and lines.
package operate

import (
	"context"

	"github.com/automutex/automutex/internal/exchange"
	"github.com/automutex/automutex/internal/life"
	"github.com/automutex/automutex/internal/wire"
)

// Runner runs scripts for callers. Conn is not used if Life has no room for an operation.
type Runner struct {
	Life *life.Life
	Conn *exchange.Conn
}

// Run runs a script and returns its reply. Life's Close waits for it.
func (r Runner) Run(ctx context.Context, s *exchange.Script, keys []string, args []any) (any, error) {
	if err := ctx.Err(); err != nil && r.Life.Unfit() == nil {
		return nil, err
	}
	if err := r.Life.Enter(); err != nil {
		return nil, err
	}
	defer r.Life.Done()
	reply, err := r.Conn.Run(ctx, s, keys, args)
	if err != nil {
		return nil, exchange.Failed(s.Name, keys[0], err)
	}
	return reply, nil
}

// Code is Run for a script whose reply is a number from 0 to most.
func (r Runner) Code(ctx context.Context, s *exchange.Script, keys []string, args []any, most int64) (int64, error) {
	reply, err := r.Run(ctx, s, keys, args)
	if err != nil {
		return 0, err
	}
	n, err := wire.CodeOf(reply, most)
	if err != nil {
		return 0, exchange.Failed(s.Name, keys[0], err)
	}
	return n, nil
}
