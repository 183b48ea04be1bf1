// The player is one process of a fleet. It is built once with the code of the last release and once
// with that of this commit, does what the driver writes to it, a line each, and answers with a line
// each. So it uses only names that both versions have.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/lock"
	"github.com/automutex/automutex/lock/pool"
	"github.com/automutex/automutex/unique"
)

// call is one line of the driver.
type call struct {
	ID, Op, Name string
	Ms, N        int
	Text         string
}

// answer is one line of the player. Error is empty if the call succeeded.
type answer struct {
	ID, Error   string
	Busy, Twice bool // ErrBusy; asynq.ErrDuplicateTask
	N           int64
	Text        string
}

type player struct {
	rdb       *redis.Client
	locker    *lock.Locker
	guard     *automutex.Guard
	srv       *asynq.Server
	client    *asynq.Client
	inspector *asynq.Inspector
	once      *unique.Client

	mu     sync.Mutex // guards leases
	leases map[string]*lock.Lease
}

// types are the tasks that both versions work on, one for each way to meet a busy key.
var rules = []automutex.Rule{
	{Task: "park", On: []string{"k"}, Busy: automutex.Park},
	{Task: "wait", On: []string{"k"}, Wait: 20 * time.Second},
	{Task: "retry", On: []string{"k"}, Busy: automutex.RetryIn(100 * time.Millisecond)},
	{Task: "skip", On: []string{"k"}, Busy: automutex.Skip},
	{Task: "two", On: []string{"k"}, Limit: 2, Busy: automutex.Park},
	{Task: "once", On: []string{"k"}, Busy: automutex.Park},
	{Task: "rate", On: []string{"k"}, Rate: automutex.Rate{Starts: 100, Per: time.Second, Burst: 1}, Limit: 1, Busy: automutex.Park},
}

