package lock

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/exchange"
	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/turn"
	"github.com/automutex/automutex/internal/wire"
)

// words are the texts of a user that reach Redis.
type words struct {
	owner, note, name, part, value string
	secret                         string // of hashed keys; empty: none
}

// walk does everything that can be done with a lock, its arrivals, a claim beside
// it and a pool, for these words: what went in comes out the same, no script
// fails, what lies beside it is as it was, and in the end nothing is left. The
// Redis is the caller's own, and empty. keys are those that it may touch.
func (w words) walk(t testing.TB, rdb redis.UniversalClient) (keys []string) {
	t.Helper()
	if w.secret != "" {
		w.secret = hashText(w.secret) // any text, as a secret that is one
	}
	l := newLocker(t, rdb, owner(w.owner), func(o *Options) { o.HashKeys = w.secret }, ownServer)
	defer func() { _ = l.Close() }()
	w.owner = wire.Unescape(l.owner) // host:pid where none was given
	at := func(n int, note string, options ...Option) *Lock {
		return l.Semaphore(w.name, n, append([]Option{Parts(w.part), Note(note), TTL(time.Minute)}, options...)...)
	}
	m := at(2, w.note)
	if w.name == "" {
		if err := m.err; err == nil {
			t.Error("a lock without a name")
		}
		return nil
	}
	check := func(what string, ok bool, got ...any) {
		t.Helper()
		if !ok {
			t.Fatalf("%+q: %s: %.600s", w, what, fmt.Sprintf("%+v", got))
		}
	}

	// The neighbours: names that a careless hand would take for this one.
	var beside []*Lock
	var leases []*Lease
	for _, one := range []*Lock{
		l.Mutex(w.name+"|"+w.part, Note(w.note), TTL(time.Hour)),
		l.Mutex(w.name, Note(w.note), TTL(time.Hour)),
		l.Mutex(w.name, Parts(w.part, ""), Note(w.note), TTL(time.Hour)),
		l.Mutex(w.name, Parts(w.part+"}:pool"), Note(w.note), TTL(time.Hour)),
	} {
		check("a name shared with "+one.Key(), one.Key() != m.Key())
		le, err := one.TryLock(t.Context())
		check("TryLock of a neighbour", err == nil, err)
		beside, leases = append(beside, one), append(leases, le)
		keys = append(keys, one.Key())
	}
	before := besides(t, beside)

	keys = append(keys, w.walkString(t, l.Mutex(w.name, Parts(w.part, "string"), Note(w.note), TTL(time.Minute)), check))
	w.walkLock(t, m, at, check)
	w.walkControls(t, m, check)
	if w.note != "" {
		w.walkArrivals(t, at, check)
		w.walkClaim(t, l, m.Key(), check)
		keys = append(keys, w.walkOrder(t, l, check))
	}
	pool := l.Pool(w.name, Parts(w.part), Note(w.note), TTL(time.Minute))
	if w.value != "" {
		w.walkPool(t, pool, check)
	}
	claim := l.claim(m.Key())
	keys = append(keys, m.Key(), m.arrivals(), claim.Key(), claim.Key()+":lock", pool.m.Key(), l.controls.Keys[0])

	if after := besides(t, beside); !maps.Equal(before, after) {
		t.Fatalf("%+q: the neighbours were %v, and are %v", w, before, after)
	}
	for _, le := range leases {
		check("Unlock of a neighbour", le.Unlock(t.Context()) == nil)
	}
	check("Close", l.Close() == nil)
	left, _, err := rdb.Scan(t.Context(), 0, "*", 1000).Result()
	if err != nil || len(left) > 0 {
		t.Fatalf("%+q: %d keys are left: %.600q, %v", w, len(left), left, err)
	}
	return keys
}

type checker func(what string, ok bool, got ...any)

func (w words) walkControls(t testing.TB, m *Lock, check checker) {
	ctx, controls := t.Context(), m.locker.Controls()
	why := w.note[:min(len(w.note), 1000)] // a longer one is refused
	check("Pause", controls.Pause(ctx, m.Key(), time.Time{}, why) == nil)
	_, err := m.TryLock(ctx)
	busy, ok := asBusy(err)
	check("TryLock while paused", ok && busy.Pause != nil && busy.Pause.By == strings.ToValidUTF8(w.owner, "\uFFFD"), err)
	check("Resume", controls.Resume(ctx, m.Key()) == nil)
}

