package record

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// Counts are what happened to the tasks of one rule.
type Counts struct {
	// Minutes is how many minutes the numbers are of, at least 1.
	Minutes int

	Acquired, Busy int64
	waits          [maxBuckets]int64
}

// Wait is the time in line within which that share of the acquired attempts, such as 0.95,
// got the lock; the true time is up to 30% shorter. Attempts that did not get the lock are
// not in it. false: no attempt got one.
func (c *Counts) Wait(share float64) (time.Duration, bool) {
	if c.Acquired == 0 {
		return 0, false
	}
	rank := int64(share * float64(c.Acquired))
	bucket := 0
	for bucket < maxBuckets-1 && rank >= c.waits[bucket] {
		rank -= c.waits[bucket]
		bucket++
	}
	return bucketEnd(bucket), true
}

// Counts gives what was counted in the last complete minutes, by the name of the rule. A
// minute is complete when the recorders have had the time to send it, 15 seconds after its
// end by Redis' clock. Counts.Minutes is less than minutes when recording began later.
//
// It reads one hash for each minute.
func (r *Recorder) Counts(ctx context.Context, minutes int) (map[string]*Counts, error) {
	now, err := r.rdb.Time(ctx).Result()
	if err != nil {
		return nil, fmt.Errorf("record: the counts: %w", err)
	}
	last := now.Add(-flushEvery-flushWithin).Unix()/60 - 1
	pipe := r.rdb.Pipeline()
	cmds := make([]*redis.MapStringStringCmd, 0, minutes)
	for i := range int64(minutes) {
		cmds = append(cmds, pipe.HGetAll(ctx, r.minuteKey(last-i)))
	}
	// Any older minute shows that recording began before; the minutes without a hash were
	// quiet ones then. The keys share a slot of a Cluster.
	var older []string
	for i := int64(minutes); i < int64(keepFor/time.Minute); i++ {
		older = append(older, r.minuteKey(last-i))
	}
	var before *redis.IntCmd
	if len(older) > 0 {
		before = pipe.Exists(ctx, older...)
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, fmt.Errorf("record: the counts: %w", err)
	}
	over := 1
	for i, cmd := range cmds {
		if len(cmd.Val()) > 0 {
			over = i + 1
		}
	}
	if before != nil && before.Val() > 0 {
		over = minutes
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
				c = &Counts{Minutes: over}
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
	default: // of another version, maybe
		bucket, err := strconv.Atoi(strings.TrimPrefix(what, "wait"))
		if err == nil && bucket >= 0 && bucket < maxBuckets {
			c.Acquired += n
			c.waits[bucket] += n
		}
	}
}

// Timeline is what was read of the timeline.
type Timeline struct {
	// Entries are the newest first, by their At.
	Entries []Entry
	// Since and BusySince are how far back Entries reach, by Redis' clock: BusySince for
	// busy tasks, Since for everything else.
	Since, BusySince time.Time
	// Cut and BusyCut: more happened in the time asked for than was read.
	Cut, BusyCut bool
}

// Timeline gives the entries of the last time over, by Redis' clock: the newest busy tasks,
// at most that many, and the newest of everything else, at most that many as well.
func (r *Recorder) Timeline(ctx context.Context, over time.Duration, most int64) (*Timeline, error) {
	now, err := r.rdb.Time(ctx).Result()
	if err != nil {
		return nil, fmt.Errorf("record: the timeline: %w", err)
	}
	since := now.Add(-over)
	from := strconv.FormatInt(since.UnixMilli(), 10)
	pipe := r.rdb.Pipeline()
	rare := pipe.XRevRangeN(ctx, r.streamKey(), "+", from, most)
	busy := pipe.XRevRangeN(ctx, r.busyKey(), "+", from, most)
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, fmt.Errorf("record: the timeline: %w", err)
	}
	t := &Timeline{Since: since, BusySince: since}
	if err := errors.Join(
		t.add(rare.Val(), min(most, maxEntries), &t.Since, &t.Cut),
		t.add(busy.Val(), min(most, maxBusyKept), &t.BusySince, &t.BusyCut),
	); err != nil {
		return nil, err
	}
	slices.SortStableFunc(t.Entries, func(a, b Entry) int { return b.At.Compare(a.At) })
	return t, nil
}

// add adds what was read of one stream. With full entries there may be older ones that were
// not read, or that the stream has no more; since then is the time of the oldest.
func (t *Timeline) add(messages []redis.XMessage, full int64, since *time.Time, cut *bool) error {
	for _, m := range messages {
		text := func(name string) string { s, _ := m.Values[name].(string); return s }
		at, err := strconv.ParseInt(text("at"), 10, 64)
		if err != nil {
			return fmt.Errorf("record: the timeline: the entry %s has no time", m.ID)
		}
		t.Entries = append(t.Entries, Entry{
			At: time.UnixMilli(at), Kind: text("kind"), Key: text("key"), Rule: text("rule"), Task: text("task"),
			By: text("by"), Text: text("text"), Why: text("why"),
		})
	}
	if n := len(messages); n > 0 && int64(n) >= full {
		ms, _, _ := strings.Cut(messages[n-1].ID, "-")
		if at, err := strconv.ParseInt(ms, 10, 64); err == nil { // Redis makes the IDs
			*since, *cut = time.UnixMilli(at), true
		}
	}
	return nil
}
