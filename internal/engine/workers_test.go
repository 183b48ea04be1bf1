package engine

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/redistest"
)

// Who of a server's workers gives way, and when.
func TestCrew(t *testing.T) {
	t.Parallel()
	play(t, "testdata/crew.txt", func() func(*event) (string, error) {
		began := time.Unix(1_800_000_000, 0)
		c, names := &crew{limit: 10, gap: BehindAfter, usual: 50 * time.Millisecond}, map[*WorkerWait]string{}
		return func(e *event) (string, error) {
			now := began.Add(e.At)
			c.settle(now)
			if err := crewEvent(c, names, e, now); err != nil {
				return "", err
			}
			leave, _, _ := c.follows(now)
			return crewTell(c, names, leave, now), nil
		}
	})
}

func crewEvent(c *crew, names map[*WorkerWait]string, e *event, now time.Time) error {
	key, call := cmp.Or(strings.Join(e.Words(), " "), "a"), e.Duration("call", -1)
	var wait *WorkerWait // that which parks, or gets its lock
	if e.Name == "parks" || e.Name == "gets" {
		i := slices.IndexFunc(c.waiting, func(w *WorkerWait) bool { return names[w] == key })
		if i < 0 {
			return fmt.Errorf("no wait is %q", key)
		}
		wait = c.waiting[i]
		c.endWait(wait, e.Name == "gets")
	}
	for range e.Number("times", 1) {
		switch e.Name {
		case "workers":
			c.limit = e.Number("n", 10)
		case "works":
			c.started(now)
			c.came(key, call, now)
			c.working++
		case "waits":
			wait := &WorkerWait{Key: key, Place: int64(e.Number("place", 0))}
			names[wait] = fmt.Sprintf("%s%d", key, len(names)+1)
			c.started(now)
			c.came(key, call, now)
			c.waiting = append(c.waiting, wait)
		case "asks":
			if c.started(now); c.mayWait(key, 0, now) {
				return fmt.Errorf("it may wait")
			}
			c.came(key, call, now)
			c.ended(false, now)
		case "parks":
			c.ended(false, now)
		case "gets":
			c.granted(wait.Key, now)
			c.working++
		case "ends":
			c.ended(true, now)
		case "looks":
		default:
			return fmt.Errorf("no event %q", e.Name)
		}
	}
	return nil
}

func crewTell(c *crew, names map[*WorkerWait]string, leave []*WorkerWait, now time.Time) string {
	told := []string{fmt.Sprintf("%d busy", c.busy)}
	if len(leave) > 0 {
		told = append(told, "told to end:")
		for _, wait := range leave {
			told = append(told, names[wait])
		}
	}
	switch {
	case c.isBehind(now):
		told = append(told, "(behind)")
	case c.isFull(now):
		told = append(told, "(full)")
	}
	if next := c.next(now); next > 0 {
		told = append(told, "look in "+next.String())
	}
	return strings.Join(told, " ")
}

// The timer of the workers has a wait end of which nothing else is told.
func TestWorkers(t *testing.T) {
	t.Parallel()
	w, left := &Workers{Limit: 2}, make(chan struct{}, 2)
	for range 2 {
		w.Started()
		w.Begin(&WorkerWait{Key: "a", Leave: func() { left <- struct{}{} }})
	}
	redistest.Eventually(t, redistest.Patience, func() bool { return len(left) == 1 }, "one of two waits ends")
	if w.Ended(false); len(left) > 1 {
		t.Error("the other one ends too, though a worker is free")
	}
}
