package lock

import "time"

// leastMargin is the least margin where the TTL allows it.
const leastMargin = 100 * time.Millisecond

// marginOf returns how long before a lease for length can be taken over it counts as lost
// here: a tenth of the TTL and at least 100 ms, but at most a fifth of the TTL. A lease that
// cannot be renewed ends that much before its deadline in Redis: the context of [Lease.Bind]
// and [Lock.Do] is cancelled with ErrLost then, and the work has that time to stop.
//
// Renewal is first tried after a third of the TTL, so a lease that is renewed in time never
// notices its margin. A lease that lasts less than the TTL, as one that was granted to a
// waiter does for its first 100 ms, has the same share of its own length as its margin.
func (m *Lock) marginOf(length time.Duration) time.Duration {
	margin := max(m.ttl/10, min(leastMargin, m.ttl/5))
	if length >= m.ttl {
		return margin
	}
	return time.Duration(float64(margin) * float64(length) / float64(m.ttl))
}
