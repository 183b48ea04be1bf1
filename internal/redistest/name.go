package redistest

import (
	"crypto/rand"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

const maxName = 60 // bytes

// Name gives a name that no other call gives, for a lock, a key or a queue. It begins like the test's own name and
// consists of [a-zA-Z0-9_-].
func Name(t testing.TB) string {
	suffix := "-" + strings.ToLower(rand.Text()[:12])
	name := strings.Map(func(r rune) rune {
		switch {
		case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9', r == '_', r == '-':
			return r
		}
		return '_'
	}, t.Name())
	return name[:min(len(name), maxName-len(suffix))] + suffix
}

// moment is a millisecond, and longer under the race detector: tests then look at things less often.
var moment = func() time.Duration {
	race := debug.BuildSetting{Key: "-race", Value: "true"}
	if info, ok := debug.ReadBuildInfo(); ok && slices.Contains(info.Settings, race) {
		return 4 * time.Millisecond
	}
	return time.Millisecond
}()

// CheckEvery is the TaskCheckInterval for the servers of asynq in tests. Under the race detector a miniredis takes
// milliseconds for each look at an empty queue, so they look less often.
var CheckEvery = 10 * moment

var pollEvery = 2 * moment

// Patience is how long tests wait for what must happen: only a test that hangs uses it up.
const Patience = 30 * time.Second

// Eventually waits until cond is true and fails the test when it is not within the given time, [Patience] or more. msg
// and args, as for Printf, say what was waited for. It is called from the test's own goroutine.
func Eventually(t testing.TB, within time.Duration, cond func() bool, msg string, args ...any) {
	t.Helper()
	if !poll(within, cond) {
		t.Fatalf("redistest: not within %v: "+msg, append([]any{within}, args...)...)
	}
}

// Must ends the test if there is an error.
func Must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// poll looks at cond until it is true or the time is up, and at least twice.
func poll(within time.Duration, cond func() bool) bool {
	deadline := time.Now().Add(within)
	ticker := time.NewTicker(pollEvery)
	defer ticker.Stop()
	for !cond() {
		if time.Now().After(deadline) {
			return cond()
		}
		<-ticker.C
	}
	return true
}

// Go runs f on a goroutine that wg waits for, as the method Go of sync.WaitGroup does from Go 1.25 on.
func Go(wg *sync.WaitGroup, f func()) {
	wg.Add(1)
	go func() {
		defer wg.Done()
		f()
	}()
}
