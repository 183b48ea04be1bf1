package lock_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/engine"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// These tests judge what a user sees: they call the public methods, and those that the other packages of this module
// have through insider. Of what is stored they know that the key of an idle lock does not exist.

const soon = redistest.Patience

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		childMain()
		return
	}
	redistest.Main(m)
}

var each = redistest.EachInParallel

// eachSingle is redistest.EachSingle of a parallel test.
func eachSingle(t *testing.T, f func(t *testing.T, s *redistest.Server)) {
	t.Helper()
	t.Parallel()
	redistest.EachSingle(t, f)
}

func eventually(t testing.TB, is func() bool, what string, args ...any) {
	t.Helper()
	redistest.Eventually(t, soon, is, what, args...)
}

// clientsOfTests has the first client of each test's Lockers, by the test's name.
var clientsOfTests sync.Map

// newLocker makes a Locker that is closed when the test ends.
func newLocker(t testing.TB, rdb redis.UniversalClient, options ...func(*lock.Options)) *lock.Locker {
	t.Helper()
	o := lock.Options{Logger: slog.New(slog.DiscardHandler)}
	for _, option := range options {
		option(&o)
	}
	l := lock.New(rdb, o)
	redistest.Must(t, insider.LockErr(l.Mutex("any")))
	t.Cleanup(func() { _ = l.Close() })
	if _, known := clientsOfTests.LoadOrStore(t.Name(), rdb); !known {
		t.Cleanup(func() { clientsOfTests.Delete(t.Name()) }) // a test may run again
	}
	return l
}

// lockerOn is newLocker with a client of its own.
func lockerOn(t testing.TB, s *redistest.Server, options ...func(*lock.Options)) *lock.Locker {
	t.Helper()
	return newLocker(t, s.Client(t), options...)
}

// mutexOn is a mutex of a Locker of its own.
func mutexOn(t testing.TB, s *redistest.Server, options ...lock.Option) *lock.Lock {
	t.Helper()
	return lockerOn(t, s).Mutex(redistest.Name(t), options...)
}

// client is that of the test's first Locker, or of the test around it.
func client(t testing.TB) redis.UniversalClient {
	t.Helper()
	for name := t.Name(); ; name = name[:strings.LastIndex(name, "/")] {
		if rdb, ok := clientsOfTests.Load(name); ok {
			return rdb.(redis.UniversalClient)
		}
		if !strings.Contains(name, "/") {
			t.Fatal("the test has made no Locker")
		}
	}
}

func owner(name string) func(*lock.Options)      { return func(o *lock.Options) { o.Owner = name } }
func prefixed(prefix string) func(*lock.Options) { return func(o *lock.Options) { o.Prefix = prefix } }
func minReplicas(n int) func(*lock.Options)      { return func(o *lock.Options) { o.MinReplicas = n } }

// ownPrefix gives Lockers a prefix of the test's own: controls are shared by all of one.
func ownPrefix(t testing.TB) func(*lock.Options) { return prefixed(redistest.Name(t)) }

// twoProcesses are two Lockers with connections of their own, as two processes would have.
func twoProcesses(t *testing.T, s *redistest.Server) (hers, his *lock.Locker) {
	t.Helper()
	return lockerOn(t, s, owner("alice")), lockerOn(t, s, owner("bob"))
}

// through makes a Locker whose client goes through a proxy to s, beside one that goes straight there. miniredis and a
// single server only.
func through(
	t *testing.T, s *redistest.Server, opts ...func(*redis.UniversalOptions),
) (near, far *lock.Locker, p *redistest.Proxy) {
	t.Helper()
	p = redistest.NewProxy(t, s.Addr())
	return lockerOn(t, s, owner("near")), newLocker(t, p.Client(t, opts...), owner("far")), p
}

// handle is the mutex m on another Locker, or with other options.
func handle(l *lock.Locker, m *lock.Lock, options ...lock.Option) *lock.Lock {
	return slots(l, m, 1, options...)
}

