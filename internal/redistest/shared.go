package redistest

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// RequireEnv is the environment variable that says what becomes of tests on real servers. "require": they fail where
// there is no redis-server. "none": they are skipped even where there is one, for a quick look. Else they are skipped
// where there is none.
const RequireEnv = "AUTOMUTEX_TEST_REDIS"

// AllEnv is the environment variable that has every test run, as CI does. Without it those that take [Long] are
// skipped, and [Each] has one kind of server of three.
const AllEnv = "AUTOMUTEX_TEST_ALL"

// All tells whether AllEnv is set.
func All() bool { return os.Getenv(AllEnv) != "" }

// Long skips a test that takes long, unless AllEnv is set.
func Long(t testing.TB) {
	t.Helper()
	if !All() {
		t.Skip("redistest: takes long; " + AllEnv + "=1 runs it")
	}
}

// RealTimeEnv is the environment variable that has the tests of RealTime run.
const RealTimeEnv = "AUTOMUTEX_TEST_REALTIME"

// RealTime skips a test that tells right from wrong by a real clock, unless RealTimeEnv is set. Such tests fail on a
// machine that has other work, so .ci/realtime runs them alone. All others wait for a condition, up to [Patience].
// Behind RealTime is what holds for
//
//   - how long a renewal, a message, an outage or a shutdown takes at most;
//   - leases of milliseconds, which a busy machine does not renew in time;
//   - processes and servers that a test kills or stops (SIGSTOP), and buffers of the kernel;
//   - throughput, and counts of what was sent within a while.
//
// .ci/realtime finds them by their source: a test calls RealTime(t) itself, not in a function that it calls.
func RealTime(t testing.TB) {
	t.Helper()
	if os.Getenv(RealTimeEnv) == "" {
		t.Skip("redistest: looks at a real clock; " + RealTimeEnv + "=1 runs it on a machine without other work")
	}
}

// The servers that all tests of the binary use: the first test that asks starts one, Main stops it. A Cluster starts in
// over two seconds, mostly a fixed delay of redis-server.
var (
	sharedMini    = shared(startMini)
	sharedReal    = shared(func(t testing.TB) *Server { return startReal(t, nil) })
	sharedCluster = shared(func(t testing.TB) *Server { return startCluster(t, 0) })

	running sync.Map // the shared servers, as keys
)

func shared(start func(t testing.TB) *Server) func(t testing.TB) *Server {
	var once sync.Once
	var s *Server
	return func(t testing.TB) *Server {
		t.Helper()
		once.Do(func() { s = start(t); running.Store(s, true) })
		if s == nil {
			t.Fatal("redistest: the server did not start: see the first test that asked for it")
		}
		return s
	}
}

// EachInParallel is Each of a test that runs beside others.
func EachInParallel(t *testing.T, f func(t *testing.T, s *Server)) {
	t.Helper()
	t.Parallel()
	Each(t, f)
}

// Each runs f as parallel subtests named "miniredis", "redis" and "cluster", on a miniredis of its own or the shared
// server of that kind. Without AllEnv that is a redis-server, or miniredis where there is none. As with all parallel
// subtests, f runs when the calling test has returned: what f needs is released by t.Cleanup, not by defer.
func Each(t *testing.T, f func(t *testing.T, s *Server)) {
	t.Helper()
	EachSingle(t, f)
	t.Run(KindCluster, func(t *testing.T) {
		Long(t)
		t.Parallel()
		f(t, Cluster(t))
	})
}

// EachSingle is Each without the cluster, of which a [Proxy] hides one node only.
func EachSingle(t *testing.T, f func(t *testing.T, s *Server)) {
	t.Helper()
	t.Run(KindMini, func(t *testing.T) {
		if HasReal() {
			Long(t)
		}
		t.Parallel()
		f(t, StartMini(t)) // a miniredis runs one script at a time
	})
	t.Run(KindReal, func(t *testing.T) {
		t.Parallel()
		f(t, Real(t))
	})
}

// Mini gives the shared miniredis. A test that moves its clock or sets errors has its own, see [StartMini].
func Mini(t testing.TB) *Server { t.Helper(); return sharedMini(t) }

// Real gives the shared redis-server.
func Real(t testing.TB) *Server { t.Helper(); needBinary(t); return sharedReal(t) }

// Quickest gives the shared redis-server, or miniredis where there is none.
func Quickest(t testing.TB) *Server {
	t.Helper()
	if HasReal() {
		return Real(t)
	}
	return Mini(t)
}

// Cluster gives the shared Redis Cluster.
func Cluster(t testing.TB) *Server { t.Helper(); needBinary(t); return sharedCluster(t) }

// StartMini starts a miniredis for this test alone.
func StartMini(t testing.TB) *Server { t.Helper(); return private(t, startMini(t)) }

// StartReal starts a redis-server for this test alone, with further arguments ("--maxmemory", "2mb") if wanted. It is
// stopped when the test ends.
func StartReal(t testing.TB, args ...string) *Server { t.Helper(); return StartRealIn(t, nil, args...) }

// StartRealIn is StartReal with these environment variables, too.
func StartRealIn(t testing.TB, env []string, args ...string) *Server {
	t.Helper()
	needBinary(t)
	return private(t, startReal(t, env, args...))
}

func private(t testing.TB, s *Server) *Server {
	t.Cleanup(s.close)
	s.private = true
	return s
}

// HasReal tells whether tests on real servers run. Where they have to, and there is no server, they fail.
func HasReal() bool {
	_, err := exec.LookPath(binary())
	mode := os.Getenv(RequireEnv)
	return mode != "none" && (err == nil || mode == "require" || os.Getenv(ServerEnv) != "")
}

func needBinary(t testing.TB) {
	t.Helper()
	if !HasReal() {
		t.Skipf("redistest: there is no %s, or %s=none", binary(), RequireEnv)
	}
}

// Main runs the tests of a package, stops the shared servers, looks for leaked goroutines and exits. It is all that a
// TestMain does:
//
//	func TestMain(m *testing.M) { redistest.Main(m) }
//
// Leaks count only when the tests passed: a failed test may well leave some.
//
// It takes a *testing.M, or what has something to do before and after it.
func Main(m interface{ Run() int }, ignore ...goleak.Option) {
	// More tests run at once than there are cores: they mostly wait for deadlines. A -parallel that was given is read
	// later.
	_ = flag.Set("test.parallel", strconv.Itoa(max(16, runtime.GOMAXPROCS(0))))
	if os.Getenv("GOGC") == "" && !strings.Contains(fmt.Sprint(os.Args), "-test.bench=") {
		debug.SetGCPercent(400) // the heaps of tests are small; benchmarks measure what users have
	}
	if HasReal() {
		version, _ := exec.Command(binary(), "--version").Output()
		fmt.Printf("redistest: real servers are %s: %s\n", binary(), version)
	}
	code := m.Run()
	running.Range(func(s, _ any) bool { s.(*Server).close(); return true })
	if code == 0 {
		// Longer than Find itself waits: a dial or a topology refresh of a client that was closed ends only with its own
		// timeout.
		var err error
		if !poll(10*time.Second, func() bool { err = goleak.Find(ignore...); return err == nil }) {
			fmt.Fprintf(os.Stderr, "redistest: goroutines leaked: %v\n", err)
			code = 1
		}
	}
	os.Exit(code)
}
