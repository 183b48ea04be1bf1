package inspect

import (
	"slices"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/lock"
)

// What an operator reads of a lock: why its gate is closed, what a place in line is, who has ordered what and when.
func TestTexts(t *testing.T) {
	t.Parallel()
	now := time.Date(2030, 5, 6, 7, 8, 9, 0, time.UTC)
	for _, c := range [][2]string{
		{Gate{Closed: lock.ReasonRate}.String(), "rate used up"}, {Gate{Closed: lock.ReasonCooldown}.String(), "cooling down"}, {Gate{Closed: lock.ReasonClosed}.String(), "closed"},
		{WaiterState(inside.Waiter{Called: true, Parked: true}), "called"}, {WaiterState(inside.Waiter{Held: true}), "archived"}, {WaiterState(inside.Waiter{Ordered: true}), "in order"},
		{TaskName("", "", "a note"), "a note"}, {TaskName("q", "id", ""), "q/id"},
		{OrderText(lock.Control{Limit: 3, By: "ann", Since: now.Add(-24 * time.Hour)}, now), "limited to 3; ordered by ann at 2030-05-05 07:08"},
		{OrderText(lock.Control{Paused: true, PausedUntil: now.Add(time.Hour), By: "ann", Since: now, Why: "why"}, now), "paused until 08:08; ordered by ann at 07:08: why"},
	} {
		if got, want := c[0], c[1]; got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	old := now.Add(-time.Hour)
	all := []Lock{{Key: "c"}, {Key: "b", Since: &old}, {Key: "a"}, {Key: "z", Line: 1}}
	slices.SortFunc(all, Busier)
	if order := all[0].Key + all[1].Key + all[2].Key + all[3].Key; order != "zbac" {
		t.Errorf("in the order %s; want the longest line first, then what was taken longest ago, then by key", order)
	}
}
