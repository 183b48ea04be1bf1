package operate

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/exchange"
	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/wire"
)

// Piper is a client, as far as a look at a line needs it.
type Piper interface{ Pipeline() redis.Pipeliner }

// Line returns the first entries of the line of the lock with that key, as many as most: waiters, then parked work,
// then called work, each in order of arrival, and then the tasks in order but for the one at work. Waiters that died
// within the last few seconds are included. info is what the script inspect has replied.
func (r Runner) Line(ctx context.Context, rdb Piper, key string, info inside.Info, most int) ([]inside.Waiter, error) {
	var found *redis.ZSliceCmd
	err := r.look(ctx, rdb, key, func(p redis.Pipeliner) {
		found = p.ZRangeArgsWithScores(ctx, redis.ZRangeArgs{
			Key: key, ByScore: true, Start: wire.LineFrom, Stop: wire.LineTo, Count: int64(most) + 1,
		})
	})
	if err != nil {
		return nil, err
	}
	var line []inside.Waiter
	for _, z := range found.Val() {
		member, _ := z.Member.(string)
		w, ok := wire.ParseWaiter(member, z.Score)
		if !ok {
			return nil, exchange.Failed("line", key, fmt.Errorf("unexpected member %q", member))
		}
		if !w.Ordered || !info.Head.Runs || w.Note != info.Head.Note {
			line = append(line, w)
		}
	}
	return line[:min(len(line), most)], nil
}

// look sends commands that only read, in one pipeline. A key that does not exist, or has
// another type, is no error.
func (r Runner) look(ctx context.Context, rdb Piper, key string, queue func(redis.Pipeliner)) error {
	if err := ctx.Err(); err != nil && r.Life.Unfit() == nil {
		return err
	}
	if err := r.Life.Enter(); err != nil {
		return err
	}
	defer r.Life.Done()
	p := rdb.Pipeline()
	queue(p)
	_, err := r.Conn.Within(ctx, func(bound context.Context) (any, error) {
		cmds, failed := p.Exec(bound)
		// failed is the first command's error, or that of the whole pipeline, of
		// which the commands may know nothing: see replyOf in internal/exchange.
		errs := []error{failed}
		for _, cmd := range cmds {
			errs = append(errs, cmd.Err())
		}
		for _, err := range errs {
			if err != nil && !errors.Is(err, redis.Nil) && !exchange.WrongType(err) {
				return nil, err
			}
		}
		return nil, nil //nolint:nilnil // each command carries its own result
	})
	if err != nil {
		return exchange.Failed("look", key, err)
	}
	return nil
}
