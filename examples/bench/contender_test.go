//go:build unix

package bench

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"

	"github.com/automutex/automutex/lock"
)

// take takes a key, works, and gives the key back. With wait it waits for the key until ctx ends, else a key that is
// taken is errBusy. It is for one goroutine.
type take func(ctx context.Context, wait bool, work func()) error

var (
	errBusy    = errors.New("bench: busy")
	errNotHeld = errors.New("bench: released what was not held")
)

// contender is one way to take turns on a Redis.
type contender struct {
	name string
	// sends are the commands that its client sends. INFO counts what a script runs beside the script itself, so the
	// others would count twice.
	sends []string
	// open is for so many holders of a key at once, where the contender can have more than one.
	open func(t testing.TB, addr string, limit int) func(key string) take
}

var contenders = []*contender{
	{"blpop", []string{"blpop", "rpush"}, openToken},
	{"raw", []string{"set", "evalsha", "eval"}, openRaw},
	{"automutex", ourCommands, openOurs(lock.Options{})},
	// With names of the lengths that a task's lock has.
	{"automutex-task", ourCommands, openOurs(lock.Options{Owner: "worker-7.example.com:4242"},
		lock.Note("default/0192a8f0-7c3e-7bd0-9d4c-52a8a1f0c9d3"))},
	{"redislock", []string{"evalsha", "eval"}, openRedislock},
	{"redsync", []string{"set", "evalsha", "eval"}, openRedsync},
	{"rueidislock", []string{"evalsha", "eval", "ping", "client|tracking"}, openRueidislock},
	{"asynq-semaphore", []string{"zrem", "evalsha", "eval"}, openSemaphore},
}

var ourCommands = []string{"set", "delex", "delifeq", "evalsha", "eval", "subscribe", "ping"}

const (
	lease = 30 * time.Second      // how long a key stays taken when its holder dies, where a library has no default
	every = time.Millisecond      // how often those try who poll: oftener than by any library's default, and best here
	conns = 300                   // of a client: one for each goroutine
	hold  = time.Millisecond      // the work of a turn
	check = 50 * time.Millisecond // TaskCheckInterval
)

