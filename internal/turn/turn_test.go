package turn

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/automutex/automutex/internal/wire"
)

var update = flag.Bool("update", false, "write what the stories of testdata/waits.txt lead to anew")

const stories = "testdata/waits.txt"

// TestWaits plays the stories of testdata/waits.txt, whose head says how to read them.
func TestWaits(t *testing.T) {
	t.Parallel()
	file, err := os.ReadFile(stories)
	if err != nil {
		t.Fatal(err)
	}
	var played []string
	var s *story
	lines := bufio.NewScanner(strings.NewReader(string(file)))
	for number := 1; lines.Scan(); number++ {
		line := lines.Text()
		if title, isTitle := strings.CutPrefix(line, "## "); isTitle {
			s = &story{title: title}
		}
		event, want, isEvent := strings.Cut(line, "->")
		if !isEvent || strings.HasPrefix(line, "#") {
			played = append(played, line)
			continue
		}
		got, err := s.play(strings.Fields(event))
		if err != nil {
			t.Fatalf("%s:%d: %v", stories, number, err)
		}
		if want = strings.TrimSpace(want); got != want && !*update {
			t.Errorf("%s:%d: %s\n%s\nleads to %q, want %q", stories, number, s.title, strings.TrimSpace(event), got, want)
		}
		played = append(played, fmt.Sprintf("%-64s -> %s", strings.TrimSpace(event), got))
	}
	if *update {
		if err := os.WriteFile(stories, []byte(strings.Join(played, "\n")+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// began is when each story begins, and what Redis' clock says then.
var began = time.UnixMicro(1_000_000_000)

// story is one wait, and what has become of it.
type story struct {
	title string
	wait  *Wait
	sent  time.Time // when the ask under way was sent
}

// play plays one event: when, what, and its details as key=value. It returns what the event leads to.
func (s *story) play(words []string) (string, error) {
	if len(words) < 2 {
		return "", errors.New("want: <when> <event> [<key>=<value> ...]")
	}
	when, err := time.ParseDuration(words[0])
	if err != nil {
		return "", err
	}
	now := began.Add(when)
	d := details{}
	for _, word := range words[2:] {
		key, value, _ := strings.Cut(word, "=")
		d[key] = value
	}
	if s.wait == nil != (words[1] == "waits") {
		return "", errors.New(`a story begins with "waits", once`)
	}
	step, err := s.event(words[1], d, now)
	if err != nil {
		return "", err
	}
	for key := range d {
		return "", fmt.Errorf("what is %s?", key)
	}
	return s.tell(step), nil
}

func (s *story) event(name string, d details, now time.Time) (step Step, err error) {
	redis := func() int64 { return now.Add(-d.duration("redis-is-behind", 0)).UnixMicro() }
	switch name {
	case "waits":
		t := Terms{InTime: d.has("in-time"), MayPark: d.has("may-park"), Short: d.has("short"), Grant: d.duration("grant", 3*time.Second)}
		t.Counted = t.Grant
		if end := d.duration("until", 0); end > 0 {
			t.Until = began.Add(end)
		}
		w := New(t, d.number("slots", 1), d.has("park-now"))
		s.wait, s.sent = &w, now
	case "asks":
		if !s.wait.Due(now) {
			return 0, errors.New("no ask is due")
		}
		s.sent = now
	case "rests":
		if s.wait.Due(now) {
			return 0, errors.New("an ask is due")
		}
	case "busy", "parked", "yours", "error":
		if !s.wait.asking {
			return 0, errors.New("no ask is under way")
		}
		r := Reply{Sent: s.sent, Slots: d.number("slots", 1)}
		r.ServerUS, r.Deadline, r.Place = redis(), d.duration("deadline", -1), d.number("place", 0)
		r.Gate = d.duration("gate", 0)
		r.Yours, r.Parked = name == "yours", name == "parked"
		if name == "error" {
			r = Reply{Err: errors.New("an error"), Final: d.has("final"), Sent: s.sent}
		}
		step = s.wait.Replied(r, now)
	case "granted":
		step = s.wait.Told(wire.Message{Fence: 7, ServerUS: redis()}, now)
	case "gate":
		s.wait.GateOpens(redis(), d.duration("opens", 0), now)
	case "missed": // messages may have been missed
		s.wait.AskAgain(now)
	case "park-soon":
		s.wait.ParkSoon(now)
	case "gives-up":
		step = s.wait.GiveUp()
	default:
		return 0, fmt.Errorf("no event %q", name)
	}
	return step, d.err()
}

// tell says what an event has led to.
func (s *story) tell(step Step) string {
	at := func(t time.Time) string { return t.Sub(began).String() }
	w := s.wait
	switch {
	case step == Granted:
		grant, since := w.Grant()
		return fmt.Sprintf("holds the lock by the message, fence %d; its lease counts from %s", grant.Fence, at(since))
	case step == Leave && w.Last().Parked:
		return "the leave is sent, and the caller hears that it is parked"
	case step != Stay:
		return map[Step]string{Won: "holds the lock by the reply", Parked: "parked, or refused", Failed: "fails", TooLate: "fails: the gate opens too late", Leave: "the leave is sent"}[step]
	case w.asking && w.left:
		return "the reply is awaited first"
	case w.asking:
		return "an ask is under way that may " + [...]string{"do nothing", "join", "join, or park behind an absent head", "park"}[w.ask]
	case w.over:
		return "it has ended"
	}
	return "asks again at " + at(w.Next())
}

// details are the details of an event; each is taken out as it is read.
type details map[string]string

func (d details) has(key string) bool {
	_, has := d[key]
	delete(d, key)
	return has
}

func (d details) duration(key string, otherwise time.Duration) time.Duration {
	text, has := d[key]
	if !has {
		return otherwise
	}
	v, err := time.ParseDuration(text)
	if err == nil {
		delete(d, key)
	}
	return v
}

func (d details) number(key string, otherwise int) int {
	text, has := d[key]
	if !has {
		return otherwise
	}
	v, err := strconv.Atoi(text)
	if err == nil {
		delete(d, key)
	}
	return v
}

func (d details) err() error {
	for key, value := range d {
		return fmt.Errorf("%s=%s means nothing here", key, value)
	}
	return nil
}
