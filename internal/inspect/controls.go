package inspect

import (
	"context"
	"time"

	"github.com/automutex/automutex/lock"
)

// Control is an operator's order that is in force. Its JSON is what the command prints
// with --json.
type Control struct {
	Target      string     `json:"target"`
	Paused      bool       `json:"paused,omitempty"`
	PausedUntil *time.Time `json:"paused_until,omitempty"` // nil: until resumed
	Limit       int        `json:"limit,omitempty"`
	Why         string     `json:"why,omitempty"`
	By          string     `json:"by"`
	Since       time.Time  `json:"since"`
}

// FromControl makes a Control of what package lock reads.
func FromControl(c lock.Control) Control {
	made := Control{Target: c.Target, Paused: c.Paused, Limit: c.Limit, Why: c.Why, By: c.By, Since: c.Since.UTC()}
	if !c.PausedUntil.IsZero() {
		until := c.PausedUntil.UTC()
		made.PausedUntil = &until
	}
	return made
}

// controls lists the controls of a locker. A user without the right to read them has
// none: that is for doctor to say.
func controls(ctx context.Context, locker *lock.Locker) []lock.Control {
	list, err := locker.Controls().List(ctx)
	if err != nil {
		return nil
	}
	return list
}

// control adds to a Lock what of the list is for it.
func (l *Lock) control(list []lock.Control) {
	its, limit, pause := inner.ControlsFor(list, l.Key)
	for _, c := range its {
		l.Controls = append(l.Controls, FromControl(c))
	}
	l.Limit, l.Paused = limit, pause != nil
}
