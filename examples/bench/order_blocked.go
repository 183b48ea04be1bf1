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
func (b *bench) runBlocked(ctx context.Context, p point, entry string) values {
	n := sized(b, 10_000, 100)
	entry, none := strings.CutSuffix(entry, unblocked)
	if none {
		n = 0
	}
	w := b.hire(ctx, job{
		Do: "blocked", Contender: entry, Conf: conf{Addr: b.server.addr, N: p.n}, N: n, Load: strconv.Itoa(sized(b, 10_000, 100)), Time: sized(b, orderPatience, 20*time.Second),
	})
	defer w.dismiss()
	length := sized(b, 30*time.Second, time.Second)
	idle := b.server.commands(ctx, length) // a server without tasks
	w.begin()
	var others float64
	w.result(&others)
	v := values{"rate": others}
	if n == 0 {
		return v
	}
	standing := b.server.commands(ctx, length)
	back := b.server.comingBack(ctx, standing)
	v["away"] = back
	v["commands"] = max(0, standing-idle) + back
	return v
}

// commands is how many commands clients send in a second, in that time.
func (s *server) commands(ctx context.Context, length time.Duration) float64 {
	seen, stop := s.monitor(ctx)
	defer stop()
	time.Sleep(length)
	return float64(seen()) / length.Seconds()
}

// monitor counts the commands that clients send, but not those in scripts, until stop.
func (s *server) monitor(ctx context.Context) (seen func() int64, stop func()) {
	conn := get((&net.Dialer{}).DialContext(ctx, "tcp", s.addr))
	get(conn.Write([]byte("MONITOR\r\n")))
	lines := bufio.NewReader(conn)
	if ok := get(lines.ReadString('\n')); !strings.HasPrefix(ok, "+OK") {
		panic(fmt.Errorf("bench: MONITOR: %q", ok))
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
	return n.Load, func() { conn.Close() }
}

// comingBack is how many commands a second the parked tasks cost that come back by themselves: the sum of what one
// costs, over the time that it stays away. Some are run now, to see what one costs.
func (s *server) comingBack(ctx context.Context, standing float64) float64 {
	parked := get(s.rdb.ZRangeWithScores(ctx, retrySet, 0, -1).Result())
	perSecond, now := 0.0, float64(time.Now().Unix())
	for _, z := range parked {
		perSecond += 1 / max(1, z.Score-now)
	}
	inspector := asynq.NewInspectorFromRedisClient(s.rdb)
	must(inspector.PauseQueue("default"))
	some := parked[:min(len(parked), comingBack)]
	for _, z := range some {
		must(inspector.RunTask("default", fmt.Sprint(z.Member)))
	}
	seen, stop := s.monitor(ctx)
	defer stop()
	began := time.Now()
	must(inspector.UnpauseQueue("default"))
	time.Sleep(5 * time.Second)
	each := (float64(seen()) - standing*time.Since(began).Seconds()) / float64(max(1, len(some)))
	if left := s.rdb.ZCard(ctx, retrySet).Val(); left != int64(len(parked)) {
		panic(fmt.Errorf("bench: %d of %d parked tasks are back", left, len(parked)))
	}
	return perSecond * each
}

// blockedDuty has N tasks parked behind an archived one, and tells how many of other keys are done in a second. It
// stays until it is dismissed, with its server.
func blockedDuty(ctx context.Context, m *mate) {
	rdb := connect(m.Conf)
	client := get(automutex.NewClient(rdb, asynq.NewClientFromRedisClient(rdb), configOf(automutex.Rule{}, m.Contender)))
	var n int
	must(json.Unmarshal([]byte(m.Load), &n))
	others := make([]ware, 0, n)
	for i := range n {
		others = append(others, ware{Key: fmt.Sprintf("k%d", i%200), Work: time.Millisecond, Turn: i / 200})
	}
	f := newOrderedWork(others)
	s := guardedWith(automutex.Rule{}, m.Contender, m.Conf, asynq.Config{
		Concurrency: m.Conf.N, TaskCheckInterval: orderCheck, DelayedTaskCheckInterval: orderReturns, Logger: redistest.Silent{},
	}, asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) error {
		if strings.Contains(string(t.Payload()), `"`+stuckKey+`"`) {
			return errors.Join(errAsAsked, asynq.SkipRetry)
		}
		return f.work(ctx, t)
	}))
	must(asynq.NewServerFromRedisClient(rdb, s.config).Start(s.handler))
	m.ready()
	block(ctx, rdb, client, m)
	inspector := asynq.NewInspectorFromRedisClient(rdb)
	must(inspector.PauseQueue("default"))
	enqueue(ctx, client, others)
	f.began = time.Now()
	must(inspector.UnpauseQueue("default"))
	select {
	case <-f.done:
	case <-time.After(m.Time):
		panic(errors.New("bench: the tasks of other keys are not done in time"))
	}
	m.tell(float64(n) / f.result().Took.Seconds())
	m.stay() // nothing is left to shut down for: the server is cleared next
}

// block parks N tasks behind an archived one.
func block(ctx context.Context, rdb *redis.Client, client *automutex.Client, m *mate) {
	if m.N == 0 {
		return
	}
	stuck := make([]ware, m.N+1)
	for i := range stuck {
		stuck[i] = ware{Key: stuckKey, Turn: i}
	}
	enqueue(ctx, client, stuck)
	for began := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		parked := get(rdb.ZCard(ctx, retrySet).Result())
		if parked == int64(m.N) {
			return
		}
		if time.Since(began) > m.Time {
			panic(fmt.Errorf("bench: %d of %d tasks are parked", parked, m.N))
		}
	}
}

// runEnqueue is an Enqueue beside asynq's.
func (b *bench) runEnqueue(ctx context.Context, entry string) values {
	n := sized(b, 10_000, 200)
	w := b.hire(ctx, job{Do: "enqueue", Contender: entry, Conf: conf{Addr: b.server.addr}, N: n})
	defer w.dismiss()
	w.begin()
	var got enqueueResult
	w.result(&got)
	return values{
		"rate": float64(n) / got.Ours.Seconds(), "of": got.Ours.Seconds() / got.Asynq.Seconds(),
		"bytes": b.server.keyMemory(ctx, "automutex:*") / float64(n),
	}
}

type enqueueResult struct{ Ours, Asynq time.Duration }

// enqueueDuty enqueues N tasks with a Client, and as many with asynq's, in turn.
func enqueueDuty(ctx context.Context, m *mate) {
	rdb := connect(m.Conf)
	plain := asynq.NewClientFromRedisClient(rdb)
	client := get(automutex.NewClient(rdb, plain, configOf(automutex.Rule{}, m.Contender)))
	wares := make([]ware, 100)
	for i := range wares {
		wares[i].Key = fmt.Sprintf("k%d", i)
	}
	m.ready()
	var r enqueueResult
	for range m.N / len(wares) {
		began := time.Now()
		enqueue(ctx, client, wares)
		turned := time.Now()
		enqueue(ctx, plain, wares)
		r.Ours += turned.Sub(began)
		r.Asynq += time.Since(turned)
	}
	m.tell(r)
	m.stay()
}
