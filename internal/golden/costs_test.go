package golden

import (
	"context"
	"crypto/sha1" // what EVALSHA goes by
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/internal/redisx"
	"github.com/automutex/automutex/lock"
	"github.com/automutex/automutex/lock/pool"
)

// meter is a hook that writes down what is sent: the names of commands and scripts, and the bytes of their arguments.
type meter struct {
	mu    sync.Mutex // guards what follows
	names map[string]string
	sent  []string
	bytes int
}

func (m *meter) DialHook(next redis.DialHook) redis.DialHook { return next }

func (m *meter) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		m.count(cmd)
		return next(ctx, cmd)
	}
}

func (m *meter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			m.count(cmd)
		}
		return next(ctx, cmds)
	}
}

var scriptName = regexp.MustCompile(`^-- (\w+):`)

func (m *meter) count(cmd redis.Cmder) {
	m.mu.Lock()
	defer m.mu.Unlock()
	args, name := cmd.Args(), cmd.Name()
	switch name {
	case "hello", "client", "ping":
		return
	case "eval":
		src := fmt.Sprint(args[1])
		sum := sha1.Sum([]byte(src))
		m.names[hex.EncodeToString(sum[:])] = scriptName.FindStringSubmatch(src)[1]
		name = "eval " + m.names[hex.EncodeToString(sum[:])]
	case "evalsha":
		if len(args) > 3 && strings.Contains(fmt.Sprint(args[3]), "{control}") {
			return // the Locker's own, every 1.5 s
		}
		name = m.names[fmt.Sprint(args[1])]
	}
	m.sent = append(m.sent, name)
	for _, arg := range args {
		if counted, is := arg.(*redisx.Counted); is {
			arg = counted.Text
		}
		m.bytes += len(fmt.Sprint(reflect.Indirect(reflect.ValueOf(arg))))
	}
}

// What each operation sends to Redis: commands, and bytes of arguments. A few bytes more or less are the
// length of a number.
func TestGolden_costs(t *testing.T) {
	redistest.RealTime(t)
	s := redistest.StartReal(t)
	rdb := s.Client(t)
	m := &meter{names: map[string]string{}}
	rdb.AddHook(m)
	ctx := context.Background()
	l := lock.New(rdb, lock.Options{Owner: "owner"})
	defer func() { _ = l.Close() }()
	mutex := func(name string) *lock.Lock { return l.Mutex(name, lock.Parts("acme"), lock.Note("q/id")) }
	var out strings.Builder
	cost := func(what string, f func() error) {
		t.Helper()
		m.mu.Lock()
		m.sent, m.bytes = nil, 0
		m.mu.Unlock()
		if err := f(); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		fmt.Fprintf(&out, "%-46s %-24s %4d bytes\n", what, strings.Join(m.sent, ", "), (m.bytes+5)/10*10)
	}
	busy := func(m *lock.Lock) func() error {
		return func() error {
			if _, err := m.TryLock(ctx); err == nil {
				return fmt.Errorf("%s is free", m.Key())
			}
			return nil
		}
	}
	play := func() {
		var le *lock.Lease
		var taken *pool.Lease
		take := func(m *lock.Lock) func() error {
			return func() (err error) { le, err = m.TryLock(ctx); return err }
		}
		unlock := func() error { return le.Unlock(ctx) }
		cost("take a free mutex", take(mutex("free")))
		cost("try it in vain", busy(mutex("free")))
		cost("extend it", func() error { return le.Extend(ctx, time.Minute) })
		cost("release it", unlock)
		cost("take a free semaphore", take(l.Semaphore("sem", 1)))
		cost("try it in vain", busy(l.Semaphore("sem", 1)))
		cost("release it", unlock)
		cost("take a mutex with a rate", take(l.Mutex("rate", lock.Rate(1_000_000, time.Second, 9))))
		cost("leave a cooldown", func() error { return le.Cooldown(ctx, time.Minute) })
		cost("who holds it", func() error { _, err := mutex("free").Holders(ctx); return err })
		cost("how many wait", func() error { _, err := mutex("free").Waiting(ctx); return err })
		cost("put a value into a pool", func() error { _, err := pool.New(l, "pool").Put(ctx, "value"); return err })
		cost("take it", func() (err error) { taken, err = pool.New(l, "pool").Take(ctx); return err })
		cost("give it back", func() error { return taken.Unlock(ctx) })
	}
	play() // sends the scripts
	redistest.Must(t, errors.Join(l.Mutex("rate").Delete(ctx), errOf(pool.New(l, "pool").Delete(ctx))))
	<-time.After(1100 * time.Millisecond) // keys that were wanted within a second are asked for by script
	out.Reset()
	play()
	compare(t, "costs.txt", out.String())
}

// What an uncontended turn allocates, with the versions of Go and go-redis that the file names: others allocate a
// little more or less.
func TestGolden_allocations(t *testing.T) {
	s := redistest.StartReal(t)
	rdb := s.Client(t)
	ctx := context.Background()
	l := lock.New(rdb, lock.Options{Owner: "owner"})
	defer func() { _ = l.Close() }()
	turn := func(m *lock.Lock) func() {
		return func() {
			le, err := m.TryLock(ctx)
			if err == nil {
				err = le.Unlock(ctx)
			}
			if err != nil {
				t.Error(err)
			}
		}
	}
	held := must[*lock.Lease](t)(l.Mutex("held").TryLock(ctx))
	defer func() { _ = held.Unlock(ctx) }()
	guard := must[*automutex.Guard](t)(automutex.New(rdb, automutex.Config{Rules: []automutex.Rule{{Task: "work",
		On: []string{"id"}}}}))
	defer func() { _ = guard.Close(ctx) }()
	handler := guard.Middleware(asynq.HandlerFunc(func(context.Context, *asynq.Task) error { return nil }))
	task := asynq.NewTask("work", []byte(`{"id":1}`))
	version := strings.Join(strings.SplitN(runtime.Version(), ".", 3)[:2], ".") + ", go-redis " + redis.Version()
	file := filepath.Join("testdata", "allocations.txt")
	was, err := os.ReadFile(file)
	if err != nil && !*update {
		t.Fatal(err)
	}
	if raceDetector {
		t.Skip("the race detector allocates, too")
	}
	if !*update && !strings.HasPrefix(string(was), version+"\n") {
		t.Skipf("the figures are those of %s, this is %s", strings.SplitN(string(was), "\n", 2)[0], version)
	}
	lines := []string{version}
	for _, c := range []struct {
		what string
		f    func()
	}{
		{"take and release a free mutex", turn(l.Mutex("free"))},
		{"take and release a free semaphore", turn(l.Semaphore("sem", 1))},
		{"try a held mutex", func() { _, _ = l.Mutex("held").TryLock(ctx) }},
		{"run a task with one key", func() {
			if err := handler.ProcessTask(ctx, task); err != nil {
				t.Error(err)
			}
		}},
	} {
		runs := make([]float64, 5) // the least of five: what else goes on in the process only adds
		for i := range runs {
			runs[i] = testing.AllocsPerRun(200, c.f)
		}
		lines = append(lines, fmt.Sprintf("%-36s %.0f", c.what, slices.Min(runs)))
	}
	compare(t, "allocations.txt", strings.Join(lines, "\n")+"\n")
}

func errOf(_ int, err error) error { return err }
