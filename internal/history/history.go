// Package history keeps the last runs of each key in Redis, for the page of a key.
//
// Each key has a stream of its own, beside its lock and in the lock's Cluster slot: a busy key pushes out no runs of
// others. A sorted set names the streams, so that the number of all runs has a bound, too.
package history

import (
	"context"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// Most is the highest number of runs that are kept of a key.
	Most = 1000
	// mostRuns bounds the runs of all keys of a prefix, and mostKeys the streams: each takes 4 kB at least.
	mostRuns, mostKeys = 200_000, 5_000
	// keepFor is how long a key's runs stay after its last one.
	keepFor = 24 * time.Hour

	flushAfter  = 250 * time.Millisecond
	flushWithin = 3 * time.Second
	closeWithin = time.Second
	readAfter   = 10 * time.Second // clocks run at different speeds
	maxPending  = 2000             // runs that one flush sends
)

// Run is one run of a task, or a wait that ended without one.
type Run struct {
	Task    string // its note in the lock
	Worker  string // the label of its process
	Outcome string
	Came    time.Time // when it came to the lock
	Start   time.Time // when its handler started; zero: it did not
	End     time.Time
}

// A key that is written and its TTL go in one script: a process may die between two commands, and leave a key for ever.
const (
	// addScript: KEYS[1] is the stream; ARGV its TTL in ms, how many it keeps, and six texts for each run.
	addScript = `-- history: adds runs to a stream
for i = 3, #ARGV, 6 do
  redis.call('XADD', KEYS[1], 'MAXLEN', ARGV[2], '*',
    'task', ARGV[i], 'worker', ARGV[i+1], 'outcome', ARGV[i+2], 'waited', ARGV[i+3],
    'ran', ARGV[i+4], 'end', ARGV[i+5])
end
return redis.call('PEXPIRE', KEYS[1], ARGV[1])`

	// nameScript returns the names that were used longest ago of too many, and the time in us. ARGV: the TTL in ms, how
	// many there may be, and the names.
	nameScript = `-- history: names streams
local time = redis.call('TIME')
local now = string.format('%d', time[1] * 1000000 + time[2])
for i = 3, #ARGV do
  redis.call('ZADD', KEYS[1], now, ARGV[i])
end
redis.call('PEXPIRE', KEYS[1], ARGV[1])
local oldest = redis.call('ZRANGE', KEYS[1], 0, -1 - ARGV[2])
table.insert(oldest, now)
return oldest`
)

func streamOf(key string) string { return key + ":history" }

func index(prefix string) string { return prefix + ":{stats}:histories" }

// Sender is what a Writer needs of a client.
type Sender interface {
	Pipeline() redis.Pipeliner
}

// Writer writes runs to Redis. Nothing depends on it: what Redis refuses, and what comes faster than it is sent, is
// dropped, counted and logged. A nil Writer drops everything. Safe for concurrent use.
//
// A goroutine sends what was added within a quarter of a second in one pipeline, so that no task waits for it. Add
// starts it, and it ends when nothing is left to send, after Close at the latest.
type Writer struct {
	rdb    Sender
	prefix string
	worker string
	keep   int // runs of a key
	log    *slog.Logger
	stop   chan struct{} // Close closes it

	// How far Redis' clock is ahead, at least and at most, as it was read then; the goroutine's alone.
	least, most time.Duration
	read        time.Time

	mu      sync.Mutex // guards the rest; nobody does I/O under it
	closed  bool
	pending []added
	sending chan struct{} // the goroutine closes it when it ends; nil: there is none
	// runs that were dropped since Redis took all of them, and as the last flush knew; logged from 0 and back to it
	missing, told int
}

type added struct {
	key string
	run Run
}

// New makes a Writer that keeps so many runs of a key. It does no I/O.
func New(rdb Sender, prefix, worker string, keep int, log *slog.Logger) *Writer {
	return &Writer{rdb: rdb, prefix: prefix, worker: worker, keep: keep, log: log, stop: make(chan struct{})}
}

