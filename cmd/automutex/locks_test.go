package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/blocked"
	"github.com/automutex/automutex/internal/doctor"
	"github.com/automutex/automutex/internal/inspect"
	"github.com/automutex/automutex/internal/keys"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

func testList(t *testing.T, b binary) {
	eachReal(t, func(t *testing.T, s *redistest.Server) {
		tr := start(t, s, wait,
			automutex.Rule{Task: "report", Limit: 3},
			automutex.Rule{Task: "cron", Cooldown: time.Hour, Busy: automutex.Skip})
		if r := b.run(t, tr.flags("list")...); r.exit != exitOK || r.stdout != "" || !strings.Contains(r.stderr, "no locks under the prefix") {
			t.Errorf("%d, %q, %q", r.exit, r.stdout, r.stderr)
		}
		tr.enqueue("first", "work", `{"id": "a b"}`)
		tr.holds("first")
		tr.enqueue("second", "work", `{"id": "a b"}`)
		tr.enqueue("third", "work", `{"id": "a b"}`)
		tr.line(2, "work", "a b")
		tr.enqueue("one", "report", `{}`)
		tr.enqueue("two", "report", `{}`)
		tr.holds("one")
		tr.holds("two")
		lease, err := tr.others.Mutex("cron", lock.Note("by hand\x1b[2J")).TryLock(t.Context())
		redistest.Must(t, err)
		redistest.Must(t, lease.Cooldown(t.Context(), time.Hour))

		r := b.run(t, tr.flags("list")...).want(t, exitOK, "KEY", "HOLDER", "TASK", "SINCE", "UNTIL", "LINE")
		if strings.Contains(r.stdout, "\x1b") {
			t.Errorf("control characters in\n%q", r.stdout)
		}
		rows := map[string]string{}
		for row := range strings.Lines(squeeze(r.stdout)) {
			for _, id := range []string{"first", "second", "one", "two", "cooling down"} {
				if strings.Contains(row, id) {
					rows[id] = row
				}
			}
		}
		key := func(scope string, parts ...string) string { return keys.Key(tr.prefix, scope, parts...) }
		for id, want := range map[string][]string{
			"first":        {key("work", "a b") + " worker-1:4242 " + tr.queue + "/first ", " ago in ", " 2\n"},
			"one":          {key("report") + " worker-1:4242 " + tr.queue + "/one - in ", " 0\n"},
			"two":          {key("report") + " worker-1:4242 " + tr.queue + "/two - in ", " 0\n"},
			"cooling down": {key("cron") + " (cooling down) - - in ", " 0\n"},
		} {
			for _, part := range want {
				if !strings.Contains(rows[id], part) {
					t.Errorf("the row of %s is %q, without %q", id, rows[id], part)
				}
			}
		}
		if rows["second"] != "" {
			t.Errorf("a waiter has a row: %s", rows["second"])
		}

		all := lines[inspect.Lock](t, b.run(t, tr.flags("list", "--json")...).want(t, exitOK).stdout)
		i := slices.IndexFunc(all, func(s inspect.Lock) bool { return s.Key == key("work", "a b") })
		if i < 0 || len(all) != 3 {
			t.Fatalf("got %+v", all)
		}
		got := all[i]
		if got.Held != 1 || got.Line != 2 || len(got.Holders) != 1 || got.Holders[0].Queue != tr.queue || got.Holders[0].Task != "first" ||
			got.Holders[0].Token == "" || got.Since == nil || time.Since(*got.Since) > time.Minute || time.Until(got.Holders[0].Until) < 10*time.Second {
			t.Errorf("got %+v", got)
		}
	})
}

// With -w the list comes again and again, until an interrupt, which is how one leaves.
func testListAgain(t *testing.T, b binary) {
	tr := start(t, redistest.Real(t), wait)
	tr.enqueue("first", "work", `{"id": 7}`)
	tr.holds("first")
	cmd := b.command(t, nil, tr.flags("list", "-w=100ms")...)
	out, err := cmd.StdoutPipe()
	redistest.Must(t, err)
	redistest.Must(t, cmd.Start())
	shown := bufio.NewScanner(out)
	for tables := 0; tables < 3 && shown.Scan(); {
		if strings.HasPrefix(shown.Text(), "KEY") {
			tables++
		}
		if strings.Contains(shown.Text(), "\x1b") {
			t.Errorf("not plain: %q", shown.Text())
		}
	}
	redistest.Must(t, cmd.Process.Signal(os.Interrupt))
	_, err = io.Copy(io.Discard, out)
	if err := errors.Join(err, cmd.Wait()); err != nil {
		t.Errorf("after an interrupt: %v", err)
	}
}

