package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
)

// What is measured in K of a key that stands, and of an Enqueue.

const (
	stuckKey = "stuck"
	retrySet = "asynq:{default}:retry"

	comingBack = 100 // parked tasks that are looked at when they come back
)

// runBlocked has many tasks parked behind an archived one, and looks at what goes on. An entry with unblocked
// has nothing parked: it is what the other is compared with.
func (b *bench) runBlocked(ctx context.Context, p point, entry string) (values, error) {
	n := sized(b, 10_000, 100)
	entry, none := strings.CutSuffix(entry, unblocked)
	if none {
		n = 0
	}
	w, err := b.hire(ctx, job{
		Do: "blocked", Contender: entry, Conf: conf{Addr: b.server.addr, N: p.n}, N: n, Load: strconv.Itoa(sized(b, 10_000, 100)), Time: sized(b, orderPatience, 20*time.Second),
	})
	if err != nil {
		return nil, err
	}
	defer func() { _ = w.dismiss() }()
	length := sized(b, 30*time.Second, time.Second)
	idle, err := b.server.commands(ctx, length) // a server without tasks
	if err != nil {
		return nil, err
	}
	if err := w.begin(); err != nil {
		return nil, err
	}
	var others float64
	if err := w.result(&others); err != nil {
		return nil, err
	}
	v := values{"rate": others}
	if n == 0 {
		return v, nil
	}
	standing, err := b.server.commands(ctx, length)
	if err != nil {
		return nil, err
	}
	back, err := b.server.comingBack(ctx, standing)
	if err != nil {
		return nil, err
	}
	v["away"] = back
	v["commands"] = max(0, standing-idle) + back
	return v, nil
}

// commands is how many commands clients send in a second, in that time.
func (s *server) commands(ctx context.Context, length time.Duration) (float64, error) {
	seen, stop, err := s.monitor(ctx)
	if err != nil {
		return 0, err
	}
	time.Sleep(length)
	return float64(seen()) / length.Seconds(), stop()
}

// monitor counts the commands that clients send, but not those in scripts, until stop.
func (s *server) monitor(ctx context.Context) (seen func() int64, stop func() error, err error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", s.addr)
	if err != nil {
		return nil, nil, err
	}
	if _, err := conn.Write([]byte("MONITOR\r\n")); err != nil {
		return nil, nil, errors.Join(err, conn.Close())
	}
	lines := bufio.NewReader(conn)
	if ok, err := lines.ReadString('\n'); err != nil || !strings.HasPrefix(ok, "+OK") {
		return nil, nil, errors.Join(fmt.Errorf("bench: MONITOR: %q", ok), err, conn.Close())
	}
	var n atomic.Int64
	go func() { // until the connection is closed
		for {
			line, err := lines.ReadString('\n')
			if err != nil {
				return
			}
			// +1700000000.000000 [0 127.0.0.1:5000] "get" "key"; a script's commands are of [0 lua].
			if client, _, _ := strings.Cut(line, "]"); !strings.HasSuffix(client, " lua") {
				n.Add(1)
			}
		}
	}()
	return n.Load, conn.Close, nil
}

// comingBack is how many commands a second the parked tasks cost that come back by themselves: the sum of what one
// costs, over the time that it stays away. Some are run now, to see what one costs.
func (s *server) comingBack(ctx context.Context, standing float64) (float64, error) {
	parked, err := s.rdb.ZRangeWithScores(ctx, retrySet, 0, -1).Result()
	if err != nil {
		return 0, err
	}
	perSecond, now := 0.0, float64(time.Now().Unix())
	for _, z := range parked {
		perSecond += 1 / max(1, z.Score-now)
	}
	inspector := asynq.NewInspectorFromRedisClient(s.rdb)
	if err := inspector.PauseQueue("default"); err != nil {
		return 0, err
	}
	some := parked[:min(len(parked), comingBack)]
	for _, z := range some {
		if err := inspector.RunTask("default", fmt.Sprint(z.Member)); err != nil {
			return 0, err
		}
	}
	seen, stop, err := s.monitor(ctx)
	if err != nil {
		return 0, err
	}
	began := time.Now()
	if err := inspector.UnpauseQueue("default"); err != nil {
		return 0, errors.Join(err, stop())
	}
	time.Sleep(5 * time.Second)
	each := (float64(seen()) - standing*time.Since(began).Seconds()) / float64(max(1, len(some)))
	if left := s.rdb.ZCard(ctx, retrySet).Val(); left != int64(len(parked)) {
		return 0, errors.Join(fmt.Errorf("bench: %d of %d parked tasks are back", left, len(parked)), stop())
	}
	return perSecond * each, stop()
}

