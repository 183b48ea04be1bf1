package lock

import (
	"context"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// gather sends the plain SETs of callers who come at once in one pipeline, so
// that many producers pay for one write and one read. Who comes while no more
// than sendersMost pipelines are under way sends for itself at once; the others
// wait for one of these to come back, and the first of them then sends for all.
// No goroutine is needed: senders are callers.
type gather struct {
	mu      sync.Mutex // guards the fields below; never held across I/O
	senders int
	waiting []*setFree
}

// sendersMost pipelines at once keep a few callers from waiting for each other.
const sendersMost = 2

// setFree is one SET of a key that must not be there.
type setFree struct {
	key, value string
	life       time.Duration

	// turn is closed when taken and err are set, or when send is: then this
	// caller sends for those in it, itself the first.
	turn  chan struct{}
	send  []*setFree
	taken bool
	err   error
}

// run sets s among others, and returns when that has an answer.
func (g *gather) run(ctx context.Context, c *conn, s *setFree) {
	g.mu.Lock()
	if g.senders == sendersMost {
		s.turn = make(chan struct{})
		g.waiting = append(g.waiting, s)
		g.mu.Unlock()
		<-s.turn // every sender passes the turn on, and ends by the bound of its exchange
		if s.send == nil {
			return
		}
	} else {
		g.senders++
		g.mu.Unlock()
		s.send = []*setFree{s}
	}
	c.setFree(ctx, s.send)
	g.mu.Lock()
	next := g.waiting
	g.waiting = nil
	if len(next) == 0 {
		g.senders--
	}
	g.mu.Unlock()
	if len(next) > 0 {
		next[0].send = next
		close(next[0].turn)
	}
	for _, other := range s.send[1:] {
		close(other.turn)
	}
}

// setFree sets all of them in one round trip (one per node). Each ends with an
// answer or an error.
func (c *conn) setFree(ctx context.Context, sets []*setFree) {
	bound := c.bound(ctx)
	type sent struct {
		cmds   []*redis.StatusCmd
		failed error // of the whole pipeline
	}
	done, err := c.within(bound, func() (any, error) {
		p := c.rdb.Pipeline()
		// Not SetNX, whose reply false is also what a command has that never ran.
		cmds := make([]*redis.StatusCmd, len(sets))
		for i, s := range sets {
			cmds[i] = p.SetArgs(bound, s.key, s.value, redis.SetArgs{Mode: "NX", TTL: s.life})
		}
		_, failed := p.Exec(bound)
		return sent{cmds, failed}, nil
	})
	for i, s := range sets {
		if s.err = err; err == nil {
			sent := done.(sent) //nolint:forcetypeassert // made above
			s.taken, s.err = setReplyOf(sent.cmds[i], sent.failed)
		}
		c.unreached(s.err)
	}
}
