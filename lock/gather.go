package lock

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/automutex/automutex/internal/exchange"
)

// gather sends the SETs of concurrent callers in one pipeline, so that many producers share
// one write and one read. While fewer than maxSenders pipelines to a master are under way, a
// SET is sent at once. Otherwise it waits for one of these to end, and then shares a pipeline
// with the other waiting SETs.
//
// A sender is a goroutine of its own, so that a caller whose context ends can return. A
// sender ends when no SET waits for its master. Each of its exchanges ends within
// exchange.Timeout, and the Locker's Close waits for it.
type gather struct {
	mu      sync.Mutex // guards the map and what it leads to; never held across I/O
	masters map[any]*outbox
}

// outbox is the SETs that wait for one master. It exists while a sender does.
type outbox struct {
	senders int
	waiting []*pendingSet
}

// maxSenders is how many pipelines to one master are under way at once. With two, a few
// callers do not wait for each other.
const maxSenders = 2

// pendingSet is one SET, and its caller's signal.
type pendingSet struct {
	exchange.Set
	done chan struct{} // closed when Taken and Err are set
}

// run sends s in a pipeline with others. It returns when s has a reply, or when ctx ends: s
// may then have run or not. The caller is counted in (see Locker.enter).
func (g *gather) run(ctx context.Context, l *Locker, s *pendingSet) (taken bool, err error) {
	s.done = make(chan struct{})
	master := l.conn.MasterOf(ctx, s.Key)
	g.mu.Lock()
	box := g.masters[master]
	if box == nil {
		if g.masters == nil {
			g.masters = make(map[any]*outbox)
		}
		box = &outbox{}
		g.masters[master] = box
	}
	if box.senders < maxSenders {
		box.senders++
		values := context.WithoutCancel(ctx)
		l.branch(func() { g.send(values, l.conn, master, box, []*pendingSet{s}) })
	} else {
		box.waiting = append(box.waiting, s)
	}
	g.mu.Unlock()
	select {
	case <-s.done:
		return s.Taken, s.Err
	case <-ctx.Done():
	}
	g.mu.Lock()
	box.waiting = slices.DeleteFunc(box.waiting, func(other *pendingSet) bool { return other == s })
	g.mu.Unlock()
	timer := time.NewTimer(exchange.AnswerGrace)
	defer timer.Stop()
	select {
	case <-s.done:
		return s.Taken, s.Err
	case <-timer.C:
		return false, exchange.LeftAtEndOf(ctx)
	}
}

// send sends sets, and then the SETs that have come for its master meanwhile.
func (g *gather) send(ctx context.Context, c *exchange.Conn, master any, box *outbox, sets []*pendingSet) {
	for len(sets) > 0 {
		together := make([]*exchange.Set, len(sets))
		for i, s := range sets {
			together[i] = &s.Set
		}
		c.SetAll(ctx, together)
		for _, s := range sets {
			close(s.done)
		}
		g.mu.Lock()
		sets, box.waiting = box.waiting, nil
		if len(sets) == 0 {
			if box.senders--; box.senders == 0 {
				delete(g.masters, master)
			}
		}
		g.mu.Unlock()
	}
}
