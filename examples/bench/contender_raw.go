package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
)

// connect is a client of its own with a connection for every goroutine.
func connect(c conf) *redis.Client {
	return redis.NewClient(&redis.Options{Addr: c.Addr, PoolSize: c.N + 10})
}

// connectVia is connect for a peer, and what it sends its commands through: the client
// itself, or an auto-pipeline over it that waits, and that is closed with the client.
func connectVia(c conf, pipelined func() *redis.AutoPipelineOptions) (*redis.Client, redis.UniversalClient, error) {
	rdb := connect(c)
	if pipelined == nil {
		return rdb, rdb, nil
	}
	via, err := rdb.AutoPipelineWithOptions(pipelined())
	if err != nil {
		return nil, nil, errors.Join(err, rdb.Close())
	}
	return rdb, via, nil
}

// What the commands cost without any lock.
var floors = []*contender{
	{name: "two PINGs", floor: true, sends: []string{"ping"}, open: func(c conf) (locker, error) {
		return &floorLocker{rdb: connect(c), take: func(ctx context.Context, rdb *redis.Client, _ string) error {
			return rdb.Ping(ctx).Err()
		}, give: func(ctx context.Context, rdb *redis.Client, _ string) error {
			return rdb.Ping(ctx).Err()
		}}, nil
	}},
	// The token has to be put into the list once, see begin.
	{name: "BLPOP token", floor: true, sends: []string{"blpop", "rpush"}, open: func(c conf) (locker, error) {
		return &floorLocker{rdb: connect(c), take: func(ctx context.Context, rdb *redis.Client, key string) error {
			return rdb.BLPop(ctx, 0, key).Err()
		}, give: func(ctx context.Context, rdb *redis.Client, key string) error {
			return rdb.RPush(ctx, key, "token").Err()
		}}, nil
	}},
}

type floorLocker struct {
	rdb        *redis.Client
	take, give func(ctx context.Context, rdb *redis.Client, key string) error
}

func (l *floorLocker) handle(key string) handle { return &floorHandle{l, key} }
func (l *floorLocker) close() error             { return l.rdb.Close() }

type floorHandle struct {
	*floorLocker
	key string
}

func (h *floorHandle) try(ctx context.Context) (held, error) {
	return h, h.take(ctx, h.rdb, h.key)
}
func (h *floorHandle) lock(ctx context.Context) (held, error) { return h.try(ctx) }
func (h *floorHandle) release(ctx context.Context) error      { return h.give(ctx, h.rdb, h.key) }

// A raw SET NX PX, and a script that deletes the key if it is still ours: what
// most users would write.
var raws = []*contender{
	{name: "raw SET NX PX", setting: "default", sends: rawCommands, open: openRaw(nil, false), deadline: keyDeadline("")},
	{name: "raw SET NX PX", setting: "tuned polling", sends: rawCommands, open: openRaw(nil, true), deadline: keyDeadline("")},
	{name: "raw SET NX PX", setting: "auto-pipeline, full duplex", sends: rawCommands, open: openRaw(fullDuplex, true), deadline: keyDeadline("")},
	{name: "raw SET NX PX", setting: "auto-pipeline", sends: rawCommands, open: openRaw(halfDuplex, true), deadline: keyDeadline("")},
}

// The same with the server's own command in place of the script.
var rawNatives = []*contender{
	{name: "raw SET NX PX", setting: "DELEX", needs: "delex", sends: []string{"set", "delex"}, open: openRawNative("delex"), deadline: keyDeadline("")},
	{name: "raw SET NX PX", setting: "DELIFEQ", needs: "delifeq", sends: []string{"set", "delifeq"}, open: openRawNative("delifeq"), deadline: keyDeadline("")},
}

func openRawNative(command string) func(conf) (locker, error) {
	open := openRaw(nil, false)
	return func(c conf) (locker, error) {
		l, err := open(c)
		if l, ok := l.(*rawLocker); ok {
			l.native = command
		}
		return l, err
	}
}

var rawCommands = []string{"set", "evalsha", "eval"}

var compareAndDelete = redis.NewScript(`
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0`)

type rawLocker struct {
	rdb   *redis.Client
	via   redis.Cmdable
	ttl   time.Duration
	every time.Duration
	base  string        // of tokens; with the counter each is unique
	token atomic.Uint64 // counted on for each try
	// native is the command that releases in place of the script: delex, or delifeq; empty: the script does.
	native string
}

func openRaw(pipelined func() *redis.AutoPipelineOptions, tune bool) func(conf) (locker, error) {
	return func(c conf) (locker, error) {
		rdb, via, err := connectVia(c, pipelined)
		if err != nil {
			return nil, err
		}
		l := &rawLocker{rdb: rdb, via: via, ttl: c.ttl(longTTL), every: time.Millisecond, base: rand.Text()}
		if tune {
			l.every = c.Every
		}
		return l, nil
	}
}

