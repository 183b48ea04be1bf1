package record

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

func TestMain(m *testing.M) { redistest.Main(m) }

const patience = 30 * time.Second

func recorder(t *testing.T, rdb redis.UniversalClient, prefix string) *Recorder {
	t.Helper()
	r, err := New(rdb, Options{Prefix: prefix, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// What two processes observe is added up by rule, the timeline has it newest first, all of
// it expires, and the list of locks does not have it.
func TestRecorder(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb, prefix, ctx := s.Client(t), redistest.Name(t), context.Background()
		key := lock.Key(prefix, "report", "acme")
		for range 2 {
			r := recorder(t, rdb, prefix)
			for i := range 100 {
				r.Observe(ctx, automutex.Event{Kind: automutex.EventAcquired, Rule: "my rule", Waited: time.Duration(i) * time.Second})
			}
			r.Observe(ctx, automutex.Event{Kind: automutex.EventBusy, Rule: "my rule", Key: key, Queue: "q", TaskID: "1", Policy: automutex.Park, Busy: &automutex.BusyError{Holder: "w1"}})
			r.Observe(ctx, automutex.Event{Kind: automutex.EventReleased, Rule: "my rule"})
			r.Observe(ctx, automutex.Event{Kind: automutex.EventLost, Rule: "other", Key: key, Queue: "q", TaskID: "2", Err: lock.ErrLost})
			if err := r.Close(); err != nil {
				t.Fatal(err)
			}
			r.Observe(ctx, automutex.Event{Kind: automutex.EventLost, Rule: "other"})
		}
		r := recorder(t, rdb, prefix)
		if err := r.Write(ctx, Entry{At: time.Now(), Kind: "break", Key: key, By: "ann", Text: "it hung\xff"}); err != nil {
			t.Fatal(err)
		}
		counts, err := r.Counts(ctx, time.Now(), 5)
		if err != nil {
			t.Fatal(err)
		}
		mine, other := counts["my rule"], counts["other"]
		if len(counts) != 2 || mine.Acquired != 200 || mine.Busy != 2 || other.Lost != 2 {
			t.Fatalf("counts: %+v, %+v", mine, other)
		}
		for share, want := range map[float64]time.Duration{0.5: 50 * time.Second, 0.95: 95 * time.Second} {
			if got, ok := mine.Wait(share); !ok || got < want || got > want*3/2 {
				t.Errorf("%v of the tasks waited up to %s, want %s to %s", share, got, want, want*3/2)
			}
		}
		if _, ok := other.Wait(0.5); ok {
			t.Error("a rule without a task has a wait")
		}
		all, err := r.Timeline(ctx, time.Now().Add(-time.Hour), 10)
		if err != nil || len(all) != 5 {
			t.Fatalf("%v, %+v", err, all)
		}
		if e := all[0]; e.Kind != "break" || e.By != "ann" || e.Text != "it hung\uFFFD" || e.Key != key || time.Since(e.At) > time.Hour {
			t.Errorf("the newest is %+v", e)
		}
		if e := all[2]; e.Kind != "busy" || e.Rule != "my rule" || e.Task != "q/1" || e.By != "w1" || e.Text != "park" {
			t.Errorf("a busy task is %+v", e)
		}
		minute := time.Now().Unix() / 60
		keys := []string{r.streamKey(), r.minuteKey(minute)}
		if rdb.Exists(ctx, keys[1]).Val() == 0 { // a minute has just begun
			keys[1] = r.minuteKey(minute - 1)
		}
		for _, key := range keys {
			if left := rdb.PTTL(ctx, key).Val(); left <= 0 || left > keepFor {
				t.Errorf("%s expires in %s", key, left)
			}
		}
		locker := lock.New(rdb, lock.Options{Prefix: prefix})
		for info, err := range locker.List(ctx) {
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
	if counts, err := r.Counts(ctx, time.Now(), 2); err != nil || counts["r"].Busy != 5000 || counts["r"].Lost != 5000 {
		t.Errorf("%v, %+v", err, counts["r"])
	}
}

// A Redis that does not answer costs the handlers nothing, and the log says what is lost.
func TestRecorder_withoutRedis(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0") // takes connections, and never answers
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	rdb := redis.NewClient(&redis.Options{Addr: silent.Addr().String(), MaxRetries: -1, ReadTimeout: 100 * time.Millisecond, DialTimeout: 100 * time.Millisecond})
	defer rdb.Close()
	var log bytes.Buffer
	r, err := New(rdb, Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
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
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
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
		"+hincrby", "+hgetall", "+pexpire", "+xadd", "+xrevrange", "+hello", "+ping").Err(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = admin.Do(context.Background(), "ACL", "DELUSER", prefix).Err() })
	rdb := redis.NewClient(&redis.Options{Addr: s.Addr(), Username: prefix, Password: "secret"})
	t.Cleanup(func() { _ = rdb.Close() })
	r := recorder(t, rdb, prefix)
	r.Observe(ctx, automutex.Event{Kind: automutex.EventLost, Rule: "r", Err: lock.ErrLost})
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if counts, err := r.Counts(ctx, time.Now(), 2); err != nil || counts["r"] == nil || counts["r"].Lost != 1 {
		t.Errorf("%v, %v", counts, err)
	}
	if all, err := r.Timeline(ctx, time.Now().Add(-time.Hour), 10); err != nil || len(all) != 1 {
		t.Errorf("%v, %v", all, err)
	}
}
