package web

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/history"
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
	eventually(v.t, func() bool {
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
			history.Run{Task: "q/first", Outcome: "done", Came: end.Add(-50 * time.Second), Start: end.Add(-50 * time.Second),
				End: end.Add(-20 * time.Second)},
			history.Run{Task: "q/<script>x\x00", Outcome: `failed"><b>`, Came: end.Add(-45 * time.Second),
				Start: end.Add(-20 * time.Second), End: end},
			history.Run{Task: "q/gave-up", Outcome: "skipped", Came: end.Add(-40 * time.Second),
				End: end.Add(-30 * time.Second)},
		)
		a := v.get(keyPath(m.Key())).want(200, "Who ran when", "Last runs",
			`<a href="/asynq/queues/q/tasks/first">q/first</a>`,
			`q/&lt;script&gt;x\u0000 on w&#34;&lt;1&gt;`, "waited 25s, ran ", "failed&#34;&gt;&lt;b&gt;",
			`data-name="Waited">10s</td>`, `data-name="Outcome">skipped</td>`).
			without("<script>x", "<b>", "Config.History", "--</")
		for class, n := range map[string]int{"run": 1, "run bad": 1, "wait": 1, "wait other": 1} {
			if got := strings.Count(a.body, `class="`+class+`" x=`); got != n {
				t.Errorf("%d bars of class %q, want %d", got, class, n)
			}
		}
		if table := a.body[strings.Index(a.body, `id="runs"`):]; strings.Index(table, "failed") > strings.Index(table,
			">done<") || strings.Index(table, ">done<") > strings.Index(table, "skipped") {
			t.Error("the table does not begin with what ended last")
		}
		// The axis fits: the first bar begins where it does, and the last one ends where it does.
		if !strings.Contains(a.body, `x="0.00%" y="0" width="60.`) &&
			!strings.Contains(a.body, `x="0.00%" y="0" width="59.`) {
			t.Errorf("the first run is not at the beginning:\n%s", a.body)
		}
		other := v.locker.Mutex("report", lock.Parts("other"))
		v.get(keyPath(other.Key())).want(200, "Nothing is known of who ran on this key",
			"Config.History").without("<svg height", "Last runs")
	})
}

// A long history is bounded on the page, and counted.
func TestRuns_many(t *testing.T) {
	t.Parallel()
	v := onMini(t, Options{})
	m, end := v.locker.Mutex("many"), time.Now().Add(-time.Minute)
	var runs []history.Run
	for i := range mostBars + 50 {
		at := end.Add(time.Duration(i) * 10 * time.Millisecond)
		runs = append(runs, history.Run{Task: fmt.Sprintf("q/%d", i), Outcome: "done", Came: end.Add(-time.Minute), Start: at,
			End: at.Add(9 * time.Millisecond)})
	}
	v.keep(m.Key(), runs...)
	a := v.get(keyPath(m.Key())).want(200, fmt.Sprintf("and %d more</p>", mostBars-mostShown),
		fmt.Sprintf("for %d more there is no room", mostBars-mostLanes))
	if bars, rows := strings.Count(a.body, `<rect class="run"`),
		strings.Count(a.body, `data-name="Outcome"`); bars != mostBars || rows != mostShown {
		t.Errorf("%d bars, %d rows", bars, rows)
	}
	if strings.Contains(a.body, "q/0 on") || !strings.Contains(a.body, fmt.Sprintf("q/%d on", len(runs)-1)) {
		t.Error("the oldest are shown, and not the newest")
	}
}

// Without a history the page draws what goes on.
func TestRuns_open(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		v := serve(t, s, Options{})
		m := v.locker.Mutex("report", lock.Note("q/holds"))
		lease := v.hold(m)
		v.wait(v.locker.Mutex("report", lock.Note("q/waits")))
		v.get(keyPath(m.Key())).want(200, `class="run open" x=`, "q/holds on worker-1:4242", `class="wait open" x=`,
			"Config.History", `data-name="Outcome">runs</td>`, "called: its turn has come").
			without(`data-name="Outcome">waits</td>`) // the line has it
		redistest.Must(t, lease.Unlock(context.Background()))
		v.find(keyPath(m.Key()), "Nothing is known of who ran on this key").without("q/holds on")
	})
}

// A time of another day says which. A long line takes no place from the runs.
func TestBars(t *testing.T) {
	t.Parallel()
	from := time.Date(2026, 1, 2, 23, 4, 5, 600e6, time.UTC)
	for later, want := range map[time.Duration]string{0: "23:04:05", 20 * time.Hour: "Jan 2 23:04:05",
		72 * time.Hour: "Jan 2 23:04:05"} {
		if got := (&bars{From: from, To: from.Add(later), now: from.Add(later)}).Clock(from); got != want {
			t.Errorf("%s later: %q", later, got)
		}
	}
	now := time.Now()
	runs := []run{{Task: task{Text: "q/ran"}, Outcome: "done", Start: now.Add(-time.Minute), End: now}}
	for range 100 {
		runs = append(runs, run{Task: task{Text: "q/waits"}, Came: now.Add(-time.Minute), End: now, Open: true})
	}
	if b := newBars(runs, now); len(b.Rows) != 1 || b.Rows[0].Ran() != "1m" || b.More != 0 {
		t.Errorf("%+v and %d more, want the run alone", b.Rows, b.More)
	}
}
