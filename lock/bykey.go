package lock

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// ByKey is the lock whose Redis key is key, as [Info] and [Lock.Key] tell it:
// to look at it, and to step in. What does not have the form of a lock's key
// under the Locker's prefix is reported by Err and by every operation.
//
// A key does not tell how many may hold the lock, and one is assumed: Locked
// and Available mean that, and of a semaphore's slots that Break frees, some are
// granted only when those in line ask again, within a second.
func (l *Locker) ByKey(key string) *Lock {
	name, err := l.parseKey(key)
	if err != nil {
		return &Lock{locker: l, err: errors.Join(l.err, err), keys: []string{key}}
	}
	m := l.Mutex(name)
	m.keys = []string{key} // the name stands in it as it is: escaped, or a hash
	return m
}

// parseKey gives what is between the braces.
func (l *Locker) parseKey(key string) (string, error) {
	refuse := func(reason string) (string, error) {
		const most = 300 // as long as a key can be, and more
		shown, end := key, ""
		if len(shown) > most {
			shown, end = shown[:most], "..."
		}
		return "", fmt.Errorf("lock: %q%s is no lock's key: %s; List tells the keys there are", shown, end, reason)
	}
	text, ours := strings.CutPrefix(key, l.prefix+":{")
	if !ours {
		return refuse(fmt.Sprintf("it does not begin with %q", l.prefix+":{"))
	}
	text, after, closed := strings.Cut(text, "}")
	switch {
	case !closed:
		return refuse("a brace is not closed")
	case after == ":pool":
		return refuse("it is a pool's")
	case after != "":
		return refuse(fmt.Sprintf("%q follows the brace", after))
	case text == "":
		return refuse("there is nothing between the braces")
	}
	for i := 0; i < len(text); {
		size, plain := nextChar(text, i)
		if !plain && !strings.ContainsRune("%|~", rune(text[i])) {
			return refuse("what is between the braces is not escaped")
		}
		i += size
	}
	return text, nil
}

// Waiter is one who stands in the line of a lock, as others see it.
type Waiter struct {
	// Owner is the waiter's label ([Options].Owner).
	Owner string
	// Note is the waiter's note.
	Note string
	// Since is when it joined the line, by Redis' clock.
	Since time.Time
}

// Line lists who waits in line, first come first, at most so many. Waiters that
// died within the last few seconds are among them.
func (m *Lock) Line(ctx context.Context, most int) ([]Waiter, error) {
	var found *redis.ZSliceCmd
	err := m.look(ctx, func(p redis.Pipeliner) {
		found = p.ZRangeArgsWithScores(ctx, redis.ZRangeArgs{
			Key: m.Key(), ByScore: true, Start: "2e15", Stop: "(4e15", Count: int64(most),
		})
	})
	if err != nil {
		return nil, err
	}
	var line []Waiter
	for _, z := range found.Val() {
		member, _ := z.Member.(string)
		f := strings.SplitN(strings.TrimPrefix(member, "e:"), "|", 3)
		if len(f) != 3 {
			return nil, backendError("line", m.Key(), fmt.Errorf("unexpected member %q", member))
		}
		// The ticket: see line.lua and docs/redis.md.
		line = append(line, Waiter{Owner: unescape(f[1]), Note: f[2], Since: time.UnixMicro(int64(z.Score - 2e15 + 1.6e15))})
	}
	return line, nil
}

// Since tells of each lock, named by its Redis key, when it was last taken, by
// Redis' clock: of a mutex that is held, since when. It is read off the fence,
// and so is ahead of the truth while fences are, after Redis' clock stepped
// back. The zero time: there is no such lock.
func (l *Locker) Since(ctx context.Context, keys ...string) ([]time.Time, error) {
	found := make([]*redis.FloatCmd, len(keys))
	m := &Lock{locker: l, err: l.err, keys: []string{strconv.Itoa(len(keys)) + " keys"}} // for errors
	err := m.look(ctx, func(p redis.Pipeliner) {
		for i, key := range keys {
			found[i] = p.ZScore(ctx, key, "f")
		}
	})
	if err != nil {
		return nil, err
	}
	times := make([]time.Time, len(keys))
	for i, f := range found {
		if f.Err() == nil {
			times[i] = time.UnixMicro(int64(-f.Val() - 1e15))
		}
	}
	return times, nil
}

// look sends commands that read, in one pipeline. A key that is not there, or of
// another type, is no error.
func (m *Lock) look(ctx context.Context, queue func(redis.Pipeliner)) error {
	if m.err != nil {
		return m.err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := m.locker.enter(); err != nil {
		return err
	}
	defer m.locker.work.Done()
	conn := m.locker.conn
	p := conn.rdb.Pipeline()
	queue(p)
	if p.Len() == 0 {
		return nil
	}
	bound := conn.bound(ctx)
	_, err := conn.within(bound, func() (any, error) {
		cmds, _ := p.Exec(bound) // every command carries its own error
		for _, cmd := range cmds {
			if err := cmd.Err(); err != nil && !errors.Is(err, redis.Nil) && !wrongType(err) {
				return nil, err
			}
		}
		return nil, nil //nolint:nilnil // each command carries its own result
	})
	if err != nil {
		return backendError("look", m.Key(), err)
	}
	return nil
}
