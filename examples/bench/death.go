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
	points: func(*bench) []point {
		return []point{{label: "empty Redis"}, {label: "20,000 foreign keys with a TTL", n: 20_000}}
	},
	entries: func(point) []string {
		return namesOf(ours[:1], ours[2:], raws[:2], redislocks[:2], redsyncs, rueidislocks, semaphores[:1])
	},
	run: runDeath,
}

const deathWaiters = 8

func runDeath(ctx context.Context, b *bench, p point, entry string) (values, error) {
	c := contenderNamed(entry)
	b.server.strew(ctx, p.n)
	const key = "room:1"
	with := conf{Addr: b.server.addr, N: deathWaiters, Every: tuned(deathWaiters, hold), TTL: sized(b, 2*time.Second, time.Second)}
	holder := b.hire(ctx, job{Do: "hold", Contender: entry, Conf: with, Key: key})
	defer holder.dismiss()
	heirs := b.hire(ctx, job{Do: "succeed", Contender: entry, Conf: with, Key: key, N: deathWaiters})
	defer heirs.kill() // some may still wait, for ever
	heirs.begin()
	time.Sleep(settled)
	holder.kill()
	began := time.Now()
	before := b.server.used(ctx, c.sends)
	deadline := get(c.deadline(ctx, key, b.server))
	// In the full run long enough to tell late from never.
	most := sized(b, 20*time.Second, time.Second)
	late := time.AfterFunc(time.Until(deadline)+most, func() { _ = heirs.cmd.Process.Kill() })
	defer late.Stop()
	var got int64
	err := caught(func() { heirs.result(&got) })
	at := time.Unix(0, got)
	if err != nil && time.Since(deadline) >= most {
		at, err = deadline.Add(most), errUnfinished
	} else {
		must(err)
	}
	if at.Before(began) {
		panic(errors.New("bench: the holder had lost the key before it was killed"))
	}
	return values{
		"late":     milliseconds(at.Sub(deadline)),
		"commands": b.server.since(ctx, before, c.sends).calls / deathWaiters / time.Since(began).Seconds(),
	}, err
}

// strew puts n keys with a TTL into the server that have to do with nothing.
func (s *server) strew(ctx context.Context, n int) {
	get(s.rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i := range n {
			p.Set(ctx, fmt.Sprintf("foreign:%d", i), i, time.Hour)
		}
		return nil
	}))
}

// holdDuty takes a key and keeps it.
func holdDuty(ctx context.Context, m *mate) {
	l := m.open()
	get(own(ctx, l.handle(m.Key)))
	m.ready()
	m.stay() // what it holds is none of its business any more
}

// succeedDuty tells when the first of N waiters has the key.
func succeedDuty(ctx context.Context, m *mate) {
	l := m.openWarm(ctx)
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
	must(got.err)
	m.tell(got.at.UnixNano())
	m.stay()
}
