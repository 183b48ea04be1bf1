package main

import (
	"context"
	"errors"
	"slices"
	"time"
)

// contender is one way to take turns on a Redis, with one set of settings. Its
// full name is what tables show and what cells are asked for by.
type contender struct {
	name    string
	setting string
	floor   bool // no lock at all: what the commands alone cost
	// sends are the commands that its client sends; those inside its scripts
	// are not to be counted.
	sends []string
	open  func(conf) (locker, error)
	// needs is a command that not every server has; empty: none. A server without it has no cell of the contender.
	needs string
	// deadline reads from Redis when the holder of key counts no longer. nil for
	// floors, which hold for ever.
	deadline func(ctx context.Context, key string, s *server) (time.Time, error)
}

func (c *contender) String() string {
	if c.setting == "" {
		return c.name
	}
	return c.name + ", " + c.setting
}

// conf is what a contender is opened with.
type conf struct {
	Addr string
	// N is how many goroutines will use it in all, in all processes: what
	// settings that depend on the load are made from.
	N int
	// Every is how long those wait between two tries who are tuned to the load.
	Every time.Duration
	// TTL is how long a key stays taken when its holder dies. 0: what the
	// library's own default is.
	TTL time.Duration
}

func (c conf) ttl(byDefault time.Duration) time.Duration {
	if c.TTL > 0 {
		return c.TTL
	}
	return byDefault
}

// longTTL is the TTL where a library has no default of its own: that of lock.Options.
const longTTL = 30 * time.Second

// locker is an opened contender. Safe for concurrent use.
type locker interface {
	// handle is one key for one goroutine.
	handle(key string) handle
	close() error
}

// handle takes one key again and again, for one goroutine.
type handle interface {
	// try takes the key, or returns errBusy.
	try(ctx context.Context) (held, error)
	// lock takes the key, waiting for it until ctx ends.
	lock(ctx context.Context) (held, error)
}

// held is a key that is held. A type of the library itself is used for it where
// one fits, so that nothing is allocated for being measured.
type held interface {
	release(ctx context.Context) error
}

var (
	errBusy    = errors.New("bench: busy")
	errNotHeld = errors.New("bench: released what was not held")
)

// poll is lock made of try: what users of libraries without waiting write.
func poll(ctx context.Context, every time.Duration, try func(context.Context) (held, error)) (held, error) {
	var timer *time.Timer
	for {
		h, err := try(ctx)
		if !errors.Is(err, errBusy) {
			return h, err
		}
		if timer == nil {
			timer = time.NewTimer(every)
			defer timer.Stop()
		} else {
			timer.Reset(every)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-timer.C:
		}
	}
}

// own takes a key that nobody else wants. A client on a busy machine may still
// give up too early the first time. (Without a context of its own: rueidislock's
// locks end with the context that they were taken with.)
func own(ctx context.Context, h handle) (held, error) {
	for began := time.Now(); ; time.Sleep(time.Millisecond) {
		got, err := h.try(ctx)
		if !errors.Is(err, errBusy) || time.Since(began) > 30*time.Second {
			return got, err
		}
	}
}

// tuned is the pause between two tries that suits n waiters and holds of that
// length: all of them together try 32 times in a hold, each of them at least every
// millisecond, and at most every quarter of one. Of 1 to 256 times that came best in B
// and G, or as good as the best, with 2, 8, 32 and 128 waiters. No user knows n; the
// peers that poll get it for their best setting.
func tuned(n int, hold time.Duration) time.Duration {
	return min(max(250*time.Microsecond, time.Duration(n)*hold/32), time.Millisecond)
}

// contenders are all that are measured, in the order of the tables.
var contenders = slices.Concat(floors, ours, []*contender{asTasks}, raws, rawNatives, redislocks, redsyncs, rueidislocks, semaphores)

// contenderNamed is nil if there is none.
func contenderNamed(name string) *contender {
	i := slices.IndexFunc(contenders, func(c *contender) bool { return c.String() == name })
	if i < 0 {
		return nil
	}
	return contenders[i]
}
