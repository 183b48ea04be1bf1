package lock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/exchange"
	"github.com/automutex/automutex/internal/redistest"
)

// soon is the bound for what must happen but not by when: long enough for a
// machine whose cores are busy with other things.
const soon = 20 * time.Second

// expiryError is by how much a key of a miniredis may expire too early, or tells that it
// lasts too long, while a long script runs; see redistest. Of Redis it is the millisecond to
// which a key's expiry is exact.
func expiryError(s *redistest.Server) time.Duration {
	if s.Kind() == redistest.KindMini {
		return time.Second
	}
	return 2 * time.Millisecond
}

// newLocker makes a Locker that is closed when the test ends.
func newLocker(t testing.TB, rdb Client, options ...func(*Options)) *Locker {
	t.Helper()
	o := Options{Logger: slog.New(slog.DiscardHandler)}
	for _, option := range options {
		option(&o)
	}
	if o.Transport == nil {
		o.Transport = transportFor(t, rdb)
	}
	if o.Prefix == "" && o.onControls == nil {
		o.onControls = func(inForce []Control) {
			t.Errorf("controls of the prefix that the tests share: %v; they have waiters of other tests ask once more, so this test needs ownPrefix, or ownServer", inForce)
		}
	}
	l := New(rdb, o)
	if err := l.err; err != nil {
		t.Fatalf("New: %v", err)
	}
	t.Cleanup(func() { _ = l.Close() })
	if os.Getenv(formEnv) == "set" && !needsStrings(t.Name()) || strings.HasPrefix(t.Name(), "TestForms/") {
		asksAlways(l)
	}
	return l
}

// needsStrings tells whether the test of that name holds what strings do.
func needsStrings(test string) bool {
	return strings.HasPrefix(test, "TestForm_") || strings.HasPrefix(test, "TestRule13_HeadersMatchTheCallSites") ||
		strings.HasPrefix(test, "TestHostileTexts") || strings.HasPrefix(test, "FuzzScripts") || strings.HasPrefix(test, "TestTheFastPathIsAsFast")
}

// formEnv set to "set" has each Locker of this package's tests take no mutex as a string.
const formEnv = "AUTOMUTEX_TEST_FORM"

// asksAlways has l ask for every lock, so that each is a sorted set from the start, as of
// a key that was contended lately. It returns l. Nothing uses l yet.
func asksAlways(l *Locker) *Locker {
	l.strings = false
	return l
}

func owner(name string) func(*Options) { return func(o *Options) { o.Owner = name } }

// handle is the lock that m is, on another Locker.
func handle(l *Locker, m *Lock, options ...Option) *Lock {
	return l.Semaphore(m.name, m.limit, append([]Option{TTL(m.ttl)}, options...)...)
}

func mustTry(t testing.TB, m *Lock) *Lease {
	t.Helper()
	le, err := m.TryLock(t.Context())
	if err != nil {
		t.Fatalf("TryLock: %v", err)
	}
	audit(t, m)
	return le
}

func mustBeBusy(t testing.TB, m *Lock) *BusyError {
	t.Helper()
	le, err := m.TryLock(t.Context())
	if le != nil || err == nil {
		t.Fatalf("TryLock took the lock; want busy; %s", dump(m))
	}
	audit(t, m)
	return wantBusy(t, err)
}

func wantBusy(t testing.TB, err error) *BusyError {
	t.Helper()
	busy, ok := asBusy(err)
	if !ok {
		t.Fatalf("error is %v, want a *BusyError", err)
	}
	return busy
}

func mustUnlock(t testing.TB, le *Lease) {
	t.Helper()
	if err := le.Unlock(t.Context()); err != nil {
		t.Fatalf("Unlock: %v; %s", err, dump(le.lock))
	}
	audit(t, le.lock)
}

// fenceOf is the fence of a lease that is ours; 0 after an error.
func fenceOf(t testing.TB, le *Lease) int64 {
	t.Helper()
	fence, err := le.Fence(context.Background())
	if err != nil || fence <= 0 {
		t.Errorf("Fence: %d, %v; %s", fence, err, dump(le.lock))
		return 0
	}
	return fence
}

// attempt is a call to Lock that runs beside the test.
type attempt struct {
	lock   *Lock
	cancel context.CancelFunc
	done   chan struct{} // closed when lease and err are set
	lease  *Lease
	err    error
	took   time.Duration
}