func testListFilters(t *testing.T, b binary) {
	tr := start(t, redistest.Real(t), wait)
	tr.enqueue("first", "work", `{"id": "a/1"}`)
	tr.holds("first")
	tr.enqueue("second", "work", `{"id": "a/1"}`)
	tr.line(1, "work", "a/1")
	other, err := tr.others.Mutex("other").TryLock(t.Context())
	redistest.Must(t, err)
	defer func() { _ = other.Unlock(t.Context()) }()
	const work, both, neither = "work|a/1", "work|a/1 other", ""
	for args, want := range map[string]string{
		"--match *":             both,
		"--match *{w*|*}":       work,
		"--match rk|a":          work,
		"--match *rk|a":         neither,
		"--match *{[a-p]?her}":  "other",
		"--holder some":         "other",
		"--holder worker-1":     work,
		"--task /first":         work,
		"--task second":         neither,
		"--waiting":             work,
		"--longer 1ms":          both,
		"--longer 1h":           neither,
		"--waiting --holder so": neither,
	} {
		r := b.run(t, tr.flags(append([]string{"list", "--json"}, strings.Fields(args)...)...)...).want(t, exitOK)
		var got []string
		for _, s := range lines[inspect.Lock](t, r.stdout) {
			got = append(got, strings.TrimSuffix(strings.TrimPrefix(s.Key, tr.prefix+":{"), "}"))
		}
		wanted := strings.Fields(want)
		slices.Sort(got)
		slices.Sort(wanted)
		if !slices.Equal(got, wanted) {
			t.Errorf("%s: got %q, want %q", args, got, wanted)
		}
	}
	if r := b.run(t, tr.flags("list", "--match", "nothing")...); r.exit != exitOK || !strings.Contains(r.stderr, "are held or waited for, as far as") {
		t.Errorf("list of nothing: %q", r.stderr)
	}
	b.run(t, tr.flags("list", "--match", "[a")...).wantError(t, exitUsage, "--match")
	b.run(t, tr.flags("list", "--longer", "-1s")...).wantError(t, exitUsage, "--longer")
}

// Many locks do not block Redis: what the program sends is many
// commands that take little each, and none that walks all keys at once.
func testListMany(t *testing.T, b binary) {
	const many = 20_000
	s := redistest.StartReal(t)
	rdb := s.Client(t)
	const fill = `
for i = ARGV[1], ARGV[2] do
  redis.call('SET', 'automutex:{work|' .. i .. '}', 'channel.' .. i .. '|worker|default/' .. i, 'PX', 3600000)
end`
	for from := 0; from < many; from += 1000 {
		if err := rdb.Eval(t.Context(), fill, nil, from, from+999).Err(); err != nil && err != redis.Nil {
			t.Fatal(err)
		}
	}
	redistest.Must(t, rdb.ConfigResetStat(t.Context()).Err())
	r := b.run(t, append([]string{"list"}, where(s)...)...).want(t, exitOK)
	if rows := strings.Count(r.stdout, "\n"); rows != many+1 {
		t.Errorf("%d rows, want %d and a header", rows, many)
	}
	stats := doctor.ParseInfo(rdb.Info(t.Context(), "commandstats").Val())
	for command, most := range map[string]float64{"scan": 10_000, "evalsha": 1000, "get": 1000, "keys": 0} { // us
		var calls int
		var us, each float64
		_, _ = fmt.Sscanf(stats["cmdstat_"+command], "calls=%d,usec=%f,usec_per_call=%f", &calls, &us, &each)
		if each > most || most > 0 && calls < many/1000 {
			t.Errorf("%s: %d calls of %.1f us each, want at most %.0f", command, calls, each, most)
		}
	}
}

func testShow(t *testing.T, b binary) {
	tr := start(t, redistest.Real(t), wait)
	tr.enqueue("first", "work", `{"id": 7}`)
	tr.holds("first")
	for i, id := range []string{"second", "third"} {
		tr.enqueue(id, "work", `{"id": 7}`)
		tr.line(i+1, "work", "7")
	}
	key := keys.Key(tr.prefix, "work", "7")
	for _, arg := range []string{key, "work|7"} {
		r := b.run(t, tr.flags("show", arg)...).want(t, exitOK, key+"\n", "held by 1, waited for by 2, last taken ", "TOKEN")
		for _, row := range []string{
			"worker-1:4242 " + tr.queue + "/first work, active in ",
			"1 worker-1:4242 " + tr.queue + "/second work, active ",
			"2 worker-1:4242 " + tr.queue + "/third work, active ",
		} {
			if !strings.Contains(squeeze(r.stdout), row) {
				t.Errorf("no row %q in\n%s", row, r.stdout)
			}
		}
	}
	got := lines[inspect.Lock](t, b.run(t, tr.flags("show", key, "--json")...).want(t, exitOK).stdout)[0]
	if got.Held != 1 || got.Line != 2 || len(got.Waiters) != 2 || got.Waiters[1].Task != "third" || got.Since == nil {
		t.Errorf("got %+v", got)
	}

	// What is no task, or is one no more.
	plain, err := tr.others.Mutex("plain", lock.Note("default/gone")).TryLock(t.Context())
	redistest.Must(t, err)
	t.Cleanup(func() { _ = plain.Unlock(t.Context()) })
	b.run(t, tr.flags("show", "plain")...).want(t, exitOK, "not in asynq", plain.Token())

	// What is parked has its place in line, and no worker.
	now := make(chan struct{})
	close(now)
	parked := tr.others.Mutex("plain", lock.Note(tr.queue+"/away"))
	if _, err := inner.LockOrPark(t.Context(), parked, now); !errors.Is(err, lock.ErrBusy) {
		t.Fatal(err)
	}
	r := b.run(t, tr.flags("show", "plain")...).want(t, exitOK, "waited for by 0, 1 parked")
	if row := "1 (parked) " + tr.queue + "/away not in asynq "; !strings.Contains(squeeze(r.stdout), row) {
		t.Errorf("no row %q in\n%s", row, r.stdout)
	}
	b.run(t, tr.flags("list")...).want(t, exitOK, "1 (1 parked)")
	got = lines[inspect.Lock](t, b.run(t, tr.flags("show", "plain", "--json")...).want(t, exitOK).stdout)[0]
	if got.Line != 1 || got.Parked != 1 || len(got.Waiters) != 1 || got.Waiters[0].State != "parked" {
		t.Errorf("got %+v", got)
	}
	b.run(t, tr.flags("show", "work|8")...).wantError(t, exitNo, "nobody holds or waits for")
}

