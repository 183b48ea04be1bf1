package redistest

import (
	"errors"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		childMain()
		return
	}
	Main(m)
}

// within is how long a test waits for what works.
const within = Patience

// onceOnly makes a client that resends nothing and gives up soon.
func onceOnly(o *redis.UniversalOptions) {
	o.MaxRetries = -1
	o.ReadTimeout = 250 * time.Millisecond
}

func TestEach(t *testing.T) {
	Each(t, func(t *testing.T, s *Server) {
		ctx := t.Context()
		rdb := s.Client(t)
		_, cluster := rdb.(*redis.ClusterClient)
		if _, one := rdb.(*redis.Client); cluster != (s.Kind() == KindCluster) || one == cluster {
			t.Fatalf("%s: client is a %T", s.Kind(), rdb)
		}
		if !strings.HasSuffix(t.Name(), "/"+s.Kind()) {
			t.Errorf("subtest %s runs on %s", t.Name(), s.Kind())
		}
		if (s.Mini() != nil) != (s.Kind() == KindMini) {
			t.Errorf("%s: Mini() = %v", s.Kind(), s.Mini())
		}
		// Enough keys to fall on every node of a cluster.
		for range 20 {
			key := Name(t)
			if err := rdb.Set(ctx, key, "x", time.Minute).Err(); err != nil {
				t.Fatal(err)
			}
			if got, err := rdb.Get(ctx, key).Result(); err != nil || got != "x" {
				t.Fatalf("got %q, %v", got, err)
			}
		}
	})
}

func TestServers_areShared(t *testing.T) {
	for _, get := range []func(testing.TB) *Server{Mini, Real} {
		if a, b := get(t), get(t); a != b {
			t.Errorf("%s was started twice", a.Kind())
		}
	}
	a, b := Real(t).Client(t), Real(t).Client(t)
	if a == b {
		t.Error("Client gave the same client twice")
	}
}

func TestCluster_hasThreeMasters(t *testing.T) {
	s := Cluster(t)
	rdb := s.Client(t).(*redis.ClusterClient)
	seen := map[string]bool{}
	for i := range 100 {
		master, err := rdb.MasterForKey(t.Context(), strconv.Itoa(i))
		if err != nil {
			t.Fatal(err)
		}
		seen[master.Options().Addr] = true
	}
	for _, addr := range s.Addrs() {
		if !seen[addr] {
			t.Errorf("no key on %s, only on %v", addr, seen)
		}
	}
	// Keys of several slots in one pipeline, and an error where they may not be.
	pipe := rdb.Pipeline()
	for range 20 {
		pipe.Incr(t.Context(), Name(t))
	}
	if _, err := pipe.Exec(t.Context()); err != nil {
		t.Error(err)
	}
	err := rdb.Eval(t.Context(), "return 1", []string{"a", "b"}).Err()
	if !redis.HasErrorPrefix(err, "CROSSSLOT") {
		t.Errorf("a script over two slots: %v", err)
	}
}

func TestStartReal_restartLosesData(t *testing.T) {
	t.Parallel()
	s := StartReal(t, "--maxmemory", "64mb")
	rdb := s.Client(t)
	ctx := t.Context()
	if got := rdb.ConfigGet(ctx, "maxmemory").Val()["maxmemory"]; got != "67108864" {
		t.Errorf("maxmemory = %q", got)
	}
	for _, again := range []func(){
		func() { s.Restart(t) },
		func() { s.Kill(t); s.Start(t) },
		func() { s.Pause(t); s.Restart(t) },
	} {
		rdb.Set(ctx, "key", "x", 0)
		again()
		if n, err := rdb.Exists(ctx, "key").Result(); n != 0 || err != nil {
			t.Errorf("after a restart: %d keys, %v", n, err)
		}
	}
	s.Stop(t)
	s.Stop(t) // without effect
	if err := s.Client(t, onceOnly).Ping(ctx).Err(); err == nil {
		t.Error("a stopped server answers")
	}
}

func TestStartReal_badArgument(t *testing.T) {
	t.Parallel()
	needBinary(t)
	_, err := startReal([]string{"--no-such-option", "1"})
	if err == nil || !strings.Contains(err.Error(), "no-such-option") {
		t.Errorf("err = %v, want what redis-server says", err)
	}
}

func TestStartReal_pause(t *testing.T) {
	RealTime(t)
	t.Parallel()
	s := StartReal(t)
	rdb := s.Client(t, onceOnly)
	if err := rdb.Ping(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	s.Pause(t)
	var timeout interface{ Timeout() bool }
	if err := rdb.Incr(t.Context(), "n").Err(); !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Errorf("a paused server: %v", err)
	}
	s.Resume(t)
	Eventually(t, within, func() bool { return rdb.Get(t.Context(), "n").Val() == "1" },
		"the command that was sent to the paused server has not run")
}

func TestName(t *testing.T) {
	valid := regexp.MustCompile(`^TestName[a-zA-Z0-9_-]{13,52}$`)
	seen := map[string]bool{}
	t.Run("ünïcode, spaces: {braces}|"+strings.Repeat("long", 20), func(t *testing.T) {
		for range 1000 {
			name := Name(t)
			if !valid.MatchString(name) || seen[name] {
				t.Fatalf("bad or repeated: %q", name)
			}
			seen[name] = true
		}
	})
}

func TestEventually(t *testing.T) {
	n := 0
	Eventually(t, within, func() bool { n++; return n == 3 }, "three calls, not %d", n)
	if n != 3 {
		t.Errorf("cond was called %d times", n)
	}
	if poll(time.Millisecond, func() bool { return false }) {
		t.Error("poll says true")
	}
}

func TestFailHook(t *testing.T) {
	rdb := Mini(t).Client(t)
	ctx := t.Context()
	var hook FailHook
	rdb.AddHook(&hook)
	loading := ReplyError("LOADING Redis is loading the dataset in memory")
	refuse := func(name string) func(redis.Cmder) error {
		return func(cmd redis.Cmder) error {
			if cmd.Name() == name {
				return loading
			}
			return nil
		}
	}
	n, other := Name(t), Name(t)
	want := func(what string, err error, value, otherValue string) {
		t.Helper()
		hook.Before(nil)
		hook.After(nil)
		if !redis.HasErrorPrefix(err, "LOADING") {
			t.Errorf("%s: err = %v", what, err)
		}
		if got := rdb.Get(ctx, n).Val(); got != value {
			t.Errorf("%s: n is %q, want %q", what, got, value)
		}
		if got := rdb.Get(ctx, other).Val(); got != otherValue {
			t.Errorf("%s: other is %q, want %q", what, got, otherValue)
		}
	}
	both := func(pipe redis.Pipeliner) error {
		cmd := pipe.Incr(ctx, n)
		pipe.Set(ctx, other, "set", 0)
		_, err := pipe.Exec(ctx)
		if cmd.Err() != err {
			t.Errorf("command: %v, pipeline: %v", cmd.Err(), err)
		}
		return err
	}
	hook.Before(refuse("incr"))
	want("before", rdb.Incr(ctx, n).Err(), "", "")
	hook.Before(refuse("incr"))
	want("before, in a transaction", both(rdb.TxPipeline()), "", "")
	hook.Before(refuse("incr"))
	want("before, in a pipeline", both(rdb.Pipeline()), "", "set")
	hook.After(refuse("incr"))
	want("after", rdb.Incr(ctx, n).Err(), "1", "set")
	hook.After(refuse("incr"))
	want("after, in a pipeline", both(rdb.Pipeline()), "2", "set")
}
