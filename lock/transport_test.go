package lock

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/redistest"
)

// transportEnv names the transport that all tests of this package run over:
// AUTOMUTEX_TEST_TRANSPORT="full duplex" go test ./lock
const transportEnv = "AUTOMUTEX_TEST_TRANSPORT"

// transports are what TestTransport runs tests over. Closed with the client.
var transports = map[string]func(testing.TB, redis.UniversalClient) Transport{
	"half duplex": func(t testing.TB, rdb redis.UniversalClient) Transport {
		return Async(newAsyncPipe(t, rdb, map[string]any{"MaxBatchSize": 300, "MaxBatchBytes": 128 * 1024}))
	},
	"full duplex": func(t testing.TB, rdb redis.UniversalClient) Transport {
		return Async(newAsyncPipe(t, rdb, map[string]any{"FullDuplex": true}))
	},
	"blocking": func(t testing.TB, rdb redis.UniversalClient) Transport {
		transport, _ := newAutoPipe(t, rdb, "AutoPipelineWithOptions", map[string]any{"FullDuplex": true})
		return transport
	},
	"asynchronous, without Async": func(t testing.TB, rdb redis.UniversalClient) Transport {
		transport, _ := newAutoPipe(t, rdb, "AsyncAutoPipelineWithOptions", map[string]any{"FullDuplex": true})
		return transport
	},
}

// transportFor is the transport that newLocker gives to the test's Lockers,
// which is in the test's name: TestTransport/<transport>/<test>. nil: none.
func transportFor(t testing.TB, rdb Client) Transport {
	t.Helper()
	name := os.Getenv(transportEnv)
	if parts := strings.Split(t.Name(), "/"); parts[0] == "TestTransport" {
		name = strings.ReplaceAll(parts[1], "_", " ")
		if slices.Contains(parts, redistest.KindMini) {
			t.Skip("real servers serve for this")
		}
	}
	open := transports[name]
	client, ok := rdb.(redis.UniversalClient)
	if name == "" || !ok {
		return nil
	}
	if open == nil {
		t.Fatalf("there is no transport %q", name)
	}
	return open(t, client)
}

// oneCallTests are tests of what one call to Redis does, and of what becomes of a call
// that is lost.
func oneCallTests() map[string]func(*testing.T) {
	return map[string]func(*testing.T){
		"AtMostNHolders":                  TestRule01_AtMostNHolders,
		"RaisingN":                        TestRule01_RaisingNCountsForThoseWhoGiveIt,
		"LateRelease":                     TestRule02_LateReleaseLeavesTheSuccessorAlone,
		"OnlyTheGrantedTokenRenews":       TestRule02_OnlyTheGrantedTokenRenews,
		"ResentAsk":                       TestRule03_ResentAskIsOurs,
		"ResentAskInLine":                 TestRule03_ResentAskStandsInLineOnce,
		"UnknownOutcome":                  TestRule03_UnknownOutcomeIsReleased,
		"UnknownOutcomeLater":             TestRule03_UnknownOutcomeIsReleasedAgainLater,
		"UnknownOutcomeBehindADialError":  TestRule03_UnknownOutcomeBehindADialErrorIsReleased,
		"ResentRelease":                   TestRule03_ResentReleaseIsSuccess,
		"AbsentWithoutAResend":            TestRule03_AbsentWithoutAResendIsNotHeld,
		"AbsentAfterNoscript":             TestRule03_AbsentAfterNoscriptIsNotHeld,
		"UnknownRelease":                  TestRule03_UnknownReleaseIsRepeated,
		"LeaveWaitsForTheAsk":             TestRule03_LeaveWaitsForTheAsk,
		"LeaveAfterAnAskOfUnknownOutcome": TestRule03_LeaveAfterAnAskOfUnknownOutcomeIsRepeated,
		"ReleaseAndGrant":                 TestRule04_ReleaseAndGrantAreOneScript,
		"KilledHolder":                    TestRule05_KilledHolderIsSucceeded,
		"GrantedLeaseIsRenewed":           TestRule06_GrantedLeaseIsRenewedToItsFullTTL,
		"MessagesWake":                    TestRule07_MessagesWake,
		"UnlockOnAnEndedContext":          TestRule10_UnlockWorksOnAnEndedContext,
		"BusyError":                       TestBusyErrorTellsWhoHolds,
		"Cooldown":                        TestCooldownKeepsTheSlotForThatLong,
		"DoubleUnlock":                    TestDoubleUnlock,
		"EndedContext":                    TestLockWithAnEndedContext,
		"OutOfTime":                       TestLockThatRunsOutOfTime,
		"FirstComeFirstServed":            TestFirstComeFirstServed,
		"GivesUpWhenGranted":              TestWaiterThatGivesUpWhenGranted,
		"Newcomer":                        TestNewcomerNeverOvertakes,
		"Break":                           TestBreakOneOfSeveral,
		"PoolResentTake":                  TestPoolResentTakeIsOneValue,
		"PoolResentConsume":               TestPoolResentConsume,
		"PoolTakeWaits":                   TestPoolTakeIsWokenByAPut,
		"PoolStress":                      TestPoolStress,
	}
}