// testShowMany: of a long line show has the first hundred places, and says how many follow.
func testShowMany(t *testing.T, b binary) {
	tr := start(t, redistest.Real(t))
	lease, err := tr.others.Mutex("hot").TryLock(t.Context())
	redistest.Must(t, err)
	t.Cleanup(func() { _ = lease.Unlock(t.Context()) })
	now := make(chan struct{})
	close(now)
	for i := range 103 {
		parked := tr.others.Mutex("hot", lock.Note(fmt.Sprint("task ", i+1)))
		if _, err := inner.LockOrPark(t.Context(), parked, now); !errors.Is(err, lock.ErrBusy) {
			t.Fatal(err)
		}
	}
	r := b.run(t, tr.flags("show", "hot")...).want(t, exitOK, "103 parked")
	if !strings.HasSuffix(r.stdout, "\nand 3 more\n") || strings.Contains(r.stdout, "task 101") || !strings.Contains(squeeze(r.stdout), "\n100 (parked) task 100 ") {
		t.Errorf("of 103 places:\n%s", r.stdout)
	}
	got := lines[inspect.Lock](t, b.run(t, tr.flags("show", "hot", "--json")...).want(t, exitOK).stdout)[0]
	if got.Line != 103 || len(got.Waiters) != 100 {
		t.Errorf("a line of %d, %d of them shown", got.Line, len(got.Waiters))
	}
}

func testSweep(t *testing.T, b binary) {
	s := redistest.Real(t)
	tr := start(t, s, wait)
	tr.enqueue("lives", "work", `{"id": 1}`)
	tr.holds("lives")
	for i := range 3 { // three whose holder died an hour ago, as their waiters did
		key, until := keys.Key(tr.prefix, fmt.Sprint("dead", i)), time.Now().Add(time.Hour).UnixMilli()
		redistest.Must(t, s.Client(t).Set(t.Context(), key, fmt.Sprintf("+1 %d", until), time.Hour).Err())
		dead := redis.Z{Score: float64(time.Now().Add(-time.Hour).UnixMilli()), Member: "x.1|dead|"}
		redistest.Must(t, s.Client(t).ZAdd(t.Context(), key+":holders", dead).Err())
	}
	for _, want := range []string{"removed: 3\n", "removed: 0\n"} {
		if got := b.run(t, tr.flags("sweep")...).want(t, exitOK).stdout; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	if tr.context("lives").Err() != nil {
		t.Error("a live holder was swept")
	}
}

// An archived task holds its key; blocked lists it, and skip goes on with the next one.
func testBlocked(t *testing.T, b binary) {
	s := redistest.StartReal(t)
	rdb := s.Client(t)
	cfg := automutex.Config{Rules: []automutex.Rule{{Task: "pay", On: []string{"order"}, InOrder: true}}, Logger: slog.New(slog.DiscardHandler)}
	guard, err := automutex.New(rdb, cfg)
	redistest.Must(t, err)
	done := make(chan string, 1)
	server := asynq.NewServerFromRedisClient(rdb, guard.ServerConfig(asynq.Config{
		Concurrency: 2, TaskCheckInterval: redistest.CheckEvery, DelayedTaskCheckInterval: 100 * time.Millisecond, LogLevel: asynq.FatalLevel,
	}))
	err = server.Start(guard.Middleware(asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
		if id, _ := asynq.GetTaskID(ctx); id == "first" {
			return errors.New("card refused")
		}
		done <- "second"
		return nil
	})))
	redistest.Must(t, err)
	t.Cleanup(func() { _ = guard.Close(context.Background()); server.Shutdown() })
	uri := []string{"--uri", "redis://" + s.Addr()}
	if r := b.run(t, append(uri, "blocked")...); r.exit != exitOK || !strings.Contains(r.stderr, "no ordered key") {
		t.Errorf("%+v", r)
	}
	client, err := automutex.NewClient(rdb, asynq.NewClientFromRedisClient(rdb), cfg)
	redistest.Must(t, err)
	for _, id := range []string{"first", "second"} {
		if _, err := client.Enqueue(asynq.NewTask("pay", []byte(`{"order":7}`)), asynq.TaskID(id), asynq.MaxRetry(0)); err != nil {
			t.Fatal(err)
		}
	}
	redistest.Eventually(t, patience, func() bool {
		blocked, err := guard.Blocked(t.Context())
		return err == nil && len(blocked) == 1
	}, "the key is blocked")
	b.run(t, append(uri, "blocked")...).want(t, exitOK, "KEY", "automutex:{pay|7}", "default/first", "archived", "card refused")
	b.run(t, append(uri, "list")...).want(t, exitOK, "automutex:{pay|7}", "2 (in order), blocked by default/first")
	b.run(t, append(uri, "show", "pay|7")...).want(t, exitOK, "2 in order", "behind default/first, which is archived; run it again or skip it to go on: card refused", "default/second")
	b.run(t, append(uri, "doctor")...).want(t, exitNo, "order", "1 task of key automutex:{pay|7} behind default/first, which is archived")
	var key blocked.Key
	r := b.run(t, append(uri, "blocked", "--json")...).want(t, exitOK)
	if err := json.Unmarshal([]byte(r.stdout), &key); err != nil || key.Task != "default/first" || key.Behind != 1 || time.Since(key.Since) > time.Minute {
		t.Errorf("%+v, %v", key, err)
	}
	b.run(t, append(uri, "skip", "pay|7", "default/second")...).wantError(t, exitNo, "is not the next one")
	b.run(t, append(uri, "skip", "pay|8", "default/first")...).wantError(t, exitNo, "no task of key")
	b.run(t, append(uri, "skip", "pay|7")...).wantError(t, exitUsage, "KEY and TASK")
	b.run(t, append(uri, "skip", "pay|7", "default/first")...).want(t, exitOK, "skipped: default/first of automutex:{pay|7}")
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatal("the second task does not run")
	}
}

