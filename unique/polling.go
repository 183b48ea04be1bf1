package unique

import (
	"context"
	"math/rand/v2"
	"time"
)

// polling paces a loop that looks at Redis until the client's patience is over.
type polling struct {
	began    time.Time
	patience time.Duration
	next     time.Duration // the mean of the next sleep
}

func (c *Client) newPolling() *polling {
	return &polling{time.Now(), c.patience, time.Millisecond}
}

// isOver reports whether the patience is over.
func (p *polling) isOver() bool { return time.Since(p.began) >= p.patience }

// sleep sleeps, each time about twice as long as before and at most about 50 ms. It returns
// ctx's error if ctx ends first.
func (p *polling) sleep(ctx context.Context) error {
	pause := p.next/2 + rand.N(p.next) //nolint:gosec // jitter, no secret
	p.next = min(2*p.next, 50*time.Millisecond)
	select {
	case <-time.After(pause):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
