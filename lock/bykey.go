package lock

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/keytext"
)

// byKey returns the lock whose Redis key is key, as list and [Lock.Key] return it, for
// operators. If key does not have the form of a lock's key under the Locker's prefix, that
// is the error of every operation.
//
// A key does not say how many may hold the lock, so byKey assumes one. Locked and Available
// use that number. If Break frees several slots of a semaphore, it grants one, and waiters
// get the others when they ask again, within a second.
func (l *Locker) byKey(key string) *Lock {
	name, err := l.parseKey(key)
	if err != nil {
		return &Lock{locker: l, kind: lockKind{}, err: errors.Join(l.err, err), keys: []string{key}}
	}
	m := l.Mutex(name)
	m.keys = []string{key} // the name stands in it as it is: escaped, or a hash
	return m
}

// parseKey returns the text between the braces of key.
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
	case text == keytext.Controls:
		return refuse("it is that of the controls")
	}
	for i := 0; i < len(text); {
		size, plain := keytext.NextChar(text, i)
		if !plain && !strings.ContainsRune("%|~", rune(text[i])) {
			return refuse("what is between the braces is not escaped")
		}
		i += size
	}
	return text, nil
}

// listLine returns the first entries of the line, as many as most: waiters, then parked work,
// then called work, each in order of arrival. Waiters that died within the last few seconds
// are included.
func (m *Lock) listLine(ctx context.Context, most int) ([]inside.Waiter, error) {
	var found *redis.ZSliceCmd
	err := m.look(ctx, func(p redis.Pipeliner) {
		found = p.ZRangeArgsWithScores(ctx, redis.ZRangeArgs{
			Key: m.Key(), ByScore: true, Start: "2e15", Stop: "(8e15", Count: int64(most),
		})
	})
	if err != nil {
		return nil, err
	}
	var line []inside.Waiter
	for _, z := range found.Val() {
		member, _ := z.Member.(string)
		if note, parked := strings.CutPrefix(member, "p:"); parked {
			// The ticket: see line.lua and docs/redis.md.
			w := inside.Waiter{Note: note, Parked: true, Called: z.Score >= 6e15}
			w.Since = time.UnixMicro(int64(math.Mod(z.Score, 2e15) + 1.6e15))
			line = append(line, w)
			continue
		}
		f := strings.SplitN(strings.TrimPrefix(member, "e:"), "|", 3)
		if len(f) != 3 {
			return nil, backendError("line", m.Key(), fmt.Errorf("unexpected member %q", member))
		}
		line = append(line, inside.Waiter{Owner: unescape(f[1]), Note: f[2], Since: time.UnixMicro(int64(z.Score - 2e15 + 1.6e15))})
	}
	return line, nil
}

// look sends commands that only read, in one pipeline. A key that does not exist, or has
// another type, is no error.
func (m *Lock) look(ctx context.Context, queue func(redis.Pipeliner)) error {
	if err := m.enter(ctx); err != nil {
		return err
	}
	defer m.locker.work.Done()
	p := m.locker.rdb.Pipeline()
	queue(p)
	if p.Len() == 0 {
		return nil
	}
	_, err := m.locker.conn.Within(ctx, func(bound context.Context) (any, error) {
		cmds, failed := p.Exec(bound)
		// failed is the first command's error, or that of the whole pipeline, of
		// which the commands may know nothing: see replyOf in internal/exchange.
		errs := []error{failed}
		for _, cmd := range cmds {
			errs = append(errs, cmd.Err())
		}
		for _, err := range errs {
			if err != nil && !errors.Is(err, redis.Nil) && !wrongType(err) {
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
