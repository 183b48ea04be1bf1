package web

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/inspect"
	"github.com/automutex/automutex/internal/printable"
)

const (
	// claimsWithin bounds one look at the claims: it walks all keys of Redis.
	claimsWithin = time.Second
	// claimsFresh is how long a look is good enough, and claimsPause how many times as long
	// as the look itself, at least.
	claimsFresh = 10 * time.Second
	claimsPause = 40
	// mostClaims is how many claims are shown.
	mostClaims = 200
	scanCount  = 1000
)

// claimRow is one claim in the list of all.
type claimRow struct {
	Key    string // Redis key of the claim
	Name   string // between the braces
	TaskOf task
	Holder string
	Age    time.Duration // when it was looked at
}

// claims are all claims, as one look at them found. Somebody who opens the Unique view
// makes a look, and it serves all viewers for a while; nothing runs in between.
type claims struct {
	mu   sync.Mutex // held while Redis is asked, within twice claimsWithin, so that one viewer asks for all
	at   time.Time
	next time.Time // when somebody may look again
	foundClaims
	err error
}

type foundClaims struct {
	rows []claimRow
	more bool // there are more than these
}

// get gives the claims as of at.
func (c *claims) get(ctx context.Context, p *page) (rows []claimRow, more bool, at time.Time, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if began := time.Now(); !began.Before(c.next) {
		// Not the viewer's context: what is found is for others, too.
		bound, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*claimsWithin)
		defer cancel()
		c.foundClaims, c.err = within(bound, p.findClaims)
		c.at = time.Now()
		c.next = c.at.Add(claimsFresh)
		if c.err == nil {
			c.next = c.at.Add(max(claimsFresh, claimsPause*c.at.Sub(began)))
		}
	}
	return c.rows, c.more, c.at, c.err
}

// forget has the next get look again: something has changed.
func (c *claims) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.next = time.Time{}
}

// findClaims walks the keys of each node until there are enough claims, or claimsWithin has passed. What
// it has then is given, with more. A node that has not answered at all is an error.
func (p *page) findClaims(ctx context.Context) (found foundClaims, err error) {
	walk, cancel := context.WithTimeout(ctx, claimsWithin)
	defer cancel()
	keys, more, err := p.claimKeys(walk)
	if err != nil {
		return found, fmt.Errorf("the claims: %w", inspect.Backend(err))
	}
	rows, err := p.readClaims(ctx, keys) // the walk may have used up its time
	if err != nil {
		return found, err
	}
	slices.SortFunc(rows, func(a, b claimRow) int {
		return cmp.Or(cmp.Compare(b.Age, a.Age), strings.Compare(a.Key, b.Key))
	})
	return foundClaims{rows, more}, nil
}

// claimKeys are keys of claims, at most mostClaims. more: the walk ended early.
func (p *page) claimKeys(ctx context.Context) (keys []string, more bool, err error) {
	pattern := strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`).Replace(p.o.Prefix) + ":{*}:claim"
	var mu sync.Mutex // guards seen and more: ForEachMaster calls from several goroutines, and waits for them
	seen := map[string]bool{}
	walk := func(ctx context.Context, node *redis.Client) error {
		answered := false
		for cursor := uint64(0); ; answered = true {
			found, next, err := node.Scan(ctx, cursor, pattern, scanCount).Result()
			mu.Lock()
			if err != nil && ctx.Err() != nil && answered {
				more = true
				mu.Unlock()
				return nil // the time is up; what was found is shown
			}
			for _, key := range found {
				if len(seen) < mostClaims {
					seen[key] = true
				} else if !seen[key] {
					more = true
				}
			}
			enough := more
			mu.Unlock()
			if cursor = next; err != nil || cursor == 0 || enough {
				return err
			}
		}
	}
	switch rdb := p.rdb.(type) {
	case *redis.ClusterClient:
		err = rdb.ForEachMaster(ctx, walk)
	case *redis.Client:
		err = walk(ctx, rdb)
	}
	for key := range seen {
		keys = append(keys, key)
	}
	return keys, more, err
}

// readClaims gives those claims that are still there.
func (p *page) readClaims(ctx context.Context, keys []string) (rows []claimRow, err error) {
	if len(keys) == 0 {
		return nil, nil
	}
	pipe := p.rdb.Pipeline()
	gets := make([]*redis.StringCmd, len(keys))
	for i, key := range keys {
		gets[i] = pipe.Get(ctx, key)
	}
	if _, err := pipe.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
		return nil, fmt.Errorf("the claims: %w", inspect.Backend(err))
	}
	now, err := p.rdb.Time(ctx).Result()
	if err != nil {
		return nil, fmt.Errorf("the claims: %w", inspect.Backend(err))
	}
	for i, key := range keys {
		holder, age, err := parseClaim(gets[i].Val(), now)
		if err != nil {
			return nil, fmt.Errorf("the claim %s is not one of unique: %w", printable.Short(key), err)
		}
		if holder != "" {
			rows = append(rows, claimRow{Key: key, Name: inspect.InBraces(strings.TrimSuffix(key, ":claim")), TaskOf: p.taskOf(holder), Holder: holder, Age: age})
		}
	}
	return rows, nil
}
