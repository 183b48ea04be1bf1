package lock

import (
	"context"
	"fmt"
	"iter"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"
)

// Exists tells whether anything of the lock is in Redis: a holder, a cooldown
// or a waiter. An idle lock leaves nothing behind.
func (m *Lock) Exists(ctx context.Context) (bool, error) {
	holders, waiting, _, err := m.inspect(ctx, 0)
	return holders+waiting > 0, err
}

// Break takes the lock from the holder with that token, who is told: the
// contexts of its lease end with cause ErrLost, at once where its process
// listens (it does while anybody in it waits), else at its next renewal, a
// third of its TTL later at most. Until then it may still be at work: break a
// lock whose holder is known to hang, and let the fence guard what it writes.
// false: no such holder.
func (m *Lock) Break(ctx context.Context, token string) (bool, error) {
	if token == "" {
		return false, fmt.Errorf("lock: %q: Break without a token: Holders tells the tokens, BreakAll takes all", m.name)
	}
	n, err := m.breakUp(ctx, token, 0)
	return n > 0, err
}

// BreakAll is Break for every holder, and ends a cooldown. It tells how many
// slots were taken; waiters are granted what is free then.
func (m *Lock) BreakAll(ctx context.Context) (int, error) { return m.breakUp(ctx, "", 0) }

// Delete is BreakAll that removes the line as well. Waiters that live ask again
// within a second, and stand in a new line.
func (m *Lock) Delete(ctx context.Context) error {
	_, err := m.breakUp(ctx, "", 1)
	return err
}

func (m *Lock) breakUp(ctx context.Context, token string, all int) (int, error) {
	reply, err := m.operate(ctx, breakScript, []any{m.limit, token, all})
	n, _ := reply.(int64)
	return int(n), err
}

// operate runs a script for a caller who wants its reply and nothing else.
func (m *Lock) operate(ctx context.Context, s *script, args []any) (any, error) {
	if m.err != nil {
		return nil, m.err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := m.locker.enter(); err != nil {
		return nil, err
	}
	defer m.locker.work.Done()
	reply, err := m.locker.conn.run(ctx, s, m.keys, args)
	if err != nil {
		return nil, backendError(s.name, m.Key(), err)
	}
	return reply, nil
}

// Info is one lock, as List finds it.
type Info struct {
	// Key is the lock's Redis key.
	Key string
	// Held is how many slots are taken, cooldowns included.
	Held int
	// Waiting is how many stand in line.
	Waiting int
	// Holders are those who hold it, first deadline first, at most 1,000.
	Holders []Holder
}

// List yields every lock that is held or waited for under the Locker's prefix,
// in no order. It walks the keys with SCAN, on every master of a Cluster, so it
// does not block Redis, and locks that come and go meanwhile may or may not be
// yielded. An error ends it.
func (l *Locker) List(ctx context.Context) iter.Seq2[Info, error] {
	return func(yield func(Info, error) bool) {
		for keys, err := range l.scan(ctx) {
			if err != nil {
				yield(Info{}, err)
				return
			}
			calls := make([]*call, len(keys))
			for i, key := range keys {
				calls[i] = &call{keys: []string{key}, args: []any{maxHolders}}
			}
			l.conn.pipeline(ctx, inspectScript, calls)
			for i, c := range calls {
				if redis.HasErrorPrefix(c.err, "WRONGTYPE") {
					continue // somebody else's key under our prefix
				}
				info, err := parseInspect(keys[i], c.reply, c.err)
				if err == nil && info.Held+info.Waiting == 0 {
					continue
				}
				if !yield(info, err) || err != nil {
					return
				}
			}
		}
	}
}

// Sweep removes what is dead from every lock under the Locker's prefix: holders
// past their deadlines, waiters that ceased to ask. It returns how many it
// really removed. Nothing depends on it: each lock purges itself when it is
// asked for, and unused keys expire.
func (l *Locker) Sweep(ctx context.Context) (int, error) {
	removed := 0
	for keys, err := range l.scan(ctx) {
		if err != nil {
			return removed, err
		}
		calls := make([]*call, len(keys))
		for i, key := range keys {
			calls[i] = &call{keys: []string{key}}
		}
		l.conn.pipeline(ctx, sweepScript, calls)
		for i, c := range calls {
			if redis.HasErrorPrefix(c.err, "WRONGTYPE") {
				continue
			}
			n, ok := c.reply.(int64)
			if c.err != nil || !ok {
				return removed, backendError("sweep", keys[i], fmt.Errorf("reply %v: %w", c.reply, c.err))
			}
			removed += int(n)
		}
	}
	return removed, nil
}

// scan yields the keys of locks under the prefix, in batches, none twice.
func (l *Locker) scan(ctx context.Context) iter.Seq2[[]string, error] {
	return func(yield func([]string, error) bool) {
		if err := l.enter(); err != nil {
			yield(nil, err)
			return
		}
		defer l.work.Done()
		nodes, err := masters(ctx, l.conn.rdb)
		if err != nil {
			yield(nil, backendError("scan", l.prefix, err))
			return
		}
		pattern := globEscape(l.prefix) + ":{*}"
		seen := make(map[string]bool)
		for _, node := range nodes {
			for cursor := uint64(0); ; {
				found, next, err := node.Scan(ctx, cursor, pattern, 1000).Result()
				if err != nil {
					yield(nil, backendError("scan", l.prefix, err))
					return
				}
				keys := found[:0]
				for _, key := range found {
					if !seen[key] {
						seen[key] = true
						keys = append(keys, key)
					}
				}
				if len(keys) > 0 && !yield(keys, nil) {
					return
				}
				if cursor = next; cursor == 0 {
					break
				}
			}
		}
	}
}

// scanner is a node whose keys can be walked.
type scanner interface {
	Scan(ctx context.Context, cursor uint64, match string, count int64) *redis.ScanCmd
}

// masters are the nodes that hold keys: those of a Cluster, or rdb itself.
func masters(ctx context.Context, rdb Client) ([]scanner, error) {
	switch rdb := rdb.(type) {
	case *redis.ClusterClient:
		var mu sync.Mutex // ForEachMaster calls from several goroutines, and waits for them
		var nodes []scanner
		err := rdb.ForEachMaster(ctx, func(_ context.Context, node *redis.Client) error {
			mu.Lock()
			defer mu.Unlock()
			nodes = append(nodes, node)
			return nil
		})
		return nodes, err
	case scanner:
		return []scanner{rdb}, nil
	}
	return nil, fmt.Errorf("a %T cannot walk its keys: use a *redis.Client or *redis.ClusterClient", rdb)
}

// globEscape makes s match itself alone.
func globEscape(s string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`).Replace(s)
}
