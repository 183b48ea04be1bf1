package web

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/inspect"
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

// foundClaims are all claims, as one look at them found. Somebody who opens the Unique view
// makes a look, and it serves all viewers for a while; nothing runs in between.
type foundClaims struct {
	Claims     []claimRow // the oldest first
	MoreClaims bool       // there are more than these
	ClaimsAt   time.Time
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
	return foundClaims{rows, more, time.Now()}, nil
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

// readClaims reads those claims that are still there. It leaves out keys that have something else.
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
		f := strings.SplitN(gets[i].Val(), " ", 5) // since, deadline, phase, stale, holder; the times in milliseconds by Redis' clock
		since, err := strconv.ParseInt(f[0], 10, 64)
		if err != nil || len(f) != 5 {
			continue
		}
		rows = append(rows, claimRow{Key: key, Name: inspect.InBraces(strings.TrimSuffix(key, ":claim")), TaskOf: p.taskOf(f[4]), Holder: f[4], Age: now.Sub(time.UnixMilli(since))})
	}
	return rows, nil
}