// slots is the lock m for n holders, on that Locker.
func slots(l *lock.Locker, m *lock.Lock, n int, options ...lock.Option) *lock.Lock {
	return insider.At(l.Semaphore("any", n, options...), m.Key(), m.Key(), n, "", options...)
}

// mustTry takes a lock that has to be free. On a busy machine a reply may come after the end of a short lease: then it
// tries again.
func mustTry(t testing.TB, m *lock.Lock) *lock.Lease {
	t.Helper()
	le, err := m.TryLock(t.Context())
	if isTooLate(err) {
		return untilTaken(t, m)
	}
	if err != nil {
		t.Fatalf("TryLock: %v; %s", err, dump(m))
	}
	return le
}

func isTooLate(err error) bool {
	return errors.Is(err, lock.ErrBackend) && strings.Contains(err.Error(), "the reply came after the lease's end") ||
		errors.Is(err, lock.ErrNotReplicated)
}

// mustNotTry is TryLock that must not take the lock; it gives the error.
func mustNotTry(t testing.TB, m *lock.Lock) error {
	t.Helper()
	le, err := m.TryLock(t.Context())
	if err == nil {
		_ = le.Unlock(t.Context())
		t.Fatalf("TryLock took the lock; %s", dump(m))
	}
	return err
}

func mustBeBusy(t testing.TB, m *lock.Lock) *lock.BusyError {
	t.Helper()
	return wantBusy(t, mustNotTry(t, m))
}

func wantBusy(t testing.TB, err error) *lock.BusyError {
	t.Helper()
	var busy *lock.BusyError
	if !errors.As(err, &busy) || !errors.Is(err, lock.ErrBusy) {
		t.Fatalf("error is %v, want a *BusyError", err)
	}
	return busy
}

func mustUnlock(t testing.TB, le *lock.Lease) {
	t.Helper()
	if err := le.Unlock(t.Context()); err != nil {
		t.Fatalf("Unlock: %v", err)
	}
}

// untilTaken tries again until the lock is taken.
func untilTaken(t testing.TB, m *lock.Lock) (le *lock.Lease) {
	t.Helper()
	eventually(t, func() bool {
		var err error
		if le, err = m.TryLock(t.Context()); err != nil && !errors.Is(err, lock.ErrBusy) && !isTooLate(err) {
			t.Fatal(err)
		}
		return le != nil
	}, "the lock to be had; %s", stringer(func() string { return dump(m) }))
	return le
}

// free waits until nothing of the lock is in use, and its key is gone.
func free(t testing.TB, m *lock.Lock) {
	t.Helper()
	eventually(t, func() bool {
		n, err := client(t).Exists(t.Context(), m.Key()).Result()
		return err == nil && n == 0
	}, "the lock free and its key gone; %s", stringer(func() string { return dump(m) }))
}

// waiting waits until n are in line.
func waiting(t testing.TB, m *lock.Lock, n int) {
	t.Helper()
	eventually(t, func() bool {
		got, err := m.Waiting(t.Context())
		return err == nil && got == n
	}, "%d in line; %s", n, stringer(func() string { return dump(m) }))
}

// timely is an answer of f that took less than a second: for so long a Locker knows the controls at the least.
func timely[T any](f func() (T, error)) (got T, err error) {
	for range 30 {
		began := time.Now()
		if got, err = f(); time.Since(began) < time.Second {
			break
		}
	}
	return got, err
}

func wantLocked(t testing.TB, m *lock.Lock, want bool) {
	t.Helper()
	if got, err := timely(func() (bool, error) { return m.Locked(t.Context()) }); err != nil || got != want {
		t.Errorf("Locked: %v, %v; want %v; %s", got, err, want, dump(m))
	}
}

func wantAvailable(t testing.TB, m *lock.Lock, want int) {
	t.Helper()
	if got, err := timely(func() (int, error) { return m.Available(t.Context()) }); err != nil || got != want {
		t.Errorf("Available: %d, %v; want %d; %s", got, err, want, dump(m))
	}
}

