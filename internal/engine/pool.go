package engine

import (
	"context"
	"fmt"
	"slices"

	"github.com/automutex/automutex/internal/keys"
)

// values that one script adds
const putTogether = 100

// Put adds values to a pool, as pool.Pool.Put says, and grants them to its waiters.
func (e *Engine) Put(ctx context.Context, r Ref, values []string) (added int, err error) {
	args := make([]any, len(values))
	for i, value := range values {
		if value == "" {
			return 0, fmt.Errorf("lock: pool %q: value %d of %d is empty: nothing was put", r.Key, i+1, len(values))
		}
		args[i] = keys.Escape(value)
	}
	for some := range slices.Chunk(args, putTogether) {
		n, err := e.code(ctx, putTogether, putScript, r.keys(), some...)
		if added += int(n); err != nil {
			return added, err
		}
	}
	return added, nil
}
