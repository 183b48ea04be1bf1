package redistest

import (
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"
)

// The kinds of servers, which are also the names of Each's subtests.
const (
	KindMini    = "miniredis"
	KindReal    = "redis"
	KindCluster = "cluster"
)

// RightsEnv is the environment variable with which a test binary runs its tests on real servers as an ACL user: its
// value is what ACL SETUSER is told of that user's rights. Every client of such a server, and of a Proxy, is that user.
const RightsEnv = "AUTOMUTEX_TEST_RIGHTS"

// limitedUser is its name, and its password.
const limitedUser = "limited"

// Server is a running miniredis, redis-server or Redis Cluster. Its methods may be called from several goroutines, as
// far as those that take a t allow it.
type Server struct {
	kind    string
	private bool                 // one test's own
	mini    *miniredis.Miniredis // of KindMini only
	still   atomic.Bool          // of KindMini only: the test sets the clock
	nodes   []*node              // of the other kinds
}

func startMini(t testing.TB) *Server {
	t.Helper()
	mini, err := miniredis.Run()
	Must(t, err)
	s := &Server{kind: KindMini, mini: mini}
	last, every := time.Now(), tick
	var mu sync.Mutex // guards last and every. Nobody waits for it: its owner may wait for a script
	mini.Server().SetPreHook(func(_ *server.Peer, command string, _ ...string) bool {
		if !mu.TryLock() {
			return false
		}
		defer mu.Unlock()
		// else a script runs: this is one of its commands
		if !s.still.Load() && (command == "SET" && every == tick || time.Since(last) >= every) && s.mini.TryLock() {
			s.mini.Unlock()
			now := time.Now()
			s.mini.FastForward(now.Sub(last)) // goes through all keys
			last, every = now, min(max(tick, 10*(time.Since(now)-tick/10)), mostTicks*tick)
		}
		return false
	})
	return s
}

// tick is by how much keys of a miniredis may expire too late; and too early, if a script made them and not a SET.
// (With none, by ClockTTL of miniredis, each command of each script would go through all keys.) With so many keys that
// it takes more than a fifth of a tick to go through them, the clock moves less often, so that nine tenths of the time
// are left for commands: each mostTicks at most.
const tick, mostTicks = time.Millisecond, 20

func startReal(t testing.TB, env []string, args ...string) *Server {
	t.Helper()
	return &Server{kind: KindReal, nodes: []*node{startServer(t, manyPorts, env, args...)}}
}

// SetTime sets the clock of a miniredis of the test's own. From then on it stands still, and no key expires by itself.
func (s *Server) SetTime(t testing.TB, now time.Time) {
	t.Helper()
	if s.mini == nil || !s.private {
		t.Fatalf("redistest: only the clock of a server from StartMini can be set, not that of this %s", s.kind)
	}
	s.still.Store(true)
	s.mini.SetTime(now)
}

func (s *Server) close() {
	if s.mini != nil {
		s.mini.Close()
	}
	for _, n := range s.nodes {
		n.remove()
	}
}

// Kind is KindMini, KindReal or KindCluster.
func (s *Server) Kind() string { return s.kind }

// Addrs gives host:port of the server, or of every node of the cluster.
func (s *Server) Addrs() (addrs []string) {
	if s.mini != nil {
		return []string{s.mini.Addr()}
	}
	for _, n := range s.nodes {
		addrs = append(addrs, n.addr())
	}
	return addrs
}

// Addr gives host:port of the server, or of one node of the cluster.
func (s *Server) Addr() string { return s.Addrs()[0] }

// Mini gives the miniredis behind a server of KindMini, else nil.
func (s *Server) Mini() *miniredis.Miniredis { return s.mini }

// Options gives what a client of this server needs; the caller may change it.
func (s *Server) Options() *redis.UniversalOptions {
	return &redis.UniversalOptions{Addrs: s.Addrs(), IsClusterMode: s.kind == KindCluster}
}

// Client makes a new client, a *redis.ClusterClient for a cluster and else a *redis.Client, which is closed when the
// test ends.
func (s *Server) Client(t testing.TB, opts ...func(*redis.UniversalOptions)) redis.UniversalClient {
	t.Helper()
	return newClient(t, s.Options(), opts)
}

func newClient(t testing.TB, o *redis.UniversalOptions, opts []func(*redis.UniversalOptions)) redis.UniversalClient {
	t.Helper()
	if os.Getenv(RightsEnv) != "" {
		o.Username, o.Password = limitedUser, limitedUser
	}
	for _, opt := range opts {
		opt(o)
	}
	rdb := redis.NewUniversalClient(o)
	t.Cleanup(func() { _ = rdb.Close() }) // the test may have closed it itself
	return rdb
}

// own gives the node of a server from StartReal; a fault put on any other would hit other tests.
func (s *Server) own(t testing.TB) *node {
	t.Helper()
	if !s.private || len(s.nodes) != 1 {
		t.Fatalf("redistest: only a server from StartReal can be stopped or paused, not this %s", s.kind)
	}
	return s.nodes[0]
}

// Restart stops a server from StartReal and starts it again on the same port. Its data and its script cache are lost.
func (s *Server) Restart(t testing.TB) { t.Helper(); s.Stop(t); s.Start(t) }

// Start starts a server from StartReal again, on the same port, after Stop or Kill.
func (s *Server) Start(t testing.TB) { t.Helper(); Must(t, s.own(t).start()) }

// Stop ends a server from StartReal as an operator would (SIGTERM), and returns when it is gone. Without effect when it
// does not run.
func (s *Server) Stop(t testing.TB) { t.Helper(); s.own(t).stop(t) }

// Kill ends a server from StartReal at once (SIGKILL), and returns when it is gone. Without effect when it does not
// run.
func (s *Server) Kill(t testing.TB) { t.Helper(); s.own(t).Kill() }

// Pause freezes a server from StartReal (SIGSTOP): it accepts connections and answers nothing until Resume.
func (s *Server) Pause(t testing.TB) { t.Helper(); s.own(t).Pause(t) }

// Resume lets a paused server go on (SIGCONT). It then runs everything that was sent to it meanwhile.
func (s *Server) Resume(t testing.TB) { t.Helper(); s.own(t).Resume(t) }
