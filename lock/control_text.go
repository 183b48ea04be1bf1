package lock

import (
	"fmt"
	"strings"
	"time"

	"github.com/automutex/automutex/internal/printable"
)

// orders returns the pause and the limit of a control, each as a Control with its own Why, By
// and Since. If the control does not come from a Locker, both have the control's Why, By and Since.
func (c Control) orders() []Control {
	if !c.Paused || c.Limit == 0 {
		return []Control{c}
	}
	if c.pauseBy == (orderedBy{}) && c.limitBy == (orderedBy{}) {
		c.pauseBy = orderedBy{c.Why, c.By, c.Since}
		c.limitBy = c.pauseBy
	}
	order := func(o Control, by orderedBy) Control {
		o.Target, o.Why, o.By, o.Since = c.Target, by.Why, by.By, by.Since
		return o
	}
	return []Control{
		order(Control{Paused: true, PausedUntil: c.PausedUntil}, c.pauseBy),
		order(Control{Limit: c.Limit}, c.limitBy),
	}
}

// ordersOf returns the orders of all controls of a list.
func ordersOf(list []Control) []Control {
	all := make([]Control, 0, len(list))
	for _, c := range list {
		all = append(all, c.orders()...)
	}
	return all
}

// text describes the control in a few words, for an operator.
func (c Control) text() string {
	orders := c.orders()
	texts := make([]string, len(orders))
	for i, order := range orders {
		texts[i] = order.orderText()
	}
	return strings.Join(texts, "; ")
}

// orderText is text for one order, a pause or a limit.
func (c Control) orderText() string {
	var text string
	switch {
	case !c.Paused:
		text = fmt.Sprintf("limited to %d", c.Limit)
	case c.PausedUntil.IsZero():
		text = "paused until resumed"
	default:
		text = "paused until " + c.PausedUntil.UTC().Format(time.RFC3339)
	}
	text += fmt.Sprintf(" by %s since %s", printable.Short(c.By), c.Since.UTC().Format(time.RFC3339))
	if c.Why != "" {
		text += fmt.Sprintf(" (%s)", printable.Short(c.Why))
	}
	return text
}
