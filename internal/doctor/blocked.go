package doctor

import (
	"context"
	"log/slog"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex/internal/blocked"
	"github.com/automutex/automutex/internal/printable"
	"github.com/automutex/automutex/lock"
)

// mostBlocked is how many blocked keys are named, and mostHeads of how many keys asynq is asked for the next task.
const (
	mostBlocked = 5
	mostHeads   = 200
)

// blocked reports the ordered keys whose next task does not run. It walks all locks with SCAN.
func (d *doctor) blocked(ctx context.Context) error {
	locker := lock.New(d.rdb, lock.Options{Prefix: d.Prefix, Logger: slog.New(slog.DiscardHandler)})
	defer func() { _ = locker.Close() }() // never fails
	heads, err := blocked.Heads(ctx, locker)
	switch {
	case denied(err):
		d.foundf(Note, "order", "this user may not look for blocked keys: %s", reason(err))
		return nil
	case err != nil:
		return err
	}
	asked, found := blocked.In(asynq.NewInspectorFromRedisClient(d.rdb)), 0
	for _, head := range heads[:min(len(heads), mostHeads)] {
		why := blocked.Why(asked.Look(head))
		if why == "" {
			continue
		}
		if found++; found > mostBlocked {
			continue
		}
		level := Note
		if head.Held() {
			level = Bad
		}
		d.foundf(level, "order", "%s of key %s behind %s, which %s", printable.Count(head.Queued-1, "task"), head.Key, head.Note, printable.OneLine(why))
	}
	switch more := found - mostBlocked; {
	case more > 0 && len(heads) > mostHeads:
		d.foundf(Note, "order", "and at least %s; automutex blocked lists all", printable.Count(more, "more key"))
	case more > 0:
		d.foundf(Note, "order", "and %s; automutex blocked lists all", printable.Count(more, "more key"))
	case found == 0:
		d.foundf(Fine, "order", "no ordered key is blocked")
	}
	return nil
}
