package lock

import "time"

// Margin sets how long before a lease can be taken over it counts as lost here.
// A lease that cannot be renewed ends that much before its deadline in Redis: the
// context of [Lease.Bind] and [Lock.Do] is cancelled with ErrLost then, and the
// work has that time to stop. From 0 to a third of the TTL. The default is a tenth
// of the TTL and at least 100 ms, but at most a fifth of the TTL.
//
// Renewal is first tried after a third of the TTL, so a lease that is renewed in
// time never notices its margin. A lease that lasts less than the TTL, as one that
// was granted to a waiter does for its first 100 ms, has the same share of its own
// length as its margin.
func Margin(d time.Duration) Option { return func(m *Lock) { m.margin = d } }

// unset is a Lock.margin that no option has set.
const unset = time.Duration(-1 << 63)

// leastMargin is the least default where the TTL allows it.
const leastMargin = 100 * time.Millisecond

// marginOf is the margin of a lease for length.
func (m *Lock) marginOf(length time.Duration) time.Duration {
	margin := m.margin
	if margin == unset {
		margin = max(m.ttl/10, min(leastMargin, m.ttl/5))
	}
	if length >= m.ttl {
		return margin
	}
	return time.Duration(float64(margin) * float64(length) / float64(m.ttl))
}
