// Package claims has the claims beside locks by which producers enqueue one task for a key, and the IDs of tasks that
// have one.
package claims

import (
	"context"
	"embed"
	"fmt"
	"strings"
	"time"

	"github.com/automutex/automutex/internal/life"
	"github.com/automutex/automutex/internal/redisx"
)

//go:embed lua/*.lua
var files embed.FS

func script(name string) *redisx.Script { return redisx.Load(files, "claim_"+name, "shared", name) }

var takeScript, keepScript, startScript, dropScript = script("take"), script("keep"), script("start"), script("drop")

// Claim reserves the key of a lock, long before the lock is taken. The producers of package unique use it to enqueue
// one task for a key, and the workers' Guard writes in it how far that task is. It is independent of the lock's
// holders, and its Redis key is in the same Cluster slot. Its holder is any text. Safe for concurrent use.
type Claim struct {
	life *life.Life
	conn *redisx.Conn
	keys []string // exactly one
}

// Phase says how far the task of a claim is. Redis stores it as text.
type Phase string

// The phases, in their order. Producers write the first two, a Guard the others.
const (
	Enqueuing Phase = "enqueuing" // its producer may still be enqueuing the task
	Enqueued  Phase = "enqueued"
	Waiting   Phase = "waiting" // a worker has the task, and waits for its lock
	Begun     Phase = "begun"   // its handler has begun
	Ended     Phase = "ended"   // not stored: the claim keeps its phase, and expires soon
)

// Standing is a claim as it stands; without a Holder there is none.
type Standing struct {
	Holder string
	Age    time.Duration // since the claim was taken; what is written later does not change that
	Phase  Phase

	// Newer is the holder whose task a producer has been enqueuing in the place of Holder's for NewerAge; empty: none.
	Newer    string
	NewerAge time.Duration

	Stale []string // the holders of tasks that must not begin, and may be in Redis
}

// Of returns the claim beside the lock with that Redis key. life is that of its user; nil if the user ends its calls
// before conn.
func Of(life *life.Life, conn *redisx.Conn, lockKey string) Claim {
	return Claim{life, conn, []string{Key(lockKey)}}
}

// Key returns the Redis key of the claim beside the lock with that key.
func Key(lockKey string) string { return lockKey + ":claim" }

// Key returns the Redis key of the claim.
func (c Claim) Key() string { return c.keys[0] }

// Take sets the claim for holder, unless another holder has it, and returns the claim that stands now: Holder says
// whose it is. It lasts for length, from a millisecond to ten years. If instead is not empty, Take also replaces a
// claim of that holder. With instead the same as holder, the holder's own claim begins anew.
//
// After an error the claim may be set or not.
func (c Claim) Take(ctx context.Context, holder, instead string, length time.Duration) (Standing, error) {
	return standing(c.run(ctx, takeScript, holder, instead, length.Milliseconds(), "-"))
}

// Supersede announces that holder's task is to take the place of that of old, a claim that was seen, and returns the
// claim that stands now: Newer says whether it is holder. If old has a Newer, its producer is given up, and its task
// never begins. Until [Claim.Keep] says that holder's task is enqueued, the handler of old's may begin; then holder's
// is refused, or is the next one if the claim ends at the start. Supersede changes nothing if the claim is not as old
// any more, or if the handler has begun. The age and the deadline do not change.
//
// After an error the claim may be changed or not.
func (c Claim) Supersede(ctx context.Context, holder string, old Standing) (Standing, error) {
	newer := "-"
	if old.Newer != "" {
		newer = old.Newer[strings.LastIndexByte(old.Newer, ':')+1:]
	}
	return standing(c.run(ctx, takeScript, holder, old.Holder, 0, newer))
}

// Keep confirms that holder's task is enqueued, and returns the claim that stands now. If holder has the claim, or was
// to take it over since Supersede, it has it from now on, for at least length; 0 does not change its deadline. Its age
// goes on.
func (c Claim) Keep(ctx context.Context, holder string, length time.Duration) (Standing, error) {
	return standing(c.run(ctx, keepScript, holder, length.Milliseconds()))
}

// Start writes that the task of holder is in that phase: Waiting, Begun or Ended. ends says that the claim ends when
// its task begins. The claim then lasts for at least length from now, and after Ended for at most length; decide.Admit
// may let a producer through before. Start returns false if another task has superseded this one, even if no claim
// stands any more: then its handler must not begin, and nothing is written.
func (c Claim) Start(ctx context.Context, holder string, phase Phase, ends bool, length time.Duration) (bool, error) {
	return c.done(c.run(ctx, startScript, holder, string(phase), flag(ends), length.Milliseconds()))
}

// Drop undoes a Take or Supersede of holder, whose task will not be enqueued. false means that holder had no part in
// the claim.
func (c Claim) Drop(ctx context.Context, holder string) (bool, error) {
	return c.done(c.run(ctx, dropScript, holder))
}

// run runs a script, which the end of life waits for.
func (c Claim) run(ctx context.Context, s *redisx.Script, args ...any) (any, error) {
	if c.life != nil {
		if err := c.life.Enter(); err != nil {
			return nil, err
		}
		defer c.life.Done()
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	reply, err := c.conn.Run(ctx, s, c.keys, args...)
	if err != nil {
		return nil, redisx.Failed(s.Name, c.Key(), err)
	}
	return reply, nil
}

func standing(reply any, err error) (Standing, error) {
	if err != nil {
		return Standing{}, err
	}
	list, _ := reply.([]any)
	if len(list) != 6 {
		return Standing{}, redisx.Failed("take", "a claim", fmt.Errorf("unexpected reply %v", reply))
	}
	s := Standing{Holder: fmt.Sprint(list[0]), Age: ms(list[1]), Phase: Phase(fmt.Sprint(list[2]))}
	// tasks with equal rules have IDs that differ at the end only
	series := s.Holder[:strings.LastIndexByte(s.Holder, ':')+1]
	if newer := fmt.Sprint(list[3]); newer != "-" {
		s.Newer, s.NewerAge = series+newer, ms(list[4])
	}
	for name := range strings.SplitSeq(fmt.Sprint(list[5]), ",") {
		if name != "" && name != "-" {
			s.Stale = append(s.Stale, series+name)
		}
	}
	return s, nil
}

func ms(reply any) time.Duration {
	n, _ := reply.(int64)
	return time.Duration(n) * time.Millisecond
}

// done reports whether the claim was the holder's.
func (c Claim) done(reply any, err error) (bool, error) {
	if n, is := reply.(int64); err == nil && (!is || n != 0 && n != 1) {
		err = redisx.Failed("claim", c.Key(), fmt.Errorf("unexpected reply %v", reply))
	}
	return err == nil && reply == int64(1), err
}

func flag(b bool) int64 {
	if b {
		return 1
	}
	return 0
}
