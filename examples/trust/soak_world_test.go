package trust

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/unique"
)

const (
	soakInside   = 3 // servers in this process
	soakChildren = 2 // in processes of their own
	soakServers  = soakInside + soakChildren
)

// soakWorld is one Redis for asynq and the locks, another one for the ledger, and
// servers that see the first through two proxies each.
type soakWorld struct {
	t         *testing.T
	redis     *redistest.Server
	rdb       *redis.Client // straight to redis: the operator's, and the producers' for asynq
	ledger    *soakLedger
	prefix    string
	inspector *asynq.Inspector
	servers   []*soakServer // those in this process first
	claims    *redistest.Proxy
	client    *asynq.Client
	once      *unique.Client // whose claims go through that proxy

	killed    atomic.Int64 // workers
	unheard   atomic.Int64 // faults between asynq and its Redis
	restarted atomic.Int64
	forever   atomic.Int64 // keys without TTL
	looked    atomic.Int64 // processes that ended and had left no goroutine behind
	leaked    atomic.Int64 // those that had
}

// soakServer is a server through its lives.
type soakServer struct {
	world        *soakWorld
	index        int
	guard, asynq *redistest.Proxy
	lives        int
	inside       *soakWorker // the life it has, if that is in this process
	child        *soakProcess
	ledgerAddr   string
}

// soakProcess is a worker in a process of its own.
type soakProcess struct {
	proc  string
	cmd   *exec.Cmd
	stdin io.Closer // ends it as an operator would
}

func newSoakWorld(t *testing.T) *soakWorld {
	t.Helper()
	w := &soakWorld{t: t, redis: redistest.StartReal(t), prefix: redistest.Name(t)}
	books := redistest.StartReal(t)
	straight := func(s *redistest.Server) *redis.Client {
		rdb := redis.NewClient(&redis.Options{Addr: s.Addr(), ClientName: "operator", ReadTimeout: soakPatience})
		t.Cleanup(func() { _ = rdb.Close() })
		return rdb
	}
	w.rdb = straight(w.redis)
	w.ledger = &soakLedger{rdb: straight(books), fail: w.fail}
	w.inspector = asynq.NewInspectorFromRedisClient(w.rdb)
	w.client = asynq.NewClientFromRedisClient(w.rdb)
	w.claims = redistest.NewProxy(t, w.redis.Addr())
	_, once := soakRules()
	var err error
	if w.once, err = unique.New(w.client, w.inspector, w.claims.Client(t), unique.Config{Prefix: w.prefix, Rules: once}); err != nil {
		t.Fatal(err)
	}
	for i := range soakServers {
		s := &soakServer{
			world: w, index: i, ledgerAddr: books.Addr(),
			guard: redistest.NewProxy(t, w.redis.Addr()), asynq: redistest.NewProxy(t, w.redis.Addr()),
		}
		w.servers = append(w.servers, s)
		s.start()
	}
	t.Cleanup(func() { // only a test that fails has something left here
		for _, s := range w.servers {
			s.stop()
		}
	})
	return w
}

// fail is told by workers on goroutines of their own.
func (w *soakWorld) fail(err error) { w.t.Error(err) }

// start begins a new life.
func (s *soakServer) start() {
	s.lives++
	life := &soakWorker{
		Proc: fmt.Sprintf("worker-%d.%d", s.index, s.lives), Prefix: s.world.prefix,
		Guard: s.guard.Addr(), Asynq: s.asynq.Addr(), Ledger: s.ledgerAddr,
	}
	life.AtFront = s.index == 2 // they need not all be alike
	if s.index < soakInside {
		s.inside = life
		if err := life.start(s.world.fail); err != nil {
			s.world.fail(err)
		}
		return
	}
	child, err := startSoakProcess(life)
	if err != nil {
		s.world.fail(err)
		return
	}
	s.child = child
}

// stop ends the life as a program would. A child that leaves a goroutine behind,
// or could not do its work, says so then.
func (s *soakServer) stop() {
	if s.inside != nil {
		if err := s.inside.stop(); err != nil {
			s.world.fail(fmt.Errorf("%s: %w", s.inside.Proc, err))
		}
		s.inside = nil
	}
	if s.child != nil {
		child := s.child
		s.child = nil
		// A child that hangs is killed, which Wait reports.
		hangs := time.AfterFunc(2*soakPatience, func() { _ = child.cmd.Process.Kill() })
		defer hangs.Stop()
		err := errors.Join(child.stdin.Close(), child.cmd.Wait())
		switch {
		case err == nil:
			s.world.looked.Add(1)
		case child.cmd.ProcessState.ExitCode() == soakLeaked:
			s.world.leaked.Add(1)
			fallthrough
		default:
			s.world.fail(fmt.Errorf("%s: %w", child.proc, err))
		}
	}
}

