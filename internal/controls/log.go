package controls

import (
	"errors"

	"github.com/automutex/automutex/internal/wire"
)

// noteUnreadable logs that the controls cannot be read, once until they can.
func (c *Reader) noteUnreadable(before *State, err error) {
	if c.warned {
		return
	}
	c.warned = true
	obeyed := "this process obeys no pause and no limit until they can"
	if before != nil {
		obeyed = "this process obeys those that it has read before"
	}
	c.log.Error("automutex: the controls cannot be read; "+obeyed, "key", c.Keys[0], "error", err)
}

// noteReadable logs the first successful read after one that noteUnreadable has logged.
func (c *Reader) noteReadable() {
	if c.warned {
		c.warned = false
		c.log.Info("automutex: the controls can be read again", "key", c.Keys[0])
	}
}

// noteChange logs the orders that came into force and those that have ended. If there are
// any, it calls changed. The pause and the limit of a target
// are two orders.
func (c *Reader) noteChange(now *State) {
	c.LogUnreadable(now)
	type key struct {
		target string
		pause  bool
	}
	before, inForce := c.inForce, now.Orders()
	was := make(map[key]Order, len(before))
	for _, order := range before {
		was[key{order.Target, order.Paused}] = order
	}
	c.inForce = inForce
	changed := false
	for _, order := range inForce {
		the := key{order.Target, order.Paused}
		if was[the] != order {
			changed = true
			c.log.Warn("automutex: a control is in force", order.attributes()...)
		}
		delete(was, the)
	}
	for _, order := range before {
		if _, ended := was[key{order.Target, order.Paused}]; ended {
			changed = true
			c.log.Info("automutex: a control has ended", "target", order.Target, "was", order.Text())
		}
	}
	if changed {
		c.changed(now)
	}
}

// loggedMost is how many unreadable entries the reader remembers as logged.
const loggedMost = 100

// LogUnreadable logs each entry that cannot be read, once.
func (c *Reader) LogUnreadable(state *State) {
	for target, t := range state.targets {
		if t.wrong == nil {
			continue
		}
		c.mu.Lock()
		first := c.logged[target] != t.raw && len(c.logged) < loggedMost
		if first {
			c.logged[target] = t.raw
		}
		c.mu.Unlock()
		if !first {
			continue
		}
		fix := "remove it with automutex resume TARGET, or with HDEL KEY TARGET"
		if errors.Is(t.wrong, wire.ErrNewerVersion) {
			fix = "update this program, or " + fix
		}
		c.log.Error("automutex: a control cannot be read and is not in force; the others are", "key", c.Keys[0], "target", target, "problem", t.wrong, "fix", fix)
	}
}