// wantHeld holds the number of holders.
func wantHeld(t testing.TB, m *lock.Lock, want int) {
	t.Helper()
	if holders, err := m.Holders(t.Context()); err != nil || len(holders) != want {
		t.Errorf("%d holders, %v; want %d; %s", len(holders), err, want, dump(m))
	}
}

// left is for how long le holds m, by what Redis says; ok is false if it does not hold it.
func left(t testing.TB, m *lock.Lock, le *lock.Lease) (d time.Duration, ok bool) {
	t.Helper()
	holders, err := m.Holders(t.Context())
	redistest.Must(t, err)
	i := slices.IndexFunc(holders, func(h lock.Holder) bool { return h.Token == le.Token() })
	if i < 0 {
		return 0, false
	}
	return holders[i].ExpiresIn, true
}

// inUse reports whether anything of the lock is in Redis.
func inUse(t testing.TB, m *lock.Lock) bool {
	t.Helper()
	return looksAt(t, m).InUse()
}

// dump says what Redis has of the lock.
func dump(m *lock.Lock) string {
	info, err := insider.Inspect(context.Background(), m)
	return fmt.Sprintf("%s: %+v, %v", m.Key(), info, err)
}

type stringer func() string

func (s stringer) String() string { return s() }

func second[T any](_ T, err error) error { return err }

// fresh has l read the controls: one that did not for two seconds grants nobody.
func fresh(t testing.TB, l *lock.Locker) {
	t.Helper()
	redistest.Must(t, second(l.Controls().List(t.Context())))
}

// wantErr fails the test if err is not want.
func wantErr(t testing.TB, err, want error, what string, args ...any) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf(what+": %v, want %v", append(args, err, want)...)
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

// ends waits for ctx to end, and wants that cause.
func ends(t testing.TB, ctx context.Context, cause error) {
	t.Helper()
	come(t, ctx.Done(), "the end of the context")
	if got := context.Cause(ctx); !errors.Is(got, cause) {
		t.Errorf("the context ended with cause %v, want %v", got, cause)
	}
}

// fenceOf is the fence of a lease of a lock with the option Fenced.
func fenceOf(t testing.TB, le *lock.Lease) int64 {
	t.Helper()
	fence, err := le.Fence()
	if err != nil || fence <= 0 {
		t.Errorf("a fence of %d, %v", fence, err)
	}
	return fence
}

// attempt is a call to Lock that runs beside the test.
type attempt struct {
	lock   *lock.Lock
	cancel context.CancelFunc
	done   chan struct{} // closed when lease and err are set
	lease  *lock.Lease
	err    error
}

// beside calls take on a goroutine that ends with the test at the latest.
func beside(t testing.TB, m *lock.Lock, take func(ctx context.Context) (*lock.Lease, error)) *attempt {
	ctx, cancel := context.WithTimeout(context.Background(), 2*soon)
	a := &attempt{lock: m, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(a.done)
		a.lease, a.err = take(ctx)
	}()
	t.Cleanup(func() { cancel(); <-a.done })
	return a
}

func lockBeside(t testing.TB, m *lock.Lock) *attempt { return beside(t, m, m.Lock) }

// inLine is lockBeside that returns when Redis has n in line.
func inLine(t testing.TB, m *lock.Lock, n int) *attempt {
	t.Helper()
	a := lockBeside(t, m)
	waiting(t, m, n)
	return a
}

// got waits for the lease.
func (a *attempt) got(t testing.TB) *lock.Lease {
	t.Helper()
	come(t, a.done, "the return of Lock")
	if a.err != nil {
		t.Fatalf("Lock: %v; %s", a.err, dump(a.lock))
	}
	return a.lease
}

