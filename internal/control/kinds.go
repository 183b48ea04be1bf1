package control

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/automutex/automutex/internal/engine/rate"
	"github.com/automutex/automutex/internal/printable"
)

// Kind is a kind of order. A new kind is a variable here, a row of Kinds, a field of Control here and in lock, and a
// form in web and in the command. The engine obeys Bounds.
type Kind struct {
	Name  string // begins its fields in Redis, and names it in metrics, on the page and in the command
	Ended string // what is said of a target whose order has ended
	None  string // what is said of a target that has no such order

	// Typed reads what an operator types. A Control without an order of the kind asks for the end of the present one.
	Typed func(text string) (Control, error)

	has   func(c Control) bool                // c has an order of the kind
	merge func(to *Control, from Control)     // copies the fields of the kind
	check func(c Control) error               // why nobody may obey the order; nil: nothing can be wrong with it
	text  func(c Control, when string) string // what is ordered; when it ends, if it does
	apply func(o *Order, b Bounds) Bounds     // what it makes of b
}

// The kinds.
var (
	Pauses = &Kind{
		Name: "pause", Ended: "is resumed", None: "is not paused",
		Typed: typedPause,
		has:   func(c Control) bool { return c.Paused },
		merge: func(to *Control, from Control) { to.Paused, to.PausedUntil = true, from.PausedUntil },
		text: func(_ Control, when string) string {
			if when == "" {
				return "paused until somebody resumes it"
			}
			return "paused " + when
		},
		apply: func(o *Order, b Bounds) Bounds { b.Slots, b.Pause = 0, o; return b },
	}
	Limits = &Kind{
		Name: "limit", Ended: "has the limit of its program", None: "has no limit of an operator",
		Typed: func(text string) (c Control, err error) {
			if c.Limit, err = strconv.Atoi(text); err != nil || c.Limit < 0 || c.Limit > MaxLimit {
				err = fmt.Errorf("%q is not a whole number from 0 to %d", printable.Short(text), MaxLimit)
			}
			return c, err
		},
		has:   func(c Control) bool { return c.Limit != 0 },
		merge: func(to *Control, from Control) { to.Limit = from.Limit },
		check: func(c Control) error {
			if c.Limit < 1 || c.Limit > MaxLimit {
				return fmt.Errorf("a limit of %d: from 1 to %d; to let nobody acquire it, use Pause", c.Limit, MaxLimit)
			}
			return nil
		},
		text: func(c Control, _ string) string { return fmt.Sprintf("limited to %d", c.Limit) },
		apply: func(o *Order, b Bounds) Bounds {
			if b.Limited = true; b.Slots > 0 {
				b.Slots = o.Limit
			}
			return b
		},
	}
	Rates = &Kind{
		Name: "rate", Ended: "has the rate of its program", None: "has no rate of an operator",
		Typed: func(text string) (c Control, err error) {
			if text != "" {
				c.Rate, err = rate.Parse(text)
			}
			return c, err
		},
		has:   func(c Control) bool { return c.Rate != rate.Rate{} },
		merge: func(to *Control, from Control) { to.Rate = from.Rate },
		check: func(c Control) error {
			_, _, err := c.Rate.Bucket()
			if c.Rate.Starts < 1 {
				err = fmt.Errorf("a rate of %d starts: at least 1; to let nobody start, use Pause", c.Rate.Starts)
			}
			return err
		},
		text: func(c Control, _ string) string {
			return fmt.Sprintf("limited to %d starts per %s, burst %d", c.Rate.Starts, printable.Exact(c.Rate.Per),
				max(c.Rate.Burst, 1))
		},
		apply: func(o *Order, b Bounds) Bounds {
			b.Every, b.Spare, _ = o.Rate.Bucket() // check has seen it
			return b
		},
	}

	// Kinds are all of them, in the order in which they apply and are listed.
	Kinds = [...]*Kind{Pauses, Limits, Rates}
)

// MaxLimit is the highest limit of a lock.
const MaxLimit = 1<<31 - 1

// shortestPause is the shortest that an operator may type.
const shortestPause = 100 * time.Millisecond

func typedPause(text string) (Control, error) {
	c := Control{Paused: true}
	if text == "" {
		return c, nil
	}
	length, err := time.ParseDuration(text)
	switch {
	case err != nil:
		return c, fmt.Errorf("%q is not a duration: write 30m or 2h, or leave it empty", printable.Short(text))
	case length < shortestPause:
		return c, fmt.Errorf("%q is too short: a pause is at least %s", printable.Short(text), shortestPause)
	}
	c.PausedUntil = time.Now().Add(length)
	return c, nil
}

// Bounds are what bounds who may hold a lock, and how often one takes it.
type Bounds struct {
	Slots        int           // how many may hold it; 0: nobody is granted it
	Limited      bool          // an operator has said so
	Every, Spare time.Duration // its rate, see rate.Rate; 0: none
	Pause        *Order        // why nobody is granted it: an operator's order, or Unread; nil: nothing keeps callers out
	Known        any           // when the orders were read that are in it (us, an int64), as an argument of the scripts
}

// Unread is the pause of each lock while it is not known what operators have ordered.
var Unread = &Order{}

// Control has the fields of lock.Control, which says what they mean. Its JSON is what the command prints, and what
// Redis has without Target and Paused, which the field says.
type Control struct {
	Target      string    `json:"target,omitempty"`
	Limit       int       `json:"limit,omitempty"`
	Rate        rate.Rate `json:"rate,omitzero"`
	Paused      bool      `json:"paused,omitempty"`
	PausedUntil time.Time `json:"paused_until,omitzero"`
	Why         string    `json:"why,omitempty"`
	By          string    `json:"by"`
	Since       time.Time `json:"since"`
}

// Text says what is ordered, and not by whom. Of a pause with an end it says in how long after now that is; if now is
// zero, at what time.
func (c Control) Text(now time.Time) string {
	when := ""
	switch {
	case c.PausedUntil.IsZero():
	case now.IsZero():
		when = "until " + c.PausedUntil.UTC().Format(time.RFC3339)
	default:
		when = "for " + printable.Duration(c.PausedUntil.Sub(now))
	}
	var texts []string
	for _, k := range Kinds {
		if k.has(c) {
			texts = append(texts, k.text(c, when))
		}
	}
	return strings.Join(texts, ", ")
}

// String describes the orders in a few words, for an operator.
func (c Control) String() string {
	if c.Paused && c.Since.IsZero() { // Unread
		return "paused until it is known what operators have ordered"
	}
	text := fmt.Sprintf("%s, ordered by %s at %s", c.Text(time.Time{}), printable.Short(c.By),
		c.Since.UTC().Format(time.RFC3339))
	if c.Why != "" {
		text += fmt.Sprintf(" (%s)", printable.Short(c.Why))
	}
	return text
}

// Order is one order of an operator for a target: a Control with the fields of one kind.
type Order struct {
	Kind *Kind
	Control
}

// isOver reports whether the order has ended by itself by a time of Redis' clock.
func (o Order) isOver(now time.Time) bool {
	return !o.PausedUntil.IsZero() && !o.PausedUntil.After(now)
}

// For returns those orders of a list, as State.Orders gives it, that are for the lock with that Redis key, and in one
// Control what comes of them. All targets of one lock are beginnings of its key, so of each kind the last one is the
// narrowest, and wins.
func For(list []Order, key string) (its []Order, now Control) {
	for _, o := range list {
		if AppliesTo(o.Target, key) {
			its = append(its, o)
			o.Kind.merge(&now, o.Control)
		}
	}
	return its, now
}
