package inspect

import (
	"context"
	"fmt"
	"time"

	"github.com/automutex/automutex/lock"
)

// Control is an operator's order that is in force: a pause or a limit. Its JSON is what the
// command prints with --json.
type Control struct {
	Target      string     `json:"target"`
	Paused      bool       `json:"paused,omitempty"`
	PausedUntil *time.Time `json:"paused_until,omitempty"` // nil: until resumed
	Limit       int        `json:"limit,omitempty"`
	Why         string     `json:"why,omitempty"`
	By          string     `json:"by"`
	Since       time.Time  `json:"since"`
}

// FromControls makes Controls of what package lock reads. The pause and the limit of a
// target are one each: they may be of different people, times and reasons.
func FromControls(list []lock.Control) []Control {
	orders := inner.Orders(list)
	all := make([]Control, 0, len(orders))
	for _, c := range orders {
		all = append(all, fromControl(c))
	}
	return all
}

func fromControl(c lock.Control) Control {
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
	if len(its) > 0 {
		l.Controls = FromControls(its)
	}
	l.Limit, l.Paused = limit, pause != nil
}

// OrderText says what an order is, who gave it, when and why. c is a pause or a limit. Times
// are UTC, with the day where it is not that of now.
func OrderText(c lock.Control, now time.Time) string {
	clock := func(t time.Time) string {
		t = t.UTC()
		if t.Format(time.DateOnly) == now.UTC().Format(time.DateOnly) {
			return t.Format("15:04")
		}
		return t.Format("2006-01-02 15:04")
	}
	text := fmt.Sprintf("limited to %d", c.Limit)
	switch {
	case c.Paused && c.PausedUntil.IsZero():
		text = "paused until somebody resumes it"
	case c.Paused:
		text = "paused until " + clock(c.PausedUntil)
	}
	text += fmt.Sprintf("; ordered by %s at %s", c.By, clock(c.Since))
	if c.Why != "" {
		text += ": " + c.Why
	}
	return text
}
