package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/inspect"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// A table's columns are in line, what a terminal would obey is shown, and nothing follows the last cell.
func TestTable(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	table := newTable(&out, "KEY", "HOLDER", "LINE")
	table.row("顧客|株式会社", "vm:1", "3")
	table.row("a\tb|\x1b[31m\n", "vm:22", "")
	redistest.Must(t, table.Flush())
	if got, want := out.String(), "KEY                        HOLDER  LINE\n顧客|株式会社                    vm:1    3\n"+`a\u0009b|\u001b[31m\u000a  vm:22   `+"\n"; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// The last column of a lock tells what it waits for, and what operators have ordered.
func TestRows_line(t *testing.T) {
	t.Parallel()
	s := inspect.Lock{Key: "k", Line: 2, Parked: 1, Queued: 1, Next: &inspect.Next{Task: "q/1", Blocked: true}, Controls: []inspect.Control{
		{Paused: true, By: "ann"}, {Limit: 3, By: "bob", Why: "a\nlarger plan"},
	}}
	if got, want := rows(s, time.Now())[0][5], "2 (1 parked) (in order), blocked by q/1, paused by ann, limit 3 by bob (a larger plan)"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// Of a lock with several holders the age of the newest is known alone: it is shown, since another may hang.
func TestFilter_longer(t *testing.T) {
	t.Parallel()
	now := time.Now()
	recent, old := now.Add(-time.Second), now.Add(-time.Hour)
	for what, one := range map[string]struct {
		lock inspect.Lock
		want bool
	}{
		"taken lately":     {inspect.Lock{Held: 1, Since: &recent}, false},
		"taken long ago":   {inspect.Lock{Held: 1, Since: &old}, true},
		"held by nobody":   {inspect.Lock{}, false},
		"held by two":      {inspect.Lock{Held: 2, Since: &recent}, true},
		"held, since when": {inspect.Lock{Held: 1}, false},
	} {
		if got := (filter{longer: time.Minute}).passes(one.lock, now); got != one.want {
			t.Errorf("%s: %v", what, got)
		}
	}
}

// An error becomes one line and the exit code of its kind.
func TestExplain(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  error
		exit int
		text string
	}{
		{nil, exitOK, ""},
		{fmt.Errorf("list: %w", context.Canceled), exitNo, "automutex: interrupted\n"},
		{unreachable("x", context.Canceled), exitNo, "automutex: interrupted\n"},
		{unreachable("x", redistest.ReplyError("LOADING the dataset")), exitRedis, "automutex: Redis at x refuses the connection: LOADING the dataset\n"},
		{fmt.Errorf("automutex: %w", lock.ErrBackend), exitRedis, "automutex: lock: backend error\n"},
		{errors.New("unknown flag"), exitUsage, "automutex: unknown flag\n"},
		{&failure{exit: exitNo, error: errors.New("a\nb"), lines: true}, exitNo, "a\nb\n"},
	} {
		var out strings.Builder
		if exit := explain(&out, c.err); exit != c.exit || out.String() != c.text {
			t.Errorf("%v: %d, %q; want %d, %q", c.err, exit, out.String(), c.exit, c.text)
		}
	}
}
