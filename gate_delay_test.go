package automutex

import (
	"testing"
	"time"
)

// Tasks that met a closed gate together return after it opens, spread over a quarter of that
// time, 2 to 30 s; after a hold a second later than the task that made it.
func TestGate_delaySpreads(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		reason               string
		opens, first, spread time.Duration
	}{
		{ReasonRate, time.Millisecond, time.Millisecond, 2 * time.Second},
		{ReasonCooldown, 40 * time.Second, 40 * time.Second, 10 * time.Second},
		{ReasonRate, time.Hour, time.Hour, 30 * time.Second},
		{ReasonHold, 40 * time.Second, 41 * time.Second, 10 * time.Second},
	} {
		busy := &BusyError{Reason: c.reason, ExpiresIn: c.opens}
		seen, last := map[time.Duration]bool{}, time.Duration(0)
		for range 1000 {
			d := busy.gateDelay()
			if most := c.first + time.Second + c.spread; d < c.first || d > most { // asynq's times are whole seconds
				t.Fatalf("%s that opens in %s: back after %s, want %s to %s", c.reason, c.opens, d, c.first, most)
			}
			seen[d], last = true, max(last, d)
		}
		if len(seen) < 900 || last < c.first+c.spread/2 {
			t.Errorf("%s that opens in %s: %d different delays up to %s of 1000", c.reason, c.opens, len(seen), last)
		}
	}
}
