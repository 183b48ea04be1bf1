package lock_test

import (
	"context"
	"io"
	"os"
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
