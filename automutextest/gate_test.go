package automutextest

import (
	"errors"
	"testing"
	"time"

	"github.com/automutex/automutex"
)

// A closed gate keeps the tasks of one key from starting, and nobody holds the key.
func TestCloseGate(t *testing.T) {
	t.Parallel()
	g := New(t, turns(busy(automutex.Skip)))
	CloseGate(t, g, work(one), time.Hour)
	var e *automutex.BusyError
	if err := g.run(work(one)); !errors.As(err, &e) || e.Reason != automutex.ReasonClosed || e.Holder != "" || e.ExpiresIn < 50*time.Minute {
		t.Errorf("%v, want a hold, behind which Skip skips nothing", err)
	}
	if err := g.run(work(two)); err != nil {
		t.Errorf("another key is closed: %v", err)
	}
	fails(t, func(t testing.TB) { CloseGate(t, g, work(one), time.Hour) }, "CloseGate")
	fails(t, func(t testing.TB) { CloseGate(t, g, work(two), 0) }, "CloseGate")
}