// lost waits until a task's handler was told that its lease is lost.
func (tr *traffic) lost(id string) {
	tr.t.Helper()
	redistest.Eventually(tr.t, patience, func() bool {
		ctx := tr.context(id)
		return ctx != nil && errors.Is(context.Cause(ctx), lock.ErrLost)
	}, "the handler of %s is told", id)
}

func testBreak(t *testing.T, b binary) {
	eachReal(t, func(t *testing.T, s *redistest.Server) {
		tr := start(t, s, wait, automutex.Rule{Task: "report", Limit: 3})
		tr.enqueue("first", "work", `{"id": 7}`)
		tr.holds("first")
		tr.enqueue("second", "work", `{"id": 7}`)
		tr.line(1, "work", "7")
		tr.enqueue("other", "work", `{"id": 8}`)
		tr.holds("other")
		r := b.runWith(t, "y\n", nil, tr.flags("break", keys.Key(tr.prefix, "work", "7"))...)
		if r.exit != exitOK || !strings.Contains(r.stderr, "Take the lock from 1 holder? [y/N]") || !strings.Contains(r.stdout, tr.queue+"/first") ||
			!strings.HasSuffix(r.stdout, "broken: 1 of 1\n") {
			t.Errorf("%d\n%s\n%s", r.exit, r.stdout, r.stderr)
		}
		tr.lost("first")
		tr.holds("second")
		// Only that one.
		if ctx := tr.context("other"); ctx.Err() != nil {
			t.Error("another lock's holder was told")
		}
		for _, id := range []string{"a", "b"} {
			tr.enqueue(id, "report", `{}`)
			tr.holds(id)
		}
		b.run(t, tr.flags("break", "report", "--yes")...).want(t, exitOK, "broken: 2 of 2")
		tr.lost("a")
		tr.lost("b")
	})
}

// testBreakAsks: without a yes nothing is done.
func testBreakAsks(t *testing.T, b binary) {
	tr := start(t, redistest.Real(t), wait, automutex.Rule{Task: "report", Limit: 3})
	tr.enqueue("first", "work", `{"id": 7}`)
	tr.holds("first")
	for _, id := range []string{"a", "b"} { // the question counts
		tr.enqueue(id, "report", `{}`)
		tr.holds(id)
	}
	for _, c := range []struct{ key, answer, question string }{
		{"work|7", "", "1 holder"}, {"work|7", "\n", "1 holder"}, {"work|7", "yess\n", "1 holder"}, {"work|7", "\x00\xff\n", "1 holder"}, {"report", "n\n", "2 holders"},
	} {
		r := b.runWith(t, c.answer, nil, tr.flags("break", c.key)...)
		r.wantErrorLine(t, exitNo, "nothing was done")
		if !strings.Contains(r.stderr, "Take the lock from "+c.question+"? [y/N] ") {
			t.Errorf("%.20q: the question is %q", c.answer, r.stderr)
		}
	}
	q := asked(t, b, tr.flags("break", "work|7")...)
	redistest.Must(t, q.cmd.Process.Signal(os.Interrupt))
	q.ends().wantErrorLine(t, exitNo, "interrupted; nothing was done")
	if r := b.run(t, tr.flags("show", "work|7")...); r.exit != exitOK || tr.context("first").Err() != nil {
		t.Errorf("the lock was broken without a yes: %s%s", r.stdout, r.stderr)
	}
}

// question is a break that waits for its answer.
type question struct {
	cmd            *exec.Cmd
	stdin          io.WriteCloser
	stdout, stderr *strings.Builder
	seen           chan struct{} // closed when the question was asked
}

// asked runs the program until it asks.
func asked(t *testing.T, b binary, args ...string) *question {
	t.Helper()
	q := &question{cmd: b.command(t, nil, args...), stdout: &strings.Builder{}, stderr: &strings.Builder{}, seen: make(chan struct{})}
	var err error
	q.stdin, err = q.cmd.StdinPipe()
	redistest.Must(t, err)
	q.cmd.Stdout, q.cmd.Stderr = q.stdout, q
	redistest.Must(t, q.cmd.Start())
	select {
	case <-q.seen:
	case <-time.After(patience):
		t.Fatal("no question")
	}
	return q
}

// Write is called by one goroutine of exec's, one call after the other.
func (q *question) Write(p []byte) (int, error) {
	before := strings.Contains(q.stderr.String(), "[y/N]")
	n, err := q.stderr.Write(p)
	if !before && strings.Contains(q.stderr.String(), "[y/N]") {
		close(q.seen)
	}
	return n, err
}

func (q *question) answer(t *testing.T, text string) *question {
	t.Helper()
	_, err := io.WriteString(q.stdin, text)
	redistest.Must(t, err)
	return q
}

func (q *question) ends() result {
	_ = q.cmd.Wait() // the exit code says it
	_ = q.stdin.Close()
	return result{args: q.cmd.Args, exit: q.cmd.ProcessState.ExitCode(), stdout: q.stdout.String(), stderr: q.stderr.String()}
}

