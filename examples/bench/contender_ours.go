package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/lock"
)

// This library, over each transport that its conformance tests run over.
var ours = []*contender{
	{name: "automutex", setting: "default", sends: ourCommands, open: openOurs(nil), deadline: ourDeadline},
	{name: "automutex", setting: "auto-pipeline", sends: ourCommands, open: openOurs(halfDuplex), deadline: ourDeadline},
	{name: "automutex", setting: "auto-pipeline, full duplex", sends: ourCommands, open: openOurs(fullDuplex), deadline: ourDeadline},
}

// asTasks is ours as the middleware uses it, by the lengths of its names: Redis
// keeps members of up to 64 bytes in a smaller way by default.
var asTasks = &contender{
	name: "automutex", setting: "names of a task's length", sends: ourCommands, deadline: ourDeadline,
	open: func(c conf) (locker, error) {
		rdb := connect(c)
		l := lock.New(rdb, lock.Options{TTL: c.TTL, Owner: "worker-7.example.com:4242"})
		return &taskLocker{ourLocker{l, rdb}}, inner.LockerErr(l)
	},
}

type taskLocker struct{ ourLocker }

func (l *taskLocker) handle(key string) handle {
	return (*ourHandle)(l.Mutex(key, lock.Note("default/0192a8f0-7c3e-7bd0-9d4c-52a8a1f0c9d3")))
}

var ourCommands = []string{"set", "delex", "delifeq", "evalsha", "eval", "subscribe", "ping"}

func halfDuplex() *redis.AutoPipelineOptions {
	return &redis.AutoPipelineOptions{MaxBatchSize: 300, MaxBatchBytes: 128 * 1024}
}

func fullDuplex() *redis.AutoPipelineOptions { return &redis.AutoPipelineOptions{FullDuplex: true} }

type ourLocker struct {
	*lock.Locker
	rdb *redis.Client
}

func openOurs(pipelined func() *redis.AutoPipelineOptions) func(conf) (locker, error) {
	return func(c conf) (locker, error) {
		rdb := connect(c)
		options := lock.Options{TTL: c.TTL}
		if pipelined != nil {
			transport, err := rdb.AsyncAutoPipelineWithOptions(pipelined()) // closed with the client
			if err != nil {
				return nil, errors.Join(err, rdb.Close())
			}
			options.Transport = lock.Async(transport)
		}
		l := lock.New(rdb, options)
		return &ourLocker{l, rdb}, inner.LockerErr(l)
	}
}

func (l *ourLocker) handle(key string) handle { return (*ourHandle)(l.Mutex(key)) }

func (l *ourLocker) close() error { return errors.Join(l.Close(), l.rdb.Close()) }

type (
	ourHandle lock.Lock
	ourHeld   lock.Lease
)

func (h *ourHandle) try(ctx context.Context) (held, error) {
	lease, err := (*lock.Lock)(h).TryLock(ctx)
	if err != nil {
		if errors.Is(err, lock.ErrBusy) {
			return nil, errBusy
		}
		return nil, err
	}
	return (*ourHeld)(lease), nil
}

func (h *ourHandle) lock(ctx context.Context) (held, error) {
	lease, err := (*lock.Lock)(h).Lock(ctx)
	if err != nil {
		return nil, err
	}
	return (*ourHeld)(lease), nil
}

func (h *ourHeld) release(ctx context.Context) error { return (*lock.Lease)(h).Unlock(ctx) }

// ourDeadline is when the holder of key is dead for certain, by Redis' clock.
func ourDeadline(ctx context.Context, key string, s *server) (time.Time, error) {
	l := lock.New(s.rdb, lock.Options{})
	defer l.Close()
	now := time.Now()
	holders, err := l.Mutex(key).Holders(ctx)
	if err != nil {
		return time.Time{}, err
	}
	if len(holders) != 1 {
		return time.Time{}, fmt.Errorf("bench: %q has %d holders, want 1", key, len(holders))
	}
	return now.Add(holders[0].ExpiresIn), nil
}
