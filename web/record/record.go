/*
Package record keeps what happened to the locks of the last hours in Redis, for the page
of package web: per rule and minute how many tasks found their key taken and how long they
waited, and a timeline of busy, lost, overdue and replaced tasks. It is optional; without
it the page knows what it saw itself. In workers:

	recorder, err := record.New(rdb, record.Options{})
	if err != nil {
		return err
	}
	defer recorder.Close()
	guard, err := automutex.New(rdb, automutex.Config{Rules: rules, Observe: recorder.Observe})

and with the page web.Options.Recorder, made in the same way.

# What it costs

Observe counts in memory and never waits for Redis. Every 10 seconds what was counted goes
to Redis in one pipeline: a HINCRBY for each number of a rule that changed, and an XADD for
each entry, at most 200 of them. Numbers that Redis does not take are dropped, and logged.

In Redis there is a hash for each minute, which expires after 8 hours, and one stream of
about 10,000 entries, all under <prefix>:{stats}. The user in Redis needs the rights
+hincrby +hgetall +pexpire +xadd +xrevrange.
*/
package record

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/lock"
)

const (
	flushEvery  = 10 * time.Second
	flushWithin = 5 * time.Second
	keepFor     = 8 * time.Hour
	maxEntries  = 10_000 // of the stream, about
	maxPending  = 200    // entries that one flush sends
	maxBusy     = 100    // of these, busy tasks, which may be many
	maxText     = 200    // bytes of a text in an entry
	maxBuckets  = 48
	maxCounts   = 5000 // numbers that one flush sends: rules are few
)

// Options of [New]. The zero value is fit for use.
type Options struct {
	// Prefix is automutex.Config.Prefix. Empty means [lock.DefaultPrefix].
	Prefix string
	// Logger is where the recorder logs that Redis does not take what was counted. nil
	// means slog.Default().
	Logger *slog.Logger
}

// Recorder counts events, and reads what all recorders of the prefix have counted. Its
// methods may be called by many goroutines at once.
type Recorder struct {
	rdb    redis.UniversalClient
	stats  string // what its keys begin with
	logger *slog.Logger
	closed chan struct{} // ends the goroutine

	mu      sync.Mutex // guards the rest; nobody does I/O under it
	isOver  bool       // Close was called; nothing is counted any more
	running bool       // the goroutine was started
	done    sync.WaitGroup
	counts  map[field]int64
	entries []Entry
	busy    int // of entries
	dropped int // entries that did not fit since the last flush
}

// field is one number of a rule in one minute.
type field struct {
	minute     int64
	rule, what string
}

// Entry is what happened once.
type Entry struct {
	At time.Time
	// Kind is busy, lost, overdue or replaced, or an operator's action such as break.
	Kind string
	// Key is the Redis key of the lock, or the target of an operator's action.
	Key string
	// Rule is the name of the rule; empty for an operator's action.
	Rule string
	// Task is the task as <queue>/<id>; empty for an operator's action.
	Task string
	// By is who did it: the operator; for a busy task the holder.
	By string
	// Text says more.
	Text string
}

// New makes a Recorder. rdb is that of the Guard, and stays the caller's. New does no I/O.
func New(rdb redis.UniversalClient, options Options) (*Recorder, error) {
	if options.Prefix == "" {
		options.Prefix = lock.DefaultPrefix
	}
	if options.Logger == nil {
		options.Logger = slog.Default()
	}
	if err := errors.Join(lock.CheckClient(rdb), lock.CheckPrefix(options.Prefix)); err != nil {
		return nil, fmt.Errorf("record: %w", err)
	}
	return &Recorder{
		rdb: rdb, stats: options.Prefix + ":{stats}:", logger: options.Logger,
		closed: make(chan struct{}), counts: map[field]int64{},
	}, nil
}

// Observe is for automutex.Config.Observe. It counts, and never waits for Redis.
func (r *Recorder) Observe(_ context.Context, e automutex.Event) {
	now := time.Now()
	entry := Entry{At: now, Kind: string(e.Kind), Key: e.Key, Rule: e.Rule, Task: e.Queue + "/" + e.TaskID}
	switch e.Kind {
	case automutex.EventAcquired:
		waited := max(e.Waited, e.Parked)
		r.add(now, e.Rule, waitField(waited), nil)
	case automutex.EventBusy:
		if e.Busy != nil {
			entry.By = e.Busy.Holder
		}
		entry.Text = e.Policy.String()
		r.add(now, e.Rule, "busy", &entry)
	case automutex.EventLost, automutex.EventOverdue:
		if e.Err != nil {
			entry.Text = e.Err.Error()
		}
		r.add(now, e.Rule, string(e.Kind), &entry)
	case automutex.EventReplaced:
		r.add(now, e.Rule, string(e.Kind), &entry)
	}
}

