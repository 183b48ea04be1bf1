package record

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
)

// New names what is wrong, and an empty Logger is the default one.
func TestNew_refuses(t *testing.T) {
	t.Parallel()
	_, err := New(nil, Options{Prefix: "{"})
	for _, text := range []string{"record: ", "the Redis client is nil", "prefix"} {
		if err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%v does not say %s", err, text)
		}
	}
	r, err := New(redistest.Mini(t).Client(t), Options{})
	redistest.Must(t, err)
	if r.logger != slog.Default() || r.stats != "automutex:{stats}:" {
		t.Errorf("%+v", r)
	}
}

// Counts and Timeline tell of a command that Redis refuses.
func TestRecorder_refusedCommand(t *testing.T) {
	t.Parallel()
	refused := redistest.ReplyError("NOPERM no rights")
	for name, what := range map[string]string{"time": "both", "hgetall": "the counts", "exists": "the counts", "xrevrange": "the timeline"} {
		hook, rdb := &redistest.FailHook{}, redistest.Mini(t).Client(t)
		rdb.AddHook(hook)
		r := recorder(t, rdb, redistest.Name(t))
		hook.Before(func(cmd redis.Cmder) error {
			if cmd.Name() == name {
				return refused
			}
			return nil
		})
		_, counts := r.Counts(t.Context(), 15)
		if fails := what != "the timeline"; fails != errors.Is(counts, refused) {
			t.Errorf("without %s: Counts: %v", name, counts)
		}
		_, timeline := r.Timeline(t.Context(), time.Hour, 10)
		if fails := what != "the counts"; fails != errors.Is(timeline, refused) {
			t.Errorf("without %s: Timeline: %v", name, timeline)
		}
	}
}

// What another program wrote among the counts and the entries is named.
func TestRecorder_somethingElse(t *testing.T) {
	t.Parallel()
	rdb, ctx := redistest.Mini(t).Client(t), context.Background()
	r := recorder(t, rdb, redistest.Name(t))
	r.Observe(ctx, automutex.Event{Kind: automutex.EventBusy, Rule: "r"})
	r.flush()
	redistest.Must(t, rdb.HSet(ctx, age(t, r), "busy r", "many").Err())
	if _, err := r.Counts(ctx, 15); err == nil || !strings.Contains(err.Error(), `busy is "many", and no number`) {
		t.Errorf("Counts: %v", err)
	}
	id, err := rdb.XAdd(ctx, &redis.XAddArgs{Stream: r.busyKey(), Values: []any{"kind", "busy"}}).Result()
	redistest.Must(t, err)
	if _, err := r.Timeline(ctx, time.Hour, 10); err == nil || !strings.Contains(err.Error(), "the entry "+id+" has no time") {
		t.Errorf("Timeline: %v", err)
	}
}

// A share of the waits that ends with a bucket begins the next one, and all of them end with the last.
func TestCounts_waitAtTheEdge(t *testing.T) {
	t.Parallel()
	c := &Counts{Acquired: 2}
	c.waits[0], c.waits[1] = 1, 1
	for share, bucket := range map[float64]int{0: 0, 0.4: 0, 0.5: 1, 1: maxBuckets - 1} {
		if got, ok := c.Wait(share); !ok || got != bucketEnd(bucket) {
			t.Errorf("%v: %s, want %s", share, got, bucketEnd(bucket))
		}
	}
}
