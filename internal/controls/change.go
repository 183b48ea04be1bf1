package controls

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/automutex/automutex/internal/exchange"
	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/wire"
)

// Bounds of what is accepted, and of what is read.
const (
	maxWhy      = 1000 // bytes
	maxTarget   = 1000 // bytes
	maxControls = 1000 // targets
	mostRead    = 10 * maxControls
)

// Fetch reads the controls for a caller.
func (c *Reader) Fetch(ctx context.Context) (*State, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := c.life.Enter(); err != nil {
		return nil, err
	}
	defer c.life.Done()
	state, err := c.readControls(ctx, c.state.Load())
	if err != nil {
		return nil, exchange.Failed("control", c.Keys[0], err)
	}
	return state, nil
}

// changed is what a change has found at its target.
type changed struct {
	Paused     bool // a pause was in force
	Limited    bool // a limit was in force
	unreadable bool // the entry could not be read, and so was not in force
}

// Ended says what a change that ends an order has ended; order is whether that order was
// in force.
func (c changed) Ended(order bool) inside.Ended {
	switch {
	case c.unreadable:
		return inside.EndedUnreadable
	case order:
		return inside.EndedOrder
	}
	return inside.EndedNothing
}

// changeTries is how often a change is tried whose entry somebody else changes
// meanwhile. Each try in vain means that another operator's change came through.
const changeTries = 50

// Change reads the entry of a target, changes it and writes it back if nobody has
// changed it in between: else it begins anew. So no change of another operator gets
// lost, and none is needed that spans two targets: each is a field of its own.
//
// A change that ends an order (ends) also takes a target that no lock has, if an entry
// with that very name is stored: whatever has put it there, it can be removed.
func (c *Reader) Change(ctx context.Context, target, why string, ends bool, apply func(e *wire.Entry, by wire.OrderedBy, skew time.Duration)) (found changed, err error) {
	if c.life.Unfit() != nil {
		return found, c.life.Unfit()
	}
	text, wrong := c.parseTarget(target)
	if wrong != nil && !ends {
		return found, wrong
	}
	if len(why) > maxWhy {
		return found, fmt.Errorf("lock: control for %q: the reason has %d bytes: at most %d", text, len(why), maxWhy)
	}
	for range changeTries {
		state, err := c.Fetch(ctx)
		if err != nil {
			return found, err
		}
		if ends && (wrong != nil || state.targets[text] == nil) && state.targets[target] != nil {
			text, wrong = target, nil
		}
		if wrong != nil {
			return found, wrong
		}
		done, err := c.changeOnce(ctx, state, text, wire.OrderedBy{
			Why: strings.ToValidUTF8(why, "\uFFFD"), By: strings.ToValidUTF8(wire.Unescape(c.owner), "\uFFFD"), Since: state.serverTime,
		}, apply)
		if err != nil {
			return found, err
		}
		if done {
			c.dropEnded(ctx, state, text)
			if t := state.targets[text]; t != nil {
				for _, order := range ordersIn(t.entry, text, state.serverTime) {
					found.Paused, found.Limited = found.Paused || order.Paused, found.Limited || !order.Paused
				}
				found.unreadable = t.wrong != nil
			}
			return found, c.ObeyNow(ctx)
		}
	}
	return found, fmt.Errorf("lock: control for %q: others change it all the time; try again", text)
}

func (c *Reader) changeOnce(ctx context.Context, state *State, target string, by wire.OrderedBy,
	apply func(e *wire.Entry, by wire.OrderedBy, skew time.Duration),
) (done bool, err error) {
	was := state.targets[target]
	if was == nil {
		was = &controlled{}
	}
	entry := was.entry
	if was.wrong != nil {
		entry = wire.Entry{}
	}
	apply(&entry, by, state.skew())
	if entry.Pause != nil && entry.Pause.EndedAt(state.serverTime) {
		entry.Pause = nil
	}
	removes := entry.Pause == nil && entry.Limit == nil
	switch {
	case errors.Is(was.wrong, wire.ErrNewerVersion) && !removes:
		return false, fmt.Errorf("lock: control for %q: %w; change it with that version, or remove it with Resume first", target, was.wrong)
	case removes && was.raw == "":
		return true, nil
	case was.raw == "" && len(state.targets) >= maxControls:
		return false, fmt.Errorf("lock: control for %q: %d targets have controls already, which is the most; resume some, or use their scope", target, len(state.targets))
	}
	after := ""
	if !removes {
		after = entry.Text()
	}
	return c.write(ctx, target, was.raw, after)
}

// write puts after in the place of before; done is false where before is there no
// longer.
func (c *Reader) write(ctx context.Context, target, before, after string) (done bool, err error) {
	if err := c.life.Enter(); err != nil {
		return false, err
	}
	defer c.life.Done()
	reply, err := c.conn.Run(ctx, wire.ControlWriteScript, c.Keys, []any{target, before, after})
	if err != nil {
		return false, exchange.Failed("control", c.Keys[0], err)
	}
	code, err := wire.CodeOf(reply, 1)
	if err != nil {
		return false, exchange.Failed("control", c.Keys[0], err)
	}
	return code == 1, nil
}

// dropMost is how many entries of ended pauses go with one change.
const dropMost = 20

// dropEnded removes entries whose pause has ended by itself, but for that of target.
// An error leaves them to the next change: nothing is in force of them.
func (c *Reader) dropEnded(ctx context.Context, state *State, target string) {
	dropped := 0
	for name, t := range state.targets {
		if name == target || t.wrong != nil || dropped == dropMost {
			continue
		}
		if t.entry.Limit != nil || t.entry.Pause == nil || !t.entry.Pause.EndedAt(state.serverTime) {
			continue
		}
		dropped++
		if _, err := c.write(ctx, name, t.raw, ""); err != nil {
			return
		}
	}
}
