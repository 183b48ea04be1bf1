package doctor

import (
	"context"
	"log/slog"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex/internal/blocked"
	"github.com/automutex/automutex/internal/printable"
	"github.com/automutex/automutex/lock"
)

// mostBlocked is how many blocked keys are named. asynq is asked for the task of each.
const mostBlocked = 5

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
	inspector, found := asynq.NewInspectorFromRedisClient(d.rdb), 0
	for _, head := range heads[:min(len(heads), mostBlocked)] {
		why := blocked.Why(blocked.Look(inspector, head))
		if why == "" {
			continue
		}
		level := Note
		if head.Held() {
			level = Bad
		}
		found++
		d.foundf(level, "order", "%s of key %s behind %s, which %s", printable.Count(head.Queued-1, "task"), head.Key, head.Note, printable.OneLine(why))
	}
	if more := len(heads) - mostBlocked; more > 0 {
		d.foundf(Note, "order", "%s may be blocked; automutex blocked lists all", printable.Count(more, "more key"))
	} else if found == 0 {
		d.foundf(Fine, "order", "no ordered key is blocked")
	}
	return nil
}