func testBreakHolder(t *testing.T, b binary) {
	tr := start(t, redistest.Real(t), automutex.Rule{Task: "report", Limit: 3})
	for _, id := range []string{"a", "b"} {
		tr.enqueue(id, "report", `{}`)
		tr.holds(id)
	}
	all := lines[inspect.Lock](t, b.run(t, tr.flags("list", "--json")...).want(t, exitOK).stdout)
	token := ""
	for _, h := range all[0].Holders {
		if h.Task == "b" {
			token = h.Token
		}
	}
	b.run(t, tr.flags("break", "report", "--holder", "nobody.3000.1", "--yes")...).wantError(t, exitNo, `nobody with the token "nobody.3000.1"`)
	b.run(t, tr.flags("break", "report", "--holder", "", "--yes")...).wantError(t, exitUsage, "--holder")
	r := b.run(t, tr.flags("break", "report", "--holder", token, "-y")...).want(t, exitOK, "broken: 1 of 1")
	if strings.Contains(r.stdout, tr.queue+"/a") {
		t.Errorf("shows another holder:\n%s", r.stdout)
	}
	tr.lost("b")
	if tr.context("a").Err() != nil {
		t.Error("the other holder was told")
	}
	b.run(t, tr.flags("break", "work|none", "--yes")...).wantError(t, exitNo, "nobody holds")
}

// testBreakHangs: a Redis that falls silent after the question is an error, and no success.
func testBreakHangs(t *testing.T, b binary) {
	tr := start(t, redistest.Real(t), wait)
	tr.enqueue("first", "work", `{"id": 7}`)
	tr.holds("first")
	proxy := redistest.NewProxy(t, tr.server.Addr())
	q := asked(t, b, "break", "work|7", "--prefix", tr.prefix, "--uri", proxy.Addr(), "--timeout", "1s")
	proxy.Blackhole(true)
	q.answer(t, "y\n").ends().wantErrorLine(t, exitRedis, "0 of 1 broken")
	if tr.context("first").Err() != nil {
		t.Error("broken all the same")
	}
}

// testBreakLate: what has ended by itself before the yes is said to be over.
func testBreakLate(t *testing.T, b binary) {
	tr := start(t, redistest.Real(t), wait)
	held, err := tr.others.Mutex("held").TryLock(t.Context())
	redistest.Must(t, err)
	closes, err := tr.others.Mutex("closed").TryLock(t.Context())
	redistest.Must(t, errors.Join(err, inner.CloseGate(t.Context(), closes, time.Hour), closes.Unlock(t.Context())))
	for name, end := range map[string]func() error{
		"held":   func() error { return held.Unlock(t.Context()) },
		"closed": func() error { _, err := inner.OpenGate(t.Context(), tr.others.Mutex("closed")); return err },
	} {
		q := asked(t, b, tr.flags("break", name)...)
		redistest.Must(t, end())
		q.answer(t, "y\n").ends().wantErrorLine(t, exitNo, "is over; nothing was done")
	}
}

// testBreakGate: break ends a hold or a cooldown, whether or not somebody holds the lock, and show tells of one that
// nobody holds. A rate is left alone, and so is a hold where one holder is named.
func testBreakGate(t *testing.T, b binary) {
	tr := start(t, redistest.Real(t), wait)
	take := func(name string, options ...lock.Option) *lock.Lease {
		t.Helper()
		lease, err := tr.others.Semaphore(name, 2, options...).TryLock(t.Context())
		redistest.Must(t, err)
		return lease
	}
	closed := func(name string, want bool) {
		t.Helper()
		info, err := inner.Inspect(t.Context(), tr.others.Mutex(name))
		if err != nil || info.Gate.OpensIn > 0 != want {
			t.Errorf("the gate of %s: %+v, %v; want closed: %v", name, info.Gate, err, want)
		}
	}
	held := take("free")
	redistest.Must(t, errors.Join(inner.CloseGate(t.Context(), held, time.Hour), held.Unlock(t.Context())))
	b.run(t, tr.flags("list")...).want(t, exitOK, keys.Key(tr.prefix, "free"), "(closed)")
	b.run(t, tr.flags("show", "free")...).want(t, exitOK, "held by 0", "nobody starts for", "closed")
	b.run(t, tr.flags("show", "free", "--json")...).want(t, exitOK, `"closed":"closed"`)
	r := b.runWith(t, "y\n", nil, tr.flags("break", "free")...)
	if r.exit != exitOK || !strings.Contains(r.stderr, "End the closed gate? [y/N]") || !strings.HasSuffix(r.stdout, "\nended: the closed gate\n") {
		t.Errorf("%d\n%s\n%s", r.exit, r.stdout, r.stderr)
	}
	closed("free", false)
	b.run(t, tr.flags("break", "free", "--yes")...).wantError(t, exitNo, "nobody holds")
	b.run(t, tr.flags("show", "free")...).wantError(t, exitNo, "nobody holds or waits for")

	stays, cools := take("both"), take("both")
	redistest.Must(t, cools.Cooldown(t.Context(), time.Hour))
	r = b.runWith(t, "y\n", nil, tr.flags("break", "both")...)
	if r.exit != exitOK || !strings.HasSuffix(r.stdout, "\nbroken: 1 of 1\nended: the cooldown\n") || !strings.Contains(r.stderr, "Take the lock from 1 holder, and end the cooldown? [y/N]") {
		t.Errorf("%d\n%s\n%s", r.exit, r.stdout, r.stderr)
	}
	closed("both", false)
	if err := stays.Extend(t.Context(), time.Minute); !errors.Is(err, lock.ErrNotHeld) {
		t.Errorf("Extend of the broken lease: %v", err)
	}

	one := take("one")
	redistest.Must(t, inner.CloseGate(t.Context(), one, time.Hour))
	b.run(t, tr.flags("break", "one", "--yes", "--holder", one.Token())...).want(t, exitOK, "broken: 1 of 1")
	closed("one", true)

	redistest.Must(t, take("rated", lock.Rate(1, 2*time.Hour, 1)).Unlock(t.Context()))
	b.run(t, tr.flags("break", "rated", "--yes")...).wantError(t, exitNo, "its rate is used up, which break leaves as it is")
	closed("rated", true)
}

