package lock

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"
)

// A mutex that nobody waits for is a string in Redis, taken by SET with NX and PX; see
// docs/redis.md and lua/form.lua. Whoever finds the key asks, as for a sorted set.

// take takes m for le: as a string if that is possible, else by an ask with mode.
// sent is when the command was sent that took it.
func (m *Lock) take(ctx context.Context, le *Lease, mode askMode) (a answer, sent time.Time, err error) {
	sent = time.Now()
	if m.kind.mayTakeString(m) {
		ok, err := m.takeString(ctx, le)
		if ok || err != nil {
			return answer{yours: ok}, sent, err
		}
		m.locker.wanted.note(m.keys[0])
		sent = time.Now()
	}
	a, err = m.ask(ctx, le, mode)
	return a, sent, err
}

// takeString takes m as a string. false without an error: the key is there, and may be
// ours, for go-redis sends a SET again whose reply was lost; or Redis refuses the SET
// alone. The ask that follows tells.
func (m *Lock) takeString(ctx context.Context, le *Lease) (ok bool, err error) {
	if m.whole {
		ctx = context.WithoutCancel(ctx)
	}
	before := le.asks.copies.Load()
	conn := m.locker.conn
	ok, err = conn.setFirst(ctx, m.keys[0], &le.asks, m.ttlArg)
	mayHaveRun := le.asks.noteReply(before, err)
	if err == nil || conn.denied.setRefused(err) {
		return ok, nil
	}
	if mayHaveRun || le.asks.mayRunYet() {
		m.locker.abandon(le)
	}
	return false, backendError("set", m.Key(), conn.denied.describe(nil, err))
}

// sender is a client or Transport that sends any command, and not scripts alone.
type sender interface {
	Process(ctx context.Context, cmd redis.Cmder) error
}

// setFirst sets key to body for ttl (ms) if the key is not there. It ends as run does.
func (c *conn) setFirst(ctx context.Context, key string, body *countedArg, ttl any) (ok bool, err error) {
	bound := c.bound(ctx)
	cmd := redis.NewStatusCmd(bound, "set", key, body, "nx", "px", ttl)
	if c.process != nil {
		if err = c.submitOne(ctx, bound, cmd); !errors.Is(err, errNoAnswer) {
			ok, err = setReplyOf(cmd, err)
		}
	} else {
		var v any
		v, err = c.within(ctx, bound, func() (any, error) {
			sent := c.sender.Process(bound, cmd)
			return setReplyOf(cmd, sent)
		})
		ok, _ = v.(bool)
	}
	if errors.Is(err, errNoAnswer) {
		noteLeftBehind([]any{body})
	}
	c.unreached(err)
	return ok, err
}
