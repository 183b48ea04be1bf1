// Package mark has the marks beside locks by which producers enqueue one task for a key, and the IDs of tasks that have one.
package mark

import (
	"context"
	"embed"
	"fmt"
	"time"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/life"
	"github.com/automutex/automutex/internal/redisx"
)

//go:embed lua/*.lua
var files embed.FS

// script returns a script: what all of them share, and its own lines.
func script(name string) *redisx.Script {
	var source []byte
	for _, part := range []string{"shared", name} {
		b, err := files.ReadFile("lua/" + part + ".lua")
		if err != nil {
			panic(err) // a name that no file has: every test finds it
		}
		source = append(source, b...)
	}
	return redisx.NewScript("claim_"+name, string(source))
}

var takeScript, keepScript, startScript, dropScript = script("take"), script("keep"), script("start"), script("drop")

// Mark reserves the key of a lock, long before the lock is taken. The producers of package unique use it to enqueue one task for a
// key, and the workers' Guard notes in it how far that task is. It is independent of the lock's holders, and its Redis key is in the
// same Cluster slot. It has a holder, which is any text, a phase, an age and a deadline by Redis' clock. Safe for concurrent use.
type Mark struct {
	life *life.Life
	conn *redisx.Conn
	keys []string // exactly one
}

// Phase says how far the task of a mark is. Redis stores it as text.
type Phase string

// The phases, in their order. Producers note the first two, a Guard the others.
const (
	Enqueuing Phase = "enqueuing" // its producer may still be enqueuing the task
	Enqueued  Phase = "enqueued"
	Waiting   Phase = "waiting" // a worker has the task, and waits for its lock
	Begun     Phase = "begun"   // its handler has begun
	Ended     Phase = "ended"   // not stored: the mark keeps its phase, and expires soon
)

// Standing is a mark that stands.
type Standing struct {
	Holder string
	Age    time.Duration // since the mark was taken; what is noted later does not change that
	Phase  Phase
}

// Of returns the mark beside the lock with that Redis key. life is that of its user; nil if the user ends its calls before conn.
func Of(life *life.Life, conn *redisx.Conn, lockKey string) Mark {
	return Mark{life, conn, []string{Key(lockKey)}}
}

// Key returns the Redis key of the mark beside the lock with that key.
func Key(lockKey string) string { return lockKey + ":claim" }

// Key returns the Redis key of the mark.
func (m Mark) Key() string { return m.keys[0] }

// Take sets the mark for holder, unless another holder has it, and returns the mark that stands now: Holder says whose it is. It
// lasts for length, from a millisecond to ten years. If instead is not empty, Take also replaces a mark of that holder. With instead
// the same as holder, the holder's own mark begins anew.
//
// After an error the mark may be set or not.
func (m Mark) Take(ctx context.Context, holder, instead string, length time.Duration) (Standing, error) {
	if holder == "" || length < time.Millisecond || length > inside.MaxTTL {
		return Standing{}, fmt.Errorf("lock: claim %q for %q lasting %s: name a holder, and give it from 1ms to %s", m.Key(), holder, length, inside.MaxTTL)
	}
	reply, err := m.run(ctx, takeScript, holder, instead, length.Milliseconds())
	if err != nil {
		return Standing{}, err
	}
	if reply == int64(0) {
		return Standing{Holder: holder, Phase: Enqueuing}, nil
	}
	if list, _ := reply.([]any); len(list) == 3 {
		if age, ok := list[1].(int64); ok {
			return Standing{fmt.Sprint(list[0]), time.Duration(age) * time.Millisecond, Phase(fmt.Sprint(list[2]))}, nil
		}
	}
	return Standing{}, redisx.Failed("take", m.Key(), fmt.Errorf("unexpected reply %v", reply))
}

// Keep confirms the mark of holder: its task is enqueued. The mark then lasts for at least length from now; 0 does not change its
// deadline. Its age goes on. false means that the mark was not holder's any more, and nothing changed.
func (m Mark) Keep(ctx context.Context, holder string, length time.Duration) (bool, error) {
	return m.keep(ctx, holder, holder, length, false)
}

// PassOn gives the mark of holder to next, which is enqueued, unless holder's handler has begun. stale says that a worker may have
// holder's task: a [Mark.Start] of it is refused then for as long as the marks of this key stand. The deadline and the age do not
// change. false means that the mark was neither holder's nor next's, or that holder's task has begun; nothing changed.
func (m Mark) PassOn(ctx context.Context, holder, next string, stale bool) (bool, error) {
	return m.keep(ctx, holder, next, 0, stale)
}

func (m Mark) keep(ctx context.Context, holder, next string, length time.Duration, stale bool) (bool, error) {
	if holder == "" || next == "" || length < 0 || length > inside.MaxTTL {
		return false, fmt.Errorf("lock: claim %q of %q for %q, for another %s: name both, and give it at most %s", m.Key(), holder, next, length, inside.MaxTTL)
	}
	return m.done(m.run(ctx, keepScript, holder, next, length.Milliseconds(), flag(stale)))
}

// Start notes that the task of holder is in that phase: Waiting, Begun or Ended. ends says that the mark ends when its task begins.
// The mark then lasts for at least length from now, and after Ended for at most length. Start returns false if another task has
// superseded this one: then its handler must not begin, and nothing is noted. It returns true if no mark stands.
func (m Mark) Start(ctx context.Context, holder string, phase Phase, ends bool, length time.Duration) (bool, error) {
	return m.done(m.run(ctx, startScript, holder, string(phase), flag(ends), length.Milliseconds()))
}

// Drop deletes the mark of holder. false means that the mark was not holder's.
func (m Mark) Drop(ctx context.Context, holder string) (bool, error) {
	return m.done(m.run(ctx, dropScript, holder))
}

// run runs a script and returns its reply. Life's Close waits for it.
func (m Mark) run(ctx context.Context, s *redisx.Script, args ...any) (any, error) {
	if m.life != nil {
		if err := m.life.Enter(); err != nil {
			return nil, err
		}
		defer m.life.Done()
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	reply, err := m.conn.Run(ctx, s, m.keys, args...)
	if err != nil {
		return nil, redisx.Failed(s.Name, m.Key(), err)
	}
	return reply, nil
}

// done reads a reply that says whether the mark was the holder's.
func (m Mark) done(reply any, err error) (bool, error) {
	if n, is := reply.(int64); err == nil && (!is || n != 0 && n != 1) {
		err = redisx.Failed("claim", m.Key(), fmt.Errorf("unexpected reply %v", reply))
	}
	return err == nil && reply == int64(1), err
}

// flag is a bool as scripts take it.
func flag(b bool) int64 {
	if b {
		return 1
	}
	return 0
}
