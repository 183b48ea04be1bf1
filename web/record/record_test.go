package record

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/keys"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

func TestMain(m *testing.M) { redistest.Main(m) }

const patience = redistest.Patience

func recorder(t *testing.T, rdb redis.UniversalClient, prefix string) *Recorder {
	t.Helper()
	r, err := New(rdb, Options{Prefix: prefix, Logger: slog.New(slog.DiscardHandler)})
	redistest.Must(t, err)
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// age makes what was counted up to now five minutes older, so that its minutes are complete.
// It returns the key of one of them.
func age(t *testing.T, r *Recorder) (key string) {
	t.Helper()
	ctx, now := context.Background(), time.Now().Unix()/60
	for minute := now - 2; minute <= now; minute++ { // the test may have begun in another one
		if r.rdb.Exists(ctx, r.minuteKey(minute)).Val() == 0 {
			continue
		}
		key = r.minuteKey(minute - 5)
		redistest.Must(t, r.rdb.Rename(ctx, r.minuteKey(minute), key).Err())
	}
	return key
}

// What two processes observe is added up by rule, the timeline has it newest first, all of
// it expires, and the list of locks does not have it.
func TestRecorder(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb, prefix, ctx := s.Client(t), redistest.Name(t), context.Background()
		key := keys.Key(prefix, "report", "acme")
		for range 2 {
			r := recorder(t, rdb, prefix)
			for i := range 100 {
				r.Observe(ctx, automutex.Event{Kind: automutex.EventAcquired, Rule: "my rule", Waited: time.Duration(i) * time.Second})
			}
			r.Observe(ctx, automutex.Event{Kind: automutex.EventBusy, Rule: "my rule", Key: key, Queue: "q", TaskID: "1", Policy: automutex.Park, Busy: &automutex.BusyError{Holder: "w1"}})
			r.Observe(ctx, automutex.Event{Kind: automutex.EventReleased, Rule: "my rule"})
			r.Observe(ctx, automutex.Event{Kind: automutex.EventLost, Rule: "other", Key: key, Queue: "q", TaskID: "2", Err: lock.ErrLost})
			for _, kind := range []automutex.EventKind{automutex.EventOverdue, automutex.EventReplaced, automutex.EventHeadSkipped} {
				r.Observe(ctx, automutex.Event{Kind: kind, Rule: "third", Key: key, Queue: "q", TaskID: "3"})
			}
			redistest.Must(t, r.Close())
			r.Observe(ctx, automutex.Event{Kind: automutex.EventLost, Rule: "other"})
		}
		r := recorder(t, rdb, prefix)
		redistest.Must(t, r.Write(ctx, Entry{At: time.Now(), Kind: "break", Key: key, By: "ann", Text: "gone", Why: "it hung\xff"}))
		for _, key := range []string{r.streamKey(), r.busyKey(), age(t, r)} {
			if left := rdb.PTTL(ctx, key).Val(); left <= 0 || left > keepFor {
				t.Errorf("%s expires in %s", key, left)
			}
		}
		counts, err := r.Counts(ctx, 15)
		redistest.Must(t, err)
		mine := counts["my rule"]
		if len(counts) != 1 || mine.Acquired != 200 || mine.Busy != 2 {
			t.Fatalf("counts: %+v", counts)
		}
		for share, want := range map[float64]time.Duration{0.5: 50 * time.Second, 0.95: 95 * time.Second} {
			if got, ok := mine.Wait(share); !ok || got < want || got > want*3/2 {
				t.Errorf("%v of the tasks waited up to %s, want %s to %s", share, got, want, want*3/2)
			}
		}
		if _, ok := (&Counts{Busy: 1}).Wait(0.5); ok {
			t.Error("a rule without a task has a wait")
		}
		timeline, err := r.Timeline(ctx, time.Hour, 20)
		if err != nil || len(timeline.Entries) != 11 || timeline.Cut || timeline.BusyCut {
			t.Fatalf("%v, %+v", err, timeline)
		}
		all := timeline.Entries
		if !slices.IsSortedFunc(all, func(a, b Entry) int { return b.At.Compare(a.At) }) {
			t.Errorf("not the newest first: %+v", all)
		}
		if e := all[slices.IndexFunc(all, func(e Entry) bool { return e.Kind == "break" })]; e.Kind != "break" || e.By != "ann" || e.Text != "gone" || e.Why != "it hung\uFFFD" || e.Key != key || time.Since(e.At) > time.Hour {
			t.Errorf("the action is %+v", e)
		}
		if e := all[slices.IndexFunc(all, func(e Entry) bool { return e.Kind == "busy" })]; e.Kind != "busy" || e.Rule != "my rule" || e.Task != "q/1" || e.By != "w1" || e.Text != "park" {
			t.Errorf("a busy task is %+v", e)
		}
		locker := lock.New(rdb, lock.Options{Prefix: prefix})
		for info, err := range inner.List(ctx, locker) {
			t.Errorf("the list of locks has %s, %v", info.Key, err)
		}
		if err := locker.Close(); err != nil {
			t.Error(err)
		}
	})
}