// Add has a run of a key written. It does no I/O.
func (w *Writer) Add(key string, r Run) {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.closed:
		return
	case len(w.pending) >= maxPending:
		w.missing++
		return
	}
	w.pending = append(w.pending, added{key, r})
	if w.sending == nil {
		w.sending = make(chan struct{})
		go w.run(w.sending)
	}
}

func (w *Writer) run(ended chan<- struct{}) {
	defer close(ended)
	timer := time.NewTimer(flushAfter)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-w.stop:
		}
		w.flush()
		w.mu.Lock()
		if len(w.pending) == 0 {
			w.sending = nil // under mu: who adds next starts another one
			w.mu.Unlock()
			return
		}
		w.mu.Unlock()
		timer.Reset(flushAfter)
	}
}

// Close has what was added sent, and ends the goroutine. It waits for that for a second at most, or until ctx ends: a
// client that hangs then ends the goroutine by its own timeouts. What is added from now on is dropped.
func (w *Writer) Close(ctx context.Context) {
	if w == nil {
		return
	}
	w.mu.Lock()
	if !w.closed {
		w.closed = true
		close(w.stop)
	}
	sending := w.sending
	w.mu.Unlock()
	if sending == nil {
		return
	}
	select {
	case <-sending:
	case <-ctx.Done():
	case <-time.After(closeWithin):
	}
}

func (w *Writer) flush() {
	w.mu.Lock()
	pending := w.pending
	w.pending = nil
	w.mu.Unlock()
	err := w.send(pending)
	w.mu.Lock()
	if err != nil {
		w.missing += len(pending)
	}
	missing, told := w.missing, w.told
	if w.told = missing; missing == told {
		w.missing, w.told = 0, 0
	}
	w.mu.Unlock()
	switch {
	case missing > 0 && told == 0:
		w.log.Warn("automutex: Config.History: runs are not kept; it is logged when they are again", "runs", missing, "error",
			err)
	case missing == told && told > 0:
		w.log.Info("automutex: Config.History: runs are kept again", "missing", told)
	}
}

func (w *Writer) send(pending []added) error {
	ctx, cancel := context.WithTimeout(context.Background(), flushWithin)
	defer cancel()
	names := append(make([]any, 0, 2+len(pending)), keepFor.Milliseconds(), min(mostKeys, mostRuns/w.keep))
	for _, a := range pending {
		names = append(names, streamOf(a.key))
	}
	sent, pipe := time.Now(), w.rdb.Pipeline()
	named := pipe.Eval(ctx, nameScript, []string{index(w.prefix)}, names...)
	_, _ = pipe.Exec(ctx) // named has its error
	got := time.Now()
	tooMany, err := named.StringSlice()
	if err != nil {
		return err
	}
	last := len(tooMany) - 1
	us, _ := strconv.ParseInt(tooMany[last], 10, 64) // of a script of ours
	if now := time.UnixMicro(us); got.Sub(sent) < w.most-w.least || got.Sub(w.read) > readAfter {
		w.least, w.most, w.read = now.Sub(got), now.Sub(sent), got
	}
	streams := map[string][]any{}
	for _, a := range pending {
		r, ran, started, end := a.run, any(""), a.run.End, a.run.End.Add(w.least)
		if start := r.Start.Add(w.most); !r.Start.IsZero() {
			// A run is shortened by the uncertainty of Redis' clock: so it does not overlap the next one, which another process
			// may write. A run shorter than the uncertainty becomes a moment.
			if start.After(end) {
				end = end.Add(start.Sub(end) / 2)
				start = end
			}
			ran, started = end.Sub(start).Microseconds(), r.Start
		}
		stream := streamOf(a.key)
		if streams[stream] == nil {
			streams[stream] = []any{keepFor.Milliseconds(), w.keep}
		}
		streams[stream] = append(streams[stream], r.Task, w.worker, r.Outcome, max(started.Sub(r.Came), 0).Microseconds(),
			ran, end.UnixMicro())
	}
	for stream, args := range streams {
		pipe.Eval(ctx, addScript, []string{stream}, args...)
	}
	for _, stream := range tooMany[:last] { // a script may not delete keys of other slots
		pipe.Del(ctx, stream)
		pipe.ZRem(ctx, index(w.prefix), stream)
	}
	_, err = pipe.Exec(ctx)
	return err
}
