package record

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// Counts are what happened to the tasks of one rule.
type Counts struct {
	Acquired, Busy, Lost, Overdue, Replaced int64
	waits                                   [maxBuckets]int64
}

// Wait is the time within which that share of the tasks had their lock, such as 0.95; the
// true time is up to 30% shorter. false: no task had one.
func (c *Counts) Wait(share float64) (time.Duration, bool) {
	if c.Acquired == 0 {
		return 0, false
	}
	rank := int64(share * float64(c.Acquired))
	for bucket, n := range c.waits {
		if rank -= n; rank < 0 || bucket == maxBuckets-1 {
			return bucketEnd(bucket), true
		}
	}
	return 0, false
}

// Counts gives what was counted in the last minutes, the one that has begun included, by
// the name of the rule. It reads one hash for each minute.
func (r *Recorder) Counts(ctx context.Context, now time.Time, minutes int) (map[string]*Counts, error) {
	pipe := r.rdb.Pipeline()
	cmds := make([]*redis.MapStringStringCmd, 0, minutes)
	for i := range int64(minutes) {
		cmds = append(cmds, pipe.HGetAll(ctx, r.minuteKey(now.Unix()/60-i)))
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, fmt.Errorf("record: the counts: %w", err)
	}
	all := map[string]*Counts{}
	for _, cmd := range cmds {
		for name, text := range cmd.Val() {
			what, rule, _ := strings.Cut(name, " ")
			n, err := strconv.ParseInt(text, 10, 64)
			if err != nil {
				return nil, fmt.Errorf("record: the counts: %s is %q, and no number", what, text)
			}
			c := all[rule]
			if c == nil {
				c = &Counts{}
				all[rule] = c
			}
			c.add(what, n)
		}
	}
	return all, nil
}

func (c *Counts) add(what string, n int64) {
	switch what {
	case "busy":
		c.Busy += n
	case "lost":
		c.Lost += n
	case "overdue":
		c.Overdue += n
	case "replaced":
		c.Replaced += n
	default: // of another version, maybe
		bucket, err := strconv.Atoi(strings.TrimPrefix(what, "wait"))
		if err == nil && bucket >= 0 && bucket < maxBuckets {
			c.Acquired += n
			c.waits[bucket] += n
		}
	}
}

// Timeline gives the newest entries since a time, newest first, at most that many.
func (r *Recorder) Timeline(ctx context.Context, since time.Time, most int64) ([]Entry, error) {
	messages, err := r.rdb.XRevRangeN(ctx, r.streamKey(), "+", strconv.FormatInt(since.UnixMilli(), 10), most).Result()
	if err != nil {
		return nil, fmt.Errorf("record: the timeline: %w", err)
	}
	all := make([]Entry, 0, len(messages))
	for _, m := range messages {
		text := func(name string) string { s, _ := m.Values[name].(string); return s }
		at, err := strconv.ParseInt(text("at"), 10, 64)
		if err != nil {
			return nil, fmt.Errorf("record: the timeline: the entry %s has no time", m.ID)
		}
		all = append(all, Entry{time.UnixMilli(at), text("kind"), text("key"), text("rule"), text("task"), text("by"), text("text")})
	}
	return all, nil
}
