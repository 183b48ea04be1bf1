// Package history keeps the last runs of each key in Redis, for the page of a key.
//
// Each key has a stream of its own, beside its lock and in the lock's Cluster slot. One stream in all would be a
// single busy key for a whole Cluster, a page would read all of it to show one key, and a busy key would push out the
// runs of the others. A sorted set names the streams, so that the number of all runs has a bound, too.
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
	maxPending  = 2000 // runs that one flush sends
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
// Times are by Redis' clock, exact to what the way there takes: processes with clocks of their own would seem to
// overlap.
const (
	nowLua = `local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
`
	// addScript adds runs to the stream KEYS[1]. ARGV: its TTL in ms, how many it keeps, and for each run five texts and
	// how long ago it ended (ms).
	addScript = `-- history: adds runs to a stream
` + nowLua + `for i = 3, #ARGV, 6 do
  redis.call('XADD', KEYS[1], 'MAXLEN', ARGV[2], '*',
    'task', ARGV[i], 'worker', ARGV[i+1], 'outcome', ARGV[i+2], 'waited', ARGV[i+3],
    'ran', ARGV[i+4],
    'end', string.format('%d', now - ARGV[i+5]))
end
return redis.call('PEXPIRE', KEYS[1], ARGV[1])`

	// nameScript adds names to the sorted set KEYS[1], and returns those that were used longest ago of too many. ARGV: its
	// TTL in ms, how many there may be, and the names.
	nameScript = `-- history: names streams
` + nowLua + `for i = 3, #ARGV do
  redis.call('ZADD', KEYS[1], string.format('%d', now), ARGV[i])
end
redis.call('PEXPIRE', KEYS[1], ARGV[1])
local excess = redis.call('ZCARD', KEYS[1]) - tonumber(ARGV[2])
if excess <= 0 then
  return {}
end
return redis.call('ZRANGE', KEYS[1], 0, excess - 1)`
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

	mu      sync.Mutex // guards the rest; nobody does I/O under it
	closed  bool
	pending []added
	dropped int           // that did not fit into pending
	sending chan struct{} // the goroutine closes it when it ends; nil: there is none
	// runs that were dropped since Redis took all of them; it is logged as it leaves 0, and as it comes back to it
	missing int
}

type added struct {
	key string
	run Run
}

// New makes a Writer that keeps so many runs of a key. It does no I/O and starts nothing.
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
		w.dropped++
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
	pending, missing := w.pending, w.dropped
	w.pending, w.dropped = nil, 0
	w.mu.Unlock()
	err := w.send(pending)
	if err != nil {
		missing += len(pending) // at most: of a Cluster, one node may have failed
	}
	w.mu.Lock()
	before := w.missing
	if w.missing += missing; missing == 0 {
		w.missing = 0
	}
	w.mu.Unlock()
	switch {
	case missing > 0 && before == 0:
		w.log.Warn("automutex: Config.History: runs are not kept; it is logged when they are again", "runs", missing, "error",
			err)
	case missing == 0 && before > 0:
		w.log.Info("automutex: Config.History: runs are kept again", "missing", before)
	}
}

func (w *Writer) send(pending []added) error {
	ctx, cancel := context.WithTimeout(context.Background(), flushWithin)
	defer cancel()
	streams := map[string][]any{}
	for _, a := range pending {
		r, ran, started := a.run, "", a.run.End
		if !r.Start.IsZero() {
			ran, started = millis(r.End.Sub(r.Start)), r.Start
		}
		stream := streamOf(a.key)
		if streams[stream] == nil {
			streams[stream] = []any{keepFor.Milliseconds(), w.keep}
		}
		streams[stream] = append(streams[stream], r.Task, w.worker, r.Outcome, millis(started.Sub(r.Came)), ran,
			millis(time.Since(r.End)))
	}
	pipe, names := w.rdb.Pipeline(), make([]any, 0, 2+len(streams))
	names = append(names, keepFor.Milliseconds(), min(mostKeys, mostRuns/w.keep))
	for stream, args := range streams {
		pipe.Eval(ctx, addScript, []string{stream}, args...)
		names = append(names, stream)
	}
	named := pipe.Eval(ctx, nameScript, []string{index(w.prefix)}, names...)
	if _, err := pipe.Exec(ctx); err != nil {
		return err
	}
	tooMany, err := named.StringSlice()
	if err != nil || len(tooMany) == 0 {
		return err
	}
	pipe = w.rdb.Pipeline() // a script may not delete keys of other slots
	for _, stream := range tooMany {
		pipe.Del(ctx, stream)
		pipe.ZRem(ctx, index(w.prefix), stream)
	}
	_, err = pipe.Exec(ctx)
	return err
}

func millis(d time.Duration) string { return strconv.FormatInt(max(d, 0).Milliseconds(), 10) }
