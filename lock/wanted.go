package lock

import (
	"hash/maphash"
	"sync/atomic"
	"time"
)

// wantedFor is how long a key counts as wanted after somebody was seen to want it beside
// its holder, give or take a wantedTick.
const (
	wantedFor  = time.Second
	wantedTick = 100 * time.Millisecond
)

// wanted remembers which keys several wanted lately. Those are asked for at once: a SET
// would be in vain, and a turn of a contended lock costs two commands, not three. The
// table never grows. Two keys may share a slot, and a slot that two goroutines write at
// once holds either value: each costs a command, or a larger form, and nothing else.
type wanted struct {
	seed  maphash.Seed
	began time.Time
	slots [1024]atomic.Uint32 // ticks since began, counted from 1; 0: never
}

func newWanted() *wanted { return &wanted{seed: maphash.MakeSeed(), began: time.Now()} }

func (w *wanted) slot(key string) *atomic.Uint32 {
	return &w.slots[maphash.String(w.seed, key)%uint64(len(w.slots))]
}

func (w *wanted) tick() uint32 {
	return uint32(time.Since(w.began)/wantedTick) + 1 //nolint:gosec // 13 years until it wraps, which costs one command
}

// note notes that somebody wants key beside its holder.
func (w *wanted) note(key string) { w.slot(key).Store(w.tick()) }

// lately reports whether that was noted lately.
func (w *wanted) lately(key string) bool {
	at := w.slot(key).Load()
	return at != 0 && w.tick()-at < uint32(wantedFor/wantedTick)
}
