package history

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

const patience = redistest.Patience

// What is written is read back, with texts of any kind; times are exact but for what the way to Redis takes.
func TestWriter(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		ctx, rdb, prefix := context.Background(), s.Client(t), redistest.Name(t)
		w := New(rdb, prefix, "w\x00\"<b>", 10, slog.New(slog.DiscardHandler))
		key, end := prefix+":{a|b}", time.Now().Add(-time.Minute)
		w.Add(key, Run{Task: "q/\xff<script>", Outcome: "done", Came: end.Add(-time.Hour - 2*time.Second),
			Start: end.Add(-time.Hour), End: end})
		w.Add(key, Run{Task: "q/2", Outcome: "skipped", Came: end.Add(-2 * time.Second), End: end})
		w.Close(ctx)
		w.Add(key, Run{Task: "q/3", End: end}) // after Close
		var runs []Run
		redistest.Eventually(t, patience, func() bool {
			runs, _ = Read(ctx, rdb, key, 10)
			return len(runs) == 2
		}, "two runs")
		waited, ran := runs[0], runs[1]
		if took := ran.End.Sub(ran.Start); ran.Task != "q/\xff<script>" || ran.Worker != "w\x00\"<b>" ||
			ran.Outcome != "done" || ran.Start.Sub(ran.Came) != 2*time.Second || took > time.Hour || took < time.Hour-patience {
			t.Errorf("the run: %+v", ran)
		}
		if waited.Task != "q/2" || !waited.Start.IsZero() || waited.End.Sub(waited.Came) != 2*time.Second {
			t.Errorf("the wait: %+v", waited)
		}
		if ago := rdb.Time(ctx).Val().Sub(ran.End); ago < time.Minute {
			t.Errorf("it ended %s ago", ago)
		}
		// Entries of others are left out.
		for _, bad := range []map[string]string{{"x": "y"}, {"end": "-1"}, {"end": "1", "waited": "x"},
			{"end": "99999999999999999"}, {"end": "1", "waited": "1", "ran": "-5"}, {"end": "1", "waited": "999999999999999"}} {
			rdb.XAdd(ctx, &redis.XAddArgs{Stream: streamOf(key), Values: bad})
		}
		if runs, err := Read(ctx, rdb, key, 10); err != nil || len(runs) != 2 {
			t.Errorf("%+v, %v", runs, err)
		}
	})
}

// The keys of a prefix are bounded: those that were idle for longest lose their runs.
func TestWriter_bounded(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		const keys = mostRuns/Most + 7
		ctx, rdb, prefix := context.Background(), s.Client(t), redistest.Name(t)
		name := func(i int) string { return fmt.Sprintf("%s:{key|%d}", prefix, i) }
		w := New(rdb, prefix, "w", Most, slog.New(slog.DiscardHandler))
		for i := range keys {
			w.pending = append(w.pending, added{name(i), Run{End: time.Now()}})
			if i == 6 || i == keys-1 {
				w.flush()
				<-time.After(2 * time.Millisecond) // the first seven are the oldest
			}
		}
		if n := rdb.ZCard(ctx, index(prefix)).Val(); n != mostRuns/Most {
			t.Errorf("%d streams are named", n)
		}
		for i := range keys {
			if n := rdb.Exists(ctx, streamOf(name(i))).Val(); n == 1 != (i > 6) {
				t.Errorf("%s: %d", streamOf(name(i)), n)
			}
		}
	})
}

// What comes faster than it is sent, and what Redis does not take, is dropped, counted and logged once; so is that
// all is well again.
func TestWriter_drops(t *testing.T) {
	t.Parallel()
	hook, log, key := &redistest.FailHook{}, &redistest.Log{}, redistest.Name(t)+":{a}"
	rdb := redistest.Mini(t).Client(t)
	redistest.Must(t, rdb.Ping(t.Context()).Err()) // old go-redis connects through hooks
	rdb.AddHook(hook)
	w := New(rdb, redistest.Name(t), "w", 10, log.Logger())
	add := func(n int) {
		for range n {
			w.Add(key, Run{End: time.Now()})
		}
	}
	sending, goOn := make(chan struct{}), make(chan struct{})
	hook.Before(func(cmd redis.Cmder) error {
		if cmd.Name() == "eval" && cmd.Args()[1] == nameScript {
			sending <- struct{}{}
			<-goOn
		}
		return nil
	})
	add(1)
	<-sending // Redis hangs, and Add does not
	add(maxPending + 5)
	hook.Before(func(redis.Cmder) error { return redistest.ReplyError("OOM command not allowed") })
	close(goOn)
	redistest.Eventually(t, patience, func() bool {
		return strings.Contains(log.Text(slog.LevelWarn), " runs=6 ")
	}, "a warning")
	add(1)
	redistest.Eventually(t, patience, func() bool { w.mu.Lock(); defer w.mu.Unlock(); return w.missing == maxPending+7 },
		"one more is missing")
	hook.Before(nil)
	add(1)
	redistest.Eventually(t, patience, func() bool {
		return strings.Contains(log.Text(slog.LevelInfo), fmt.Sprint("again missing=", maxPending+7))
	}, "it is kept again")
	if said := log.Text(slog.LevelInfo); strings.Count(said, "\n") != 2 {
		t.Error(said)
	}
	w.Close(context.Background())
	(*Writer)(nil).Add(key, Run{})
	(*Writer)(nil).Close(context.Background())
}

// Close does not wait for a Redis that hangs longer than its caller does.
func TestWriter_closeIsBounded(t *testing.T) {
	t.Parallel()
	hook := &redistest.FailHook{}
	rdb := redistest.Mini(t).Client(t)
	rdb.AddHook(hook)
	goOn, ended := make(chan struct{}), make(chan struct{})
	hook.Before(func(redis.Cmder) error { <-goOn; return nil })
	w := New(rdb, redistest.Name(t), "w", 10, slog.New(slog.DiscardHandler))
	w.Add("{a}", Run{End: time.Now()})
	sending := w.sending
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	go func() { defer close(ended); w.Close(ctx); w.Close(context.Background()) }()
	<-ended
	close(goOn)
	<-sending
}
