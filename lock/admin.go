package lock

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"math"
	"slices"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/exchange"
	"github.com/automutex/automutex/internal/inside"
)

// Break takes the lock away from the holder with that token, and grants the slot to the first
// waiter. It returns false if there is no such holder. [Lock.Holders] lists the tokens.
//
// The contexts of the holder's lease end with cause ErrLost. When they end depends on where
// the holder is:
//   - in this Locker: before Break returns;
//   - in another Locker with a subscription: as soon as the message arrives. A Locker has a
//     subscription while one of its callers waits in any line or holds a lease for the policy
//     Replace of package automutex, and ten seconds longer;
//   - in any other Locker: at its next renewal, a third of the lease's TTL later at
//     most, or at its deadline if the lease is not renewed.
//
// Until then the holder may work beside the next one. Break a lock only if its holder is known
// to hang, and let the fence protect what the holder writes. After ErrBackend the lock may be
// broken or not.
func (m *Lock) Break(ctx context.Context, token string) (bool, error) {
	if token == "" {
		return false, fmt.Errorf("lock: %q: Break: the token is empty; Holders returns the tokens, BreakAll breaks all holders", m.name)
	}
	n, err := m.breakUp(ctx, token, breakSlots, anyHolder)
	return n > 0, err
}

// BreakAll is [Lock.Break] for every holder, and grants the free slots to waiters. It also
// opens a gate that a hold or a cooldown has closed, but not one that a [Rate] has closed. It
// returns the number of holders it broke, plus one if it opened the gate.
func (m *Lock) BreakAll(ctx context.Context) (int, error) {
	n, err := m.breakUp(ctx, "", breakSlots, anyHolder)
	return max(n, 0), err
}

// openGate opens a gate that a hold or a cooldown has closed, and grants free slots to
// waiters. It returns false if there was no such gate. Holders keep their slots. A gate that
// a [Rate] has closed stays closed.
func (m *Lock) openGate(ctx context.Context) (bool, error) {
	n, err := m.breakUp(ctx, "", breakGate, anyHolder)
	return n > 0, err
}

// Delete is [Lock.BreakAll], and also deletes the line and the rate's count. Live waiters ask
// again within a second, and form a new line. A parked task loses its place: it runs when
// asynq retries it.
func (m *Lock) Delete(ctx context.Context) error {
	_, err := m.breakUp(ctx, "", breakKey, anyHolder)
	return err
}

// deleteFrom is Delete, on the condition that every holder has one of these tokens. If
// another holder has the lock it changes nothing, and the error Is [ErrBusy]: so nobody
// loses the lock who took it after the caller listed the holders. It returns false if Redis
// stores nothing of the lock.
func (m *Lock) deleteFrom(ctx context.Context, tokens ...string) (bool, error) {
	n, err := m.breakUp(ctx, "", breakKey, " "+strings.Join(tokens, " ")+" ")
	switch {
	case err != nil:
		return false, err
	case n == breakUnknown:
		return false, fmt.Errorf("lock: %q: not deleted, a holder is none of those that were named: %w", m.name, ErrBusy)
	}
	return n != breakNothing, nil
}

// What the break script removes. Without a token it also opens a gate that a hold or a
// cooldown has closed.
const (
	breakSlots = 0 // holders
	breakKey   = 1 // the whole key
	breakGate  = 2 // nothing else
)

// anyHolder lets the break script break every holder.
const anyHolder = "*"

// breakUp runs the break script. It returns how many holders it broke, plus one if it opened
// the gate; or breakUnknown or breakNothing.
func (m *Lock) breakUp(ctx context.Context, token string, what int, known string) (int, error) {
	if err := m.enterControlled(ctx); err != nil {
		return 0, err
	}
	return m.operateBreak(ctx, breakScript, []any{m.slots(), token, what, known})
}

