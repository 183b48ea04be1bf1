package lock

import (
	"slices"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/internal/wire"
)

// The header of ask says that an argument equal to its default may be omitted. An ask that
// gives all of them has the effect of one that omits them: a rate of 0 is none, and stores no
// gate.
func TestAsk_defaultsGivenOrOmitted(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		l := newLocker(t, s.Client(t))
		for name, defaults := range map[string][]any{"omitted": nil, "given": {0, 1, 0, 0, 0}} {
			m := l.Mutex(redistest.Name(t))
			ask := func(le *Lease) any {
				t.Helper()
				reply, err := l.conn.Run(t.Context(), wire.AskScript, m.keys, append([]any{le.body, m.keepArg}, defaults...))
				if err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				audit(t, m)
				return reply
			}
			members := func() []redis.Z { return raw(m).ZRangeWithScores(t.Context(), m.Key(), 0, -1).Val() }
			if reply, yours := ask(m.newLease()).(int64); !yours || reply <= 0 {
				t.Errorf("%s: an ask of a free lock is answered %v, want a fence", name, reply)
			}
			if n := raw(m).ZCard(t.Context(), m.Key()).Val(); n != 2 {
				t.Errorf("%s: want the holder and the fence; %s", name, dump(m))
			}
			before := members()
			if reply, busy := ask(m.newLease()).([]any); !busy || len(reply) != 4 {
				t.Errorf("%s: an ask of a held lock is answered %v, want the four values of busy", name, reply)
			}
			if after := members(); !slices.Equal(after, before) {
				t.Errorf("%s: an ask in vain has changed the lock from %v to %v", name, before, after)
			}
		}
	})
}