// TestTransport runs the tests of what one call to Redis does, and of what
// becomes of a call that is lost, over each transport. (Those that count calls
// by a hook are not here: in a Cluster full duplex passes the client's hooks by.)
func TestTransport(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	suite := oneCallTests()
	maps.Copy(suite, map[string]func(*testing.T){
		"Stress":            testTransportStress,
		"Renewal":           testTransportRenewal,
		"ScriptFlush":       testTransportScriptFlush,
		"NoDoubt":           testTransportNoDoubt,
		"Resend":            TestResend_countsEveryCopy,
		"OutageIsWaitedOut": testTransportOutage,
	})
	for name := range transports {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for name, test := range suite {
				t.Run(name, test)
			}
		})
	}
}

// Lock, unlock, overlap: nobody is beside another, everybody gets their turns.
func testTransportStress(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		for _, limit := range []int{1, 3} {
			t.Run(fmt.Sprint("N=", limit), func(t *testing.T) {
				t.Parallel()
				var inside, turns, lastFence atomic.Int64
				var wg sync.WaitGroup
				const lockers, each, sections = 3, 6, 20
				name := redistest.Name(t)
				for range lockers {
					m := newLocker(t, s.Client(t)).Semaphore(name, limit, Fenced())
					for range each {
						redistest.Go(&wg, func() {
							for range sections {
								err := m.Do(t.Context(), func(ctx context.Context) error {
									if n := inside.Add(1); n > int64(limit) {
										t.Errorf("%d hold a lock for %d", n, limit)
									}
									if le, _ := FromContext(ctx); limit == 1 && fenceOf(t, le) <= lastFence.Swap(fenceOf(t, le)) {
										t.Error("the fence did not grow")
									}
									turns.Add(1)
									inside.Add(-1)
									return nil
								})
								if err != nil {
									t.Errorf("Do: %v", err)
								}
							}
						})
					}
				}
				wg.Wait()
				if n := turns.Load(); n != lockers*each*sections {
					t.Errorf("%d turns, want %d", n, lockers*each*sections)
				}
				free(t, newLocker(t, s.Client(t)).Mutex(name), soon)
			})
		}
	})
}

func testTransportRenewal(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t))
		le := mustTry(t, m)
		first, _ := holds(t, le)
		redistest.Eventually(t, soon, func() bool {
			renewNow(m.locker)
			now, ok := holds(t, le)
			return ok && now.After(first)
		}, "a renewal; %s", stringer(func() string { return dump(m) }))
		mustUnlock(t, le)
	})
}

// The server forgets the scripts while locks are held, waited for and taken.
func testTransportScriptFlush(t *testing.T) {
	t.Parallel()
	s := redistest.StartReal(t)
	l := newLocker(t, s.Client(t))
	m := l.Mutex(redistest.Name(t), TTL(time.Minute))
	other := s.Client(t)
	le := mustTry(t, m)
	for range 5 {
		w := inLine(t, m, 1)
		redistest.Must(t, other.ScriptFlush(t.Context()).Err())
		mustUnlock(t, le)
		le = w.got(t)
	}
	mustUnlock(t, le)
	free(t, m, soon)
}

