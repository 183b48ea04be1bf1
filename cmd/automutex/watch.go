package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/clipperhouse/displaywidth"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/automutex/automutex/internal/inspect"
	"github.com/automutex/automutex/internal/printable"
)

// What a terminal is told: the other screen and no cursor, and back; the upper
// left corner; nothing right of here, nothing below.
const (
	enterScreen = "\x1b[?1049h\x1b[?25l"
	leaveScreen = "\x1b[?25h\x1b[?1049l"
	home        = "\x1b[H"
	clearLine   = "\x1b[K"
	clearBelow  = "\x1b[J"
)

// rest is how many times as long as a look at all locks takes, watch leaves
// Redis alone before the next one.
const rest = 4

func newWatch(a *app) *cobra.Command {
	var f inspect.Filter
	var interval time.Duration
	var count int
	cmd := &cobra.Command{
		Use:   "watch",
		Short: "Show the busiest locks, again and again",
		Long: `Show the locks with the longest lines, and of those the ones taken longest ago,
as many as fit on the screen, until q or Ctrl-C. The columns are those of list, in
another order. Where a look at all locks takes long, the interval grows, so that
Redis spends no more than a fifth of its time on this. Without a terminal, one
table follows another.`,
		Args: exactly(0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkFilter(f); err != nil {
				return err
			}
			switch {
			case interval < 100*time.Millisecond:
				return usage("--interval %s: at least 100ms", interval)
			case count < 0:
				return usage("--count %d: must not be negative", count)
			}
			ctx := cmd.Context()
			return a.conn.onLocks(ctx, func(l locks) error {
				w := &watcher{locks: l, filter: f, prefix: a.conn.prefix, screen: newScreen(a.out)}
				if w.screen.fd >= 0 {
					var keys bool
					var restore func()
					if ctx, keys, restore = untilQ(ctx, a.in); keys {
						w.hint = "  q leaves"
					}
					defer restore()
				}
				return w.run(ctx, interval, count)
			})
		},
	}
	filterFlags(cmd, &f)
	cmd.Flags().DurationVarP(&interval, "interval", "i", time.Second, "how often to look")
	cmd.Flags().IntVar(&count, "count", 0, "stop after so many looks (0: never)")
	a.conn.needed(cmd)
	return cmd
}

// screen is where watch draws: a terminal, or anything else.
type screen struct {
	out io.Writer
	fd  int // -1: no terminal
}

func newScreen(out io.Writer) screen {
	if f, ok := out.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		return screen{out, int(f.Fd())}
	}
	return screen{out, -1}
}

// size asks each time: windows are resized.
func (s screen) size() (width, height int) {
	if width, height, err := term.GetSize(s.fd); err == nil && width > 0 && height > 0 {
		return width, height
	}
	return 80, 24
}

// draw puts text in the place of what was there, in one write, so that nothing
// flickers.
func (s screen) draw(text string) error {
	if s.fd < 0 {
		_, err := fmt.Fprintln(s.out, text)
		return err
	}
	width, height := s.size()
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	var b strings.Builder
	b.WriteString(home)
	for i, line := range lines[:min(len(lines), height)] {
		if i > 0 {
			b.WriteString("\r\n")
		}
		b.WriteString(displaywidth.TruncateString(line, width, "…") + clearLine)
	}
	b.WriteString(clearBelow)
	_, err := io.WriteString(s.out, b.String())
	return err
}

type watcher struct {
	locks
	filter inspect.Filter
	prefix string
	screen screen
	hint   string // ends the summary: how to leave
}

func (w *watcher) run(ctx context.Context, interval time.Duration, count int) (err error) {
	if w.screen.fd >= 0 {
		fmt.Fprint(w.screen.out, enterScreen)
		defer fmt.Fprint(w.screen.out, leaveScreen)
	}
	for looks := 1; ; looks++ {
		began := time.Now()
		text, err := w.look(ctx)
		took := time.Since(began)
		switch {
		case ctx.Err() != nil:
			return nil // q and Ctrl-C are how one leaves
		case err != nil && (w.screen.fd < 0 || looks == 1 || exitOf(err) != exitRedis):
			return err
		case err != nil:
			text = "Redis: " + printable.OneLine(err.Error()) + "; trying again"
		}
		if err := w.screen.draw(text); err != nil {
			return err
		}
		if looks == count {
			return nil
		}
		select {
		case <-time.After(max(interval, rest*took)):
		case <-ctx.Done():
			return nil
		}
	}
}

// look makes what is shown: a summary, and the busiest locks.
func (w *watcher) look(ctx context.Context) (string, error) {
	now, err := inspect.ServerTime(ctx, w.rdb)
	if err != nil {
		return "", err
	}
	_, height := w.screen.size()
	most := max(height-3, 1) // the summary, an empty line, the header
	var top []inspect.Lock
	locks, holders, waiting := 0, 0, 0
	local := time.Now()
	for some, err := range inspect.Walk(ctx, w.Locker, w.rdb) {
		if err != nil {
			return "", err
		}
		for _, s := range some {
			if w.filter.Passes(s, now.Add(time.Since(local))) {
				locks, holders, waiting = locks+1, holders+s.Held, waiting+s.Line
				top = append(top, s)
			}
		}
		slices.SortStableFunc(top, inspect.Busier)
		top = top[:min(len(top), most)]
	}
	var b bytes.Buffer
	now = now.Add(time.Since(local))
	fmt.Fprintf(&b, "%s  %s, %d held, %d in line  prefix %s%s\n\n", now.UTC().Format("15:04:05"), printable.Count(locks, "lock"), holders, waiting, w.prefix, w.hint)
	// What matters most comes first: a narrow window cuts the rest off.
	order := []int{0, 5, 3, 4, 1, 2}
	columns := func(row []string) (ordered []string) {
		for _, i := range order {
			ordered = append(ordered, row[i])
		}
		return ordered
	}
	t := newTable(&b, columns(lockHeader)...)
	for _, s := range top {
		for _, row := range rows(s, now, ordersInShort) {
			t.row(columns(row)...)
		}
	}
	err = t.flush()
	return b.String(), err
}