// walkString does everything that can be done with a mutex that is a string, and widens it.
func (w words) walkString(t testing.TB, m *Lock, check checker) (key string) {
	ctx := t.Context()
	le, err := m.TryLock(ctx)
	check("TryLock", err == nil, err)
	held := func(isString bool) {
		t.Helper()
		h, err := m.Holders(ctx)
		check("Holders", err == nil && len(h) == 1 && h[0].Owner == w.owner && h[0].Note == w.note && h[0].Token == le.Token(), h, err)
		body, _, ok := storedString(t, m)
		check("the form", ok == isString && (!ok || body == le.body), body)
	}
	held(true)
	fence, err := le.Fence()
	check("Fence", fence == 0 && err != nil, fence, err)
	check("Extend", le.Extend(ctx, 55*time.Second) == nil)
	a, err := m.ask(ctx, m.newLease(), turn.Try)
	check("an ask in vain", err == nil && !a.Yours && a.Holder == "h:"+le.body && a.Deadline > 50*time.Second, a, err)
	held(true)
	waiter := m.newLease()
	a, err = m.ask(ctx, waiter, turn.Join)
	check("join", err == nil && !a.Yours && a.Holder == "h:"+le.body && a.Deadline > 50*time.Second, a, err)
	held(false)
	_, _, err = waiter.release(ctx)
	check("leave", err == nil, err)
	check("Unlock", le.Unlock(ctx) == nil)
	return m.Key()
}

func (w words) walkLock(t testing.TB, m *Lock, at func(int, string, ...Option) *Lock, check checker) {
	ctx := t.Context()
	le, err := m.TryLock(ctx)
	check("TryLock", err == nil, err)
	check("the token", !strings.ContainsAny(le.Token(), "|{} \n%"), le.Token())
	held := func(m *Lock, want *Lease) {
		t.Helper()
		h, err := m.Holders(ctx)
		check("Holders", err == nil && len(h) == 1 && h[0].Owner == w.owner && h[0].Note == m.note &&
			h[0].Token == want.Token(), h, err)
	}
	held(m, le)
	one := at(1, w.note)
	_, err = one.TryLock(ctx)
	busy, ok := asBusy(err)
	check("busy", ok && busy.Holder == w.owner && busy.Note == w.note && busy.Name == w.name, err)

	// One in line, one parked, as far as a note may.
	waiter := one.newLease()
	a, err := one.ask(ctx, waiter, turn.Join)
	check("join", err == nil && !a.Yours, a, err)
	parked := at(1, w.note+"'")
	a, err = parked.ask(ctx, parked.newLease(), turn.Park)
	check("park", err == nil && a.Parked, a, err)
	line, err := one.listLine(ctx, inside.Info{}, 10)
	check("Line", err == nil && len(line) == 2 && line[0].Owner == w.owner && line[0].Note == w.note && line[1].Note == parked.note && line[1].Parked, line, err)
	info, err := parked.inspectAll(ctx)
	check("Inspect", err == nil && info.Held == 1 && info.Waiting == 1 && info.Parked == 1 && info.Place == 1, info, err)
	check("Extend", le.Extend(ctx, 2*time.Minute) == nil)
	confirmed := []*exchange.Call{{Keys: le.lock.keys, Args: []any{&le.member, 1000, 1}}}
	le.lock.locker.conn.Confirm(ctx, wire.RenewScript, wire.RenewRenewed, confirmed, 0, time.Second) // miniredis has no WAIT
	check("confirm", confirmed[0].Err == nil && confirmed[0].Reply == int64(wire.RenewRenewed) || strings.Contains(fmt.Sprint(confirmed[0].Err), "unknown command"), confirmed[0])
	if w.value != "" {
		broken, err := one.Break(ctx, w.value)
		check("Break of a token that is none", err == nil && !broken, broken, err)
	}
	var listed []string
	for info, err := range m.locker.list(ctx) {
		check("List", err == nil, err)
		listed = append(listed, info.Key)
	}
	check("List", slices.Contains(listed, m.Key()), listed)
	by, err := m.locker.byKey(m.Key()).Holders(ctx)
	check("ByKey", err == nil && len(by) == 1 && by[0].Note == w.note, by, err)

	// From holder to waiter to what is parked, and to a cooldown.
	check("Unlock", le.Unlock(ctx) == nil)
	held(one, waiter)
	_, was, err := waiter.release(ctx)
	check("release of the waiter", was && err == nil, err)
	reply, err := m.locker.conn.Run(ctx, wire.CallScript, m.keys, []any{1, 1, 1000, "", 0})
	calls, _ := reply.([]any)
	check("call", err == nil && len(calls) == 4 && calls[3] == parked.note, reply, err)
	line, err = parked.listLine(ctx, inside.Info{}, 10)
	check("called", err == nil && len(line) == 1 && line[0].Called && line[0].Note == parked.note, line, err)
	le, err = parked.TryLock(ctx)
	check("TryLock of what was called", err == nil, err)
	held(parked, le)
	check("Cooldown", le.Cooldown(ctx, time.Minute) == nil)
	info, err = parked.inspectAll(ctx)
	check("the gate", err == nil && info.Gate.Reason == ReasonCooldown && info.Held == 0, info, err)
	_, err = m.BreakAll(ctx)
	check("BreakAll of a cooldown", err == nil, err)
	le, err = parked.TryLock(ctx)
	check("TryLock after a cooldown", err == nil, err)
	check("Hold", le.closeGate(ctx, time.Minute) == nil)
	check("Unlock in a hold", le.Unlock(ctx) == nil)
	n, err := m.BreakAll(ctx)
	check("BreakAll", err == nil && n == 1, n, err)
	is, err := m.existsNow(ctx)
	check("Exists", err == nil && !is, err)
}