// failed waits for the error.
func (a *attempt) failed(t testing.TB) error {
	t.Helper()
	if come(t, a.done, "the return of Lock"); a.err == nil {
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

// timeUp gives a context whose time is up when the test says so, and not by a clock: then it ends as at a deadline.
func timeUp(parent context.Context) (ctx context.Context, end func()) {
	ctx, cancel := context.WithCancelCause(parent)
	return endsAsAtADeadline{ctx}, func() { cancel(context.DeadlineExceeded) }
}

type endsAsAtADeadline struct{ context.Context }

func (c endsAsAtADeadline) Err() error { return context.Cause(c.Context) }

// Value hides the context that it is made of from those that are made of it.
func (endsAsAtADeadline) Value(any) any { return nil }

// outOfTime calls f, whose time is up once it stands in m's line, alone.
func outOfTime(t testing.TB, m *lock.Lock, f func(ctx context.Context) error) error {
	t.Helper()
	err := lock.ErrBackend
	for i := 0; i < 10 && errors.Is(err, lock.ErrBackend); i++ { // it may end before a reply
		waiting(t, m, 0)
		ctx, end := timeUp(t.Context())
		failed := make(chan error, 1)
		go func() { failed <- f(ctx) }()
		waiting(t, m, 1)
		end()
		err = come(t, failed, "the end of a wait")
	}
	return err
}

// inVain calls Acquire of a busy lock, again with more time if that was over before Redis had replied.
func inVain(t testing.TB, m *lock.Lock, within time.Duration) {
	t.Helper()
	lease, ok, err := m.Acquire(t.Context(), within)
	for ; errors.Is(err, lock.ErrBackend) && within < soon; lease, ok, err = m.Acquire(t.Context(), within) {
		within = 2*within + time.Millisecond
	}
	if lease != nil || ok || err != nil {
		t.Errorf("Acquire of a busy lock within %s: %v, %v, %v; want no lease, false and no error", within, lease, ok, err)
	}
}

// parkNow has LockOrPark park a busy lock at once.
var parkNow = func() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// mustPark parks m's note at once.
func mustPark(t testing.TB, m *lock.Lock) {
	t.Helper()
	le, err := lock.LockOrPark(t.Context(), m, parkNow)
	if le != nil || err == nil {
		t.Fatalf("LockOrPark took the lock; want parked; %s", dump(m))
	}
	if refused := new(lock.Refused); !errors.As(err, &refused) || !refused.Parked {
		t.Fatalf("not parked: %v; %s", err, dump(m))
	}
}

// touches makes a match for a Proxy: the commands on m's key.
func touches(m *lock.Lock) func(command []string) bool {
	return func(command []string) bool { return slices.Contains(command, m.Key()) }
}

// touching makes a match for hooks of a client: the commands on m's key.
func touching(m *lock.Lock) func(redis.Cmder) bool {
	return func(cmd redis.Cmder) bool { return slices.Contains(cmd.Args(), any(m.Key())) }
}

// warm has l's server know the scripts of taking, waiting and releasing, so that later calls are EVALSHAs.
func warm(t testing.TB, l *lock.Locker) {
	t.Helper()
	m := l.Mutex(redistest.Name(t) + "-warm")
	held := mustTry(t, m)
	mustBeBusy(t, m)
	w := inLine(t, m, 1)
	mustUnlock(t, held)
	mustUnlock(t, w.got(t))
}

// tell has Redis do something.
func tell(t *testing.T, rdb redis.UniversalClient, command ...any) {
	t.Helper()
	if err := rdb.Do(t.Context(), command...).Err(); err != nil {
		t.Fatal(command, err)
	}
}

// withUser makes a client that is a user of its own with all rights but those given.
func withUser(
	t *testing.T, s *redistest.Server, admin redis.UniversalClient, user string, but ...any,
) redis.UniversalClient {
	t.Helper()
	tell(t, admin, append([]any{"ACL", "SETUSER", user, "on", ">secret", "~*", "&*", "+@all"}, but...)...)
	return s.Client(t, func(o *redis.UniversalOptions) { o.Username, o.Password = user, "secret" })
}

// takesAndUnlocks has a turn.
func takesAndUnlocks(t testing.TB, m *lock.Lock) {
	t.Helper()
	mustUnlock(t, mustTry(t, m))
}

// looksAt is what Redis stores of m.
func looksAt(t testing.TB, m *lock.Lock) engine.Info {
	t.Helper()
	info, err := insider.Inspect(t.Context(), m)
	redistest.Must(t, err)
	return info
}
