package simulate

import (
	"slices"
	"strings"
	"time"

	"github.com/alicebob/miniredis/v2"
)

// What follows is about a split brain: a replica becomes the master of the locks, without the last writes, while one
// process goes on to use the old one. Then that process finds the new master, and what it wrote is lost.
// Only the locks' Redis is split, not asynq's, and the connections of the other processes hold.

// splits draws one.
func (d *drawer) splits(length time.Duration) {
	s := d.aside("split brain")
	if s.p.isOrdered() || !s.chance(0.15) {
		return // what tasks in order do when keys are lost is judged elsewhere
	}
	f := faultPlan{Kind: split, Proc: s.IntN(len(s.p.Procs)), Client: "lock", At: s.span(0, int(length/time.Millisecond)), For: s.span(500, 40_000)}
	if s.p.MinReplicas == 0 { // otherwise the new master has all that counts
		f.Lag = s.span(0, 2000)
	}
	s.p.Faults = append(s.p.Faults, f)
}

func (p *plan) isSplit() bool {
	return slices.ContainsFunc(p.Faults, func(f faultPlan) bool { return f.Kind == split })
}

// split has a split brain begin and end.
func (w *world) split(f faultPlan) {
	s, e := w.redis, w.process(f.Proc).locks
	s.tick()
	replica, old := s.newMaster(), s.newMaster()
	copyLocks(replica, s.mini)
	time.Sleep(f.Lag)
	w.mu.Lock()
	w.splitUntil = time.Now().Add(f.For)
	w.mu.Unlock()
	s.commands.Lock()
	s.advance()
	replica.FastForward(f.Lag)
	old.SetTime(s.clock)
	copyLocks(old, s.mini)
	copyLocks(s.mini, replica)
	replica.Close()
	s.old = old
	e.start(f)
	s.commands.Unlock()
	time.Sleep(f.For)
	e.breakAll()
	s.commands.Lock()
	s.old = nil
	s.commands.Unlock()
	time.Sleep(ms) // its subscriptions end meanwhile
	old.Close()
}

// mayHaveTwo tells whether a key with that TTL may have two holders: a split brain lasts, or a holder has not renewed since.
// With MinReplicas none has.
func (w *world) mayHaveTwo(ttl time.Duration) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.plan.MinReplicas == 0 && time.Now().Before(w.splitUntil.Add(ttl+time.Second))
}

// masterOf is the master that executes a command of the endpoint. Callers hold commands.
func (s *redisServer) masterOf(e *endpoint, command []string) *miniredis.Miniredis {
	if s.old != nil && e.suffers(split) && slices.ContainsFunc(command, isLockKey) {
		return s.old
	}
	return s.mini
}

// isLockKey tells whether a word is a key or a channel of the library's.
func isLockKey(word string) bool { return strings.HasPrefix(word, "automutex:") }

// copyLocks has a master have the keys of locks that another one has, and no others.
func copyLocks(to, from *miniredis.Miniredis) {
	for _, key := range to.Keys() {
		if isLockKey(key) {
			to.Del(key)
		}
	}
	for _, key := range from.Keys() {
		if !isLockKey(key) {
			continue
		}
		switch kind := from.Type(key); kind {
		case "string":
			text, _ := from.Get(key) // it is there, and of that type, as below
			_ = to.Set(key, text)    // the key is new, as below
		case "zset":
			scores, _ := from.SortedSet(key)
			for member, score := range scores {
				_, _ = to.ZAdd(key, score, member)
			}
		case "hash":
			names, _ := from.HKeys(key)
			for _, name := range names {
				to.HSet(key, name, from.HGet(key, name))
			}
		case "stream":
			entries, _ := from.Stream(key)
			for _, entry := range entries {
				_, _ = to.XAdd(key, entry.ID, entry.Values)
			}
		default:
			panic("simulate: " + key + " is a " + kind)
		}
		if ttl := from.TTL(key); ttl > 0 {
			to.SetTTL(key, ttl)
		}
	}
}

// store is what keeps the highest fence of a key, and refuses a write with a lower one.
type store struct {
	fence   int64
	writers []*run // whose writes it took
}

// judgeFenceOf looks whether the fence of a run is above that of each who took the lock before, of whatever master: all masters
// have one clock here. Callers hold mu.
func (b *ledger) judgeFenceOf(r *run, key string) {
	if !b.w.plan.isSplit() || b.limitOf(key) > 1 {
		return // with one master judgeFences is stricter
	}
	for _, o := range b.runs {
		if o.fences[key] >= r.fences[key] && r.taken[key].After(o.taken[key].Add(b.toldWithin(r, key))) {
			b.violatef("fence: task %d has %d on %q, and task %d, which took it before, has %d", r.n, r.fences[key], key, o.n, o.fences[key])
		}
	}
}

// writes has the handler of a run write to the store of each of its keys, and judges whether a write is taken after that of
// somebody who took the lock later. Callers hold mu.
func (b *ledger) writes(r *run) {
	for key, fence := range r.fences {
		k := b.key(key)
		if fence < k.store.fence || b.limitOf(key) > 1 {
			continue
		}
		for _, o := range k.store.writers {
			if o.taken[key].After(r.taken[key].Add(b.toldWithin(o, key))) {
				b.violatef("stale write: task %d writes with %d for %q after task %d, which took it later, with %d", r.n, fence, key, o.n, o.fences[key])
			}
		}
		k.store.fence = fence
		k.store.writers = append(k.store.writers, r)
	}
}

// toldWithin is how long after Redis gave a run a lock the run was told. Callers hold mu.
func (b *ledger) toldWithin(r *run, key string) time.Duration {
	repeated := b.w.plan.ruleOfKey(key).TTL + 8*time.Second // an exchange, or a message got lost
	disturbed := slices.ContainsFunc(b.w.windows(r.p), func(a activeFault) bool {
		return a.kind != split && a.since.Before(r.taken[key]) && a.until.After(r.taken[key].Add(-repeated))
	})
	if disturbed || b.w.plan.Losing > 0 {
		return repeated
	}
	return b.w.plan.grantSlack() + 8*b.w.plan.Latency
}
