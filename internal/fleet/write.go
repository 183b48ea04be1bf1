package fleet

import (
	"context"
	"crypto/rand"
	"encoding/json"
	mathrand "math/rand/v2"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// firstAfter is how long after the beginning of its work a process writes first: one that
	// lives for a moment writes nothing.
	firstAfter = time.Second
	// writeWithin bounds one write, and the farewell of a process that ends.
	writeWithin = 3 * time.Second
	// farewellWithin is how long Close waits for the farewell.
	farewellWithin = time.Second
	// maxRules bounds what is written of the rules.
	maxRules = 512 << 10
)

// Writer is what the announcements need of a client.
type Writer interface {
	Pipeline() redis.Pipeliner
}

// Announcer writes a process and its rules to Redis, again and again, from the first call of
// Begin to Close. Nothing depends on it: a write that fails is forgotten, and the next one is
// due a minute later. Safe for concurrent use.
type Announcer struct {
	rdb     Writer
	keys    keys
	process Process
	rules   []byte

	firstAfter time.Duration // tests set it
	due        atomic.Int64  // when Touch writes next, in nanoseconds since 1970

	mu     sync.Mutex // guards the rest; held for moments
	begun  bool       // the goroutine was started
	closed bool       // Close was called
	stop   chan struct{}
	done   chan struct{} // the goroutine closes it when it ends
}

// New makes an Announcer for a process: its Kind, Owner and Hashed are the caller's, the rest
// is filled in. It does no I/O and starts nothing.
func New(rdb Writer, prefix string, process Process, rules []Rule) *Announcer {
	a := &Announcer{
		rdb: rdb, keys: keys(prefix), process: process, firstAfter: firstAfter,
		stop: make(chan struct{}), done: make(chan struct{}),
	}
	a.rules, a.process.Hash = encodeRules(rules)
	if len(a.rules) > maxRules {
		a.rules = []byte("[]") // so many rules are no text for people
	}
	a.process.ID = strings.ToLower(rand.Text()[:16])
	a.process.Started = time.Now().UTC().Truncate(time.Second)
	a.process.Version, a.process.App = builtFrom()
	a.due.Store(time.Now().Add(firstAfter).UnixNano())
	return a
}

// builtFrom names the version of this module and the program that it is built into.
func builtFrom() (version, app string) {
	const module = "github.com/automutex/automutex"
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "", ""
	}
	if info.Main.Path != module {
		app = strings.TrimSpace(info.Main.Path + " " + info.Main.Version)
	} else {
		version = info.Main.Version
	}
	for _, dep := range info.Deps {
		if dep.Path == module {
			version = dep.Version
		}
	}
	return version, app
}

// Begin starts the goroutine that writes. Further calls do nothing, and so do calls on nil
// and after Close.
func (a *Announcer) Begin() {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.begun || a.closed {
		return
	}
	a.begun = true
	go a.run() // Close ends it
}

// run writes until Close, and then removes what it wrote.
func (a *Announcer) run() {
	defer close(a.done)
	written := false
	timer := time.NewTimer(a.firstAfter)
	defer timer.Stop()
	for {
		select {
		case <-a.stop:
			if written {
				a.remove()
			}
			return
		case <-timer.C:
			written = a.write() == nil || written
			// Spread, so that processes that began together do not write together for ever.
			timer.Reset(Every - time.Duration(mathrand.Int64N(int64(Every/10)))) //nolint:gosec // jitter, no secret
		}
	}
}

// Close has the goroutine remove the process from Redis and end. It waits for that for a
// second at most, or until ctx ends: a client that hangs then ends the goroutine by its own
// timeouts. Further calls wait again.
func (a *Announcer) Close(ctx context.Context) {
	if a == nil {
		return
	}
	a.mu.Lock()
	begun := a.begun
	if !a.closed {
		a.closed = true
		close(a.stop)
	}
	a.mu.Unlock()
	if !begun {
		return
	}
	select {
	case <-a.done:
	case <-ctx.Done():
	case <-time.After(farewellWithin):
	}
}

// Touch writes like the goroutine of Begin, but on the caller's: for a process that has nothing
// to close. It writes when the process is older than a second and a minute has passed since
// the last Touch that wrote, whatever came of it; one caller does, and the others go on.
func (a *Announcer) Touch() {
	if a == nil {
		return
	}
	now, due := time.Now().UnixNano(), a.due.Load()
	if now >= due && a.due.CompareAndSwap(due, now+int64(Every)) {
		_ = a.write() // the next one is due anyway
	}
}

// bound is the context of one write.
func (a *Announcer) bound() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), writeWithin)
}

// write writes the process and its rules. The index has Redis' time, so that the clocks of
// processes do not matter.
func (a *Announcer) write() error {
	ctx, cancel := a.bound()
	defer cancel()
	pipe := a.rdb.Pipeline()
	asked := pipe.Time(ctx)
	if _, err := pipe.Exec(ctx); err != nil {
		return err
	}
	now := asked.Val()
	text, err := json.Marshal(a.process)
	if err != nil {
		return err // it has texts and times alone
	}
	pipe = a.rdb.Pipeline()
	pipe.Set(ctx, a.keys.rules(a.process.Hash), a.rules, keepFor)
	pipe.Set(ctx, a.keys.process(a.process.ID), text, keepFor)
	index := a.keys.index()
	pipe.ZAdd(ctx, index, redis.Z{Score: float64(now.UnixMilli()), Member: a.process.ID})
	pipe.ZRemRangeByScore(ctx, index, "-inf", "("+strconv.FormatInt(now.Add(-keepFor).UnixMilli(), 10))
	pipe.PExpire(ctx, index, keepFor)
	_, err = pipe.Exec(ctx)
	return err
}

// remove takes the process out. Its rules stay until they expire: others may share them.
func (a *Announcer) remove() {
	ctx, cancel := a.bound()
	defer cancel()
	pipe := a.rdb.Pipeline()
	pipe.ZRem(ctx, a.keys.index(), a.process.ID)
	pipe.Del(ctx, a.keys.process(a.process.ID))
	_, _ = pipe.Exec(ctx) // what stays expires
}