// operateBreak is operate for a script that removes holders: it ends those of their leases
// that this Locker holds. The reply is the number of slots or values that the script removed,
// the number of tokens that follow, and these. A negative number says why it removed none.
func (m *Lock) operateBreak(ctx context.Context, s *exchange.Script, args []any) (int, error) {
	reply, err := m.operate(ctx, s, args)
	if err != nil {
		return 0, err
	}
	unexpected := backendError(s.Name, m.Key(), fmt.Errorf("unexpected reply %v", reply))
	list, _ := reply.([]any)
	if len(list) < 2 {
		return 0, unexpected
	}
	taken, ok1 := list[0].(int64)
	count, ok2 := list[1].(int64)
	tokens := list[2:]
	if !ok1 || !ok2 || count != int64(len(tokens)) || count > max(taken, 0) {
		return 0, unexpected
	}
	for _, token := range tokens {
		token, ok := token.(string)
		if !ok {
			return 0, unexpected
		}
		m.locker.renewer.loseBroken(token) // does nothing for a lease of another Locker
	}
	return int(taken), nil
}

// operate runs a script and returns its reply.
func (m *Lock) operate(ctx context.Context, s *exchange.Script, args []any) (any, error) {
	if err := m.enter(ctx); err != nil {
		return nil, err
	}
	defer m.locker.work.Done()
	reply, err := m.locker.conn.Run(ctx, s, m.keys, args)
	if err != nil {
		return nil, backendError(s.Name, m.Key(), err)
	}
	return reply, nil
}

// operateCode is operate for a script whose reply is a number from 0 to most.
func (m *Lock) operateCode(ctx context.Context, s *exchange.Script, args []any, most int64) (int64, error) {
	reply, err := m.operate(ctx, s, args)
	if err != nil {
		return 0, err
	}
	n, err := codeOf(reply, most)
	if err != nil {
		return 0, backendError(s.Name, m.Key(), err)
	}
	return n, nil
}

// list yields every lock under the Locker's prefix that is held, waited for or parked on, or
// has a closed gate, in no order. It walks the keys with SCAN, on every master of a Cluster,
// so it does not block Redis. It may miss locks that come and go meanwhile. After an error
// it ends. It leaves out pools.
func (l *Locker) list(ctx context.Context) iter.Seq2[inside.Info, error] {
	return func(yield func(inside.Info, error) bool) {
		for c, err := range l.walk(ctx, inspectScript, maxHolders, "") {
			if err != nil {
				yield(inside.Info{}, err)
				return
			}
			info, err := parseInspect(c.Keys[0], c.Reply, c.Err)
			if err == nil && !info.InUse() {
				continue
			}
			if !yield(info, err) || err != nil {
				return
			}
		}
	}
}

// sweepMost is how many waiters one run of the script removes.
const sweepMost = 1000

// sweep removes dead entries from every lock under the Locker's prefix: holders past their
// deadlines, and waiters that do not ask any more. It returns how many it removed, also with
// an error. Nothing depends on sweep: each ask prunes its lock, and unused keys expire. It
// leaves out pools.
func (l *Locker) sweep(ctx context.Context) (int, error) {
	removed := 0
	for c, err := range l.walk(ctx, sweepScript) {
		for err == nil {
			n, wrong := codeOf(c.Reply, math.MaxInt64)
			if err := cmp.Or(c.Err, wrong); err != nil {
				return removed, backendError("sweep", c.Keys[0], err)
			}
			removed += int(n)
			if n < sweepMost {
				break
			}
			if err = l.enter(); err == nil { // there may be more of them
				c.Reply, c.Err = l.conn.Run(ctx, sweepScript, c.Keys, nil)
				l.work.Done()
			}
		}
		if err != nil {
			return removed, err
		}
	}
	return removed, nil
}

