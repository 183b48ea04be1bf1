package engine

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/keys"
	"github.com/automutex/automutex/internal/printable"
	"github.com/automutex/automutex/internal/redisx"
)

// Operators may not know of what kind a lock is: these scripts see, and delete, what any but a pool may have.

const (
	// MaxHolders bounds how many holders one look lists, and entries of a line.
	MaxHolders = 1000
	// keys that Redis looks at for one SCAN
	scanCount = 1000
	// scripts in one pipeline: each may list MaxHolders
	walkTogether = 100
)

var errForeign = errors.New("the key has none of this library's locks")

func (e *Engine) do(ctx context.Context, what, key string, f func() (any, error)) (any, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := e.life.Enter(); err != nil {
		return nil, err
	}
	defer e.life.Done()
	v, err := f()
	if err != nil {
		err = redisx.Failed(what, key, err)
	}
	return v, err
}

func (e *Engine) call(ctx context.Context, s *redisx.Script, keys []string, args ...any) (any, error) {
	return e.do(ctx, s.Name, keys[0], func() (any, error) { return e.conn.Run(ctx, s, keys, args...) })
}

// code is call for a reply from 0 to most.
func (e *Engine) code(ctx context.Context, most int64, s *redisx.Script, keys []string, args ...any) (int64, error) {
	reply, err := e.call(ctx, s, keys, args...)
	if err != nil {
		return 0, err
	}
	n, is := reply.(int64)
	if !is || n < 0 || n > most {
		return 0, wrongReply(s.Name, keys[0], reply)
	}
	return n, nil
}

// Know waits until the orders of operators are known.
func (e *Engine) Know(ctx context.Context, key string) error {
	if err := e.life.Enter(); err != nil {
		return err
	}
	defer e.life.Done()
	return e.controls.Know(ctx, key)
}

// Inspect returns what Redis stores of a lock, and at most so many of its holders; with none it does not know whether
// the head of an ordered key runs.
func (e *Engine) Inspect(ctx context.Context, r Ref, most int) (Info, error) {
	r.Ordered = !r.Pool
	reply, err := e.call(ctx, inspectScript, r.keys(), int64(most))
	if err != nil {
		return Info{}, err
	}
	return parseInspect(r.Key, reply)
}

// Available is lock.Lock.Available.
func (e *Engine) Available(ctx context.Context, r Ref) (int, error) {
	if err := e.Know(ctx, r.Key); err != nil {
		return 0, err
	}
	info, err := e.Inspect(ctx, r, 0)
	if err != nil || info.Gate.OpensIn > 0 {
		return 0, err
	}
	return max(0, int(e.limit(&r))-info.Held), nil
}

func parseInspect(key string, reply any) (Info, error) {
	f := fieldsOf(reply)
	us := f.num(0)
	info := Info{
		Key: key, Held: int(f.num(1)), Waiting: int(f.num(2)), Parked: int(f.num(3)), Called: int(f.num(4)),
		Gate: Gate{Reason: f.text(7), OpensIn: time.Duration(f.num(8)) * time.Microsecond}, Queued: int(f.num(9)),
		Free: int(f.num(11)),
	}
	fence, holders, head, values, taken := f.num(5), f.sub(6), f.sub(10), f.sub(12), &fields{}
	if len(f.list) > 13 {
		taken = f.sub(13)
	}
	for i := range values.list {
		info.Values = append(info.Values, keys.Unescape(values.text(i)))
	}
	for i := 0; i < len(holders.list); i += 2 {
		one := holderOf(holders.text(i))
		if one.Token == "" {
			return Info{}, redisx.Failed("inspect", key, errForeign)
		}
		value, _ := taken.at(i / 2).(string)
		info.Lent = append(info.Lent, keys.Unescape(value))
		one.ExpiresIn = time.Duration(holders.score(i+1))*time.Millisecond - time.Duration(us)*time.Microsecond
		info.Holders = append(info.Holders, one)
	}
	if fence == 0 && len(info.Holders) == 1 {
		fence = takenAt(info.Holders[0].Token)
	}
	if fence > 0 {
		info.Taken = time.UnixMicro(fence)
	}
	wrong := f.wrong || holders.wrong || values.wrong
	if info.Queued > 0 && !wrong {
		info.Head, wrong = parseHead(key, info, head)
		if info.Head.Runs { // it is not in line
			info.Queued--
		}
	}
	if wrong {
		return Info{}, wrongReply("inspect", key, reply)
	}
	return info, nil
}