// A pause by the command keeps tasks from beginning, is shown by every command, and ends.
func testPause(t *testing.T, b binary) {
	eachReal(t, func(t *testing.T, s *redistest.Server) {
		tr := start(t, s, wait, automutex.Rule{Task: "report", On: []string{"id"}, Busy: automutex.Park})
		tr.enqueue("first", "work", `{"id": 7}`)
		tr.holds("first")
		b.run(t, tr.flags("pause", "work", "--why", "its data\nis repaired")...).want(t, exitOK, "work is paused until somebody resumes it; every process with the prefix "+tr.prefix+" obeys")
		b.run(t, tr.flags("pause", "report|7", "--for", "1h")...).want(t, exitOK, "report|7 is paused for 1h, until ")
		b.run(t, tr.flags("controls")...).want(t, exitOK, "TARGET", "work", "paused until somebody resumes it", "report|7", "paused for ", "@", "its data", " ago")
		b.run(t, tr.flags("controls", "--json")...).want(t, exitOK, `"target":"work"`, `"paused":true`, `"why":"its data\nis repaired"`, `"paused_until":"`)
		b.run(t, tr.flags("list")...).want(t, exitOK, "0, paused by ", "@", "(its data is repaired)")
		b.run(t, tr.flags("show", "work|7")...).want(t, exitOK, "work: paused until somebody resumes it; ordered by ", "its data is repaired", "first")
		b.run(t, tr.flags("show", "work|nobody")...).want(t, exitOK, "held by 0", "work: paused until somebody resumes it")
		b.run(t, tr.flags("doctor")...).want(t, exitOK, "note", "paused", "work is paused until somebody resumes it")

		if r := b.run(t, tr.flags("resume", "work|7")...); r.exit != exitNo || !strings.Contains(r.stderr, "work|7 is not paused; its scope work is") {
			t.Errorf("resume of a key whose scope is paused: %d, %q", r.exit, r.stderr)
		}
		b.run(t, tr.flags("resume", "work")...).want(t, exitOK, "work is resumed")
		b.run(t, tr.flags("resume", "report|7")...).want(t, exitOK, "report|7 is resumed")
		b.run(t, tr.flags("resume", "work")...).want(t, exitNo)
		if r := b.run(t, tr.flags("controls")...); r.exit != exitOK || !strings.Contains(r.stderr, "no controls") {
			t.Errorf("%d, %q", r.exit, r.stderr)
		}
	})
}

func testLimit(t *testing.T, b binary) {
	tr := start(t, redistest.Real(t), wait)
	b.run(t, tr.flags("limit", "work|7", "2", "--why", "a larger plan")...).want(t, exitOK, "work|7 is limited to 2")
	b.run(t, tr.flags("controls")...).want(t, exitOK, "limit 2", "a larger plan")
	tr.enqueue("first", "work", `{"id": 7}`)
	tr.enqueue("second", "work", `{"id": 7}`)
	tr.holds("first")
	tr.holds("second")
	b.run(t, tr.flags("show", "work|7")...).want(t, exitOK, "work|7: limit 2; ordered by ", "first", "second")
	b.run(t, tr.flags("limit", "work|7", "--clear")...).want(t, exitOK, "work|7 has the limit of its program (prefix "+tr.prefix+")")
	b.run(t, tr.flags("limit", "work|7", "--clear")...).wantError(t, exitNo, "work|7 has no limit")
}

// testTargets: an order by the command reaches the type that was typed, and no other, though the one looks as a key writes
// the other.
func testTargets(t *testing.T, b binary) {
	types := []string{"a%20b", "a b", "a%7Cb", "a|b", "100%"}
	rules := make([]automutex.Rule, len(types))
	for i, taskType := range types {
		rules[i] = automutex.Rule{Name: fmt.Sprint(i), Task: taskType, On: []string{"id"}}
	}
	s := redistest.Real(t)
	tr := start(t, s, rules...)
	say(t, s, tr.prefix, "a:1", false, rules...)
	for _, typed := range types {
		b.run(t, tr.flags("pause", typed)...).want(t, exitOK, typed+" (", ") is paused")
		list, err := tr.others.Controls().List(t.Context())
		redistest.Must(t, err)
		for _, taskType := range types {
			if _, _, pause := inner.ControlsFor(list, keys.Key(tr.prefix, taskType, "1")); (pause != nil) != (taskType == typed) {
				t.Errorf("pause %s: %s is paused: %+v", typed, taskType, pause)
			}
		}
		b.run(t, tr.flags("resume", typed)...).want(t, exitOK, typed+" is resumed")
	}
}