// lockBeside calls Lock on a goroutine that ends with the test at the latest.
func lockBeside(t testing.TB, m *Lock) *attempt {
	ctx, cancel := context.WithTimeout(context.Background(), 2*soon)
	a := &attempt{lock: m, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(a.done)
		began := time.Now()
		a.lease, a.err = m.Lock(ctx)
		a.took = time.Since(began)
	}()
	t.Cleanup(func() { cancel(); <-a.done })
	return a
}

// inLine is lockBeside that returns when Redis has the waiter in line, as the
// n-th of all.
func inLine(t testing.TB, m *Lock, n int) *attempt {
	t.Helper()
	a := lockBeside(t, m)
	waiting(t, m, n)
	return a
}

// waiting waits until n are in line.
func waiting(t testing.TB, m *Lock, n int) {
	t.Helper()
	redistest.Eventually(t, soon, func() bool {
		got, err := m.Waiting(t.Context())
		return err == nil && got == n
	}, "%d in line; %s", n, stringer(func() string { return dump(m) }))
	audit(t, m)
}

// heard waits until m's Locker hears wake-ups: its subscription is confirmed.
func heard(t testing.TB, m *Lock) {
	t.Helper()
	rdb := m.locker.rdb.(redis.UniversalClient)
	redistest.Eventually(t, soon, func() bool {
		return rdb.Publish(t.Context(), m.locker.prefix+":"+m.locker.channel, "hello").Val() > 0
	}, "a subscription")
}

// calm waits until all that n fresh waiters of l cause by themselves is over:
// their Locker is subscribed and has asked again because of it, and they have
// their answers. No refresh is due then for an hour: what happens next happens
// for another reason.
func calm(t testing.TB, l *Locker, n int) {
	t.Helper()
	whenAnswered(t, l, n, refreshEvery/4, func(w *waiter) { w.refreshAt = time.Now().Add(time.Hour) })
}

// whenAnswered calls then for each of n waiters of l at a moment when their Locker is
// subscribed, each has the reply to its last ask, and none is due again within least.
func whenAnswered(t testing.TB, l *Locker, n int, least time.Duration, then func(w *waiter)) {
	t.Helper()
	line := l.line
	tokens := func() (list []string) {
		line.mu.Lock()
		defer line.mu.Unlock()
		for token := range line.waiters {
			list = append(list, token)
		}
		return list
	}
	rdb := l.rdb.(redis.UniversalClient)
	redistest.Eventually(t, soon, func() bool {
		// A grant message from the beginning of time is noted and not believed.
		for _, token := range tokens() {
			rdb.Publish(t.Context(), l.prefix+":"+l.channel, token+" 1 1")
		}
		line.mu.Lock()
		defer line.mu.Unlock()
		for _, w := range line.waiters {
			if w.hint.serverUS == 0 || w.pending != nil || w.askedAt.IsZero() || time.Until(w.refreshAt) < least {
				return false
			}
		}
		if len(line.waiters) != n {
			return false
		}
		for _, w := range line.waiters {
			then(w)
		}
		return true
	}, "%d waiters with answers", n)
}

// got waits for the lease.
func (a *attempt) got(t testing.TB) *Lease {
	t.Helper()
	select {
	case <-a.done:
	case <-time.After(soon):
		t.Fatalf("Lock has not returned within %s; %s", soon, dump(a.lock))
	}
	if a.err != nil {
		t.Fatalf("Lock: %v; %s", a.err, dump(a.lock))
	}
	return a.lease
}

// failed waits for the error.
func (a *attempt) failed(t testing.TB) error {
	t.Helper()
	select {
	case <-a.done:
	case <-time.After(soon):
		t.Fatalf("Lock has not returned within %s", soon)
	}
	if a.err == nil {
		t.Fatal("Lock took the lock, want an error")
	}
	return a.err
}

func (a *attempt) pending() bool {
	select {
	case <-a.done:
		return false
	default:
		return true
	}
}

// come waits for something to come from ch.
func come[T any](t testing.TB, ch <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(soon):
		t.Fatalf("not within %s: %s", soon, what)
		panic("not reached")
	}
}

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
	if wrongType(err) {
		return stored(t, m) // it was taken as a string meanwhile
	}
	if err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
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

