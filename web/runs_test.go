package web

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/history"
	"github.com/automutex/automutex/internal/inspect"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// keep writes runs into the history of a key.
func (v *site) keep(key string, runs ...history.Run) {
	v.t.Helper()
	w := history.New(v.rdb, v.prefix, `w"<1>`, history.Most, slog.New(slog.DiscardHandler))
	for _, r := range runs {
		w.Add(key, r)
	}
	w.Close(context.Background())
	redistest.Eventually(v.t, patience, func() bool {
		kept, err := history.Read(context.Background(), v.rdb, key, history.Most)
		return err == nil && len(kept) == len(runs)
	}, "%d runs are kept", len(runs))
}

// The page of a key draws a bar for each run and each wait of its history, as text whatever the names are, and a table
// with the same.
func TestRuns_history(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		v := serve(t, s, Options{AsynqmonPath: "/asynq"})
		m := v.locker.Mutex("report", lock.Parts("acme"))
		end := time.Now().Add(-time.Hour)
		v.keep(m.Key(),
			history.Run{Task: "q/first", Outcome: "done", Came: end.Add(-50 * time.Second), Start: end.Add(-50 * time.Second), End: end.Add(-20 * time.Second)},
			history.Run{Task: "q/<script>x\x00", Outcome: `failed"><b>`, Came: end.Add(-45 * time.Second), Start: end.Add(-20 * time.Second), End: end},
			history.Run{Task: "q/gave-up", Outcome: "skipped", Came: end.Add(-40 * time.Second), End: end.Add(-30 * time.Second)},
		)
		a := v.get(keyPath(m.Key())).want(200, "Who ran when", "Last runs", `<a href="/asynq/queues/q/tasks/first">q/first</a>`,
			`q/&lt;script&gt;x\u0000 on w&#34;&lt;1&gt;`, "waited 25s, ran 20s from", "failed&#34;&gt;&lt;b&gt;", `data-name="Waited">10s</td>`, `data-name="Outcome">skipped</td>`).
			without("<script>x", "<b>", "Config.History", "--</")
		for class, n := range map[string]int{"run": 1, "run bad": 1, "wait": 1, "wait other": 1} {
			if got := strings.Count(a.body, `class="`+class+`" x=`); got != n {
				t.Errorf("%d bars of class %q, want %d", got, class, n)
			}
		}
		// The axis fits: the first bar begins where it does, and the last one ends where it does.
		if !strings.Contains(a.body, `x="0.00%" y="0" width="60.`) && !strings.Contains(a.body, `x="0.00%" y="0" width="59.`) {
			t.Errorf("the first run is not at the beginning:\n%s", a.body)
		}
		other := v.locker.Mutex("report", lock.Parts("other"))
		v.get(keyPath(other.Key())).want(200, "Nothing is known of who ran on this key", "Config.History").without("<svg height", "Last runs")
	})
}

// A long history is bounded on the page, and counted.
func TestRuns_many(t *testing.T) {
	t.Parallel()
	v := serve(t, redistest.Mini(t), Options{})
	m, end := v.locker.Mutex("many"), time.Now().Add(-time.Minute)
	var runs []history.Run
	for i := range mostBars + 50 {
		at := end.Add(time.Duration(i) * 10 * time.Millisecond)
		runs = append(runs, history.Run{Task: fmt.Sprintf("q/%d", i), Outcome: "done", Came: end.Add(-time.Minute), Start: at, End: at.Add(9 * time.Millisecond)})
	}
	v.keep(m.Key(), runs...)
	a := v.get(keyPath(m.Key())).want(200, fmt.Sprintf("and %d more</p>", mostBars-mostShown), fmt.Sprintf("for %d more there is no room", mostBars-mostLanes))
	if bars, rows := strings.Count(a.body, `<rect class="run"`), strings.Count(a.body, `data-name="Outcome"`); bars != mostBars || rows != mostShown {
		t.Errorf("%d bars, %d rows", bars, rows)
	}
	if strings.Contains(a.body, "q/0 on") || !strings.Contains(a.body, fmt.Sprintf("q/%d on", len(runs)-1)) {
		t.Error("the oldest are shown, and not the newest")
	}
}

