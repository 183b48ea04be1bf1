package lock

import (
	"strings"

	"github.com/automutex/automutex/internal/controls"
	"github.com/automutex/automutex/internal/wire"
)

// orders returns the pause and the limit of a control, each as a Control with its own Why, By
// and Since. If the control does not come from a Locker, both have the control's Why, By and Since.
func (c Control) orders() []Control {
	if !c.Paused || c.Limit == 0 {
		return []Control{c}
	}
	if c.pauseBy == (wire.OrderedBy{}) && c.limitBy == (wire.OrderedBy{}) {
		c.pauseBy = wire.OrderedBy{Why: c.Why, By: c.By, Since: c.Since}
		c.limitBy = c.pauseBy
	}
	order := func(o Control, by wire.OrderedBy) Control {
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
		texts[i] = order.order().Text()
	}
	return strings.Join(texts, "; ")
}

// order is the control as one order: it has either a pause or a limit.
func (c Control) order() controls.Order {
	return controls.Order{Target: c.Target, Paused: c.Paused, Until: c.PausedUntil, Limit: c.Limit, Why: c.Why, By: c.By, Since: c.Since}
}