// What happens is counted in full; of busy tasks the timeline takes a part, so that rare
// entries have room.
func TestRecorder_bounded(t *testing.T) {
	t.Parallel()
	rdb, prefix, ctx := redistest.Mini(t).Client(t), redistest.Name(t), context.Background()
	r := recorder(t, rdb, prefix)
	for range 5000 {
		r.Observe(ctx, automutex.Event{Kind: automutex.EventBusy, Rule: "r", Key: "k", Busy: &automutex.BusyError{}})
	}
	for range 5000 {
		r.Observe(ctx, automutex.Event{Kind: automutex.EventLost, Rule: "r", Key: "k", Err: lock.ErrLost})
	}
	r.mu.Lock()
	if len(r.entries) != maxPending || r.busy != maxBusy || len(r.counts) > 4 {
		t.Errorf("%d entries, %d of them busy, %d numbers", len(r.entries), r.busy, len(r.counts))
	}
	r.mu.Unlock()
	r.flush()
	age(t, r)
	if counts, err := r.Counts(ctx, 15); err != nil || counts["r"] == nil || counts["r"].Busy != 5000 {
		t.Errorf("%v, %+v", err, counts["r"])
	}
}

// A Redis that does not answer costs the handlers nothing, and the log says what is lost.
func TestRecorder_withoutRedis(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0") // takes connections, and never answers
	redistest.Must(t, err)
	defer silent.Close()
	rdb := redis.NewClient(&redis.Options{Addr: silent.Addr().String(), MaxRetries: -1, ReadTimeout: 100 * time.Millisecond, DialTimeout: 100 * time.Millisecond})
	defer rdb.Close()
	var log bytes.Buffer
	r, err := New(rdb, Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	redistest.Must(t, err)
	flushing := make(chan struct{})
	go func() {
		defer close(flushing)
		r.Observe(context.Background(), automutex.Event{Kind: automutex.EventLost})
		r.flush()
	}()
	began := time.Now()
	for range 1000 {
		r.Observe(context.Background(), automutex.Event{Kind: automutex.EventBusy, Rule: "r"})
	}
	if took := time.Since(began); took > patience {
		t.Errorf("it took %s", took)
	}
	<-flushing
	redistest.Must(t, r.Close())
	if !strings.Contains(log.String(), "it is dropped") {
		t.Errorf("the log says %q", log.String())
	}
}

// The rights that the package's comment and docs/redis.md name are enough.
func TestRecorder_rights(t *testing.T) {
	t.Parallel()
	s := redistest.Real(t)
	admin, prefix, ctx := s.Client(t), redistest.Name(t), context.Background()
	if err := admin.Do(ctx, "ACL", "SETUSER", prefix, "on", ">secret", "resetkeys", "~"+prefix+":*",
		"+hincrby", "+hgetall", "+pexpire", "+xadd", "+xrevrange", "+exists", "+time", "+hello", "+ping").Err(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = admin.Do(context.Background(), "ACL", "DELUSER", prefix).Err() })
	rdb := redis.NewClient(&redis.Options{Addr: s.Addr(), Username: prefix, Password: "secret"})
	t.Cleanup(func() { _ = rdb.Close() })
	r := recorder(t, rdb, prefix)
	r.Observe(ctx, automutex.Event{Kind: automutex.EventLost, Rule: "r", Err: lock.ErrLost})
	r.Observe(ctx, automutex.Event{Kind: automutex.EventAcquired, Rule: "r"})
	redistest.Must(t, r.Close())
	aged := recorder(t, admin, prefix)
	age(t, aged)
	if counts, err := r.Counts(ctx, 15); err != nil || counts["r"] == nil || counts["r"].Acquired != 1 {
		t.Errorf("%v, %v", counts, err)
	}
	if all, err := r.Timeline(ctx, time.Hour, 10); err != nil || len(all.Entries) != 1 {
		t.Errorf("%v, %v", all, err)
	}
}