// What went well leaves no doubt: nothing is released a second time. An
// AutoPipeliner marshals each argument twice, once to learn its size.
func testTransportNoDoubt(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t))
		warm(t, m)
		for range 3 {
			le := mustTry(t, m)
			if n := le.asks.Copies(); n != 0 {
				t.Errorf("after an ask that was answered %d asks count as unanswered", n)
			}
			mustUnlock(t, le)
			if n := le.releases.Copies(); n != 0 {
				t.Errorf("after a release that was answered %d releases count as unanswered", n)
			}
		}
	})
}

// Connections are cut again and again while locks change hands.
func testTransportOutage(t *testing.T) {
	t.Parallel()
	eachSingle(t, func(t *testing.T, s *redistest.Server) {
		near, far, p := through(t, s)
		m := near.Mutex(redistest.Name(t))
		warm(t, m)
		var inside atomic.Int64
		var wg sync.WaitGroup
		for _, l := range []*Locker{near, far} {
			for range 4 {
				redistest.Go(&wg, func() {
					m := handle(l, m)
					for range 15 {
						le, err := m.Lock(t.Context())
						if err != nil {
							t.Errorf("Lock: %v", err)
							return
						}
						if n := inside.Add(1); n > 1 {
							t.Errorf("%d hold a mutex", n)
						}
						inside.Add(-1)
						if err := le.Unlock(t.Context()); err != nil {
							t.Errorf("Unlock: %v", err)
						}
					}
				})
			}
		}
		done := make(chan struct{})
		go func() { defer close(done); wg.Wait() }()
		for range 3 {
			before := p.Count("EVALSHA")
			redistest.Eventually(t, soon, func() bool {
				select {
				case <-done:
					return true
				default:
					return p.Count("EVALSHA") > before+10
				}
			}, "some calls")
			p.Cut()
		}
		<-done
		free(t, m, soon)
	})
}

func TestBadTransports(t *testing.T) {
	t.Parallel()
	rdb := redistest.Mini(t).Client(t)
	ring := redis.NewRing(&redis.RingOptions{})
	t.Cleanup(func() { _ = ring.Close() })
	var noClient *redis.Client
	var noQueue *futures
	for want, transport := range map[string]Transport{
		"nil *redis.Client": noClient, "nil *lock.futures": Async(noQueue), "*redis.Ring": ring,
	} {
		err := New(rdb, Options{Transport: transport}).life.Unfit()
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("New with %T: %v, want an error with %q", transport, err, want)
		}
	}
}

// futures is a client with a method Submit, which works or waits like those of an
// AutoPipeliner.
type futures struct {
	*redis.Client
	blocking  bool
	submitted atomic.Int32
}

func (f *futures) IsBlocking() bool { return f.blocking }

func (f *futures) Submit(ctx context.Context, cmd redis.Cmder) done {
	f.submitted.Add(1)
	return done{f.Process(ctx, cmd)}
}

// done is a future whose command has ended.
type done struct{ err error }

func (d done) WaitContext(context.Context) error { return d.err }

func TestAsyncSubmitsUnlessTheTransportWaits(t *testing.T) {
	t.Parallel()
	s := redistest.Mini(t)
	for _, blocking := range []bool{false, true} {
		rdb, ok := s.Client(t).(*redis.Client)
		if !ok {
			t.Fatal("a client of miniredis is no *redis.Client")
		}
		queue := &futures{Client: rdb, blocking: blocking}
		m := newLocker(t, rdb, func(o *Options) { o.Transport = Async(queue) }).Mutex(redistest.Name(t))
		mustUnlock(t, mustTry(t, m))
		if n := queue.submitted.Load(); (n == 0) != blocking {
			t.Errorf("IsBlocking %t: %d commands went through Submit", blocking, n)
		}
	}
	if transport := Async[done](nil); transport != nil {
		t.Errorf("Async(nil) is %v, want nil", transport)
	}
}
