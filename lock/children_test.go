package lock_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// childEnv makes this test binary a process that takes locks: what it does, the address of Redis, and more words.
const childEnv = "AUTOMUTEX_TEST_CHILD"

func startChild(t *testing.T, words ...string) *redistest.Child {
	t.Helper()
	return redistest.StartChild(t, childEnv+"="+strings.Join(words, " "))
}

func childMain() {
	words := strings.Fields(os.Getenv(childEnv))
	rdb := redis.NewClient(&redis.Options{Addr: words[1]})
	switch words[0] {
	case "hold":
		childHolds(rdb, words[2], words[3:])
	case "stress":
		childStress(rdb, words[2], words[3])
	case "try":
		childTries(rdb, words[2])
	}
}

// childHolds takes the locks with those names, in line if need be, and keeps them until its parent goes or kills it.
func childHolds(rdb *redis.Client, length string, names []string) {
	ttl, err := time.ParseDuration(length)
	if err != nil {
		panic(err)
	}
	l := lock.New(rdb, lock.Options{Owner: "child"})
	for _, name := range names {
		go func() {
			if _, err := l.Mutex(name, lock.TTL(ttl)).Lock(context.Background()); err != nil {
				panic(err)
			}
		}()
	}
	_, _ = io.Copy(io.Discard, os.Stdin) // ends with the parent
}

// childTries takes and releases a lock again and again, and notes in Redis by which of its own times it last did.
func childTries(rdb *redis.Client, prefix string) {
	ctx := context.Background()
	m := lock.New(rdb, lock.Options{Prefix: prefix}).Mutex("report")
	go func() {
		for ; ; time.Sleep(500 * time.Microsecond) {
			if le, err := m.TryLock(ctx); err == nil {
				_ = rdb.RPush(ctx, prefix+":took", time.Now().UnixMicro()).Err()
				_ = le.Unlock(ctx)
			}
		}
	}()
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// childStress runs sections, each of which is reads and writes that go wrong if anybody else is in one.
func childStress(rdb *redis.Client, name, sections string) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*soon)
	defer cancel()
	n, err := strconv.Atoi(sections)
	if err != nil {
		panic(err)
	}
	l := lock.New(rdb, lock.Options{})
	m := l.Mutex(name, lock.TTL(5*time.Second), lock.Fenced())
	wrong := func(what ...any) { _ = rdb.RPush(ctx, name+":wrong", fmt.Sprint(what...)).Err() }
	for rdb.Incr(ctx, name+":ready"); rdb.Exists(ctx, name+":go").Val() == 0 && ctx.Err() == nil; time.Sleep(time.Millisecond) {
	}
	for range n {
		if err := m.Do(ctx, func(ctx context.Context) error {
			if n := rdb.Incr(ctx, name+":inside").Val(); n != 1 {
				wrong(n, " are inside at once")
			}
			counted, err := rdb.Get(ctx, name+":sections").Int()
			if err != nil && !errors.Is(err, redis.Nil) {
				return err
			}
			lease, _ := lock.FromContext(ctx)
			fence, err := lease.Fence()
			return errors.Join(err, rdb.RPush(ctx, name+":fences", fmt.Sprint(fence, " ", os.Getpid())).Err(),
				rdb.Set(ctx, name+":sections", counted+1, time.Hour).Err(), rdb.Decr(ctx, name+":inside").Err())
		}); err != nil {
			wrong("a section failed: ", err)
		}
	}
	_ = l.Close()
}