// testPauseAndLimit: a pause and a limit of one target are shown with who ordered each, and why.
func testPauseAndLimit(t *testing.T, b binary) {
	s := redistest.Real(t)
	tr := start(t, s, wait)
	as := func(name string, args ...string) {
		t.Helper()
		b.runWith(t, "", []string{"SUDO_USER=" + name}, tr.flags(args...)...).want(t, exitOK)
	}
	as("ann", "pause", "work", "--why", "repair")
	as("bob", "limit", "work", "2", "--why", "a larger plan")
	if r := b.run(t, tr.flags("controls")...).want(t, exitOK); !strings.Contains(squeeze(r.stdout), "work paused until somebody resumes it ann@") || !strings.Contains(squeeze(r.stdout), "work limit 2 bob@") {
		t.Errorf("no line for each order:\n%s", r.stdout)
	}
	all := lines[inspect.Control](t, b.run(t, tr.flags("controls", "--json")...).want(t, exitOK).stdout)
	if len(all) != 2 || !all[0].Paused || all[0].Limit != 0 || all[0].Why != "repair" || all[1].Paused || all[1].Limit != 2 || all[1].Why != "a larger plan" {
		t.Errorf("--json: %+v", all)
	}
	b.run(t, tr.flags("show", "work|7")...).want(t, exitOK, "work: paused until somebody resumes it; ordered by ann@", "work: limit 2; ordered by bob@", ": repair\n", ": a larger plan\n")
	b.run(t, tr.flags("doctor")...).want(t, exitOK, "work is paused until somebody resumes it, ordered by ann@", "(repair); limited to 2, ordered by bob@")
}

// testControlsUnreadable: what is no hash of controls is told with the key and what to do.
func testControlsUnreadable(t *testing.T, b binary) {
	s := redistest.Real(t)
	tr := start(t, s, wait)
	key := tr.prefix + ":{control}"
	redistest.Must(t, s.Client(t).Set(t.Context(), key, "x", time.Hour).Err())
	for _, args := range [][]string{{"controls"}, {"pause", "work"}, {"resume", "work"}, {"limit", "work", "2"}, {"limit", "work", "--clear"}} {
		r := b.run(t, tr.flags(args...)...)
		r.wantError(t, exitRedis, "something else than controls is stored under \""+key+"\"")
		r.wantError(t, exitRedis, "remove it with DEL")
	}
	b.run(t, tr.flags("doctor")...).want(t, exitNo, "bad", "paused", "cannot be read", "something else than controls is stored under", "remove it with DEL")
	if r := b.run(t, tr.flags("list")...); r.exit != exitOK {
		t.Errorf("list: %d, %q", r.exit, r.stderr)
	}
	redistest.Must(t, s.Client(t).Del(t.Context(), key).Err())
	redistest.Must(t, s.Client(t).HSet(t.Context(), key, "work", "garbage").Err())
	if r := b.run(t, tr.flags("controls")...); r.exit != exitOK || !strings.Contains(r.stderr, "the entry of work is not in force: it is no entry of automutex; resume removes it") {
		t.Errorf("%d, %q", r.exit, r.stderr)
	}
	b.run(t, tr.flags("resume", "work")...).want(t, exitOK, "removed")
	// A time that JSON reads and does not write.
	redistest.Must(t, s.Client(t).HSet(t.Context(), key, "work", `{"v":1,"pause":{"by":"x","since":"2026-01-01T00:00:00Z","until":"9999-12-31T23:59:59-14:00"}}`).Err())
	if r := b.run(t, tr.flags("controls", "--json")...); r.exit != exitOK || !strings.Contains(r.stderr, "the entry of work is not in force") {
		t.Errorf("%d, %q", r.exit, r.stderr)
	}
	b.run(t, tr.flags("limit", "work", "2")...).want(t, exitOK, "work is limited to 2")
}

func testControlMistakes(t *testing.T, b binary) {
	s := redistest.Real(t)
	tr := start(t, s, wait)
	for _, test := range []struct {
		args []string
		says string
	}{
		{[]string{"pause"}, "TARGET is missing"},
		{[]string{"pause", "work", "--for", "-5m"}, "must be positive"},
		{[]string{"pause", "work", "--for", "1ns"}, "at least 100ms"},
		{[]string{"limit", "work", "-1"}, "limit: N is -1: want a whole number, at least 1"},
		{[]string{"pause", "|7"}, "a target is a scope"},
		{[]string{"pause", tr.prefix + ":{work"}, "a target is a scope"},
		{[]string{"limit", "work"}, "is missing"},
		{[]string{"limit", "work", "many"}, "whole number"},
		{[]string{"limit", "work", "0"}, "limit of 0"},
		{[]string{"limit", "work", "3", "--clear"}, "unexpected argument"},
		{[]string{"resume"}, "TARGET is missing"},
	} {
		if r := b.run(t, tr.flags(test.args...)...); r.exit != exitUsage || !strings.Contains(r.stderr, test.says) {
			t.Errorf("%v: %d, %q; want it to say %q", test.args, r.exit, r.stderr, test.says)
		}
	}
	// With the rules, a scope that none of them has is said.
	file := file(t, "prefix: "+tr.prefix+"\nrules:\n  - task: work\n    on: [id]\n")
	b.run(t, tr.flags("pause", "elsewhere", "--rules", file)...).wantError(t, exitNo, "No rule has the scope of elsewhere; nor is there such a lock now; --force")
	b.run(t, tr.flags("pause", "wirk|1", "--rules", file)...).wantError(t, exitNo, "did you mean work|1?")
	b.run(t, tr.flags("pause", "elsewhere", "--force", "--rules", file)...).want(t, exitOK, "elsewhere is paused")
	own := append(where(s), "--rules", file) // the prefix is the file's
	b.run(t, append(own, "pause", "work|1")...).want(t, exitOK, "work|1 is paused", "with the prefix "+tr.prefix)
	b.run(t, append(own, "controls")...).want(t, exitOK, "work|1", "elsewhere")
	b.run(t, append(own, "resume", "work|1")...).want(t, exitOK, "work|1 is resumed")
	b.run(t, append(own, "limit", "work", "3")...).want(t, exitOK, "work is limited to 3")
	b.run(t, append(own, "limit", "work", "--clear")...).want(t, exitOK, "work has the limit of its program")
	for _, args := range [][]string{{"pause", "work"}, {"controls"}} {
		b.run(t, tr.flags(append(args, "--rules", file+".old")...)...).wantError(t, exitNo, "no such file")
	}

	// What a newer version wrote is told, and removed by resume.
	redistest.Must(t, s.Client(t).HSet(t.Context(), tr.prefix+":{control}", "odd", `{"v":9}`).Err())
	if r := b.run(t, tr.flags("controls")...); r.exit != exitOK || !strings.Contains(r.stderr, "the entry of odd is not in force: it was written by a newer version") {
		t.Errorf("%d, %q", r.exit, r.stderr)
	}
	b.run(t, tr.flags("resume", "odd")...).want(t, exitOK, "removed: the entry of odd, which was not in force")
	b.run(t, tr.flags("resume", "odd")...).wantError(t, exitNo, "odd is not paused")
	b.run(t, tr.flags("doctor")...).want(t, exitOK)
	redistest.Must(t, s.Client(t).HSet(t.Context(), tr.prefix+":{control}", "a{b", "junk").Err())
	b.run(t, tr.flags("resume", "a{b")...).want(t, exitOK, "removed: the entry of a{b, which was not in force")
}

