package life

import (
	"sync"
	"time"
)

// Alarm calls Ring, on a goroutine of its own, at or soon after the earliest time asked for. It costs no goroutine
// while it waits. Ring finds out what is due and asks for the next time; it may be called early or in vain.
type Alarm struct {
	Ring func()

	mu    sync.Mutex // guards the fields below; never held while Ring runs
	timer *time.Timer
	at    time.Time // when the timer is set for; zero: not set
}

// Set asks for a call at or before t; a zero t asks for nothing. An alarm
// already set for an earlier time stays as it is.
func (a *Alarm) Set(t time.Time) {
	if t.IsZero() {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.at.IsZero() && !t.Before(a.at) {
		return
	}
	a.at = t
	if a.timer == nil {
		a.timer = time.AfterFunc(time.Until(t), a.fire)
		return
	}
	a.timer.Reset(time.Until(t))
}

// fire runs when the timer does. A Reset that races with it makes one call too
// many, never one too few: at is cleared before Ring looks.
func (a *Alarm) fire() {
	a.mu.Lock()
	a.at = time.Time{}
	a.mu.Unlock()
	a.Ring()
}

// Earliest returns the earlier of two times; the zero time means never.
func Earliest(a, b time.Time) time.Time {
	if a.IsZero() || (!b.IsZero() && b.Before(a)) {
		return b
	}
	return a
}
