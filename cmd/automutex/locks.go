package main

import (
	"context"
	"iter"
	"net/url"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/lock"
)

// seen is one lock, as the commands show it; its JSON is what --json prints.
type seen struct {
	Key     string     `json:"key"`
	Held    int        `json:"held"`
	Line    int        `json:"line"`             // who waits, and what is parked
	Parked  int        `json:"parked,omitempty"` // of the line, the called ones included
	Since   *time.Time `json:"since,omitempty"`  // of a lock with one holder; else the last one's
	Holders []holder   `json:"holders"`
	Waiters []waiter   `json:"waiters,omitempty"` // show only
}

type holder struct {
	Token    string    `json:"token"`
	Owner    string    `json:"owner"`
	Queue    string    `json:"queue,omitempty"`
	Task     string    `json:"task,omitempty"`
	Note     string    `json:"note,omitempty"` // when it is no task
	Until    time.Time `json:"until"`
	Cooldown bool      `json:"cooldown,omitempty"`
}

type waiter struct {
	Owner string    `json:"owner"`
	Queue string    `json:"queue,omitempty"`
	Task  string    `json:"task,omitempty"`
	Note  string    `json:"note,omitempty"`
	Since time.Time `json:"since"`
	State string    `json:"state"` // waiting, parked or called
}

// task reads a note of the middleware: <queue, escaped>/<task ID>.
func task(note string) (queue, id, other string) {
	escaped, id, ok := strings.Cut(note, "/")
	queue, err := url.PathUnescape(escaped)
	if !ok || err != nil {
		return "", "", note
	}
	return queue, id, ""
}

// taskCell shows a task or another note.
func taskCell(queue, id, other string) string {
	switch {
	case id != "":
		return queue + "/" + id
	case other != "":
		return other
	}
	return "-"
}

// look makes what lock tells of a lock into what is shown. now is Redis' time.
func look(info lock.Info, now time.Time) seen {
	parked := info.Parked + info.Called
	s := seen{Key: info.Key, Held: info.Held, Line: info.Waiting + parked, Parked: parked, Holders: []holder{}}
	if info.Held > 0 && info.Granted > 0 {
		at := now.Add(-info.Granted).UTC()
		s.Since = &at
	}
	for _, h := range info.Holders {
		queue, id, other := task(h.Note)
		s.Holders = append(s.Holders, holder{
			Token: h.Token, Owner: h.Owner, Queue: queue, Task: id, Note: other,
			Until: now.Add(h.ExpiresIn).Truncate(time.Millisecond).UTC(), Cooldown: h.Cooldown,
		})
	}
	return s
}

// batch is how many locks are looked at before any of them is shown: as many as
// one walk of the keyspace brings at a time.
const batch = 1000

// batches walks all locks under the prefix, some at a time, so that neither
// Redis nor this program ever has all of them at hand.
func batches(ctx context.Context, locker *lock.Locker, rdb redis.UniversalClient) iter.Seq2[[]seen, error] {
	return func(yield func([]seen, error) bool) {
		now, err := serverTime(ctx, rdb)
		if err != nil {
			yield(nil, err)
			return
		}
		local := time.Now()
		var some []seen
		hand := func() bool {
			out := some
			some = nil
			return yield(out, nil)
		}
		for info, err := range locker.List(ctx) {
			if err != nil {
				yield(nil, err)
				return
			}
			some = append(some, look(info, now.Add(time.Since(local))))
			if len(some) == batch && !hand() {
				return
			}
		}
		if len(some) > 0 {
			hand()
		}
	}
}

// serverTime is Redis' clock, which all times of a lock are by.
func serverTime(ctx context.Context, rdb redis.UniversalClient) (time.Time, error) {
	now, err := rdb.Time(ctx).Result()
	if err != nil {
		return now, backend(err)
	}
	return now, nil
}
