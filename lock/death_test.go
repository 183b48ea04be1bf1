package lock

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/redistest"
)

// childEnv makes this test binary a child process that takes locks, see child.
const childEnv = "AUTOMUTEX_TEST_CHILD"

// childMain takes the locks it is told of, at once, in line if need be, prints
// the name of each that it has, and keeps them until its parent goes or kills
// it. The variable's value is "<redis address> <ttl> <name>...".
func childMain() {
	words := strings.Fields(os.Getenv(childEnv))
	ttl, err := time.ParseDuration(words[1])
	if err != nil {
		panic(err)
	}
	l := New(redis.NewClient(&redis.Options{Addr: words[0]}), Options{Owner: "child"})
	var mu sync.Mutex // one line at a time
	for _, name := range words[2:] {
		go func() {
			if _, err := l.Mutex(name, TTL(ttl)).Lock(context.Background()); err != nil {
				panic(err)
			}
			mu.Lock()
			defer mu.Unlock()
			fmt.Println(name)
		}()
	}
	_, _ = io.Copy(io.Discard, os.Stdin) // ends with the parent
}

// child is a process that takes locks.
type child struct {
	cmd *exec.Cmd
	out *bufio.Scanner
}

func startChild(t *testing.T, s *redistest.Server, ttl time.Duration, names ...string) *child {
	t.Helper()
	c := &child{cmd: exec.Command(os.Args[0])}
	c.cmd.Env = append(os.Environ(), childEnv+"="+s.Addr()+" "+ttl.String()+" "+strings.Join(names, " "))
	c.cmd.Stderr = os.Stderr
	if _, err := c.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := c.cmd.StdoutPipe()
	redistest.Must(t, err)
	c.out = bufio.NewScanner(out)
	redistest.Must(t, c.cmd.Start())
	t.Cleanup(c.kill)
	return c
}

// has waits until the child has n locks.
func (c *child) has(t *testing.T, n int) {
	t.Helper()
	for range n {
		if !c.out.Scan() {
			t.Fatalf("the child has ended: %v", c.out.Err())
		}
	}
}

// kill is a SIGKILL, and returns when the process is gone.
func (c *child) kill() {
	_ = c.cmd.Process.Kill()
	_ = c.cmd.Wait()
}

// A holder's process is killed: the waiter of another one has the lock within
// 100 ms of the deadline, by the server's clock.
func TestRule05_KilledHolderIsSucceeded(t *testing.T) {
	redistest.RealTime(t)
	t.Parallel()
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		testKilledHolder(t, redistest.Real(t))
	})
	// redis-server is slow to delete what has expired when there is much of it.
	t.Run("redis with 20,000 keys that expire", func(t *testing.T) {
		t.Parallel()
		s := redistest.StartReal(t)
		p := s.Client(t).Pipeline()
		for i := range 20_000 {
			p.Set(t.Context(), "other:"+strconv.Itoa(i), i, time.Duration(1+i%5000)*time.Millisecond+time.Second)
		}
		if _, err := p.Exec(t.Context()); err != nil {
			t.Fatal(err)
		}
		testKilledHolder(t, s)
	})
}

func testKilledHolder(t *testing.T, s *redistest.Server) {
	l := newLocker(t, s.Client(t))
	var names []string
	for range 7 {
		names = append(names, redistest.Name(t))
	}
	c := startChild(t, s, 3*time.Second, names...)
	c.has(t, len(names))
	var waiters []*attempt
	for i, name := range names {
		waiters = append(waiters, inLine(t, l.Mutex(name), 1))
		if i > 0 { // spread the deadlines
			raw(waiters[i].lock).Eval(t.Context(),
				`return redis.call('ZINCRBY', KEYS[1], ARGV[1], redis.call('ZRANGEBYSCORE', KEYS[1], 1e11, 1e14)[1])`,
				[]string{waiters[i].lock.Key()}, i*130)
		}
	}
	c.kill()
	late := watchLateness(t, s)
	var gaps []time.Duration
	for _, w := range waiters {
		h, err := w.lock.Holders(t.Context())
		if err != nil || len(h) > 1 || len(h) == 1 && h[0].Owner != "child" {
			t.Fatalf("holders: %+v, %v", h, err)
		}
		var deadline float64
		for member, score := range stored(t, w.lock) {
			if strings.HasPrefix(member, "h:") {
				deadline = score
			}
		}
		gaps = append(gaps, -time.Duration(deadline)*time.Millisecond)
	}
	for i, w := range waiters {
		gaps[i] += time.Duration(fenceOf(t, w.got(t))) * time.Microsecond
	}
	slices.Sort(gaps)
	t.Logf("succeeded after the deadline by %v", gaps)
	if gaps[0] < 0 {
		t.Errorf("a killed holder was succeeded %s before its deadline", -gaps[0])
	}
	// The middle one: a loaded machine may delay some of them, and is late itself then. By
	// refreshes alone it would be half a second.
	if middle, most := gaps[len(gaps)/2], 100*time.Millisecond+late(); middle > most {
		t.Errorf("killed holders were succeeded %v after their deadlines, want within %s", gaps, most)
	}
}

// watchLateness measures how late this machine is, until the function that it returns is
// called: the longest time in excess that a short sleep and a round trip to s took.
func watchLateness(t *testing.T, s *redistest.Server) (worst func() time.Duration) {
	t.Helper()
	const pause = 10 * time.Millisecond
	rdb, stop, measured := s.Client(t), make(chan struct{}), make(chan time.Duration, 1)
	go func() { // ends with stop
		var late time.Duration
		for began := time.Now(); ; began = time.Now() {
			select {
			case <-stop:
				measured <- late
				return
			case <-time.After(pause):
			}
			if err := rdb.Ping(context.Background()).Err(); err != nil {
				t.Errorf("PING: %v", err)
			}
			late = max(late, time.Since(began)-pause)
		}
	}()
	worst = sync.OnceValue(func() time.Duration {
		close(stop)
		return <-measured
	})
	t.Cleanup(func() { worst() })
	return worst
}

// A waiter's process is killed; its entry is fresh, so the next release grants
// to it. That costs the one behind it G at most, whatever the TTL.
func TestRule06_KilledWaiterCostsAtMostG(t *testing.T) {
	redistest.RealTime(t)
	t.Parallel()
	s := redistest.Real(t)
	l := newLocker(t, s.Client(t))
	m := l.Mutex(redistest.Name(t), TTL(time.Minute))
	held := mustTry(t, m)
	c := startChild(t, s, time.Minute, m.name)
	waiting(t, m, 1)
	behind := inLine(t, m, 2)
	c.kill()
	lateness := watchLateness(t, s)
	released := serverNow(t, m)
	mustUnlock(t, held)
	h, err := m.Holders(t.Context())
	if err != nil || len(h) != 1 {
		t.Fatalf("holders: %+v, %v", h, err)
	}
	if h[0].Owner != "child" {
		t.Skipf("the child's entry was stale already: %+v", h) // this machine took over 3 s for the lines above
	}
	late := time.UnixMicro(fenceOf(t, behind.got(t))).Sub(released)
	t.Logf("the dead waiter cost %s", late)
	if late > maxGrant+time.Second+lateness() {
		t.Errorf("the dead waiter cost %s, want at most %s", late, maxGrant)
	}
	if late < maxGrant/2 {
		t.Errorf("the dead waiter's grant lasted %s only", late)
	}
}