// add counts, and keeps an entry while there is room: busy tasks take half of it at most,
// so that they do not push out what is rare.
func (r *Recorder) add(now time.Time, rule, what string, entry *Entry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.isOver {
		return
	}
	if !r.running {
		r.running = true
		r.done.Add(1)
		go r.run()
	}
	f := field{now.Unix() / 60, rule, what}
	if _, known := r.counts[f]; known || len(r.counts) < maxCounts {
		r.counts[f]++
	}
	switch {
	case entry == nil:
	case len(r.entries) >= maxPending, entry.Kind == string(automutex.EventBusy) && r.busy >= maxBusy:
		r.dropped++
	default:
		if entry.Kind == string(automutex.EventBusy) {
			r.busy++
		}
		r.entries = append(r.entries, *entry)
	}
}

// run is the goroutine: it flushes every 10 seconds, and ends with closed.
func (r *Recorder) run() {
	defer r.done.Done()
	tick := time.NewTicker(flushEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			r.flush()
		case <-r.closed:
			return
		}
	}
}

// Close sends what was counted, for at most 5 seconds, and ends the goroutine. Nothing is
// counted any more. Further calls do nothing.
func (r *Recorder) Close() error {
	r.mu.Lock()
	over := r.isOver
	r.isOver = true
	r.mu.Unlock()
	if !over {
		close(r.closed)
		r.done.Wait()
		r.flush()
	}
	return nil
}

// flush sends what was counted since the last one.
func (r *Recorder) flush() {
	r.mu.Lock()
	counts, entries, dropped := r.counts, r.entries, r.dropped
	r.counts, r.entries, r.busy, r.dropped = map[field]int64{}, nil, 0, 0
	r.mu.Unlock()
	if len(counts) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), flushWithin)
	defer cancel()
	pipe := r.rdb.Pipeline()
	minutes := map[string]bool{}
	for f, n := range counts {
		key := r.minuteKey(f.minute)
		pipe.HIncrBy(ctx, key, f.what+" "+f.rule, n)
		minutes[key] = true
	}
	for key := range minutes {
		pipe.PExpire(ctx, key, keepFor)
	}
	for _, e := range entries {
		r.write(ctx, pipe, e)
	}
	if len(entries) > 0 {
		pipe.PExpire(ctx, r.streamKey(), keepFor)
	}
	if _, err := pipe.Exec(ctx); err != nil {
		r.logger.Warn("automutex: record: Redis does not take what was counted; it is dropped", "counts", len(counts), "entries", len(entries), "error", err)
	}
	if dropped > 0 {
		r.logger.Debug("automutex: record: more happened than the timeline takes", "dropped", dropped)
	}
}

func (r *Recorder) minuteKey(minute int64) string {
	return r.stats + "minute:" + strconv.FormatInt(minute, 10)
}

func (r *Recorder) streamKey() string { return r.stats + "timeline" }

func (r *Recorder) write(ctx context.Context, to redis.Cmdable, e Entry) {
	to.XAdd(ctx, &redis.XAddArgs{
		Stream: r.streamKey(), MaxLen: maxEntries, Approx: true,
		Values: []any{"at", e.At.UnixMilli(), "kind", e.Kind, "key", e.Key, "rule", e.Rule, "task", e.Task, "by", short(e.By), "text", short(e.Text)},
	})
}

// Write adds an entry to the timeline at once.
func (r *Recorder) Write(ctx context.Context, e Entry) error {
	pipe := r.rdb.Pipeline()
	r.write(ctx, pipe, e)
	pipe.PExpire(ctx, r.streamKey(), keepFor)
	if _, err := pipe.Exec(ctx); err != nil {
		return fmt.Errorf("record: the timeline: %w", err)
	}
	return nil
}

func short(s string) string {
	if len(s) > maxText {
		s = s[:maxText]
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}

// waitField is the number that a wait counts for: "wait 0" below a millisecond, then each
// bucket is the square root of two times as long as the one before.
func waitField(d time.Duration) string {
	bucket := 0
	if ms := float64(d) / float64(time.Millisecond); ms >= 1 {
		bucket = min(1+int(2*math.Log2(ms)), maxBuckets-1)
	}
	return "wait" + strconv.Itoa(bucket)
}

// bucketEnd is the longest wait that a bucket counts.
func bucketEnd(bucket int) time.Duration {
	return time.Duration(math.Pow(2, float64(bucket)/2) * float64(time.Millisecond))
}
