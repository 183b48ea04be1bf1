// Package controls reads the orders of operators, keeps the last state that was read, and changes them.
package controls

import (
	"fmt"
	"time"

	"github.com/automutex/automutex/internal/printable"
	"github.com/automutex/automutex/internal/wire"
)

// Order is one order of an operator for a target: a pause, or a limit.
type Order struct {
	Target string
	Paused bool
	Until  time.Time // of a pause, by Redis' clock; zero: until it is resumed
	Limit  int       // 0: it is a pause
	wire.OrderedBy
}

// ordersIn returns the orders of an entry that are in force at a time of Redis' clock: the pause first.
func ordersIn(e wire.Entry, target string, serverTime time.Time) (list []Order) {
	if e.Pause != nil && !e.Pause.EndedAt(serverTime) {
		o := Order{Target: target, Paused: true, OrderedBy: e.Pause.OrderedBy}
		if e.Pause.Until != nil {
			o.Until = *e.Pause.Until
		}
		list = append(list, o)
	}
	if e.Limit != nil {
		list = append(list, Order{Target: target, Limit: e.Limit.Holders, OrderedBy: e.Limit.OrderedBy})
	}
	return list
}

// Text describes the order in a few words, for an operator.
func (c Order) Text() string {
	var text string
	switch {
	case !c.Paused:
		text = fmt.Sprintf("limited to %d", c.Limit)
	case c.Until.IsZero():
		text = "paused until somebody resumes it"
	default:
		text = "paused until " + c.Until.UTC().Format(time.RFC3339)
	}
	text += fmt.Sprintf(", ordered by %s at %s", printable.Short(c.By), c.Since.UTC().Format(time.RFC3339))
	if c.Why != "" {
		text += fmt.Sprintf(" (%s)", printable.Short(c.Why))
	}
	return text
}

// attributes returns the attributes of a log line about c.
func (c Order) attributes() []any {
	args := []any{"target", c.Target}
	if c.Paused {
		until := "resumed"
		if !c.Until.IsZero() {
			until = c.Until.UTC().Format(time.RFC3339)
		}
		args = append(args, "paused until", until)
	}
	if c.Limit > 0 {
		args = append(args, "limit", c.Limit)
	}
	return append(args, "why", c.Why, "by", c.By, "since", c.Since.UTC().Format(time.RFC3339))
}
