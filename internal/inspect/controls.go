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

// Resumed is what a resume has ended.
type Resumed int

// What a resume has ended.
const (
	ResumedNothing    Resumed = iota // the target is not paused
	ResumedPause                     // its pause
	ResumedUnreadable                // an entry that could not be read, and so was not in force
)

// Resume ends a pause, and tells whether there was one. It removes an entry of the target
// that cannot be read.
func Resume(ctx context.Context, controls *lock.Controls, target string) (Resumed, error) {
	count := func() (paused, unreadable int, err error) {
		list, err := controls.List(ctx)
		if err != nil {
			return 0, 0, err
		}
		for _, c := range list {
			if c.Paused {
				paused++
			}
		}
		wrong, err := inner.Unreadable(ctx, controls)
		return paused, len(wrong), err
	}
	paused, unreadable, err := count()
	if err != nil {
		return ResumedNothing, err
	}
	if err := controls.Resume(ctx, target); err != nil {
		return ResumedNothing, err
	}
	stillPaused, stillUnreadable, err := count()
	switch {
	case err != nil:
		return ResumedNothing, err
	case stillPaused < paused:
		return ResumedPause, nil
	case stillUnreadable < unreadable:
		return ResumedUnreadable, nil
	}
	return ResumedNothing, nil
}
