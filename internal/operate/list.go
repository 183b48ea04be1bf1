package operate

import (
	"cmp"
	"context"
	"iter"
	"math"

	"github.com/automutex/automutex/internal/exchange"
	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/wire"
)

// List yields every lock under the prefix that is held, waited for or parked on, or
// has a closed gate, in no order. It walks the keys with SCAN, on every master of a Cluster,
// so it does not block Redis. It may miss locks that come and go meanwhile. After an error
// it ends. It leaves out pools.
func (w Walker) List(ctx context.Context) iter.Seq2[inside.Info, error] {
	return func(yield func(inside.Info, error) bool) {
		for c, err := range w.Walk(ctx, wire.InspectScript, wire.InspectArgs(MaxHolders, "", 0)...) {
			if err != nil {
				yield(inside.Info{}, err)
				return
			}
			info, err := inside.Info{}, c.Err
			if err == nil {
				info, err = wire.ParseInspect(c.Keys[0], c.Reply)
			}
			if err != nil {
				info, err = inside.Info{}, exchange.Failed("inspect", c.Keys[0], err)
			} else if !info.InUse() {
				continue
			}
			if !yield(info, err) || err != nil {
				return
			}
		}
	}
}

// MaxHolders bounds how many holders one look lists.
const MaxHolders = 1000

// SweepMost is how many waiters one run of the script removes.
const SweepMost = 1000

// Sweep removes dead entries from every lock under the prefix: holders past their
// deadlines, and waiters that do not ask any more. It returns how many it removed, also with
// an error. Nothing depends on Sweep: each ask prunes its lock, and unused keys expire. It
// leaves out pools.
func (w Walker) Sweep(ctx context.Context) (int, error) {
	removed := 0
	for c, err := range w.Walk(ctx, wire.SweepScript) {
		for err == nil {
			n, wrong := wire.CodeOf(c.Reply, math.MaxInt64)
			if err := cmp.Or(c.Err, wrong); err != nil {
				return removed, exchange.Failed("sweep", c.Keys[0], err)
			}
			removed += int(n)
			if n < SweepMost {
				break
			}
			if err = w.Life.Enter(); err == nil { // there may be more of them
				c.Reply, c.Err = w.Conn.Run(ctx, wire.SweepScript, c.Keys, nil)
				w.Life.Done()
			}
		}
		if err != nil {
			return removed, err
		}
	}
	return removed, nil
}