// kill ends a child by SIGKILL, and starts the next.
func (s *soakServer) kill() {
	child := s.child
	if s.child = nil; child == nil { // it did not start, as the test was told
		return
	}
	s.world.ledger.kill(child.proc)
	_ = child.cmd.Process.Kill() // it runs: nobody else ends it
	_ = child.cmd.Wait()         // "signal: killed"
	_ = child.stdin.Close()
	s.world.killed.Add(1)
	s.start()
}

// startSoakProcess starts a worker as a child, and returns when it serves.
func startSoakProcess(life *soakWorker) (*soakProcess, error) {
	text, err := json.Marshal(life)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"=soak worker", soakWorkerEnv+"="+string(text))
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil || strings.TrimSpace(line) != "ready" {
		_ = cmd.Process.Kill()
		return nil, fmt.Errorf("%s does not serve: %q, %w", life.Proc, line, errors.Join(err, cmd.Wait()))
	}
	return &soakProcess{proc: life.Proc, cmd: cmd, stdin: stdin}, nil
}

// soakBacklog is how many tasks there are in all queues, by state; of scheduled
// ones those that are due before the soak is over.
type soakBacklog struct{ pending, active, scheduled, retry int }

func (b soakBacklog) rest() int { return b.pending + b.active + b.retry + b.scheduled }

func (w *soakWorld) backlog() (b soakBacklog, err error) {
	ctx := context.Background()
	var found [4][]*redis.IntCmd
	_, err = w.rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		for _, q := range append(soakQueues, soakOnceQueue) {
			key := "asynq:{" + q + "}:"
			found[0] = append(found[0], p.LLen(ctx, key+"pending"))
			found[1] = append(found[1], p.LLen(ctx, key+"active"))
			found[2] = append(found[2], p.ZCount(ctx, key+"scheduled", "-inf", strconv.FormatInt(time.Now().Add(time.Hour).Unix(), 10)))
			found[3] = append(found[3], p.ZCard(ctx, key+"retry"))
		}
		return nil
	})
	for i, n := range []*int{&b.pending, &b.active, &b.scheduled, &b.retry} {
		for _, cmd := range found[i] {
			*n += int(cmd.Val())
		}
	}
	return b, err
}

// settle has everything done that can be. asynq finds out only after a minute
// which tasks killed workers had, and those whose answer a cut connection lost:
// when all servers have stopped what is still active is that, and its leases are
// made to look over.
func (w *soakWorld) settle() {
	w.t.Helper()
	for range 20 {
		w.quiet()
		for _, s := range w.servers {
			s.stop()
		}
		b, err := w.backlog()
		if err != nil {
			w.t.Fatal(err)
		}
		if b.rest() <= 0 {
			return
		}
		for _, q := range append(soakQueues, soakOnceQueue) {
			lease := "asynq:{" + q + "}:lease"
			for _, id := range w.rdb.ZRange(context.Background(), lease, 0, -1).Val() {
				w.rdb.ZAddXX(context.Background(), lease, redis.Z{Score: 1, Member: id})
			}
		}
		for _, s := range w.servers[:soakInside] {
			s.start()
		}
	}
	b, err := w.backlog()
	w.t.Errorf("the servers do not come to an end: %+v, %v", b, err)
}

// quiet waits until nothing is left to do, or only what nobody does: active tasks
// whose number does not change while no handler is under way. The operator has tasks that wait for a retry run
// at once, so that the end comes sooner.
func (w *soakWorld) quiet() {
	w.t.Helper()
	var last soakBacklog
	since, hurried := time.Now(), time.Now()
	redistest.Eventually(w.t, 10*soakPatience, func() bool {
		if time.Since(hurried) > 400*time.Millisecond {
			hurried = time.Now()
			for _, q := range append(soakQueues, soakOnceQueue) {
				if _, err := w.inspector.RunAllRetryTasks(q); err != nil && !errors.Is(err, asynq.ErrQueueNotFound) {
					w.fail(err)
				}
			}
		}
		<-time.After(20 * time.Millisecond)
		b, err := w.backlog()
		if err != nil {
			w.fail(err)
			return true
		}
		if b != last || b.rest() > b.active || w.ledger.working() > 0 {
			last, since = b, time.Now()
		}
		return b.rest() <= 0 || time.Since(since) > time.Second
	}, "nothing being left to do but what nobody does")
}