// Busy tasks have a stream of their own: as many as there are, what is rare stays, and each
// of the two says how far back it was read.
func TestRecorder_busyPushesNothingOut(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb, prefix, ctx := s.Client(t), redistest.Name(t), context.Background()
		r := recorder(t, rdb, prefix)
		began := time.Now().Add(-time.Minute)
		pipe := rdb.Pipeline()
		r.write(ctx, pipe, Entry{At: began, Kind: "lost", Key: "k"})
		r.write(ctx, pipe, Entry{At: began.Add(time.Second), Kind: "break", Key: "k"})
		for i := range maxBusyKept + 2000 {
			r.write(ctx, pipe, Entry{At: began.Add(time.Duration(i) * time.Millisecond), Kind: "busy", Key: "k"})
		}
		if _, err := pipe.Exec(ctx); err != nil {
			t.Fatal(err)
		}
		got, err := r.Timeline(ctx, time.Hour, 100)
		redistest.Must(t, err)
		n := map[string]int{}
		for _, e := range got.Entries {
			n[e.Kind]++
		}
		if len(n) != 3 || n["lost"] != 1 || n["break"] != 1 || n["busy"] != 100 {
			t.Errorf("read were %v", n)
		}
		if e := got.Entries[101]; e.Kind != "lost" {
			t.Errorf("the oldest is %+v", e)
		}
		if ago := time.Since(got.Since); got.Cut || ago < 50*time.Minute {
			t.Errorf("what is rare reaches back %s, cut: %v", ago, got.Cut)
		}
		if ago := time.Since(got.BusySince); !got.BusyCut || ago > 10*time.Minute {
			t.Errorf("busy tasks reach back %s, cut: %v", ago, got.BusyCut)
		}
		if n := rdb.XLen(ctx, r.busyKey()).Val(); n > maxBusyKept+500 {
			t.Errorf("%d busy tasks are kept", n)
		}
	})
}

// Counts are of complete minutes only, by Redis' clock and not by the page's, and say of how
// many minutes since recording began.
func TestRecorder_completeMinutes(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb, prefix, ctx := s.Client(t), redistest.Name(t), context.Background()
		const minute = 1000
		var second int64 // of that minute, by Redis' clock
		hook := &redistest.FailHook{}
		hook.After(func(cmd redis.Cmder) error {
			if c, ok := cmd.(*redis.TimeCmd); ok {
				c.SetVal(time.Unix(minute*60+second, 0))
			}
			return nil
		})
		rdb.AddHook(hook)
		r := recorder(t, rdb, prefix)
		count := func(minute int64) {
			redistest.Must(t, rdb.HIncrBy(ctx, r.minuteKey(minute), "busy r", 1).Err())
		}
		want := func(busy int64, minutes int) {
			t.Helper()
			counts, err := r.Counts(ctx, 15)
			if err != nil || counts["r"] == nil || counts["r"].Busy != busy || counts["r"].Minutes != minutes {
				t.Errorf("after %ds: %v, %+v, want %d busy in %d minutes", second, err, counts["r"], busy, minutes)
			}
		}
		for m := range int64(4) {
			count(minute - m)
		}
		second = 14 // the last flush of minute-1 may be under way
		want(2, 2)
		second = 15
		want(3, 3)
		count(minute - 15)
		want(4, 15)
		rdb.Del(ctx, r.minuteKey(minute-15))
		count(minute - 200) // recorded before, and then little happened
		want(3, 15)
	})
}

// Close waits for at most 5 seconds, also for a Redis that never answers and a client that
// waits for it without end.
func TestRecorder_closeWithin(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0") // takes connections, and never answers
	redistest.Must(t, err)
	defer silent.Close()
	rdb := redis.NewClient(&redis.Options{Addr: silent.Addr().String(), MaxRetries: -1, ReadTimeout: 2 * patience})
	r, err := New(rdb, Options{Logger: slog.New(slog.DiscardHandler)})
	redistest.Must(t, err)
	r.Observe(context.Background(), automutex.Event{Kind: automutex.EventLost})
	began := time.Now()
	err = r.Close()
	if took := time.Since(began); took > patience {
		t.Errorf("Close took %s", took)
	}
	if err == nil {
		t.Error("Close says nothing of what was not sent")
	}
	if err := r.Close(); err != nil {
		t.Errorf("a second Close: %v", err)
	}
	if err := rdb.Close(); err != nil {
		t.Error(err)
	}
	select { // with its client the goroutine has ended, too
	case <-r.done:
	case <-time.After(patience):
		t.Error("the goroutine goes on")
	}
}