func (w words) walkArrivals(t testing.TB, at func(int, string, ...Option) *Lock, check checker) {
	ctx := t.Context()
	first, other := at(1, w.note), at(1, w.note+"'")
	a, is, err := first.arrive(ctx)
	check("Arrive", err == nil && is && a > 0, a, is, err)
	b, is, err := other.arrive(ctx)
	check("Arrive of another", err == nil && is && b > a, a, b, is, err)
	again, is, err := first.arrive(ctx)
	check("Arrive again", err == nil && !is && again == a, a, again, is, err)
	standing, err := at(1, w.note, onStop(a, func() {})).askOlderToStop(ctx)
	check("Stop", err == nil && standing == inside.First, standing, err)
	check("Forget", first.forget(ctx) == nil && other.forget(ctx) == nil)
}

func (w words) walkClaim(t testing.TB, l *Locker, key string, check checker) {
	c := l.claim(key)
	ctx, next := t.Context(), w.note+"'"
	standing, err := c.Take(ctx, w.note, "", time.Minute)
	check("Take free", err == nil && standing.Holder == w.note, standing, err)
	standing, err = c.Take(ctx, next, w.value, time.Minute)
	check("Take", err == nil && (standing.Holder == w.note || w.value == w.note && standing.Holder == next), standing, err)
	if standing.Holder == next {
		_, err = c.Take(ctx, w.note, next, time.Minute)
		check("Take back", err == nil, err)
	}
	kept, err := c.Keep(ctx, w.note, 0)
	check("Keep", err == nil && kept, kept, err)
	kept, err = c.PassOn(ctx, w.note, next, false)
	check("PassOn", err == nil && kept, kept, err)
	may, err := c.Start(ctx, next, inside.PhaseBegun, false, time.Minute)
	check("Start", err == nil && may, may, err)
	dropped, err := c.Drop(ctx, w.note)
	check("Drop by who has it no more", err == nil && !dropped, dropped, err)
	dropped, err = c.Drop(ctx, next)
	check("Drop", err == nil && dropped, dropped, err)
	le, err := insider{}.ClaimLock(l, key, Note(w.note)).TryLock(ctx)
	check("the claim's lock", err == nil, err)
	check("its Unlock", le.Unlock(ctx) == nil)
}