// Without a history the page draws what goes on, and what it saw.
func TestRuns_seen(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		v := serve(t, s, Options{})
		m := v.locker.Mutex("report", lock.Note("q/holds"))
		lease := v.hold(m)
		v.wait(v.locker.Mutex("report", lock.Note("q/waits")))
		v.get(keyPath(m.Key())).want(200, `class="run open" x=`, `class="wait open" x=`, "Seen by this page since", "Config.History", `data-name="Outcome">runs</td>`, "called: its turn has come").
			without(`data-name="Outcome">waits</td>`) // the line has it
		redistest.Must(t, lease.Unlock(context.Background()))
		// The one who waited gets the lock and gives it back: the first one has ended in any case.
		v.find(keyPath(m.Key()), `data-name="Outcome">ended</td>`).want(200, "q/holds on worker-1:4242", `data-name="Ran">at least `)
	})
}

// What looks saw is in its history once: the history tells it better.
func TestRuns_joined(t *testing.T) {
	t.Parallel()
	at := time.Unix(1_700_000_000, 0)
	after := func(s int) time.Time { return at.Add(time.Duration(s) * time.Second) }
	var p page
	look := func(key string, now int, since int, token, holds string, waits ...inspect.Waiter) ([]run, time.Time) {
		l := inspect.Lock{Key: key, Waiters: waits}
		if token != "" {
			start := after(since)
			l.Held, l.Since, l.Holders = 1, &start, []inspect.Holder{{Token: token, Work: inspect.Work{Queue: "q", Task: holds}, Owner: "w"}}
		}
		return p.seen.look(row{l, after(now), 0}, p.task)
	}
	look("k", 0, -5, "1", "a")
	look("k", 2, -5, "1", "a", inspect.Waiter{Work: inspect.Work{Queue: "q", Task: "b"}, Since: after(1)})
	look("k", 4, 3, "2", "b")
	runs, first := look("k", 6, 0, "", "")
	if len(runs) != 2 || !first.Equal(at) {
		t.Fatalf("%+v since %s", runs, first)
	}
	a, b := runs[0], runs[1]
	if a.Task.Text != "q/a" || !a.Start.Equal(after(-5)) || !a.End.Equal(after(2)) || a.Open || !a.Came.IsZero() {
		t.Errorf("a: %+v", a)
	}
	if b.Task.Text != "q/b" || !b.Came.Equal(after(1)) || !b.Start.Equal(after(3)) || !b.End.Equal(after(4)) || b.Open {
		t.Errorf("b: %+v", b)
	}
	kept := []history.Run{{Task: "q/b", Outcome: "done", Came: after(1), Start: after(3), End: after(5)}}
	all := joined(kept, runs, p.taskOf)
	if len(all) != 2 || all[0].Task.Text != "q/b" || all[0].Outcome != "done" || !all[0].End.Equal(after(5)) || all[1].Task.Text != "q/a" {
		t.Errorf("%+v", all)
	}
	start := after(5)
	slow := inspect.Lock{Key: "slow", Held: 1, Since: &start, Holders: []inspect.Holder{{Token: "1"}}}
	if runs, _ := p.seen.look(row{slow, after(6), 80 * time.Millisecond}, p.task); !runs[0].Start.Equal(after(5).Add(80 * time.Millisecond)) {
		t.Errorf("a look that took 80 ms has a run that begins at %s, maybe before the end of the one before", runs[0].Start)
	}
	for i := range maxSeen + 3 {
		look(fmt.Sprint(i), 10+i, 0, "", "")
	}
	if len(p.seen.keys) > maxSeen {
		t.Errorf("%d keys", len(p.seen.keys))
	}
}

// A time of another day says which. A long line takes no place from the runs.
func TestBars(t *testing.T) {
	t.Parallel()
	from := time.Date(2026, 1, 2, 23, 4, 5, 600e6, time.UTC)
	for later, want := range map[time.Duration]string{0: "23:04:05", 20 * time.Hour: "Jan 2 23:04:05", 72 * time.Hour: "Jan 2 23:04:05"} {
		if got := (&bars{From: from, To: from.Add(later), now: from.Add(later)}).Clock(from); got != want {
			t.Errorf("%s later: %q", later, got)
		}
	}
	now := time.Now()
	runs := []run{{Task: task{Text: "q/ran"}, Outcome: "done", Start: now.Add(-time.Minute), End: now}}
	for range 100 {
		runs = append(runs, run{Task: task{Text: "q/waits"}, Came: now.Add(-time.Minute), End: now, Open: true})
	}
	if b := newBars(joined(nil, runs, nil), now); len(b.Rows) != 1 || b.Rows[0].Ran() != "1m" || b.More != 0 {
		t.Errorf("%+v and %d more, want the run alone", b.Rows, b.More)
	}
}
