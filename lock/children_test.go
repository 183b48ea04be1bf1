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

// childEnv makes this test binary a process that takes locks: the address of Redis, their TTL, and their names.
const childEnv = "AUTOMUTEX_TEST_CHILD"

func startChild(t *testing.T, words ...string) *redistest.Child {
	t.Helper()
	return redistest.StartChild(t, childEnv+"="+strings.Join(words, " "))
}

// childMain takes its locks, in line if need be, and keeps them until its parent goes or kills it.
func childMain() {
	words := strings.Fields(os.Getenv(childEnv))
	ttl, err := time.ParseDuration(words[1])
	if err != nil {
		panic(err)
	}
	l := lock.New(redis.NewClient(&redis.Options{Addr: words[0]}), lock.Options{Owner: "child"})
	for _, name := range words[2:] {
		go func() {
			if _, err := l.Mutex(name, lock.TTL(ttl)).Lock(context.Background()); err != nil {
				panic(err)
			}
		}()
	}
	_, _ = io.Copy(io.Discard, os.Stdin) // ends with the parent
}