// takenAt is when a token was made, by its process' clock (us), in ten digits until 2085, see newLease; 0: none tells.
func takenAt(token string) int64 {
	_, nonce, _ := strings.Cut(token, ".")
	us, err := strconv.ParseInt(nonce[:min(len(nonce), 10)], 36, 64)
	if err != nil || len(nonce) <= 10 {
		return 0
	}
	return us
}

// Line returns the first ones in the line of a lock: waiters, then parked work, also what was called, then tasks in
// order but for the one at work. info is from Inspect. Of a key of another type there is none.
func (e *Engine) Line(ctx context.Context, r Ref, info Info, most int) ([]Waiter, error) {
	most, r.Ordered = max(0, min(most, MaxHolders)), !r.Pool
	reply, err := e.call(ctx, lineScript, r.keys(), int64(most+1)) // the task at work is left out
	if redisx.IsWrongType(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	f := fieldsOf(reply)
	var line []Waiter
	for i := 0; i < len(f.list); i += 3 {
		kind, what := f.text(i), f.text(i+2)
		w := Waiter{Since: time.UnixMicro(f.score(i + 1)), Note: what}
		switch kind {
		case "w":
			w.Owner, w.Note, _ = strings.Cut(what, "|")
			w.Owner = keys.Unescape(w.Owner)
		case "o":
			t, ok := parseTask(what)
			if f.wrong = f.wrong || !ok; info.Head.Runs && t.note == info.Head.Note {
				continue
			}
			kind, w.Owner, w.Note, w.Ordered, w.Held = t.state, t.owner, t.note, true, t.state == "h"
		}
		w.Parked, w.Called = kind == "p" || kind == "c", kind == "c"
		line = append(line, w)
	}
	if f.wrong {
		return nil, wrongReply("line", r.Key, reply)
	}
	return line[:min(len(line), most)], nil
}

// List yields every lock under the prefix that is in use, in no order, but no pools. It walks the keys with SCAN, on
// every master of a Cluster, so it does not block Redis. It may miss locks that come and go meanwhile. After an error
// it ends.
func (e *Engine) List(ctx context.Context) iter.Seq2[Info, error] {
	return func(yield func(Info, error) bool) {
		err := e.walk(ctx, inspectScript, func(*Ref) []any { return []any{int64(MaxHolders)} }, func(c *redisx.Call) error {
			info, err := parseInspect(c.Keys[0], c.Reply)
			switch {
			case errors.Is(err, errForeign):
			case err != nil:
				return err
			case info.InUse() && !yield(info, nil):
				return errStop
			}
			return nil
		})
		if err != nil && !errors.Is(err, errStop) {
			yield(Info{}, err)
		}
	}
}

var errStop = errors.New("enough")

// Sweep removes from every lock under the prefix holders past their deadlines, and waiters that do not ask any more.
// It returns how many, also with an error. Nothing depends on it.
func (e *Engine) Sweep(ctx context.Context) (removed int, err error) {
	if err := e.Know(ctx, e.o.Prefix+":{}"); err != nil {
		return 0, err
	}
	args := func(r *Ref) []any { return []any{e.limit(r), "0"} }
	err = e.walk(ctx, sweepScript, args, func(c *redisx.Call) (err error) {
		for calls, left := 0, int64(0); ; calls++ {
			f := fieldsOf(c.Reply)
			n, from, more := f.num(0), f.text(1), f.num(2)
			if f.wrong {
				return wrongReply("sweep", c.Keys[0], c.Reply)
			}
			if calls == 0 {
				left = more // the rest is for the next sweep, so this ends
			}
			if removed += int(n); calls == int(left) {
				return nil
			}
			if c.Reply, err = e.call(ctx, sweepScript, c.Keys, c.Args[0], from); err != nil {
				return err
			}
		}
	})
	return removed, err
}

// walk runs a script once on every lock under the prefix, leaves out what is no lock, and calls visit with each call.
// An error ends it.
func (e *Engine) walk(
	ctx context.Context, s *redisx.Script, args func(*Ref) []any, visit func(*redisx.Call) error,
) error {
	nodes, err := e.nodes(ctx)
	if err != nil {
		return err
	}
	pattern := strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`).Replace(e.o.Prefix) + ":{*"
	// SCAN may return a key twice, and a lock may have two
	seed, seen := maphash.MakeSeed(), map[uint64]bool{}
	for _, node := range nodes {
		for cursor, more := uint64(0), true; more; more = cursor != 0 {
			scanned, err := e.do(ctx, "scan", e.o.Prefix, func() (any, error) {
				return e.conn.Within(ctx, func(bound context.Context) (any, error) {
					cmd := node.Scan(bound, cursor, pattern, scanCount)
					return cmd, cmd.Err()
				})
			})
			if err != nil {
				return err
			}
			var names []string
			names, cursor = scanned.(*redis.ScanCmd).Val() //nolint:forcetypeassert // made above
			var calls []*redisx.Call
			for _, name := range names {
				if key, ok := e.lockOf(name); ok && !seen[maphash.String(seed, key)] {
					seen[maphash.String(seed, key)] = true
					r := Ref{Key: key, Limit: 1, Ordered: true}
					calls = append(calls, &redisx.Call{Script: s, Keys: r.keys(), Args: args(&r)})
				}
			}
			for some := range slices.Chunk(calls, walkTogether) {
				if _, err := e.do(ctx, s.Name, e.o.Prefix, func() (any, error) {
					e.conn.Pipeline(ctx, some)
					return nil, nil //nolint:nilnil // each call carries its own result
				}); err != nil {
					return err
				}
				for _, c := range some {
					if isForeign(c.Err) {
						continue
					}
					if c.Err != nil {
						return redisx.Failed(s.Name, c.Keys[0], c.Err)
					}
					if err := visit(c); err != nil {
						return err
					}
				}
			}
		}
	}
	return nil
}

// isForeign reports whether a script has found what no lock has: see head.lua.
func isForeign(err error) bool {
	const other = "the word of this lock is none of a lock"
	return redisx.IsWrongType(err) || err != nil && strings.Contains(err.Error(), other)
}

// lockOf returns the key of the lock that a key under the prefix is of: the word, or, if lost, the record beside it.
func (e *Engine) lockOf(name string) (key string, ok bool) {
	key = strings.TrimSuffix(name, ":info")
	text, ours := strings.CutPrefix(strings.TrimSuffix(key, LeaderKey), e.o.Prefix+":{")
	text, after, closed := strings.Cut(text, "}")
	return key, ours && closed && text != "" && after == "" && text != keys.Controls
}

// scanner is a client of one server. Another may hide a Cluster, of which SCAN would walk one node.
type scanner interface {
	Scan(ctx context.Context, cursor uint64, match string, count int64) *redis.ScanCmd
	Options() *redis.Options
}

func (e *Engine) nodes(ctx context.Context) (nodes []scanner, err error) {
	if one, ok := e.o.Client.(scanner); ok {
		return []scanner{one}, nil
	}
	if !e.conn.IsCluster() {
		return nil, fmt.Errorf("lock: a %T cannot walk its keys: use a *redis.Client or *redis.ClusterClient", e.o.Client)
	}
	masters, err := e.do(ctx, "scan", e.o.Prefix, func() (any, error) {
		return e.conn.Within(ctx, func(bound context.Context) (any, error) { return redisx.Masters(bound, e.o.Client) })
	})
	if err == nil {
		for _, master := range masters.([]*redis.Client) { //nolint:forcetypeassert // made above
			nodes = append(nodes, master)
		}
	}
	return nodes, err
}

// BreakKind is what Break removes.
type BreakKind uint8

// What Break removes.
const (
	BreakHolders BreakKind = iota // the holders with the tokens
	BreakAll                      // all holders, and it opens a gate that is closed, or cools down
	BreakKey                      // all there is of the lock
	BreakGate                     // it opens that gate, and nothing else
)

const breakTogether = 100

// Break takes slots away from those who hold them when it begins, and grants what is free then. It returns how many it
// took, and one more if it opened the gate; with BreakKey, of a pool, how many values there were. Leases of this
// process among them are lost before it returns; other processes get messages. After an error it has taken those that
// it returns, and perhaps 100 more.
func (e *Engine) Break(ctx context.Context, r Ref, how BreakKind, tokens ...string) (taken int, err error) {
	if err := e.Know(ctx, r.Key); err != nil {
		return 0, err
	}
	r.Ordered = !r.Pool
	if how == BreakGate {
		opened, _, resent, err := e.breakSome(ctx, &r, "open", nil)
		if resent {
			opened = 1
		}
		return opened, err
	}
	act := "list"
	if how == BreakKey {
		act = "key"
	}
	n, bodies, _, err := e.breakSome(ctx, &r, act, nil)
	if err != nil {
		return taken, err
	}
	if how == BreakHolders {
		bodies = slices.DeleteFunc(bodies, func(body string) bool {
			return !slices.Contains(tokens, holderOf(body).Token)
		})
	}
	// no more come to bodies, so this ends
	for some := range slices.Chunk(bodies, breakTogether) {
		broken, _, resent, err := e.breakSome(ctx, &r, "take", some)
		if err != nil {
			return taken, err
		}
		if resent {
			broken = len(some)
		}
		taken += broken
	}
	switch how {
	case BreakKey: // those were told, though they held it no more
		taken = n
	case BreakAll: // at last: who gets the lock then keeps it
		n, _, _, err = e.breakSome(ctx, &r, "open", nil)
		taken += n
	}
	return taken, err
}

// breakSome sends one script; leases of this process among the bodies are lost then.
func (e *Engine) breakSome(
	ctx context.Context, r *Ref, act string, some []string,
) (n int, bodies []string, resent bool, err error) {
	counted := &redisx.Counted{Text: act}
	args := append(make([]any, 0, 2+len(some)), e.limit(r), counted)
	for _, body := range some {
		args = append(args, body)
	}
	reply, err := e.call(ctx, breakScript, r.keys(), args...)
	if err != nil {
		return 0, nil, false, err
	}
	for _, body := range some {
		e.deliver(message{token: holderOf(body).Token, fence: brokenFence})
	}
	f := fieldsOf(reply)
	n = int(f.num(0))
	for i := 1; i < len(f.list); i++ {
		bodies = append(bodies, f.text(i))
	}
	if f.wrong {
		err = wrongReply("break", r.Key, reply)
	}
	return n, bodies, counted.Resent(), err
}

// Ref is the lock with that key, for the calls of operators, or why there is none. A key does not say how many may
// hold the lock, so it is for one: a break that frees several slots of a semaphore grants one, or as many as an
// operator's limit says. Waiters ask for the others within a second.
func (e *Engine) Ref(key string) (Ref, error) {
	_, err := ParseKey(e.o.Prefix, strings.TrimSuffix(key, LeaderKey))
	return Ref{Key: key, Limit: 1}, err
}

// ParseKey returns the text between the braces of key, or why key is no lock's under prefix.
func ParseKey(prefix, key string) (string, error) {
	text, ours := strings.CutPrefix(key, prefix+":{")
	text, closed := strings.CutSuffix(text, "}")
	if !ours || !closed || text == keys.Controls || !keys.IsKeyText(text) {
		return "", fmt.Errorf("lock: %s is no key of a mutex or semaphore under the prefix %q; List tells the keys there are",
			printable.Short(strconv.Quote(key)), prefix)
	}
	return text, nil
}
