package trust

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// linSite is a process as Redis sees it: a Locker with connections of its own.
type linSite struct {
	locker *lock.Locker
	ctx    context.Context // ends when it dies
	stop   context.CancelFunc
	wire   *linWire      // nil: it does not die
	died   atomic.Int64  // when; 0: it lives
	gone   chan struct{} // closed when nothing of it runs any more
	rdb    redis.UniversalClient
}

// linWire are the connections of a site that dies: cut, and none anew. What was
// sent may still be run.
type linWire struct {
	mu    sync.Mutex // guards the fields below
	cut   bool
	conns []net.Conn
}

var errCut = errors.New("the process is dead")

func (w *linWire) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cut {
		_ = conn.Close()
		return nil, errCut
	}
	w.conns = append(w.conns, conn)
	return conn, nil
}

func (w *linWire) sever() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut = true
	for _, conn := range w.conns {
		_ = conn.Close()
	}
}

// die ends the site as SIGKILL ends a process: at once, in the middle of whatever
// it does. Its goroutines here end beside.
func (s *linSite) die() {
	s.wire.sever()
	s.died.Store(linNow())
	s.stop()
	_ = s.locker.Close()
	_ = s.rdb.Close()
	close(s.gone)
}

// linWorld is a Redis and the processes that take locks there.
type linWorld struct {
	t       *testing.T
	server  *redistest.Server
	lasting []*linSite
	slow    *linSite // hears everything late; nil on a cluster

	mortal  atomic.Pointer[linSite] // the one that dies next
	crashes atomic.Int64
	quit    chan struct{}
	wg      sync.WaitGroup // of what runs until quit
}

// How long those live that die, and how late the slow one hears.
const (
	linLifetime = 1500 * time.Millisecond
	linDelay    = 40 * time.Millisecond
)

// newLinWorld has three processes that last, a slow one, and one that dies every
// now and then and is replaced. It ends with close.
func newLinWorld(t *testing.T, s *redistest.Server) *linWorld {
	w := &linWorld{t: t, server: s, quit: make(chan struct{})}
	for range 3 {
		w.lasting = append(w.lasting, w.site(s.Client(t, linPool), nil))
	}
	if s.Kind() != redistest.KindCluster {
		proxy := redistest.NewProxy(t, s.Addr())
		proxy.Delay(linDelay)
		w.slow = w.site(proxy.Client(t, linPool), nil)
	}
	w.mortal.Store(w.newMortal())
	// Ends at quit; die returns when nothing of the site runs any more.
	w.wg.Go(func() {
		ticker := time.NewTicker(linLifetime)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				w.crashes.Add(1)
				w.wg.Go(w.mortal.Swap(w.newMortal()).die) // ends when its Locker has closed, which the cut keeps short
			case <-w.quit:
				w.mortal.Load().die()
				return
			}
		}
	})
	return w
}

func linPool(o *redis.UniversalOptions) { o.PoolSize = 64 }

func (w *linWorld) newMortal() *linSite {
	wire := new(linWire)
	rdb := w.server.Client(w.t, linPool, func(o *redis.UniversalOptions) {
		o.Dialer, o.MaxRetries, o.DialerRetries = wire.dial, -1, 1
	})
	return w.site(rdb, wire)
}

func (w *linWorld) site(rdb redis.UniversalClient, wire *linWire) *linSite {
	s := &linSite{wire: wire, rdb: rdb, gone: make(chan struct{})}
	s.ctx, s.stop = context.WithCancel(context.Background())
	s.locker = lock.New(rdb, lock.Options{Logger: slog.New(slog.DiscardHandler)})
	return s
}

func (w *linWorld) close() {
	close(w.quit)
	w.wg.Wait()
	for _, s := range append(w.lasting, w.slow) {
		if s != nil {
			s.stop()
			_ = s.locker.Close()
		}
	}
}