func (l *rawLocker) handle(key string) handle { return &rawHandle{l, key} }
func (l *rawLocker) close() error             { return l.rdb.Close() }

type rawHandle struct {
	*rawLocker
	key string
}

type rawHeld struct {
	*rawHandle
	token string
}

func (h *rawHandle) try(ctx context.Context) (held, error) {
	token := h.base + strconv.FormatUint(h.token.Add(1), 36)
	ok, err := h.via.SetNX(ctx, h.key, token, h.ttl).Result()
	switch {
	case err != nil:
		return nil, err
	case !ok:
		return nil, errBusy
	}
	return &rawHeld{h, token}, nil
}

func (h *rawHandle) lock(ctx context.Context) (held, error) { return poll(ctx, h.every, h.try) }

func (h *rawHeld) release(ctx context.Context) error {
	var n int
	var err error
	switch h.native {
	case "":
		n, err = compareAndDelete.Run(ctx, h.via, []string{h.key}, h.token).Int()
	case "delex":
		n, err = h.rdb.Do(ctx, "delex", h.key, "ifeq", h.token).Int()
	default:
		n, err = h.rdb.Do(ctx, h.native, h.key, h.token).Int()
	}
	if err == nil && n != 1 {
		err = errNotHeld
	}
	return err
}

// keyDeadline is for contenders whose lock is one key that expires.
func keyDeadline(prefix string) func(context.Context, string, *server) (time.Time, error) {
	return func(ctx context.Context, key string, s *server) (time.Time, error) {
		now := time.Now()
		left, err := s.rdb.PTTL(ctx, prefix+key).Result()
		if err == nil && left < 0 {
			err = fmt.Errorf("bench: %q has no TTL", prefix+key)
		}
		return now.Add(left), err
	}
}

// The idea of asynq's own x/rate: a sorted set with the holders' task IDs, scored
// with the second in which each has to be done. Its release says nothing to
// anybody, and its ask none but yes or no. (The published module of x is for
// go-redis 8 and asynq of 2021, so the idea is built anew.)
var semaphores = []*contender{
	{name: "asynq semaphore", setting: "default", sends: []string{"evalsha", "eval", "zrem"}, open: openSemaphore(false), deadline: semaphoreDeadline},
	{name: "asynq semaphore", setting: "tuned polling", sends: []string{"evalsha", "eval", "zrem"}, open: openSemaphore(true), deadline: semaphoreDeadline},
}

var semaphoreTake = redis.NewScript(`
local now, ends, limit, id = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3]), ARGV[4]
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', '(' .. now)
if redis.call('ZCARD', KEYS[1]) >= limit then return 0 end
redis.call('ZADD', KEYS[1], ends, id)
return 1`)

type semaphoreLocker struct {
	rdb   *redis.Client
	ttl   time.Duration
	every time.Duration
	base  string
	id    atomic.Uint64
}

func openSemaphore(tune bool) func(conf) (locker, error) {
	return func(c conf) (locker, error) {
		l := &semaphoreLocker{rdb: connect(c), ttl: c.ttl(longTTL), every: time.Millisecond, base: rand.Text()}
		if tune {
			l.every = c.Every
		}
		return l, nil
	}
}

func (l *semaphoreLocker) handle(key string) handle { return &semaphoreHandle{l, key} }
func (l *semaphoreLocker) close() error             { return l.rdb.Close() }

type semaphoreHandle struct {
	*semaphoreLocker
	key string
}

type semaphoreHeld struct {
	*semaphoreHandle
	id string
}

func (h *semaphoreHandle) try(ctx context.Context) (held, error) {
	id, ok := asynq.GetTaskID(ctx)
	if !ok {
		id = h.base + strconv.FormatUint(h.id.Add(1), 36)
	}
	now := time.Now()
	got, err := semaphoreTake.Run(ctx, h.rdb, []string{h.key}, now.Unix(), now.Add(h.ttl).Unix(), 1, id).Int()
	switch {
	case err != nil:
		return nil, err
	case got == 0:
		return nil, errBusy
	}
	return &semaphoreHeld{h, id}, nil
}

func (h *semaphoreHandle) lock(ctx context.Context) (held, error) { return poll(ctx, h.every, h.try) }

func (h *semaphoreHeld) release(ctx context.Context) error {
	n, err := h.rdb.ZRem(ctx, h.key, h.id).Result()
	if err == nil && n != 1 {
		err = errNotHeld
	}
	return err
}

// semaphoreDeadline is the end of the last second in which the holder counts.
func semaphoreDeadline(ctx context.Context, key string, s *server) (time.Time, error) {
	first, err := s.rdb.ZRangeWithScores(ctx, key, 0, 0).Result()
	if err != nil {
		return time.Time{}, err
	}
	if len(first) != 1 {
		return time.Time{}, fmt.Errorf("bench: %q has no holder", key)
	}
	return time.Unix(int64(first[0].Score)+1, 0), nil
}