// blockedDuty has N tasks parked behind an archived one, and tells how many of other keys are done in a second. It
// stays until it is dismissed, with its server.
func blockedDuty(ctx context.Context, m *mate) error {
	rdb := connect(m.Conf)
	cfg, err := configOf(automutex.Rule{}, m.Contender)
	if err != nil {
		return err
	}
	client, err := automutex.NewClient(rdb, asynq.NewClientFromRedisClient(rdb), cfg)
	if err != nil {
		return err
	}
	var others []ware
	var n int
	if err := json.Unmarshal([]byte(m.Load), &n); err != nil {
		return err
	}
	for i := range n {
		others = append(others, ware{Key: fmt.Sprintf("k%d", i%200), Work: time.Millisecond, Turn: i / 200})
	}
	f := newOrderedWork(others)
	s, err := guardedWith(automutex.Rule{}, m.Contender, m.Conf, asynq.Config{
		Concurrency: m.Conf.N, TaskCheckInterval: orderCheck, DelayedTaskCheckInterval: orderReturns, Logger: redistest.Silent{},
	}, asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) error {
		if strings.Contains(string(t.Payload()), `"`+stuckKey+`"`) {
			return errors.Join(errAsAsked, asynq.SkipRetry)
		}
		return f.work(ctx, t)
	}))
	if err != nil {
		return err
	}
	if err := asynq.NewServerFromRedisClient(rdb, s.config).Start(s.handler); err != nil {
		return err
	}
	if err := m.ready(); err != nil {
		return err
	}
	if err := block(ctx, rdb, client, m); err != nil {
		return err
	}
	inspector := asynq.NewInspectorFromRedisClient(rdb)
	if err := inspector.PauseQueue("default"); err != nil {
		return err
	}
	if err := enqueue(ctx, client, others); err != nil {
		return err
	}
	f.began = time.Now()
	if err := inspector.UnpauseQueue("default"); err != nil {
		return err
	}
	select {
	case <-f.done:
	case <-time.After(m.Time):
		return errors.New("bench: the tasks of other keys are not done in time")
	}
	if err := m.tell(float64(n) / f.result().Took.Seconds()); err != nil {
		return err
	}
	m.stay()
	return nil // nothing is left to shut down for: the server is cleared next
}

// block parks N tasks behind an archived one.
func block(ctx context.Context, rdb *redis.Client, client *automutex.Client, m *mate) error {
	if m.N == 0 {
		return nil
	}
	stuck := make([]ware, m.N+1)
	for i := range stuck {
		stuck[i] = ware{Key: stuckKey, Turn: i}
	}
	if err := enqueue(ctx, client, stuck); err != nil {
		return err
	}
	for began := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		parked, err := rdb.ZCard(ctx, retrySet).Result()
		if err != nil || parked == int64(m.N) {
			return err
		}
		if time.Since(began) > m.Time {
			return fmt.Errorf("bench: %d of %d tasks are parked", parked, m.N)
		}
	}
}

// runEnqueue is an Enqueue beside asynq's.
func (b *bench) runEnqueue(ctx context.Context, _ point, entry string) (values, error) {
	const name = "enqueue"
	n := sized(b, 10_000, 200)
	w, err := b.hire(ctx, job{Do: name, Contender: entry, Conf: conf{Addr: b.server.addr}, N: n})
	if err != nil {
		return nil, err
	}
	defer func() { _ = w.dismiss() }()
	if err := w.begin(); err != nil {
		return nil, err
	}
	var got enqueueResult
	if err := w.result(&got); err != nil {
		return nil, err
	}
	bytes, err := b.server.keyMemory(ctx, "automutex:*")
	return values{"rate": float64(n) / got.Ours.Seconds(), "of": got.Ours.Seconds() / got.Asynq.Seconds(), "bytes": bytes / float64(n)}, err
}

type enqueueResult struct{ Ours, Asynq time.Duration }

// enqueueDuty enqueues N tasks with a Client, and as many with asynq's, in turn.
func enqueueDuty(ctx context.Context, m *mate) error {
	rdb := connect(m.Conf)
	cfg, err := configOf(automutex.Rule{}, m.Contender)
	if err != nil {
		return err
	}
	plain := asynq.NewClientFromRedisClient(rdb)
	client, err := automutex.NewClient(rdb, plain, cfg)
	if err != nil {
		return err
	}
	wares := make([]ware, 100)
	for i := range wares {
		wares[i].Key = fmt.Sprintf("k%d", i)
	}
	if err := m.ready(); err != nil {
		return err
	}
	var r enqueueResult
	for range m.N / len(wares) {
		began := time.Now()
		if err := enqueue(ctx, client, wares); err != nil {
			return err
		}
		turned := time.Now()
		if err := enqueue(ctx, plain, wares); err != nil {
			return err
		}
		r.Ours += turned.Sub(began)
		r.Asynq += time.Since(turned)
	}
	if err := m.tell(r); err != nil {
		return err
	}
	m.stay()
	return nil
}
