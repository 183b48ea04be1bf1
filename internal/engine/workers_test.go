package engine

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/redistest"
)

// Who of a server's workers gives way, and when.
func TestWorkers_stories(t *testing.T) {
	t.Parallel()
	play(t, "testdata/workers.txt", func() func(*event) (string, error) {
		began := time.Unix(1_800_000_000, 0)
		w, names := &Workers{Limit: 10, Usual: 50 * time.Millisecond}, map[*WorkerWait]string{}
		return func(e *event) (string, error) {
			var err error
			now := began.Add(e.At)
			leave, _, _, next := w.at(now, func(now time.Time) { err = workersEvent(w, names, e, now) })
			return tellWorkers(w, names, leave, next, now), err
		}
	})
}

func workersEvent(w *Workers, names map[*WorkerWait]string, e *event, now time.Time) error {
	key, call := cmp.Or(strings.Join(e.Words(), " "), "a"), e.Duration("call", -1)
	i := slices.IndexFunc(w.waiting, func(wait *WorkerWait) bool { return names[wait] == key })
	if (e.Name == "parks" || e.Name == "gets") && i < 0 {
		return fmt.Errorf("no wait is %q", key)
	}
	comes := func() {
		w.busy, w.free = w.busy+1, now
		w.came(key, call, now)
	}
	ended := func(worked bool) { // as Ended
		w.busy--
		if w.free.IsZero() {
			w.free = now
		}
		if worked {
			w.working--
		} else {
			w.leaving = max(0, w.leaving-1)
		}
	}
	for range e.Number("times", 1) {
		switch e.Name {
		case "workers":
			w.Limit = e.Number("n", 10)
		case "works":
			comes()
			w.working++
		case "waits":
			wait := &WorkerWait{Key: key, Place: int64(e.Number("place", 0)), since: now}
			names[wait] = fmt.Sprintf("%s%d", key, len(names)+1)
			comes()
			w.waiting = append(w.waiting, wait)
		case "asks":
			if comes(); !w.isBehind(now) {
				return errors.New("it may wait")
			}
			ended(false)
		case "parks":
			w.waiting = slices.Delete(slices.Clone(w.waiting), i, i+1)
			ended(false)
		case "gets":
			w.granted(w.waiting[i].Key, now.Sub(w.waiting[i].since), now)
			w.waiting = slices.Delete(slices.Clone(w.waiting), i, i+1)
			w.working++
		case "ends":
			ended(true)
		case "looks":
		default:
			return fmt.Errorf("no event %q", e.Name)
		}
	}
	return nil
}

func tellWorkers(
	w *Workers, names map[*WorkerWait]string, leave []*WorkerWait, next time.Duration, now time.Time,
) string {
	told := []string{fmt.Sprintf("%d busy", w.busy)}
	if len(leave) > 0 {
		told = append(told, "told to end:")
		for _, wait := range leave {
			told = append(told, names[wait])
		}
	}
	switch {
	case w.isBehind(now):
		told = append(told, "(behind)")
	case w.isFull(now):
		told = append(told, "(full)")
	}
	if next > 0 {
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
