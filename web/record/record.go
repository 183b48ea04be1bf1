/*
Package record keeps what happened to the locks of the last hours in Redis, for the page
of package web: per rule and minute how many tasks found their key taken and how long they
waited, and a timeline of busy, lost, overdue, replaced, blocked and skipped tasks. It is optional; without
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
each entry, at most 200 of them, of which at most 100 are busy tasks. Numbers that Redis
does not take are dropped, and logged.

In Redis there is a hash for each minute and two streams, one of busy tasks and one of
everything else, so that busy tasks do not push out what is rare. A stream has about 10,000
entries. A hash expires 8 hours after its last change, a stream 8 hours after its last
entry. All keys begin with <prefix>:{stats}. The user in Redis needs the rights
+hincrby +hgetall +pexpire +xadd +xrevrange +exists +time.
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
	"github.com/automutex/automutex/internal/inside"
)

const (
	flushEvery  = 10 * time.Second
	flushWithin = 5 * time.Second
	keepFor     = 8 * time.Hour
	maxEntries  = 10_000 // of a stream, about
	maxBusyKept = 10_000 // of the stream of busy tasks, about
	maxPending  = 200    // entries that one flush sends
	maxBusy     = 100    // of these, busy tasks, which may be many
	maxText     = 200    // bytes of a text in an entry
	maxWhy      = 800    // bytes of a reason in an entry
	maxBuckets  = 48
	maxCounts   = 5000 // numbers that one flush sends: rules are few
)

// Options of [New]. The zero value is fit for use.
type Options struct {
	// Prefix is automutex.Config.Prefix. Empty means "automutex".
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
	closed chan struct{} // Close closes it; it ends the goroutine
	done   chan struct{} // the goroutine closes it when it ends

	mu      sync.Mutex // guards the rest; nobody does I/O under it
	isOver  bool       // Close was called; nothing is counted any more
	running bool       // the goroutine was started
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
	// Kind is busy, lost, overdue, replaced, blocked or head_skipped, or an operator's action such as break.
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
	// Why is the reason that an operator gave.
	Why string
}

// New makes a Recorder. rdb is that of the Guard, and stays the caller's. New does no I/O.
func New(rdb redis.UniversalClient, options Options) (*Recorder, error) {
	if options.Prefix == "" {
		options.Prefix = inside.DefaultPrefix
	}
	if options.Logger == nil {
		options.Logger = slog.Default()
	}
	if err := errors.Join(inner.CheckClient(rdb), inner.CheckPrefix(options.Prefix)); err != nil {
		return nil, fmt.Errorf("record: %w", err)
	}
	return &Recorder{
		rdb: rdb, stats: options.Prefix + ":{stats}:", logger: options.Logger,
		closed: make(chan struct{}), done: make(chan struct{}), counts: map[field]int64{},
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
	case automutex.EventLost, automutex.EventOverdue, automutex.EventBlocked:
		if e.Err != nil {
			entry.Text = e.Err.Error()
		}
		r.add(now, e.Rule, "", &entry)
	case automutex.EventReplaced, automutex.EventHeadSkipped:
		r.add(now, e.Rule, "", &entry)
	}
}

// add counts, unless what is empty, and keeps an entry while there is room: busy tasks take half of it at most,
// so that they do not push out what is rare.
func (r *Recorder) add(now time.Time, rule, what string, entry *Entry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.isOver {
		return
	}
	if !r.running {
		r.running = true
		go r.run()
	}
	f := field{now.Unix() / 60, rule, what}
	if _, known := r.counts[f]; what != "" && (known || len(r.counts) < maxCounts) {
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

// run is the goroutine. It flushes every 10 seconds, and a last time when closed is closed.
func (r *Recorder) run() {
	defer close(r.done)
	tick := time.NewTicker(flushEvery)
	defer tick.Stop()
	for over := false; !over; r.flush() {
		select {
		case <-tick.C:
		case <-r.closed:
			over = true
		}
	}
}

// Close sends what was counted, and ends the goroutine. Nothing is counted any more. Close
// waits for Redis for at most 5 seconds; it then returns an error, and the goroutine ends
// when rdb gives up the command under way. Further calls do nothing.
func (r *Recorder) Close() error {
	r.mu.Lock()
	wasOver, running := r.isOver, r.running
	r.isOver = true
	r.mu.Unlock()
	if wasOver {
		return nil
	}
	close(r.closed)
	if !running {
		return nil // nothing was ever counted
	}
	// The goroutine does the last flush, and Close only waits: a go-redis client need not
	// heed the deadline of a context, and its own timeouts may be longer or none.
	select {
	case <-r.done:
		return nil
	case <-time.After(flushWithin):
		r.logger.Warn("automutex: record: Redis does not take what was counted; Close waits no longer", "waited", flushWithin)
		return fmt.Errorf("record: Close: Redis did not take what was counted within %s; the last counts may be missing", flushWithin)
	}
}

// flush sends what was counted since the last one.
func (r *Recorder) flush() {
	r.mu.Lock()
	counts, entries, dropped := r.counts, r.entries, r.dropped
	r.counts, r.entries, r.busy, r.dropped = map[field]int64{}, nil, 0, 0
	r.mu.Unlock()
	if len(counts)+len(entries) == 0 {
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
	streams := map[string]bool{}
	for _, e := range entries {
		streams[r.write(ctx, pipe, e)] = true
	}
	for key := range streams {
		pipe.PExpire(ctx, key, keepFor)
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

// streamKey is the stream of everything but busy tasks.
func (r *Recorder) streamKey() string { return r.stats + "timeline" }

// busyKey is the stream of busy tasks.
func (r *Recorder) busyKey() string { return r.stats + "timeline:busy" }

// write adds an entry to its stream, and returns the stream's key.
func (r *Recorder) write(ctx context.Context, to redis.Cmdable, e Entry) (key string) {
	key, most := r.streamKey(), int64(maxEntries)
	if e.Kind == string(automutex.EventBusy) {
		key, most = r.busyKey(), maxBusyKept
	}
	to.XAdd(ctx, &redis.XAddArgs{
		Stream: key, MaxLen: most, Approx: true,
		Values: []any{
			"at", e.At.UnixMilli(), "kind", e.Kind, "key", e.Key, "rule", e.Rule, "task", e.Task,
			"by", short(e.By, maxText), "text", short(e.Text, maxText), "why", short(e.Why, maxWhy),
		},
	})
	return key
}

// Write adds an entry to the timeline at once.
func (r *Recorder) Write(ctx context.Context, e Entry) error {
	pipe := r.rdb.Pipeline()
	pipe.PExpire(ctx, r.write(ctx, pipe, e), keepFor)
	if _, err := pipe.Exec(ctx); err != nil {
		return fmt.Errorf("record: the timeline: %w", err)
	}
	return nil
}

func short(s string, most int) string {
	if len(s) > most {
		s = s[:most]
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