func (w words) walkPool(t testing.TB, p *Pool, check checker) {
	ctx, more := t.Context(), w.value+"|"
	n, err := p.Put(ctx, w.value, more, w.value)
	check("Put", err == nil && n == 2, n, err)
	first, err := p.m.TryLock(ctx)
	check("TryTake", err == nil && first.Value() == w.value, err)
	second, err := p.m.TryLock(ctx)
	check("TryTake of the second", err == nil && second.Value() == more, err)
	_, err = p.m.TryLock(ctx)
	busy, ok := asBusy(err)
	check("an empty pool", ok && busy.Holder == w.owner && busy.Note == w.note, err)
	info, err := p.Inspect(ctx)
	check("Inspect of the pool", err == nil && len(info.Holders) == 2, info, err)
	for _, h := range info.Holders {
		check("a taker", h.Note == w.note && h.Owner == w.owner && (h.Value == w.value || h.Value == more), h)
	}
	check("Extend", first.Extend(ctx, 2*time.Minute) == nil)
	check("Unlock", first.Unlock(ctx) == nil)
	check("Consume", second.Consume(ctx) == nil)
	info, err = p.Inspect(ctx)
	check("what is left of the pool", err == nil && slices.Equal(info.Values, []string{w.value}), info, err)
	n, err = p.Delete(ctx)
	check("Delete", err == nil && n == 1, n, err)
}

// besides is what is stored for some locks.
func besides(t testing.TB, locks []*Lock) map[string]float64 {
	all := map[string]float64{}
	for _, m := range locks {
		if body, _, ok := storedString(t, m); ok {
			all[m.Key()+" "+body] = 0 // its deadline is a PTTL ago, and so read a millisecond more or less
			continue
		}
		for member, score := range stored(t, m) {
			all[m.Key()+" "+member] = score
		}
	}
	return all
}

// witness is a hook that holds every command against what the library may send:
// an embedded script and one key, or one of few plain commands.
type witness struct {
	mu     sync.Mutex          // guards the fields below
	keys   map[string]bool     // that scripts were given
	loaded map[string]struct{} // names of the scripts that ran
	wrong  []string
}

func newWitness(rdb redis.UniversalClient) *witness {
	w := &witness{}
	w.reset()
	rdb.AddHook(w)
	return w
}

func (w *witness) reset() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.keys, w.loaded, w.wrong = map[string]bool{}, map[string]struct{}{}, nil
}

func (w *witness) DialHook(next redis.DialHook) redis.DialHook { return next }

func (w *witness) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		w.see(cmd)
		return next(ctx, cmd)
	}
}

func (w *witness) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			w.see(cmd)
		}
		return next(ctx, cmds)
	}
}

func (w *witness) see(cmd redis.Cmder) {
	w.mu.Lock()
	defer w.mu.Unlock()
	args := cmd.Args()
	switch cmd.Name() {
	case "evalsha", "eval":
		if args[1] == stringLua {
			return // the test's own
		}
		at := slices.IndexFunc(wire.Scripts, func(s *exchange.Script) bool {
			return cmd.Name() == "evalsha" && args[1] == s.SHA || cmd.Name() == "eval" && args[1] == s.Source
		})
		key, ok := args[3].(string)
		if at < 0 || fmt.Sprint(args[2]) != "1" || !ok {
			w.wrong = append(w.wrong, fmt.Sprintf("%.300q", args))
			return
		}
		w.loaded[wire.Scripts[at].Name] = struct{}{}
		w.keys[key] = true
	case "set", "delex", "delifeq", "zrange":
		w.keys[args[1].(string)] = true
	case "scan", "hello", "client", "dbsize", "wait":
	default:
		w.wrong = append(w.wrong, fmt.Sprintf("%.300q", args))
	}
}

// verdict holds what was seen against the keys that there may be.
func (w *witness) verdict(keys []string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.wrong) > 0 {
		return fmt.Errorf("sent what is no script of ours on one key: %s", w.wrong)
	}
	for key := range w.keys {
		if !slices.Contains(keys, key) {
			return fmt.Errorf("the key %q is none of %q", key, keys)
		}
	}
	return nil
}
