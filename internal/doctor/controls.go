package doctor

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/inspect"
	"github.com/automutex/automutex/internal/printable"
	"github.com/automutex/automutex/lock"
)

// controls tells of what operators have ordered: a forgotten pause keeps tasks from
// running, and nothing else shows why.
func (d *doctor) controls(ctx context.Context) error {
	locker := lock.New(d.rdb, lock.Options{Prefix: d.Prefix, Logger: slog.New(slog.DiscardHandler)})
	defer func() { _ = locker.Close() }() // never fails
	list, err := locker.Controls().List(ctx)
	if err == nil {
		var unreadable map[string]string
		unreadable, err = inner.Unreadable(ctx, locker.Controls())
		for _, target := range slices.Sorted(maps.Keys(unreadable)) {
			d.foundf(Bad, "controls", "the entry of %s is not in force: %s; automutex resume removes it", printable.OneLine(target), unreadable[target])
		}
	}
	var said redis.Error
	switch {
	case errors.As(err, &said):
		d.foundf(Bad, "controls", "cannot be read, so programs that start obey no pause and no limit (those that run obey what they have read): %s", printable.OneLine(err.Error()))
		return nil
	case err != nil:
		return err
	case len(list) == 0:
		d.foundf(Fine, "controls", "no scope or key is paused, or has another limit")
	}
	for _, c := range list {
		d.foundf(Note, "controls", "%s is %s", c.Target, inner.ControlText(c))
		if d.Config == nil {
			continue
		}
		known := false
		for _, rule := range d.Config.Rules {
			isFor := inspect.IsControlOf(rule, d.Prefix, c.Target)
			known = known || isFor
			if isFor && rule.Fence && c.Limit > 1 {
				d.foundf(Bad, "controls", "the rule for %s has Fence, which protects nothing while %s may hold its key at once: take the limit away, or the Fence", rule.Task, printable.Count(c.Limit, "task"))
			}
		}
		if !known {
			d.foundf(Note, "controls", "no rule has the scope of %s: its control does nothing, unless a lock of a program has that name", c.Target)
		}
	}
	return nil
}
