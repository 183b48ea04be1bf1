// Package fleet is how the Guards of a prefix tell operators, and each other, which rules they run.
// Each writes one field of a hash, without any value of a payload:
//
//	<prefix>:{fleet}:guards    random ID of a Guard -> a Process as JSON
//
// It is one hash because one command reads it: keys with a TTL of their own would have to be searched for among all
// keys of Redis. A field has no TTL before Redis 7.4, so each has the time at which it was written. Readers ignore one
// that is older than keepFor, the next Guard that begins removes it, and the hash expires with its last writer.
package fleet

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	firstAfter = time.Second // from Begin to the first write: who lives for a moment writes nothing
	every      = time.Minute // from write to write
	keepFor    = 150 * time.Second
	within     = 3 * time.Second // bounds one write
	farewell   = time.Second     // bounds Close
)

// Process is what one Guard says of itself.
type Process struct {
	ID      string    `json:"-"` // random
	Owner   string    `json:"owner"`
	Started time.Time `json:"started"`
	Seen    time.Time `json:"seen"`             // when it wrote last: in Redis by Redis' clock, once read by the reader's
	Hashed  bool      `json:"hashed,omitempty"` // it has a secret for HashKeys
	Serves  []string  `json:"serves,omitempty"` // task types that it has a handler for, as far as it knows
	Rules   []Rule    `json:"rules"`
}

// Client is what is needed of a client of Redis.
type Client interface{ Pipeline() redis.Pipeliner }

// Read returns what the Guards of a prefix say of themselves, in the order in which they began.
func Read(ctx context.Context, rdb Client, prefix string) ([]Process, error) {
	processes, _, err := read(ctx, rdb, Key(prefix))
	return processes, err
}

// Key is the key of the hash.
func Key(prefix string) string { return prefix + ":{fleet}:guards" }

// read also returns the fields that do not count any more.
func read(ctx context.Context, rdb Client, key string) (processes []Process, old []string, err error) {
	pipe := rdb.Pipeline()
	now, fields := pipe.Time(ctx), pipe.HGetAll(ctx, key)
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, nil, err
	}
	for id, text := range fields.Val() {
		p := Process{ID: id}
		wrong := json.Unmarshal([]byte(text), &p)
		age := now.Val().Sub(p.Seen)
		if wrong != nil || age > keepFor {
			old = append(old, id)
			continue
		}
		p.Seen = time.Now().Add(-age)
		processes = append(processes, p)
	}
	slices.SortFunc(processes, func(a, b Process) int {
		return cmp.Or(a.Started.Compare(b.Started), cmp.Compare(a.Owner, b.Owner), cmp.Compare(a.ID, b.ID))
	})
	return processes, old, nil
}

// Announcer writes what a Guard says of itself, from Begin to Close. Nothing depends on it: a write that fails is
// forgotten. Safe for concurrent use; a nil one does nothing.
type Announcer struct {
	rdb        Client
	key        string
	self       Process
	serves     func() []string
	differ     func([]Difference)
	firstAfter time.Duration
	begun      sync.Once // by Begin; or by Close, so that a Begin after it starts nothing
	ctx        context.Context
	stop       context.CancelFunc
	done       chan struct{} // closed when the goroutine has ended, or never begins
}

// New makes an Announcer for self, whose ID and times it fills in. The goroutine of Begin asks serves before each
// write. After its first one it calls differ if what another Guard says differs. New does no I/O.
func New(rdb Client, prefix string, self Process, serves func() []string, differ func([]Difference)) *Announcer {
	self.ID, self.Started = rand.Text()[:16], time.Now().UTC().Truncate(time.Second)
	a := &Announcer{rdb: rdb, key: Key(prefix), self: self, serves: serves, differ: differ, firstAfter: firstAfter, done: make(chan struct{})}
	a.ctx, a.stop = context.WithCancel(context.Background())
	return a
}

// Begin starts the goroutine that writes. Further calls do nothing. Close ends the goroutine: it ends ctx, for which
// run waits wherever it waits for time.
func (a *Announcer) Begin() {
	if a != nil {
		a.begun.Do(func() { go a.run() })
	}
}

func (a *Announcer) run() {
	defer close(a.done)
	said := false
	for next := a.firstAfter; ; next = every {
		select {
		case <-time.After(next):
			if wrote := a.write() == nil; wrote && !said {
				said = true
				a.hear()
			}
		case <-a.ctx.Done():
			if said {
				a.forget(context.Background(), a.self.ID)
			}
			return
		}
	}
}

// write writes the field, with Redis' time, so that the clocks of Guards do not matter.
func (a *Announcer) write() error {
	ctx, cancel := context.WithTimeout(a.ctx, within)
	defer cancel()
	pipe := a.rdb.Pipeline()
	now := pipe.Time(ctx)
	if _, err := pipe.Exec(ctx); err != nil {
		return err
	}
	self := a.self
	self.Seen, self.Serves = now.Val().UTC(), a.serves()
	text, err := json.Marshal(self)
	if err != nil {
		return err // it has texts, times and numbers alone
	}
	pipe.HSet(ctx, a.key, self.ID, text)
	pipe.PExpire(ctx, a.key, keepFor)
	_, err = pipe.Exec(ctx)
	return err
}

// hear looks once at what others say. This Guard has written before: so of two that begin together, one at least sees
// the other.
func (a *Announcer) hear() {
	ctx, cancel := context.WithTimeout(a.ctx, within)
	defer cancel()
	processes, old, err := read(ctx, a.rdb, a.key)
	if err != nil {
		return
	}
	if len(old) > 0 {
		a.forget(ctx, old...)
	}
	others := slices.DeleteFunc(processes, func(p Process) bool { return p.ID == a.self.ID })
	found := Differences(append([]Process{a.self}, others...))
	if found = slices.DeleteFunc(found, func(d Difference) bool { return d.One.ID != a.self.ID }); len(found) > 0 {
		a.differ(found)
	}
}

// forget removes fields. What it cannot remove counts for keepFor.
func (a *Announcer) forget(ctx context.Context, ids ...string) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	pipe := a.rdb.Pipeline()
	pipe.HDel(ctx, a.key, ids...)
	_, _ = pipe.Exec(ctx)
}

// Close has the goroutine remove the field and end. It waits for that for a second at most, or until ctx ends: a client
// that hangs then ends the goroutine by its own timeouts. Further calls wait again.
func (a *Announcer) Close(ctx context.Context) {
	if a == nil {
		return
	}
	a.begun.Do(func() { close(a.done) })
	a.stop()
	select {
	case <-a.done:
	case <-ctx.Done():
	case <-time.After(farewell):
	}
}
