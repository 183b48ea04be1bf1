package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// F: the holder's process is killed.
var deathScenario = scenario{
	name:  "F",
	title: "The holder's process is killed: until the next has the key",
	about: "A process that holds a key with a TTL of 2 s is killed (SIGKILL) while 8 goroutines of another wait. What counts is how long after the " +
		"deadline that Redis has stored the first of them holds the key, and what the waiters send until then. " +
		"Where the server also has 20,000 other keys with a TTL of an hour, it looks less often at one that has expired.",
	metrics: []metric{{"late", "ms after the deadline", 1}, {"commands", "commands/s per waiter", 2}},
	plot:    plotSpec{y: "ms after the deadline", log: true},
	points: func(*bench) []point {
		return []point{{label: "empty Redis"}, {label: "20,000 foreign keys with a TTL", n: 20_000}}
	},
	entries: func(point) []string {
		return namesOf(ours[:1], ours[2:], raws[:2], redislocks[:2], redsyncs, rueidislocks, semaphores[:1])
	},
	run: runDeath,
}

const deathWaiters = 8

func runDeath(ctx context.Context, b *bench, p point, entry string) (v values, err error) {
	c, err := contenderNamed(entry)
	if err != nil {
		return nil, err
	}
	if err := b.server.strew(ctx, p.n); err != nil {
		return nil, err
	}
	const key = "room:1"
	with := conf{Addr: b.server.addr, N: deathWaiters, Every: tuned(deathWaiters, hold), TTL: sized(b, 2*time.Second, time.Second)}
	holder, err := b.hire(ctx, job{Do: "hold", Contender: entry, Conf: with, Key: key})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, holder.dismiss()) }()
	heirs, err := b.hire(ctx, job{Do: "succeed", Contender: entry, Conf: with, Key: key, N: deathWaiters})
	if err != nil {
		return nil, err
	}
	defer func() { _ = heirs.kill() }() // some may still wait, for ever
	if err := heirs.begin(); err != nil {
		return nil, err
	}
	time.Sleep(settled)
	if err := holder.kill(); err != nil {
		return nil, err
	}
	began := time.Now()
	before, err := b.server.used(ctx, c.sends)
	if err != nil {
		return nil, err
	}
	deadline, err := c.deadline(ctx, key, b.server)
	if err != nil {
		return nil, err
	}
	// In the full run long enough to tell late from never.
	most := sized(b, 20*time.Second, time.Second)
	late := time.AfterFunc(time.Until(deadline)+most, func() { _ = heirs.cmd.Process.Kill() })
	defer late.Stop()
	var got int64
	err = heirs.result(&got)
	at := time.Unix(0, got)
	unfinished := err != nil && time.Since(deadline) >= most
	if unfinished {
		at, err = deadline.Add(most), errUnfinished
	}
	if err != nil && !unfinished {
		return nil, err
	}
	if at.Before(began) {
		return nil, errors.New("bench: the holder had lost the key before it was killed")
	}
	after, failed := b.server.used(ctx, c.sends)
	return values{
		"late":     milliseconds(at.Sub(deadline)),
		"commands": after.minus(before).calls / deathWaiters / time.Since(began).Seconds(),
	}, errors.Join(err, failed)
}

// strew puts n keys with a TTL into the server that have to do with nothing.
func (s *server) strew(ctx context.Context, n int) error {
	_, err := s.rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i := range n {
			p.Set(ctx, fmt.Sprintf("foreign:%d", i), i, time.Hour)
		}
		return nil
	})
	return err
}

// holdDuty takes a key and keeps it.
func holdDuty(ctx context.Context, m *mate) error {
	l, err := m.open()
	if err != nil {
		return err
	}
	if _, err := own(ctx, l.handle(m.Key)); err != nil {
		return err
	}
	if err := m.ready(); err != nil {
		return err
	}
	m.stay()
	return nil // what it holds is none of its business any more
}

// succeedDuty tells when the first of N waiters has the key.
func succeedDuty(ctx context.Context, m *mate) error {
	l, err := m.openWarm(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type outcome struct {
		at  time.Time
		err error
	}
	first := make(chan outcome, m.N) // none of the others is heard, or has to wait
	for range m.N {
		go func() {
			_, err := l.handle(m.Key).lock(ctx)
			first <- outcome{time.Now(), err}
		}()
	}
	got := <-first
	if got.err != nil {
		return got.err
	}
	if err := m.tell(got.at.UnixNano()); err != nil {
		return err
	}
	m.stay()
	return nil
}