// gateOf tells what moved the gate of m last, and when it opens by Redis' clock. ok: there is one.
func gateOf(t testing.TB, m *Lock) (reason string, opens time.Time, ok bool) {
	t.Helper()
	for member, score := range stored(t, m) {
		if f := strings.Split(member, ":"); f[0] == "g" && len(f) == 6 {
			return f[1], time.UnixMicro(int64(math.Round(score * 1e6))), true
		}
	}
	return "", time.Time{}, false
}

// serverNow is the server's clock.
func serverNow(t testing.TB, m *Lock) time.Time {
	t.Helper()
	v, err := raw(m).Eval(t.Context(), `local t = redis.call('TIME'); return t[1] * 1000000 + t[2]`, []string{m.Key()}).Int64()
	if err != nil {
		t.Fatal(err)
	}
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
local said = gate[1] and gate[2] * 1e3 + string.match(gate[1], '^g:%l+:%d+:%d+:(%d+):%d+$') / 1e3 or 0
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
	case r[4] > 1:
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

type stringer func() string

func (s stringer) String() string { return s() }

// isScript makes a match for a Proxy: runs of s on m's key.
func isScript(s *exchange.Script, m *Lock) func([]string) bool {
	return func(command []string) bool {
		return len(command) > 3 && (command[1] == s.SHA || command[1] == s.Source) && command[3] == m.Key()
	}
}

// isTake makes a match for a Proxy: whatever may take m, a SET or an ask.
func isTake(m *Lock) func([]string) bool {
	ask := isScript(askScript, m)
	return func(command []string) bool {
		return ask(command) || len(command) > 2 && strings.EqualFold(command[0], "set") && command[1] == m.Key()
	}
}

// warm loads the scripts into m's server, so that later calls are EVALSHAs.
func warm(t testing.TB, m *Lock) {
	t.Helper()
	for _, s := range scripts {
		if err := raw(m).ScriptLoad(t.Context(), s.Source).Err(); err != nil {
			t.Fatal(err)
		}
	}
}

var scripts = []*exchange.Script{
	askScript, releaseScript, callScript, holdScript, renewScript, inspectScript, breakScript, sweepScript, fenceScript,
	arriveScript, forgetScript, stopScript,
	poolTakeScript, poolReleaseScript, poolPutScript, poolInspectScript, poolDeleteScript,
	claimTakeScript, claimKeepScript, claimDropScript,
	controlReadScript, controlWriteScript,
}

// through makes a Locker whose client goes through a proxy to s, beside one
// that goes straight there. miniredis and a single server only.
func through(t *testing.T, s *redistest.Server, opts ...func(*redis.UniversalOptions)) (near, far *Locker, p *redistest.Proxy) {
	t.Helper()
	p = redistest.NewProxy(t, s.Addr())
	return newLocker(t, s.Client(t), owner("near")), newLocker(t, p.Client(t, opts...), owner("far")), p
}

// quiet is s, or a miniredis of the test's own: miniredis runs one script at a
// time and slowly under the race detector, and a test that asks much of it would
// hold up all others.
func quiet(t *testing.T, s *redistest.Server) *redistest.Server {
	t.Helper()
	if s.Kind() == redistest.KindMini {
		return redistest.StartMini(t)
	}
	return s
}

// eachSingle is redistest.Each without the cluster, of which a Proxy hides only
// one node.
func eachSingle(t *testing.T, f func(t *testing.T, s *redistest.Server)) {
	t.Helper()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		if s.Kind() == redistest.KindCluster {
			t.SkipNow()
		}
		f(t, s)
	})
}

// asBusy finds a *BusyError in err.
func asBusy(err error) (*BusyError, bool) {
	var busy *BusyError
	ok := errors.As(err, &busy)
	return busy, ok && errors.Is(err, ErrBusy)
}

// existsNow tells whether anything of the lock is in Redis.
func (m *Lock) existsNow(ctx context.Context) (bool, error) {
	info, err := m.inspect(ctx, 0, "")
	return info.InUse(), err
}

// available is the number of free values.
func (p *Pool) available(ctx context.Context) (int, error) {
	info, err := p.Inspect(ctx)
	return info.Free, err
}