// walk runs s once on the key of every lock under the prefix, and yields the results. After
// an error it ends. It leaves out keys of another type.
func (l *Locker) walk(ctx context.Context, s *exchange.Script, args ...any) iter.Seq2[*exchange.Call, error] {
	return func(yield func(*exchange.Call, error) bool) {
		nodes, err := l.masters(ctx)
		if err != nil {
			yield(nil, err)
			return
		}
		seen := make(map[string]bool) // SCAN may return a key twice
		for _, node := range nodes {
			for cursor := uint64(0); ; {
				calls, next, err := l.step(ctx, node, cursor, seen, s, args)
				if err != nil {
					yield(nil, err)
					return
				}
				for _, c := range calls {
					if !wrongType(c.Err) && !yield(c, nil) {
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

// step is one SCAN and a run of s on each key that it finds. The Locker can be
// closed between two steps, not in one.
func (l *Locker) step(ctx context.Context, node scanner, cursor uint64, seen map[string]bool, s *exchange.Script, args []any) ([]*exchange.Call, uint64, error) {
	if err := l.enter(); err != nil {
		return nil, 0, err
	}
	defer l.work.Done()
	if err := ctx.Err(); err != nil {
		return nil, 0, backendError("scan", l.prefix, err)
	}
	type found struct {
		keys []string
		next uint64
	}
	reply, err := l.conn.Within(ctx, func(bound context.Context) (any, error) {
		keys, next, err := node.Scan(bound, cursor, globEscape(l.prefix)+":{*}", scanCount).Result()
		return found{keys, next}, err
	})
	if err != nil {
		return nil, 0, backendError("scan", l.prefix, err)
	}
	scanned := reply.(found) //nolint:forcetypeassert // made above
	var calls []*exchange.Call
	for _, key := range scanned.keys {
		if !seen[key] && key != l.controls.keys[0] {
			seen[key] = true
			calls = append(calls, &exchange.Call{Keys: []string{key}, Args: args})
		}
	}
	for some := range slices.Chunk(calls, pipelineMost) {
		l.conn.Pipeline(ctx, s, some)
	}
	return calls, scanned.next, nil
}

// wrongType reports whether the key has another type than the command expects. It looks for
// the code anywhere in the text: before Redis 7 an error inside a script is wrapped.
func wrongType(err error) bool {
	return err != nil && strings.Contains(err.Error(), "WRONGTYPE ")
}

// scanCount is how many keys Redis looks at for one SCAN.
const scanCount = 1000

// pipelineMost is how many scripts go to Redis in one pipeline. Each may list a thousand
// holders, so a longer pipeline would delay other clients, and could exceed opTimeout.
const pipelineMost = 100

// scanner is a node whose keys can be walked.
type scanner interface {
	Scan(ctx context.Context, cursor uint64, match string, count int64) *redis.ScanCmd
}

// masters returns the nodes that hold keys: the masters of a Cluster, or the one server.
func (l *Locker) masters(ctx context.Context) ([]scanner, error) {
	if err := l.enter(); err != nil {
		return nil, err
	}
	defer l.work.Done()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	// A client of neither type may hide a Cluster, of which it would walk one node.
	switch rdb := l.rdb.(type) {
	case *redis.ClusterClient:
		nodes, err := l.conn.Within(ctx, func(bound context.Context) (any, error) {
			var mu sync.Mutex // ForEachMaster calls from several goroutines, and waits for them
			var nodes []scanner
			err := rdb.ForEachMaster(bound, func(_ context.Context, node *redis.Client) error {
				mu.Lock()
				defer mu.Unlock()
				nodes = append(nodes, node)
				return nil
			})
			return nodes, err
		})
		if err != nil {
			return nil, backendError("scan", l.prefix, err)
		}
		return nodes.([]scanner), nil //nolint:forcetypeassert // made above
	case *redis.Client:
		return []scanner{rdb}, nil
	}
	return nil, fmt.Errorf("lock: a %T cannot walk its keys: use a *redis.Client or *redis.ClusterClient", l.rdb)
}

// globEscape makes s match itself alone.
func globEscape(s string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`).Replace(s)
}
