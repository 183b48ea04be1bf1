package workers

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/redistest"
)

var update = flag.Bool("update", false, "write the stories anew")

// Who of a server's workers gives way, and when. A line of a story is
//
//	<when> <event> [<wait or key>] [<detail>=<value> ...] -> <what it leads to>
func TestWorkers_stories(t *testing.T) {
	t.Parallel()
	const file = "testdata/workers.txt"
	b, err := os.ReadFile(file)
	redistest.Must(t, err)
	lines, s, events := strings.Split(string(b), "\n"), &story{}, 0
	for i, line := range lines {
		text, _, isEvent := strings.Cut(line, "->")
		switch {
		case strings.HasPrefix(line, "## "):
			s = &story{server: Server{Limit: 10, Usual: 50 * time.Millisecond}, names: map[*Wait]string{}}
		case isEvent && !strings.HasPrefix(line, "#"):
			told, err := s.play(strings.Fields(text))
			if events++; err != nil {
				t.Fatalf("%s:%d: %v", file, i+1, err)
			}
			lines[i] = fmt.Sprintf("%-64s -> %s", strings.TrimSpace(text), told)
		}
	}
	if events < 50 {
		t.Fatalf("only %d events", events)
	}
	redistest.Golden(t, *update, file, strings.Join(lines, "\n"))
}

type story struct {
	server Server
	names  map[*Wait]string
}

func (s *story) play(words []string) (string, error) {
	at, err := time.ParseDuration(words[0])
	now := time.Unix(1_800_000_000, 0).Add(at)
	key, call, times, n, place := "a", -time.Nanosecond, 1, 10, 0
	for _, word := range words[2:] {
		switch name, value, isDetail := strings.Cut(word, "="); {
		case err != nil:
		case !isDetail:
			key = word
		case name == "call":
			call, err = time.ParseDuration(value)
		case !slices.Contains([]string{"times", "n", "place"}, name):
			err = fmt.Errorf("no detail %q", name)
		default:
			_, err = fmt.Sscan(value, map[string]*int{"times": &times, "n": &n, "place": &place}[name])
		}
	}
	leave, _, _, next := s.server.at(now, func(now time.Time) {
		for range times {
			if err == nil {
				err = s.event(words[1], key, call, n, place, now)
			}
		}
	})
	return s.tell(leave, next, now), err
}

func (s *story) event(name, key string, call time.Duration, n, place int, now time.Time) error {
	w := &s.server
	i := slices.IndexFunc(w.waiting, func(wait *Wait) bool { return s.names[wait] == key })
	if (name == "parks" || name == "gets") && i < 0 {
		return fmt.Errorf("no wait is %q", key)
	}
	comes := func() {
		w.busy, w.free = w.busy+1, now
		w.came(key, call, now)
	}
	switch name {
	case "workers":
		w.Limit = n
	case "works":
		comes()
		w.asked(key, true, false, 0, now)
		w.working++
	case "waits":
		wait := &Wait{Key: key, Place: int64(place)}
		s.names[wait] = fmt.Sprintf("%s%d", key, len(s.names)+1)
		comes()
		w.begin(wait, now)
	case "asks":
		if comes(); !w.isBehind(now) {
			return fmt.Errorf("%s may wait", key)
		}
		w.asked(key, false, false, 0, now)
		w.ended(false, now)
	case "parks":
		w.end(w.waiting[i], false, now)
		w.ended(false, now)
	case "gets":
		w.asked(w.waiting[i].Key, true, true, now.Sub(w.waiting[i].since), now)
		w.end(w.waiting[i], true, now)
		w.working++
	case "ends":
		w.ended(true, now)
	case "looks":
	default:
		return fmt.Errorf("no event %q", name)
	}
	return nil
}

func (s *story) tell(leave []*Wait, next time.Duration, now time.Time) string {
	told := []string{fmt.Sprintf("%d busy", s.server.busy)}
	if len(leave) > 0 {
		told = append(told, "told to end:")
		for _, wait := range leave {
			told = append(told, s.names[wait])
		}
	}
	switch {
	case s.server.isBehind(now):
		told = append(told, "(behind)")
	case s.server.isFull(now):
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
	w, left := &Server{Limit: 2}, make(chan struct{}, 2)
	for range 2 {
		w.Started()
		w.Begin(&Wait{Key: "a", Leave: func() { left <- struct{}{} }})
	}
	redistest.Eventually(t, redistest.Patience, func() bool { return len(left) == 1 }, "one of two waits ends")
	if w.Ended(false); len(left) > 1 {
		t.Error("both end; a worker is free")
	}
}

// Who runs more, asks included, borrows nothing while tasks of another key wait that could begin.
func TestLender(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		scope string // of the one that waits
		runs  int    // of many
		could bool   // that one may begin
		lends bool
	}{{"s", 0, true, true}, {"s", 1, true, false}, {"s", 1, false, true}, {"other", 1, true, true}} {
		w := &Server{Limit: 10}
		from := &Lender{Server: w, Scope: "s", Idle: 2}
		from.Runs("many", 1, c.runs)
		its := &Lender{Server: w, Scope: c.scope}
		wait := &Wait{Key: "one", Limit: 1, Lender: its}
		w.Started()
		w.Begin(wait)
		wait.Answered(false, c.could)
		asks := 0
		me := &Wait{Key: "many", Limit: 1, Lender: from, Ask: func() { asks++ }}
		w.Started()
		first, second := from.Lend("many", 1, me), from.Lend("many", 1, nil)
		if first != c.lends || second != (first && c.runs > 0) {
			t.Errorf("%+v: lends %t, then %t", c, first, second)
		}
		me.Answered(false, true)
		w.Begin(me)
		w.End(wait, true)
		if its.Runs("one", 1, 1); asks != 1 {
			t.Errorf("%+v: %d asks", c, asks)
		}
	}
	l := &Lender{Server: &Server{Limit: 9}}
	l.Parked("b", 1, true)
	l.Parked("a", 9, true)
	l.Runs("a", 9, 1)
	if _, check := l.Server.borrowers(); check != "a" {
		t.Error(check, "borrows next")
	}
}
