package lock

import (
	"fmt"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/redistest"
)

// BenchmarkRing is one round of the renewer in which no lease is due, among many.
func BenchmarkRing(b *testing.B) {
	for _, n := range []int{100, 10_000, 100_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			l := newLocker(b, redistest.Mini(b).Client(b))
			now := time.Now()
			for i := range n {
				le := l.Mutex("x", TTL(time.Hour+time.Duration(i)*time.Millisecond)).newLease()
				l.renewer.add(le, 1, "", now, le.lock.ttl, false)
			}
			b.ResetTimer()
			for b.Loop() {
				l.renewer.ring()
			}
		})
	}
}
