package lock

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/automutex/automutex/internal/exchange"
)

// gather sends the plain SETs of callers who come at once in one pipeline, so
// that many producers pay for one write and one read. While less than sendersMost
// pipelines are under way to a master, a SET goes at once; the others wait for one
// of these to come back, and then travel together.
//
// Callers only wait: a sender is a goroutine, so that a caller whose context ends
// leaves at once. It ends when nothing waits for its master, each of its exchanges
// by exchange.Timeout, and the Locker's Close waits for it.
type gather struct {
	mu      sync.Mutex // guards the map and what it leads to; never held across I/O
	masters map[any]*outbox
}

// outbox is what goes to one master. It exists while a sender does.
type outbox struct {
	senders int
	waiting []*setFree
}

// sendersMost pipelines at once keep a few callers from waiting for each other.
const sendersMost = 2

// setFree is one SET of a key that must not be there.
type setFree struct {
	exchange.Set
	done chan struct{} // closed when Taken and Err are set
}

// run sets s among others. It returns when that has an answer, or when ctx ends:
// s is then not sent, or left behind. The caller is counted in.
func (g *gather) run(ctx context.Context, l *Locker, s *setFree) (taken bool, err error) {
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
	if box.senders < sendersMost {
		box.senders++
		values := context.WithoutCancel(ctx)
		l.branch(func() { g.send(values, l.conn, master, box, []*setFree{s}) })
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
	box.waiting = slices.DeleteFunc(box.waiting, func(other *setFree) bool { return other == s })
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

// send sends sets, and then whatever has come for its master meanwhile.
func (g *gather) send(ctx context.Context, c *exchange.Conn, master any, box *outbox, sets []*setFree) {
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