func main() {
	if err := play(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func play(addr string) error {
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	logger := slog.New(slog.NewTextHandler(os.Stderr, nil))
	p := &player{
		rdb: rdb, leases: map[string]*lock.Lease{},
		locker: lock.New(rdb, lock.Options{TTL: 3 * time.Second, Logger: logger}),
		client: asynq.NewClientFromRedisClient(rdb), inspector: asynq.NewInspectorFromRedisClient(rdb),
	}
	var err error
	if p.guard, err = automutex.New(rdb, automutex.Config{Rules: rules, Logger: logger}); err != nil {
		return err
	}
	if p.once, err = unique.New(p.client, p.inspector, rdb, unique.Config{Rules: []unique.Rule{
		{Task: "once", On: []string{"k"}, Until: unique.UntilStart},
		{Task: "done", On: []string{"k"}},
		{Task: "window", On: []string{"k"}, Until: unique.For(time.Minute)},
	}}); err != nil {
		return err
	}
	var out sync.Mutex
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var c call
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			return err
		}
		go func() { // ends with the call; the driver closes stdin when it has all answers
			a := answer{ID: c.ID}
			if err := p.do(c, &a); err != nil {
				a.Error, a.Busy, a.Twice = err.Error(), errors.Is(err, lock.ErrBusy), errors.Is(err, asynq.ErrDuplicateTask)
			}
			text, _ := json.Marshal(a)
			out.Lock()
			defer out.Unlock()
			fmt.Println(string(text))
		}()
	}
	if err := lines.Err(); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

func (p *player) keep(name string, le *lock.Lease, err error) error {
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.leases[name] = le
	return nil
}

func (p *player) lease(name string) (*lock.Lease, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if le := p.leases[name]; le != nil {
		return le, nil
	}
	return nil, fmt.Errorf("this player holds no %s", name)
}

// lock is the lock with that name: a semaphore of two where it begins with "sem", with a rate
// where it begins with "rate".
func (p *player) lock(name string) *lock.Lock {
	switch {
	case strings.HasPrefix(name, "sem"):
		return p.locker.Semaphore(name, 2)
	case strings.HasPrefix(name, "rate"):
		return p.locker.Mutex(name, lock.Rate(1, time.Second, 1))
	}
	return p.locker.Mutex(name)
}

func (p *player) do(c call, a *answer) error {
	ctx, cancel := context.WithTimeout(context.Background(), max(20*time.Second, time.Duration(c.Ms)*time.Millisecond))
	defer cancel()
	m, d := p.lock(c.Name), time.Duration(c.Ms)*time.Millisecond
	switch c.Op {
	case "try":
		le, err := m.TryLock(ctx)
		return p.keep(c.Name, le, err)
	case "lock":
		le, err := m.Lock(ctx)
		return p.keep(c.Name, le, err)
	case "unlock", "extend", "cooldown", "held":
		le, err := p.lease(c.Name)
		if err != nil {
			return err
		}
		switch c.Op {
		case "unlock":
			return le.Unlock(ctx)
		case "extend":
			return le.Extend(ctx, d)
		case "cooldown":
			return le.Cooldown(ctx, d)
		}
		if !le.Held() {
			return errors.New("the lease is lost")
		}
		return nil
	case "waiting":
		n, err := m.Waiting(ctx)
		a.N = int64(n)
		return err
	case "holders":
		list, err := m.Holders(ctx)
		a.N = int64(len(list))
		return err
	case "available":
		n, err := m.Available(ctx)
		a.N = int64(n)
		return err
	case "break":
		n, err := m.BreakAll(ctx)
		a.N = int64(n)
		return err
	case "pause":
		return p.locker.Controls().Pause(ctx, c.Name, time.Time{}, "played")
	case "resume":
		return p.locker.Controls().Resume(ctx, c.Name)
	case "limit":
		return p.locker.Controls().SetLimit(ctx, c.Name, c.N, "played")
	case "clear":
		return p.locker.Controls().ClearLimit(ctx, c.Name)
	case "put":
		_, err := pool.New(p.locker, c.Name).Put(ctx, c.Text)
		return err
	case "take":
		le, err := pool.New(p.locker, c.Name).Take(ctx)
		if err != nil {
			return err
		}
		a.Text = le.Value()
		return p.keep(c.Name, le.Lease, nil)
	case "empty":
		_, err := pool.New(p.locker, c.Name).Delete(ctx)
		return err
	case "enqueue", "unique":
		task := asynq.NewTask(c.Name, []byte(fmt.Sprintf(`{"k":%q}`, c.Text)))
		var err error
		if c.Op == "unique" {
			_, err = p.once.Enqueue(task, asynq.MaxRetry(3))
		} else {
			_, err = p.client.Enqueue(task, asynq.MaxRetry(3), asynq.Timeout(time.Minute))
		}
		return err
	case "serve":
		return p.serve()
	case "stop":
		done := make(chan error, 1)
		go func() { done <- p.guard.Close(ctx) }()
		p.srv.Shutdown()
		return <-done
	case "left": // tasks of a queue that are not done
		info, err := p.inspector.GetQueueInfo("default")
		if err != nil {
			return err
		}
		a.N = int64(info.Size - info.Completed)
		a.Text = fmt.Sprintf("%d pending, %d active, %d scheduled, %d retry, %d archived", info.Pending, info.Active, info.Scheduled, info.Retry, info.Archived)
		return nil
	case "count":
		n, err := p.rdb.Get(ctx, c.Name).Int64()
		if errors.Is(err, redis.Nil) {
			err = nil
		}
		a.N = n
		return err
	case "format": // what this version stores; empty: it has no number
		text, err := p.rdb.Get(ctx, "automutex:{control}:format").Result()
		if errors.Is(err, redis.Nil) {
			err = nil
		}
		a.Text = text
		return err
	case "set": // any key, to play a fleet of another format
		return p.rdb.Set(ctx, c.Name, c.Text, time.Minute).Err()
	case "forget":
		return p.rdb.FlushAll(ctx).Err()
	}
	return fmt.Errorf("unknown: %s", c.Op)
}

// serve works on tasks, and writes down in Redis how many handlers of a key were at work at once.
func (p *player) serve() error {
	p.srv = asynq.NewServerFromRedisClient(p.rdb, p.guard.ServerConfig(asynq.Config{
		Concurrency: 8, TaskCheckInterval: 50 * time.Millisecond, DelayedTaskCheckInterval: 100 * time.Millisecond, LogLevel: asynq.ErrorLevel,
	}))
	mux := asynq.NewServeMux()
	mux.Use(p.guard.Middleware)
	for _, r := range rules {
		mux.HandleFunc(r.Task, func(ctx context.Context, t *asynq.Task) error {
			key := "at work:" + t.Type() + ":" + string(t.Payload())
			n, err := p.rdb.Incr(ctx, key).Result()
			if err != nil {
				return err
			}
			if n > int64(max(1, r.Limit)) {
				p.rdb.Incr(ctx, "overlaps")
			}
			time.Sleep(5 * time.Millisecond) // the work
			p.rdb.Incr(ctx, "runs:"+t.Type())
			return p.rdb.Decr(ctx, key).Err()
		})
	}
	return p.srv.Start(mux)
}
