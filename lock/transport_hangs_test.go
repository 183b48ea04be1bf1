package lock

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/exchange"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/internal/wire"
)

// stuck is a transport that answers nothing until it is let go of.
type stuck struct{ free chan struct{} }

func (s *stuck) Eval(ctx context.Context, _ string, _ []string, _ ...any) *redis.Cmd {
	<-s.free
	cmd := redis.NewCmd(ctx)
	cmd.SetErr(redis.ErrClosed)
	return cmd
}

func (s *stuck) EvalSha(ctx context.Context, _ string, _ []string, _ ...any) *redis.Cmd {
	return s.Eval(ctx, "", nil)
}

// A transport that does not come back, whatever its context says, is left
// behind after exchange.Timeout. Its goroutines end with it (see TestMain).
func TestTransportThatHangsIsBounded(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	transport := &stuck{make(chan struct{})}
	t.Cleanup(func() { close(transport.free) })
	l := newLocker(t, redistest.Mini(t).Client(t), func(o *Options) { o.Transport = transport })
	m := l.Mutex(redistest.Name(t))
	for name, f := range map[string]func() error{
		"TryLock": func() error { _, err := m.TryLock(t.Context()); return err },
		"Lock":    func() error { _, err := m.Lock(t.Context()); return err },
		"Holders": func() error { _, err := m.Holders(t.Context()); return err },
	} {
		began := time.Now()
		err := f()
		if !errors.Is(err, ErrBackend) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s over a transport that hangs: %v, want ErrBackend and DeadlineExceeded", name, err)
		}
		if took := time.Since(began); took > soon {
			t.Errorf("%s was bounded after %s, want about %s", name, took, exchange.Timeout)
		}
	}
}

// The same with the real thing, behind a network that swallows everything: what
// was queued and given up may yet run, so it is released as well.
func TestTransportThatHangsReleasesWhatMayYetRun(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	s := redistest.Real(t)
	for name, open := range transports {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := redistest.NewProxy(t, s.Addr())
			rdb := p.Client(t, func(o *redis.UniversalOptions) { o.MaxRetries, o.ReadTimeout = -1, 2*exchange.Timeout })
			far := newLocker(t, rdb, func(o *Options) { o.Transport = open(t, rdb) })
			m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t), TTL(time.Minute))
			warm(t, m)
			held := p.Hold(isTake(m), 1)
			began := time.Now()
			if _, err := handle(far, m).TryLock(t.Context()); !errors.Is(err, ErrBackend) {
				t.Fatalf("TryLock over a transport that hangs: %v, want ErrBackend", err)
			}
			if took := time.Since(began); took > soon {
				t.Errorf("bounded after %s, want about %s", took, exchange.Timeout)
			}
			held.Release()
			redistest.Eventually(t, soon, func() bool { return p.Count("EVALSHA")+p.Count("SET") >= 2 }, "the take and a release")
			free(t, m, soon)
		})
	}
}

// What the real thing has queued behind a command that hangs is written later, when
// nobody waits for it any more.
func TestTransportThatHangsWritesWhatItQueued(t *testing.T) {
	t.Parallel()
	s := redistest.Real(t)
	p := redistest.NewProxy(t, s.Addr())
	rdb := p.Client(t, func(o *redis.UniversalOptions) { o.MaxRetries, o.ReadTimeout = -1, 3*exchange.Timeout })
	queue := newAsyncPipe(t, rdb, map[string]any{"MaxBatchSize": 300, "MaxBatchBytes": 128 * 1024})
	far := newLocker(t, rdb, func(o *Options) { o.Transport = Async(queue) })
	m := newLocker(t, s.Client(t)).Mutex(redistest.Name(t), TTL(time.Minute))
	warm(t, m)
	mustUnlock(t, mustTry(t, handle(far, m))) // controls are read
	written := p.Count("EVALSHA") + p.Count("SET")
	first := redistest.Name(t)
	held := p.Hold(func(command []string) bool { return len(command) == 2 && command[1] == first }, 1)
	queue.Submit(t.Context(), redis.NewStringCmd(t.Context(), "get", first))
	redistest.Eventually(t, soon, func() bool { return held.Count() == 1 }, "the first command being held")
	if _, err := handle(far, m).TryLock(t.Context()); !errors.Is(err, ErrBackend) {
		t.Fatalf("TryLock behind a command that hangs: %v, want ErrBackend", err)
	}
	if n := p.Count("EVALSHA") + p.Count("SET"); n != written {
		t.Fatalf("%d commands were written, want the take to be queued", n-written)
	}
	held.Release()
	redistest.Eventually(t, soon, func() bool { return p.Count("EVALSHA")+p.Count("SET") >= written+2 }, "the take and a release")
	free(t, m, soon)
}

// queueing is a transport that keeps asks until it is let go of, and sends them
// then, whatever became of their callers.
type queueing struct {
	redis.UniversalClient
	free     chan struct{}
	releases atomic.Int32 // that have been answered
}

func (q *queueing) EvalSha(ctx context.Context, sha string, keys []string, args ...any) *redis.Cmd {
	if sha == wire.AskScript.SHA {
		<-q.free
		ctx = context.WithoutCancel(ctx)
	}
	cmd := q.UniversalClient.EvalSha(ctx, sha, keys, args...)
	if sha == wire.ReleaseScript.SHA {
		q.releases.Add(1)
	}
	return cmd
}

func (q *queueing) Process(ctx context.Context, cmd redis.Cmder) error {
	if cmd.Name() == "set" {
		<-q.free
		ctx = context.WithoutCancel(ctx)
	}
	return q.UniversalClient.Process(ctx, cmd)
}

// An ask that was queued and given up before it was written may yet run.
func TestTransportThatQueuesReleasesWhatItSends(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	rdb := redistest.Real(t).Client(t)
	transport := &queueing{UniversalClient: rdb, free: make(chan struct{})}
	m := newLocker(t, rdb, func(o *Options) { o.Transport = transport }).Mutex(redistest.Name(t), TTL(time.Minute))
	warm(t, m)
	if _, err := m.TryLock(t.Context()); !errors.Is(err, ErrBackend) {
		t.Fatalf("TryLock over a transport that queues: %v, want ErrBackend", err)
	}
	redistest.Eventually(t, soon, func() bool { return transport.releases.Load() > 0 }, "the first release")
	close(transport.free)
	redistest.Eventually(t, soon, func() bool { return band(t, m, "h:") == 1 }, "the late ask taking the lock")
	free(t, m, soon)
}
