package main

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
)

// bsm/redislock does not wait unless told how; 100 ms is what its example has.
var redislocks = []*contender{
	{name: "redislock", setting: "default", sends: scriptCommands, open: openRedislock(nil, false), deadline: keyDeadline("")},
	{name: "redislock", setting: "tuned backoff", sends: scriptCommands, open: openRedislock(nil, true), deadline: keyDeadline("")},
	{name: "redislock", setting: "auto-pipeline, full duplex", sends: scriptCommands, open: openRedislock(fullDuplex, true), deadline: keyDeadline("")},
	{name: "redislock", setting: "auto-pipeline", sends: scriptCommands, open: openRedislock(halfDuplex, true), deadline: keyDeadline("")},
}

var scriptCommands = []string{"evalsha", "eval"}

type redislockLocker struct {
	rdb    *redis.Client
	client *redislock.Client
	ttl    time.Duration
	wait   *redislock.Options
}

func openRedislock(pipelined func() *redis.AutoPipelineOptions, tune bool) func(conf) (locker, error) {
	return func(c conf) (locker, error) {
		rdb, via, err := connectVia(c, pipelined)
		if err != nil {
			return nil, err
		}
		every := 100 * time.Millisecond
		if tune {
			every = c.Every
		}
		return &redislockLocker{
			rdb: rdb, client: redislock.New(via), ttl: c.ttl(longTTL),
			wait: &redislock.Options{RetryStrategy: redislock.LinearBackoff(every)},
		}, nil
	}
}

func (l *redislockLocker) handle(key string) handle { return &redislockHandle{l, key} }
func (l *redislockLocker) close() error             { return l.rdb.Close() }

type redislockHandle struct {
	*redislockLocker
	key string
}

type redislockHeld redislock.Lock

func (h *redislockHandle) obtain(ctx context.Context, o *redislock.Options) (held, error) {
	l, err := h.client.Obtain(ctx, h.key, h.ttl, o)
	switch {
	case errors.Is(err, redislock.ErrNotObtained):
		return nil, errBusy
	case err != nil:
		return nil, err
	}
	return (*redislockHeld)(l), nil
}

func (h *redislockHandle) try(ctx context.Context) (held, error) { return h.obtain(ctx, nil) }

func (h *redislockHandle) lock(ctx context.Context) (held, error) {
	// Without a deadline of its own Obtain gives up after the TTL.
	ctx, cancel := context.WithTimeout(ctx, time.Hour)
	defer cancel()
	return h.obtain(ctx, h.wait)
}

func (h *redislockHeld) release(ctx context.Context) error { return (*redislock.Lock)(h).Release(ctx) }

// redsync on one Redis. By default it tries 32 times, 50 to 250 ms apart.
var redsyncs = []*contender{
	{name: "redsync", setting: "default", sends: rawCommands, open: openRedsync(nil, false), deadline: keyDeadline("")},
	{name: "redsync", setting: "tuned delay", sends: rawCommands, open: openRedsync(nil, true), deadline: keyDeadline("")},
	{name: "redsync", setting: "auto-pipeline, full duplex", sends: rawCommands, open: openRedsync(fullDuplex, true), deadline: keyDeadline("")},
}

type redsyncLocker struct {
	rdb     *redis.Client
	rs      *redsync.Redsync
	options []redsync.Option
}

func openRedsync(pipelined func() *redis.AutoPipelineOptions, tune bool) func(conf) (locker, error) {
	return func(c conf) (locker, error) {
		rdb, via, err := connectVia(c, pipelined)
		if err != nil {
			return nil, err
		}
		l := &redsyncLocker{rdb: rdb, rs: redsync.New(goredis.NewPool(via))}
		if c.TTL > 0 {
			l.options = append(l.options, redsync.WithExpiry(c.TTL))
		}
		if tune {
			l.options = append(l.options, redsync.WithRetryDelay(c.Every), redsync.WithTries(math.MaxInt), redsync.WithFailFast(true))
		}
		return l, nil
	}
}

