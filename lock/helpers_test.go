package lock

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/claims"
	"github.com/automutex/automutex/internal/exchange"
	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/internal/turn"
	"github.com/automutex/automutex/internal/wire"
)

const soon = redistest.Patience

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
	if err := l.life.Unfit(); err != nil {
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
		strings.HasPrefix(test, "TestHostileTexts") || strings.HasPrefix(test, "TestNative_") || strings.HasPrefix(test, "TestDeniedSET_") || strings.HasPrefix(test, "FuzzScripts") || strings.HasPrefix(test, "TestTheFastPathIsAsFast")
}

// formEnv set to "set" has each Locker of this package's tests take no mutex as a string.
const formEnv = "AUTOMUTEX_TEST_FORM"

// asksAlways has l ask for every lock, so that each is a sorted set from the start, as of
// a key that was contended lately. It returns l. Nothing uses l yet.
func asksAlways(l *Locker) *Locker {
	l.strings = false
	return l
}

func (l *Locker) claim(key string) claims.Claim { return claims.Of(l.runner(), key) }

func (l *Locker) list(ctx context.Context) iter.Seq2[inside.Info, error] { return l.walker().List(ctx) }

func (l *Locker) sweep(ctx context.Context) (int, error) { return l.walker().Sweep(ctx) }

func owner(name string) func(*Options) { return func(o *Options) { o.Owner = name } }

// handle is the lock that m is, on another Locker.
func handle(l *Locker, m *Lock, options ...Option) *Lock {
	if m.fenced {
		options = append(options, Fenced())
	}
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

// fenceOf is the fence that came with the grant of le, whether the lock has the option Fenced or not;
// 0 and an error of the test if it came without one, since the lock was taken as a string.
func fenceOf(t testing.TB, le *Lease) int64 {
	t.Helper()
	if le.fence <= 0 {
		t.Errorf("a lease without a fence; %s", dump(le.lock))
	}
	return le.fence
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
	whenAnswered(t, l, n, turn.RefreshEvery/4, func(w *waiter) { w.turn.RefreshAt = time.Now().Add(time.Hour) })
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
			if hint, at := w.turn.Grant(); hint.ServerUS == 0 || w.turn.Next().IsZero() || at.IsZero() || time.Until(w.turn.RefreshAt) < least {
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

// outOfTime calls f beside, whose time is up once it is in m's line, where it has company by nobody.
func outOfTime(t testing.TB, m *Lock, f func(ctx context.Context) error) error {
	t.Helper()
	ctx, end := redistest.TimeUp(t.Context())
	defer end()
	failed := make(chan error, 1)
	go func() { failed <- f(ctx) }()
	waiting(t, m, 1)
	end()
	return come(t, failed, "the end of a wait")
}

// inVain calls Acquire of a busy lock, again with more time if that was over before Redis had replied.
func inVain(t testing.TB, m *Lock, within time.Duration) {
	t.Helper()
	lease, ok, err := m.Acquire(t.Context(), within)
	for ; errors.Is(err, ErrBackend) && within < soon; lease, ok, err = m.Acquire(t.Context(), within) {
		within = 2*within + time.Millisecond
	}
	if lease != nil || ok || err != nil {
		t.Errorf("Acquire of a busy lock within %s: %v, %v, %v; want no lease, false and no error", within, lease, ok, err)
	}
}

type stringer func() string

func (s stringer) String() string { return s() }

// isScript makes a match for a Proxy: runs of s, or of its other form, on m's key.
func isScript(s *exchange.Script, m *Lock) func([]string) bool {
	return func(command []string) bool {
		return len(command) > 3 && command[3] == m.Key() && slices.ContainsFunc(wire.Scripts, func(form *exchange.Script) bool {
			return form.Name == s.Name && (command[1] == form.SHA || command[1] == form.Source)
		})
	}
}

// isTake makes a match for a Proxy: whatever may take m, a SET or an ask.
func isTake(m *Lock) func([]string) bool {
	ask := isScript(wire.AskScript, m)
	return func(command []string) bool {
		return ask(command) || len(command) > 2 && strings.EqualFold(command[0], "set") && command[1] == m.Key()
	}
}

// isRelease makes a match for a Proxy: what releases m, the server's own command or the script.
func isRelease(m *Lock) func([]string) bool {
	script := isScript(wire.ReleaseScript, m)
	return func(command []string) bool {
		return script(command) || len(command) > 2 && strings.HasPrefix(strings.ToLower(command[0]), "del") && command[1] == m.Key()
	}
}

// warm loads the scripts into m's server, so that later calls are EVALSHAs.
func warm(t testing.TB, m *Lock) {
	t.Helper()
	for _, s := range wire.Scripts {
		redistest.Must(t, raw(m).ScriptLoad(t.Context(), s.Source).Err())
	}
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

// checkLine runs the script of a look after parked work.
func checkLine(m *Lock) {
	inbound, life := m.locker.parking.WantedCalls(m.parked())
	reply, err := m.locker.conn.Run(context.Background(), wire.CallScript, m.keys, wire.CallArgs(m.slots(), inbound, life, "", inside.FateUnsure))
	if err == nil {
		m.locker.parking.HandleCalls(m.parked(), reply)
	}
}

// existsNow tells whether anything of the lock is in Redis.
func (m *Lock) existsNow(ctx context.Context) (bool, error) {
	info, err := m.inspect(ctx, 0, "")
	return info.InUse(), err
}
