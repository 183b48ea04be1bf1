package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/clipperhouse/displaywidth"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/inspect"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// Cells are as wide as a terminal shows them.
func TestTable_alignsWideCharacters(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	table := newTable(&out, "KEY", "HOLDER", "LINE")
	table.row("顧客|株式会社", "vm:1", "3")
	table.row("e\u0301tat|1", "vm:1", "")
	table.row("plain|\x1b[31m", "vm:22")
	if err := table.flush(); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	if len(lines) != 4 {
		t.Fatalf("got %q", out.String())
	}
	for _, line := range lines[1:] {
		before, _, _ := strings.Cut(line, "vm:")
		if got, want := displaywidth.String(before), strings.Index(lines[0], "HOLDER"); got != want {
			t.Errorf("the second column of %q begins at %d, want %d", line, got, want)
		}
	}
	if !strings.HasSuffix(lines[3], "vm:22") || strings.Contains(out.String(), "\x1b") {
		t.Errorf("got %q", lines[3])
	}
}

// The last column of a lock tells what operators have ordered; the watched list, where it is not the last one, a pause alone.
func TestRows_orders(t *testing.T) {
	t.Parallel()
	s := inspect.Lock{Key: "k", Line: 2, Parked: 1, Queued: 1, Paused: true, Next: &inspect.Next{Task: "q/1", Blocked: true}, Controls: []inspect.Control{
		{Paused: true, By: "ann"}, {Limit: 3, By: "bob", Why: "a\nlarger plan"},
	}}
	for _, c := range [][2]string{
		{ordersInFull(s), ", paused by ann, limit 3 by bob (a larger plan)"}, {ordersInShort(s), ", paused"}, {ordersInShort(inspect.Lock{}), ""},
	} {
		orders, want := c[0], c[1]
		if got := rows(s, time.Now(), func(inspect.Lock) string { return orders })[0]; orders != want || got[5] != "2 (1 parked) (in order), blocked by q/1"+want {
			t.Errorf("%q, want %q, in %q", orders, want, got)
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
		{backend(context.Canceled), exitRedis, "automutex: context canceled\n"},
		{fmt.Errorf("automutex: %w", lock.ErrBackend), exitRedis, "automutex: lock: backend error\n"},
		{errors.New("unknown flag"), exitUsage, "automutex: unknown flag\n"},
		{&failure{exit: exitNo, err: errors.New("a\nb"), lines: true}, exitNo, "a\nb\n"},
	} {
		var out strings.Builder
		if exit := explain(&out, c.err); exit != c.exit || out.String() != c.text {
			t.Errorf("%v: %d, %q; want %d, %q", c.err, exit, out.String(), c.exit, c.text)
		}
	}
	conn := &connection{}
	for _, c := range []struct {
		err  error
		exit int
		text string
	}{
		{context.Canceled, exitNo, "automutex: interrupted\n"},
		{redistest.ReplyError("LOADING the dataset"), exitRedis, "automutex: Redis at x refuses the connection: LOADING the dataset\n"},
	} {
		var out strings.Builder
		if exit := explain(&out, conn.unreachable("x", c.err)); exit != c.exit || out.String() != c.text {
			t.Errorf("%v: %d, %q; want %d, %q", c.err, exit, out.String(), c.exit, c.text)
		}
	}
	for prefix, want := range map[string]string{inside.DefaultPrefix: "", "shop": " with the prefix shop (prefix shop)"} {
		a := &app{conn: &connection{prefix: prefix}}
		if got := a.withPrefix() + a.ofPrefix(); got != want {
			t.Errorf("%s: %q", prefix, got)
		}
	}
}