func (l *redsyncLocker) handle(key string) handle {
	return (*redsyncHandle)(l.rs.NewMutex(key, l.options...))
}
func (l *redsyncLocker) close() error { return l.rdb.Close() }

type redsyncHandle redsync.Mutex

func (h *redsyncHandle) try(ctx context.Context) (held, error) {
	return h.got((*redsync.Mutex)(h).TryLockContext(ctx))
}

// lock goes on when the tries are used up, as whoever waits has to.
func (h *redsyncHandle) lock(ctx context.Context) (held, error) {
	for {
		got, err := h.got((*redsync.Mutex)(h).LockContext(ctx))
		if err == nil || !errors.Is(err, errBusy) {
			return got, err
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
}

func (h *redsyncHandle) got(err error) (held, error) {
	var taken *redsync.ErrTaken
	switch {
	case errors.As(err, &taken), errors.Is(err, redsync.ErrFailed):
		return nil, errBusy
	case err != nil:
		return nil, err
	}
	return h, nil
}

func (h *redsyncHandle) release(ctx context.Context) error {
	ok, err := (*redsync.Mutex)(h).UnlockContext(ctx)
	if err == nil && !ok {
		err = errNotHeld
	}
	return err
}

// rueidislock on one Redis: by default it takes two of three keys, which is for
// several; its own README offers one key, and NOLOOP tracking, as the faster way.
var rueidislocks = []*contender{
	{name: "rueidislock", setting: "default", sends: rueidisCommands, open: openRueidislock(0, false), deadline: rueidisDeadline},
	{name: "rueidislock", setting: "KeyMajority 1, NoLoopTracking", sends: rueidisCommands, open: openRueidislock(1, true), deadline: rueidisDeadline},
}

var rueidisCommands = []string{"evalsha", "eval", "ping", "client|tracking"}

// rueidisDeadline is that of one of its keys: they are set at once, and one of three may be missing.
func rueidisDeadline(ctx context.Context, key string, s *server) (deadline time.Time, err error) {
	for _, prefix := range []string{"rueidislock:0:", "rueidislock:1:"} {
		if deadline, err = keyDeadline(prefix)(ctx, key, s); err == nil {
			break
		}
	}
	return deadline, err
}

type rueidislockLocker struct{ rueidislock.Locker }

func openRueidislock(majority int32, noLoop bool) func(conf) (locker, error) {
	return func(c conf) (locker, error) {
		options := rueidislock.LockerOption{
			ClientOption:   rueidis.ClientOption{InitAddress: []string{c.Addr}},
			KeyValidity:    c.TTL, // 0: 5 s
			KeyMajority:    majority,
			NoLoopTracking: noLoop,
		}
		if majority == 1 {
			options.TryNextAfter = time.Second // there is no next key to hurry to
		}
		l, err := rueidislock.NewLocker(options)
		return rueidislockLocker{l}, err
	}
}

func (l rueidislockLocker) handle(key string) handle { return &rueidislockHandle{l, key} }

func (l rueidislockLocker) close() error {
	l.Close()
	return nil
}

type rueidislockHandle struct {
	rueidislockLocker
	key string
}

type rueidislockHeld context.CancelFunc

func (h *rueidislockHandle) try(ctx context.Context) (held, error) {
	_, cancel, err := h.TryWithContext(ctx, h.key)
	switch {
	case errors.Is(err, rueidislock.ErrNotLocked), errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil:
		return nil, errBusy // the latter: a key did not answer within TryNextAfter
	case err != nil:
		return nil, err
	}
	return rueidislockHeld(cancel), nil
}

func (h *rueidislockHandle) lock(ctx context.Context) (held, error) {
	_, cancel, err := h.WithContext(ctx, h.key)
	if err != nil {
		return nil, err
	}
	return rueidislockHeld(cancel), nil
}

// release has no result: the library tells nobody whether the lock was still held.
func (h rueidislockHeld) release(context.Context) error {
	h()
	return nil
}
