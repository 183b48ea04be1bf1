package lock

import (
	"errors"
	"fmt"
	"regexp"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/internal/turn"
	"github.com/automutex/automutex/internal/wire"
)

// Rule 13: O(log n) per call, whatever the length of the line.
func TestRule13_LongLinesCostNoMore(t *testing.T) {
	t.Parallel()
	s := redistest.StartReal(t)
	m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t), TTL(time.Hour))
	warm(t, m)
	// A grant of an hour: one of 3 s could lapse while the line is filled.
	lasting := func() *Lease {
		le := m.newLease()
		body, size := wire.Token{Channel: m.locker.channel, Grant: time.Hour, TTL: time.Hour, Nonce: m.locker.nextNonce(time.Now())}.Body(m.locker.owner, "")
		le.sent, le.body = m.locker.conn.NewBody(body), string(body)
		le.token = le.body[:size]
		return le
	}
	holder := lasting()
	mustAsk(t, m, holder, 0)
	cost := func() (ask, release float64) {
		t.Helper()
		measure := func(run func(le *Lease)) float64 {
			best := 0.0
			for range 5 {
				redistest.Must(t, raw(m).ConfigResetStat(t.Context()).Err())
				for range 20 {
					run(lasting())
				}
				stats, err := raw(m).Info(t.Context(), "commandstats").Result()
				redistest.Must(t, err)
				f := regexp.MustCompile(`cmdstat_evalsha:.*usec_per_call=([\d.]+)`).FindStringSubmatch(stats)
				var us float64
				if len(f) == 2 {
					_, _ = fmt.Sscan(f[1], &us)
				}
				if best == 0 || us < best {
					best = us
				}
			}
			return best
		}
		// Ask and leave, then ask and hand over, each before all that are in line.
		ask = measure(func(le *Lease) {
			mustAskQuietly(t, m, le)
			_, _, _ = le.release(t.Context())
		})
		release = measure(func(le *Lease) {
			mustAskQuietly(t, m, le)
			if _, held, err := holder.release(t.Context()); !held || err != nil {
				t.Fatal(held, err)
			}
			holder = le
		})
		return ask, release
	}
	ask1, release1 := cost()
	fillLine(t, m, 100_000)
	ask2, release2 := cost()
	t.Logf("us per call: ask and leave %.0f, with 100,000 in line %.0f; ask and hand over %.0f, %.0f", ask1, ask2, release1, release2)
	// log2 of 100,000 is 17; linear would be thousands of times as much.
	if ask2 > 20*ask1+100 || release2 > 20*release1+100 {
		t.Errorf("ask and leave went from %.0f to %.0f us a call, ask and hand over from %.0f to %.0f", ask1, ask2, release1, release2)
	}
}

func mustAskQuietly(t *testing.T, m *Lock, le *Lease) {
	t.Helper()
	if _, err := m.ask(t.Context(), le, turn.Join); err != nil {
		t.Fatal(err)
	}
}

// fillLine puts n live entries at the end of the line, in one go.
func fillLine(t *testing.T, m *Lock, n int) {
	t.Helper()
	const atOnce = 5000 // Redis calls itself busy when one script takes 5 s
	for from := 1; from <= n; from += atOnce {
		err := raw(m).Eval(t.Context(), `
local time = redis.call('TIME')
for i = ARGV[1], ARGV[2] do
  local id = 'x.3000.' .. i .. '|o|'
  redis.call('ZADD', KEYS[1], 3.9e15 + i, 'e:' .. id, -(time[1] * 1000 + 3600000), 'd:' .. id)
end`, []string{m.Key()}, from, min(n, from+atOnce-1)).Err()
		if err != nil && !errors.Is(err, redis.Nil) {
			t.Fatal(err)
		}
	}
}
