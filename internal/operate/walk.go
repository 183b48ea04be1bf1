package operate

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/exchange"
)

// Walker walks the locks under a prefix, with SCAN on every master of a Cluster.
type Walker struct {
	Runner
	Client  any // a *redis.Client or *redis.ClusterClient: another one may hide a Cluster
	Prefix  string
	Besides string // a key under the prefix that is no lock's
}

// Walk runs s once on the key of every lock under the prefix, and yields the results. After
// an error it ends. It leaves out keys of another type.
func (w Walker) Walk(ctx context.Context, s *exchange.Script, args ...any) iter.Seq2[*exchange.Call, error] {
	return func(yield func(*exchange.Call, error) bool) {
		nodes, err := w.masters(ctx)
		if err != nil {
			yield(nil, err)
			return
		}
		seen := make(map[string]bool) // SCAN may return a key twice
		for _, node := range nodes {
			for cursor := uint64(0); ; {
				calls, next, err := w.step(ctx, node, cursor, seen, s, args)
				if err != nil {
					yield(nil, err)
					return
				}
				for _, c := range calls {
					if !exchange.WrongType(c.Err) && !yield(c, nil) {
						return
					}
				}
				if cursor = next; cursor == 0 {
					break
				}
			}
		}
	}
}

// step is one SCAN and a run of s on each key that it finds. Life can end between two steps, not in one.
func (w Walker) step(ctx context.Context, node *redis.Client, cursor uint64, seen map[string]bool, s *exchange.Script, args []any) ([]*exchange.Call, uint64, error) {
	if err := w.Life.Enter(); err != nil {
		return nil, 0, err
	}
	defer w.Life.Done()
	if err := ctx.Err(); err != nil {
		return nil, 0, exchange.Failed("scan", w.Prefix, err)
	}
	type found struct {
		keys []string
		next uint64
	}
	reply, err := w.Conn.Within(ctx, func(bound context.Context) (any, error) {
		keys, next, err := node.Scan(bound, cursor, globEscape(w.Prefix)+":{*}", ScanCount).Result()
		return found{keys, next}, err
	})
	if err != nil {
		return nil, 0, exchange.Failed("scan", w.Prefix, err)
	}
	scanned := reply.(found) //nolint:forcetypeassert // made above
	var calls []*exchange.Call
	for _, key := range scanned.keys {
		if !seen[key] && key != w.Besides {
			seen[key] = true
			calls = append(calls, &exchange.Call{Keys: []string{key}, Args: args})
		}
	}
	for some := range slices.Chunk(calls, pipelineMost) {
		w.Conn.Pipeline(ctx, s, some)
	}
	return calls, scanned.next, nil
}

// ScanCount is how many keys Redis looks at for one SCAN.
const ScanCount = 1000

// pipelineMost is how many scripts go to Redis in one pipeline. Each may list a thousand
// holders, so a longer pipeline would delay other clients, and could exceed exchange.Timeout.
const pipelineMost = 100

// masters returns the nodes that hold keys: the masters of a Cluster, or the one server.
func (w Walker) masters(ctx context.Context) ([]*redis.Client, error) {
	if err := w.Life.Enter(); err != nil {
		return nil, err
	}
	defer w.Life.Done()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	// A client of neither type may hide a Cluster, of which it would walk one node.
	switch rdb := w.Client.(type) {
	case *redis.ClusterClient:
		nodes, err := w.Conn.Within(ctx, func(bound context.Context) (any, error) {
			return exchange.Masters(bound, rdb)
		})
		if err != nil {
			return nil, exchange.Failed("scan", w.Prefix, err)
		}
		return nodes.([]*redis.Client), nil //nolint:forcetypeassert // made above
	case *redis.Client:
		return []*redis.Client{rdb}, nil
	}
	return nil, fmt.Errorf("lock: a %T cannot walk its keys: use a *redis.Client or *redis.ClusterClient", w.Client)
}

// globEscape makes s match itself alone.
func globEscape(s string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`).Replace(s)
}
