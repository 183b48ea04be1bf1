package lock

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/exchange"
	"github.com/automutex/automutex/internal/redistest"
)

// free waits until nobody holds or waits for the lock and nothing is stored.
func free(t testing.TB, m *Lock, within time.Duration) {
	t.Helper()
	redistest.Eventually(t, within, func() bool {
		n, err := raw(m).Exists(t.Context(), m.Key()).Result()
		return err == nil && n == 0
	}, "the lock free and its key gone; %s", stringer(func() string { return dump(m) }))
}

// raw is the client beneath a lock, for looking at what is stored.
func raw(m *Lock) redis.UniversalClient { return m.locker.rdb.(redis.UniversalClient) }

// stored gives the lock's members and their scores. A lock that is a string has the one
// member that its holder would be.
func stored(t testing.TB, m *Lock) map[string]float64 {
	t.Helper()
	if body, deadline, ok := storedString(t, m); ok {
		return map[string]float64{"h:" + body: float64(deadline.UnixMilli())}
	}
	z, err := raw(m).ZRangeWithScores(t.Context(), m.Key(), 0, -1).Result()
	if exchange.WrongType(err) {
		return stored(t, m) // it was taken as a string meanwhile
	}
	redistest.Must(t, err)
	scores := make(map[string]float64, len(z))
	for _, z := range z {
		scores[z.Member.(string)] = z.Score
	}
	return scores
}

// storedString is who holds the lock as a string, and until when; not ok: it is none.
func storedString(t testing.TB, m *Lock) (body string, deadline time.Time, ok bool) {
	t.Helper()
	reply, err := raw(m).Eval(t.Context(), stringLua, []string{m.Key()}).Slice()
	redistest.Must(t, err)
	body, ok = reply[0].(string)
	return body, time.UnixMilli(reply[1].(int64)), ok
}

// stringLua answers what a string lock holds, and until when (ms): {body, deadline}.
const stringLua = `
local time = redis.call('TIME')
return {redis.call('MGET', KEYS[1])[1], time[1] * 1000 + math.floor(time[2] / 1000) + redis.call('PTTL', KEYS[1])}`

// band counts the members of a kind ("h:", "e:", "d:", "g:").
func band(t testing.TB, m *Lock, kind string) (n int) {
	t.Helper()
	for member := range stored(t, m) {
		if strings.HasPrefix(member, kind) {
			n++
		}
	}
	return n
}

// holds tells whether Redis has the lease as a holder, and until when by its clock.
func holds(t testing.TB, le *Lease) (deadline time.Time, ok bool) {
	t.Helper()
	ms, ok := stored(t, le.lock)["h:"+le.body]
	return time.UnixMilli(int64(ms)), ok
}

// gateOf tells the strongest reason in the gate of m, and when that ends by Redis' clock. ok: there is one.
func gateOf(t testing.TB, m *Lock) (reason string, opens time.Time, ok bool) {
	t.Helper()
	for member, score := range stored(t, m) {
		if f := strings.Split(member, ":"); f[0] == "g" && (!ok || f[1] < reason) { // closed, cooldown, rate
			reason, opens, ok = f[1], time.UnixMicro(int64(math.Round(score*1e6))), true
		}
	}
	return reason, opens, ok
}

// serverNow is the server's clock.
func serverNow(t testing.TB, m *Lock) time.Time {
	t.Helper()
	v, err := raw(m).Eval(t.Context(), `local t = redis.call('TIME'); return t[1] * 1000000 + t[2]`, []string{m.Key()}).Int64()
	redistest.Must(t, err)
	return time.UnixMicro(v)
}

// auditLua answers how long the key lives and the longest any entry does, in
// one moment: {PTTL, ms of the longest holder, ms of the longest line entry, ms for which
// the gate has something to say}.
const auditLua = `
if redis.call('MGET', KEYS[1])[1] then return {redis.call('PTTL', KEYS[1]), 0, 0, 0} end
local time = redis.call('TIME')
local now = time[1] * 1000 + time[2] / 1000
local pttl = redis.call('PTTL', KEYS[1])
if type(redis.pcall('OBJECT', 'ENCODING', KEYS[1])) == 'table' then -- miniredis; see expiryError
  pttl = pttl + 1000
end
local holder = redis.call('ZREVRANGEBYSCORE', KEYS[1], 1e14, 1e11, 'WITHSCORES', 'LIMIT', 0, 1)
local entry = redis.call('ZRANGEBYSCORE', KEYS[1], '-1e14', '-1e11', 'WITHSCORES', 'LIMIT', 0, 1)
local gate = redis.call('ZRANGEBYSCORE', KEYS[1], '1e9', '(1e11', 'WITHSCORES')
local said = 0
for i = 1, #gate, 2 do
  said = math.max(said, gate[i + 1] * 1e3 + (string.match(gate[i], '^g:rate:%d+:%d+:(%d+):') or 0) / 1e3)
end
return {pttl, math.ceil((holder[2] or now) - now), math.ceil(-(entry[2] or -now) - now), math.ceil(said - now), #gate / 2}`

// audit holds rule 12 against what is stored for m at this moment.
func audit(t testing.TB, m *Lock) {
	t.Helper()
	if err := auditKey(context.Background(), raw(m), m.Key()); err != nil {
		t.Errorf("rule 12: %v; %s", err, dump(m))
	}
}

func auditKey(ctx context.Context, rdb redis.Scripter, key string) error {
	r, err := rdb.Eval(ctx, auditLua, []string{key}).Int64Slice()
	switch {
	case err != nil || len(r) != 5:
		return nil // the server is away: nothing can be said
	case r[0] == -2: // no such key
		return nil
	case r[0] == -1:
		return fmt.Errorf("%q has no TTL", key)
	case r[0] < r[1], r[0] < r[2]:
		return fmt.Errorf("%q lives for %d ms, but a holder for %d and a line entry for %d", key, r[0], r[1], r[2])
	case r[0] < r[3]:
		return fmt.Errorf("%q lives for %d ms, but its gate for %d", key, r[0], r[3])
	case r[4] > 3:
		return fmt.Errorf("%q has %d gates", key, r[4])
	}
	return nil
}

// dump is what is stored for m, for messages.
func dump(m *Lock) string {
	rdb, ok := m.locker.rdb.(redis.UniversalClient)
	if !ok {
		return "nothing to look at"
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if body, err := rdb.Get(ctx, m.Key()).Result(); err == nil {
		return fmt.Sprintf("stored, PTTL %s: %q", rdb.PTTL(ctx, m.Key()).Val(), body)
	}
	z, err := rdb.ZRangeWithScores(ctx, m.Key(), 0, 30).Result()
	if err != nil {
		return "stored: " + err.Error()
	}
	var b strings.Builder
	fmt.Fprintf(&b, "stored at %d (local), PTTL %s:", time.Now().UnixMilli(), rdb.PTTL(ctx, m.Key()).Val())
	for _, z := range z {
		fmt.Fprintf(&b, "\n  %.0f %q", z.Score, z.Member)
	}
	return b.String()
}