func connect(t testing.TB, addr string) *redis.Client {
	rdb := redis.NewClient(&redis.Options{Addr: addr, PoolSize: conns})
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// polled is what users of a lock that cannot wait write.
func polled(ctx context.Context, wait bool, try func() (bool, error)) error {
	for {
		ok, err := try()
		switch {
		case ok || err != nil:
			return err
		case !wait:
			return errBusy
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(every):
		}
	}
}

// openToken passes a token in a list. It knows no owner, no deadline and no lost client: the floor of a hand-off.
func openToken(t testing.TB, addr string, _ int) func(string) take {
	rdb := connect(t, addr)
	return func(key string) take {
		rdb.Del(context.Background(), key) // nobody has taken it yet
		rdb.RPush(context.Background(), key, "token")
		return func(ctx context.Context, _ bool, work func()) error {
			if err := rdb.BLPop(ctx, 0, key).Err(); err != nil {
				return err
			}
			work()
			return rdb.RPush(ctx, key, "token").Err()
		}
	}
}

var compareAndDelete = redis.NewScript(`
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0`)

// openRaw is what most would write: SET NX PX, and a script that deletes the key if it is still ours.
func openRaw(t testing.TB, addr string, _ int) func(string) take {
	rdb, base := connect(t, addr), rand.Text()
	var tokens atomic.Uint64
	return func(key string) take {
		return func(ctx context.Context, wait bool, work func()) error {
			token := base + strconv.FormatUint(tokens.Add(1), 36)
			if err := polled(ctx, wait, func() (bool, error) { return rdb.SetNX(ctx, key, token, lease).Result() }); err != nil {
				return err
			}
			work()
			return had(compareAndDelete.Run(ctx, rdb, []string{key}, token).Int64())
		}
	}
}

func had(n int64, err error) error {
	if err == nil && n != 1 {
		return errNotHeld
	}
	return err
}

func openOurs(o lock.Options, options ...lock.Option) func(testing.TB, string, int) func(string) take {
	return func(t testing.TB, addr string, limit int) func(string) take {
		l := lock.New(connect(t, addr), o)
		t.Cleanup(func() { _ = l.Close() })
		return func(key string) take {
			m := l.Mutex(key, options...)
			if limit > 1 {
				m = l.Semaphore(key, limit, options...)
			}
			return func(ctx context.Context, wait bool, work func()) error {
				acquire := m.TryLock
				if wait {
					acquire = m.Lock
				}
				held, err := acquire(ctx)
				if err != nil {
					return busyIf(errors.Is(err, lock.ErrBusy), err)
				}
				work()
				return held.Unlock(ctx)
			}
		}
	}
}

func busyIf(busy bool, err error) error {
	if busy {
		return errBusy
	}
	return err
}

// openRedislock tells bsm/redislock how to wait: by itself it does not. Its example has 100 ms.
func openRedislock(t testing.TB, addr string, _ int) func(string) take {
	client := redislock.New(connect(t, addr))
	waits := &redislock.Options{RetryStrategy: redislock.LinearBackoff(every)}
	return func(key string) take {
		return func(ctx context.Context, wait bool, work func()) error {
			var options *redislock.Options
			if wait {
				options = waits
			}
			held, err := client.Obtain(ctx, key, lease, options)
			if err != nil {
				return busyIf(errors.Is(err, redislock.ErrNotObtained), err)
			}
			work()
			return held.Release(ctx)
		}
	}
}

// openRedsync is redsync on one Redis. By default it tries 32 times, 50 to 250 ms apart.
func openRedsync(t testing.TB, addr string, _ int) func(string) take {
	rs := redsync.New(goredis.NewPool(connect(t, addr)))
	return func(key string) take {
		m := rs.NewMutex(key, redsync.WithExpiry(lease), redsync.WithRetryDelay(every), redsync.WithTries(math.MaxInt))
		return func(ctx context.Context, wait bool, work func()) error {
			acquire := m.TryLockContext
			if wait {
				acquire = m.LockContext
			}
			if err := acquire(ctx); err != nil {
				var taken *redsync.ErrTaken
				return busyIf(errors.As(err, &taken) || errors.Is(err, redsync.ErrFailed), err)
			}
			work()
			ok, err := m.UnlockContext(ctx)
			if err == nil && !ok {
				return errNotHeld
			}
			return err
		}
	}
}

// openRueidislock is rueidislock on one Redis, with its defaults: it takes two of three keys. (One key, which its
// README offers for one Redis, came to few hand-offs a second.)
func openRueidislock(t testing.TB, addr string, _ int) func(string) take {
	client := rueidis.ClientOption{InitAddress: []string{addr}}
	l, err := rueidislock.NewLocker(rueidislock.LockerOption{ClientOption: client})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return func(key string) take {
		return func(ctx context.Context, wait bool, work func()) error {
			acquire := l.TryWithContext
			if wait {
				acquire = l.WithContext
			}
			_, release, err := acquire(ctx, key)
			if err != nil {
				// A deadline that is not ours: a key did not answer in its time.
				return busyIf(errors.Is(err, rueidislock.ErrNotLocked) || errors.Is(err, context.DeadlineExceeded) &&
					ctx.Err() == nil, err)
			}
			work()
			release() // it tells nobody whether the lock was still held
			return nil
		}
	}
}

var semaphoreTake = redis.NewScript(`
local now, ends, limit, id = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3]), ARGV[4]
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', '(' .. now)
if redis.call('ZCARD', KEYS[1]) >= limit then return 0 end
redis.call('ZADD', KEYS[1], ends, id)
return 1`)

// openSemaphore is the idea of asynq's x/rate: a sorted set with the holders' task IDs, each with the second in which
// it has to be done. (The published module is for go-redis 8 and asynq of 2021.)
func openSemaphore(t testing.TB, addr string, limit int) func(string) take {
	rdb, base := connect(t, addr), rand.Text()
	var ids atomic.Uint64
	return func(key string) take {
		return func(ctx context.Context, wait bool, work func()) error {
			id, ok := asynq.GetTaskID(ctx)
			if !ok {
				id = base + strconv.FormatUint(ids.Add(1), 36)
			}
			err := polled(ctx, wait, func() (bool, error) {
				now := time.Now()
				n, err := semaphoreTake.Run(ctx, rdb, []string{key}, now.Unix(), now.Add(lease).Unix(), limit, id).Int()
				return n == 1, err
			})
			if err != nil {
				return err
			}
			work()
			return had(rdb.ZRem(ctx, key, id).Result())
		}
	}
}

func named(name string) *contender {
	for _, c := range contenders {
		if c.name == name {
			return c
		}
	}
	panic(fmt.Sprintf("bench: there is no contender %q", name))
}
