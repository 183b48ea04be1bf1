package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
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