// testRefusedCommands: a right that the user in Redis lacks ends a command with Redis' reason.
func testRefusedCommands(t *testing.T, b binary) {
	s := redistest.StartReal(t)
	tr := start(t, s, wait, automutex.Rule{Task: "report", On: []string{"id"}})
	tr.enqueue("first", "work", `{"id": 7}`)
	tr.holds("first")
	closes, err := tr.others.Mutex("closed").TryLock(t.Context())
	redistest.Must(t, errors.Join(err, inner.CloseGate(t.Context(), closes, time.Hour), closes.Unlock(t.Context())))
	rules := file(t, "prefix: "+tr.prefix+"\nrules: [{task: work, on: [id]}]")
	for _, c := range []struct {
		rights string
		args   []string
		says   string
	}{
		{"-time", []string{"blocked"}, ""},
		{"-time", []string{"controls"}, ""},
		{"-time", []string{"list"}, ""},
		{"-scan", []string{"blocked"}, ""},
		{"-scan", []string{"list"}, ""},
		{"-scan", []string{"pause", "nobody", "--rules", rules}, ""},
		{"-@scripting", []string{"skip", "work|7", "default/first"}, ""},
		{"-hdel", []string{"break", "closed", "--yes"}, "0 of 0 broken, and the closed gate not ended: "},
	} {
		redistest.Must(t, s.Client(t).Do(t.Context(), "ACL", "SETUSER", "limited", "reset", "on", ">secret", "~*", "&*", "+@all", c.rights).Err())
		r := b.run(t, tr.flags(append(c.args, "--username", "limited", "--password", "secret")...)...)
		r.wantErrorLine(t, exitRedis, c.says)
		if !strings.Contains(r.stderr, "NOPERM") && !strings.Contains(r.stderr, "the user has no right to it") {
			t.Errorf("%q without %s: %s", c.args, c.rights, r.stderr)
		}
	}
	b.run(t, tr.flags("show", "closed")...).want(t, exitOK, "nobody starts for")
}

// testFullDisk: what cannot be written is one line, and neither a success nor wrong use.
func testFullDisk(t *testing.T, b binary) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip("there is no /dev/full")
	}
	t.Cleanup(func() { _ = full.Close() })
	s := redistest.Real(t)
	tr := start(t, s, wait)
	tr.enqueue("first", "work", `{"id": 7}`)
	tr.holds("first")
	tr.enqueue("second", "work", `{"id": 7}`)
	tr.line(1, "work", "7")
	b.run(t, tr.flags("pause", "other", "--force")...).want(t, exitOK)
	rules := file(t, "rules: [{task: work, on: [id]}]\nunique: [{task: work, on: [id]}]")
	key := []string{"key", rules, "--type", "work", "--payload", `{"id": 7}`}
	for _, args := range [][]string{
		{"schema"}, {"check", rules}, {"check", file(t, "unique: [{task: work, on: [id]}]")}, key, append(key, "--json"),
		tr.flags("list"), tr.flags("list", "--json"), tr.flags("show", "work|7"), tr.flags("break", "work|7", "--yes"),
		tr.flags("controls"), tr.flags("controls", "--json"),
	} {
		cmd := b.command(t, nil, args...)
		var stderr strings.Builder
		cmd.Stdout, cmd.Stderr = full, &stderr
		_ = cmd.Run() // the exit code says it
		if exit := cmd.ProcessState.ExitCode(); exit != exitNo || !strings.HasSuffix(stderr.String(), "no space left on device\n") || strings.Count(stderr.String(), "\n") != 1 {
			t.Errorf("%q: exit code %d, %s", args, exit, stderr.String())
		}
	}
	if err := tr.context("first").Err(); err != nil {
		t.Errorf("a lock that could not be shown was broken: %v", err)
	}
}
