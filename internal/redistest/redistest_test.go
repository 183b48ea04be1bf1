package redistest

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

func TestMain(m *testing.M) { Main(m) }

// onceOnly makes a client that resends nothing and gives up soon.
func onceOnly(o *redis.UniversalOptions) {
	o.MaxRetries = -1
	o.ReadTimeout = 250 * time.Millisecond
}

func TestEach(t *testing.T) {
	Each(t, func(t *testing.T, s *Server) {
		rdb := s.Client(t)
		if _, cluster := rdb.(*redis.ClusterClient); cluster != (s.Kind() == KindCluster) {
			t.Fatalf("%s: client is a %T", s.Kind(), rdb)
		}
		if (s.Mini() != nil) != (s.Kind() == KindMini) || !strings.HasSuffix(t.Name(), "/"+s.Kind()) {
			t.Errorf("%s runs on %s, Mini() = %v", t.Name(), s.Kind(), s.Mini())
		}
		masters := map[string]bool{}
		for range 99 { // keys fall on every node of a cluster
			key := Name(t)
			Must(t, rdb.Set(t.Context(), key, "x", time.Minute).Err())
			if s.Kind() == KindCluster {
				masters[s.MasterOf(t, key).Addr()] = true
			}
		}
		err := rdb.Eval(t.Context(), "return 1", []string{"a", "b"}).Err()
		if s.Kind() == KindCluster && (len(masters) != 3 || !redis.HasErrorPrefix(err, "CROSSSLOT")) {
			t.Errorf("99 keys are on %v; a script over two slots: %v", masters, err)
		}
	})
}

func TestStartReal(t *testing.T) {
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
	s.Pause(t)
	var timeout interface{ Timeout() bool }
	if err := s.Client(t, onceOnly).Incr(ctx, "n").Err(); !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Errorf("a paused server: %v", err)
	}
	s.Resume(t)
	s.Stop(t)
	s.Stop(t) // without effect
	if err := s.Client(t, onceOnly).Ping(ctx).Err(); err == nil {
		t.Error("a stopped server answers")
	}
	s.own(t).args = append(s.own(t).args, "--no-such-option", "1")
	if err := s.own(t).start(); err == nil || !strings.Contains(err.Error(), "no-such-option") {
		t.Errorf("err = %v, want what redis-server says", err)
	}
}

func TestFailHook(t *testing.T) {
	rdb := Mini(t).Client(t)
	ctx := t.Context()
	var hook FailHook
	rdb.AddHook(&hook)
	refuse := func(cmd redis.Cmder) error {
		if cmd.Name() == "incr" {
			return ReplyError("LOADING Redis is loading the dataset in memory")
		}
		return nil
	}
	n, other := Name(t), Name(t)
	one := func(redis.Pipeliner) error { return rdb.Incr(ctx, n).Err() }
	both := func(pipe redis.Pipeliner) error {
		cmd := pipe.Incr(ctx, n)
		pipe.Set(ctx, other, "set", 0)
		_, err := pipe.Exec(ctx)
		if cmd.Err() != err {
			t.Errorf("command: %v, pipeline: %v", cmd.Err(), err)
		}
		return err
	}
	for _, c := range []struct {
		what         string
		set          func(func(redis.Cmder) error)
		send         func(redis.Pipeliner) error
		pipe         redis.Pipeliner
		value, other string
	}{
		{"before", hook.Before, one, nil, "", ""},
		{"before, in a transaction", hook.Before, both, rdb.TxPipeline(), "", ""},
		{"before, in a pipeline", hook.Before, both, rdb.Pipeline(), "", "set"},
		{"after", hook.After, one, nil, "1", "set"},
		{"after, in a pipeline", hook.After, both, rdb.Pipeline(), "2", "set"},
	} {
		c.set(refuse)
		err := c.send(c.pipe)
		c.set(nil)
		if got, its := rdb.Get(ctx, n).Val(), rdb.Get(ctx, other).Val(); !redis.HasErrorPrefix(err, "LOADING") ||
			got != c.value || its != c.other {
			t.Errorf("%s: %v, n is %q and the other %q, want %q and %q", c.what, err, got, its, c.value, c.other)
		}
	}
}
