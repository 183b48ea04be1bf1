package lock

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/redistest"
)

// observed counts how often a Cluster client is told to look who has which slots.
type observed struct {
	*redis.ClusterClient
	reloads atomic.Int32
}

func (o *observed) ReloadState(ctx context.Context) {
	o.reloads.Add(1)
	o.ClusterClient.ReloadState(ctx)
}

// A node that cannot be reached may have a successor, of which go-redis does not
// ask by itself for a minute. Alone and in pipelines; an answer is no such thing.
func TestClusterNodeUnreached(t *testing.T) {
	t.Parallel()
	cluster := redistest.Cluster(t).Client(t).(*redis.ClusterClient)
	rdb := &observed{ClusterClient: cluster}
	l := newLocker(t, rdb, func(o *Options) { o.Transport = nil })
	m := l.Mutex(redistest.Name(t))
	le := mustTryOn(t, m)
	hook := &redistest.FailHook{}
	cluster.AddHook(hook)
	for name, exchange := range map[string]func() error{
		"alone":       func() error { return le.Extend(t.Context(), DefaultTTL) },
		"in pipeline": func() error { return renewal(le) },
	} {
		hook.After(func(redis.Cmder) error { return redistest.ReplyError("LOADING it says something") })
		if err := exchange(); err == nil || rdb.reloads.Load() != 0 {
			t.Errorf("%s, an answer: %v, looked %d times", name, err, rdb.reloads.Load())
		}
		hook.After(func(redis.Cmder) error { return io.EOF })
		if err := exchange(); !errors.Is(err, io.EOF) || rdb.reloads.Swap(0) == 0 {
			t.Errorf("%s, a node that is gone: %v, and nobody looked for another", name, err)
		}
		hook.After(nil)
	}
	if err := le.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
}

func mustTryOn(t *testing.T, m *Lock) *Lease {
	t.Helper()
	le, err := m.TryLock(t.Context())
	redistest.Must(t, err)
	return le
}

func renewal(le *Lease) error {
	return le.lock.locker.sendRenewals([]*Lease{le})[0].Err
}

// The master dies and its replica takes over: the lease is renewed there, long
// before the client would have asked of itself.
func TestClusterMasterDies(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	s := redistest.StartCluster(t, 1)
	l := newLocker(t, s.Client(t), minReplicas(1)) // so that the replica has it
	m := l.Mutex(redistest.Name(t), TTL(20*time.Second))
	le := mustTryOn(t, m)
	before := s.MasterOf(t, m.Key())
	s.KillMaster(t, m.Key())
	redistest.Eventually(t, soon, func() bool { return s.MasterOf(t, m.Key()) != before }, "a successor")
	careless := newLocker(t, raw(m))
	redistest.Eventually(t, soon, func() bool {
		_, err := handle(careless, m).TryLock(t.Context())
		return errors.Is(err, ErrBusy)
	}, "an answer from the successor")
	if !le.Held() {
		t.Error("the lease was lost")
	}
	if err := le.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
}
