package lock

import (
	"hash/maphash"
	"sync/atomic"
	"time"
)

// contendedFor is how long a key counts as contended after another caller was seen to want
// it beside its holder, give or take a contendedTick.
const (
	contendedFor  = time.Second
	contendedTick = 100 * time.Millisecond
)

// contendedKeys remembers which keys were contended lately. For such a key package lock
// sends the ask without a SET before it: the SET would fail, and a turn of a contended lock
// costs two commands instead of three. The table never grows. Two keys may share a slot, and
// of two goroutines that write a slot at once either wins. The only cost is a command in
// vain, or a lock that is stored as a sorted set without need.
type contendedKeys struct {
	seed  maphash.Seed
	began time.Time
	slots [1024]atomic.Uint32 // ticks since began, counted from 1; 0: never
}

func newContendedKeys() *contendedKeys {
	return &contendedKeys{seed: maphash.MakeSeed(), began: time.Now()}
}

func (k *contendedKeys) slot(key string) *atomic.Uint32 {
	return &k.slots[maphash.String(k.seed, key)%uint64(len(k.slots))]
}

func (k *contendedKeys) tick() uint32 {
	return uint32(time.Since(k.began)/contendedTick) + 1 //nolint:gosec // 13 years until it wraps, which costs one command
}

// note notes that key is contended now.
func (k *contendedKeys) note(key string) { k.slot(key).Store(k.tick()) }

// isContended reports whether key was noted within contendedFor.
func (k *contendedKeys) isContended(key string) bool {
	at := k.slot(key).Load()
	return at != 0 && k.tick()-at < uint32(contendedFor/contendedTick)
}
