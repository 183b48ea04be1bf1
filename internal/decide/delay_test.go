package decide

import (
	"testing"
	"time"
)

// What meets an outage, a closed gate or a pause together comes back in the time that is due, spread.
func TestDelay(t *testing.T) {
	t.Parallel()
	const sec, ms = time.Second, time.Millisecond
	for name, c := range map[string]struct {
		when                      When
		left, least, most, spread time.Duration
	}{
		"busy": {Soon, time.Hour, sec, 5 * sec, 4 * sec},
		// The later the longer Redis has been away.
		"away since now":   {AtOutage, 0, sec, 2 * sec, 500 * ms},
		"away for 10 s":    {AtOutage, 10 * sec, 5 * sec, 11 * sec, 5 * sec},
		"away for an hour": {AtOutage, time.Hour, 15 * sec, 30 * sec, 15 * sec},
		// Over a quarter of the time until the gate opens, 2 to 30 s; asynq's times are whole seconds.
		"gate, soon":         {AtGate, ms, ms, 3 * sec, 2 * sec},
		"gate, in 40 s":      {AtGate, 40 * sec, 40 * sec, 51 * sec, 10 * sec},
		"gate, in an hour":   {AtGate, time.Hour, time.Hour, time.Hour + 31*sec, 30 * sec},
		"paused, no end":     {AtResume, 0, 30 * sec, 90 * sec, 60 * sec},
		"paused, almost not": {AtResume, ms, ms, 5*sec + ms, 5 * sec},
		"paused for 1 min":   {AtResume, time.Minute, time.Minute, 90 * sec, 30 * sec},
		"paused for a day":   {AtResume, 24 * time.Hour, 30 * sec, 90 * sec, 60 * sec},
		// Ten minutes at most, and so spread that a backlog asks less than once a second.
		"parked":            {AtTurn, 5 * sec, 5 * sec, 6250 * ms, sec},
		"parked, many":      {AtTurn, 105 * sec, 105 * sec, 132 * sec, 25 * sec},
		"parked for a year": {AtTurn, 10000 * time.Hour, 5 * time.Minute, 10 * time.Minute, 200 * sec},
	} {
		seen, first, last := map[time.Duration]bool{}, time.Duration(1<<62), time.Duration(0)
		for range 1000 {
			d := Delay(c.when, c.left)
			if d < c.least || d > c.most {
				t.Fatalf("%s: back after %s, want %s to %s", name, d, c.least, c.most)
			}
			seen[d], first, last = true, min(first, d), max(last, d)
		}
		if len(seen) < 900 || last-first < c.spread/2 {
			t.Errorf("%s: %d different delays of 1000, from %s to %s", name, len(seen), first, last)
		}
	}
	if d := Delay(AsAsked, 1500*ms); d < 1500*ms || d > 2500*ms || time.Now().Add(d).Nanosecond() > int(10*ms) &&
		time.Now().Add(d).Nanosecond() < int(990*ms) {
		t.Errorf("back after %s, want a whole second, 1.5 s from now at the earliest", d)
	}
}

// The history says what became of each run, and of each wait that ended without one.
func TestBecame(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		what      What
		replaced  bool
		ran, wait string
	}{
		{Done, false, "done", "skipped"}, {Spend, false, "failed", "failed"}, {Archive, false, "archived", "archived"},
		{Drop, false, "dropped", "dropped"},
		{Drop, true, "replaced", "replaced"}, {Leave, false, "cut short", "cut short"},
		{Back, false, "comes back", "comes back"},
	} {
		if ran, wait := Became(c.what, true, c.replaced), Became(c.what, false, c.replaced); ran != c.ran || wait != c.wait {
			t.Errorf("%v: %q, %q; want %q, %q", whats[c.what], ran, wait, c.ran, c.wait)
		}
	}
}
