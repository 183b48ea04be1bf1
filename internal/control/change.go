package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/redisx"
)

// Bounds of what is accepted, and of what is read.
const (
	maxWhy      = 1000 // bytes
	maxTarget   = 1000 // bytes
	maxControls = 1000 // targets
	mostRead    = 10 * maxControls
)

// Pause keeps everybody from taking a lock of the target, until that time or, if until is zero, until Resume.
func (r *Reader) Pause(ctx context.Context, target string, until time.Time, why string) error {
	left := time.Until(until)
	switch {
	case until.IsZero():
	case left <= 0:
		return fmt.Errorf("lock: pause of %q until %s: that is in the past; give a time to come, or the zero time for a pause until Resume", target, until.Format(time.RFC3339))
	case left > inside.MaxTTL:
		return fmt.Errorf("lock: pause of %q until %s: at most %s from now; give the zero time for a pause until Resume", target, until.Format(time.RFC3339), inside.MaxTTL)
	}
	_, err := r.change(ctx, target, pauseIn, &Order{Until: until, OrderedBy: OrderedBy{Why: why}})
	return err
}

// SetLimit sets how many may hold a lock of the target at once.
func (r *Reader) SetLimit(ctx context.Context, target string, n int, why string) error {
	if n < 1 || n > maxLimit {
		return fmt.Errorf("lock: limit of %d for %q: from 1 to %d; to let nobody acquire it, use Pause", n, target, maxLimit)
	}
	_, err := r.change(ctx, target, limitIn, &Order{Limit: n, OrderedBy: OrderedBy{Why: why}})
	return err
}

// Resume ends a pause, and returns what it has ended.
func (r *Reader) Resume(ctx context.Context, target string) (Ended, error) {
	return r.change(ctx, target, pauseIn, nil)
}

// ClearLimit ends a limit, and returns what it has ended.
func (r *Reader) ClearLimit(ctx context.Context, target string) (Ended, error) {
	return r.change(ctx, target, limitIn, nil)
}

func pauseIn(e *entry) **Order { return &e.Pause }
func limitIn(e *entry) **Order { return &e.Limit }

// changeTries is how often a change is tried whose entry somebody else changes meanwhile. Each try in vain means that another
// operator's change came through.
const changeTries = 50

// change puts order in its place in the entry of a target, or ends the order there if order is nil, and returns what it has ended. It
// reads the entry and writes it back if nobody has changed it in between: else it begins anew. So no change of another operator gets
// lost, and none is needed that spans two targets: each is a field of its own.
//
// An end also takes a target that no lock can have, if an entry with that very name is stored: whatever put it there, it can go.
func (r *Reader) change(ctx context.Context, typed string, place func(*entry) **Order, order *Order) (Ended, error) {
	target, wrong := r.target(typed)
	switch {
	case r.o.Life.Unfit() != nil:
		return 0, r.o.Life.Unfit()
	case order != nil && wrong != nil:
		return 0, wrong
	case order != nil && len(order.Why) > maxWhy:
		return 0, fmt.Errorf("lock: control for %q: the reason has %d bytes: at most %d", typed, len(order.Why), maxWhy)
	}
	for range changeTries {
		state, err := r.Fetch(ctx)
		if err != nil {
			return 0, err
		}
		if order == nil && state.targets[target] == nil && !isInKey(typed) && state.targets[typed] != nil {
			target = typed
		}
		was, ended := controlled{}, EndedNothing
		if stored := state.targets[target]; stored != nil {
			was, wrong = *stored, nil
		}
		if wrong != nil {
			return ended, wrong
		}
		after := entry{Version: entryVersion, Limit: was.Limit}
		if was.isPaused(state.serverTime) {
			after.Pause = was.Pause
		}
		switch {
		case order != nil:
			*place(&after) = r.signed(*order, state)
		case was.wrong != nil:
			ended = EndedUnreadable
		case *place(&after) != nil:
			ended, *place(&after) = EndedOrder, nil
		}
		text := []byte{}
		if after.Limit != nil || after.Pause != nil {
			text, err = json.Marshal(after)
			switch {
			case errors.Is(was.wrong, errNewerVersion):
				err = fmt.Errorf("%w; change it with that version, or remove it with Resume first", was.wrong)
			case was.raw == "" && len(state.targets) >= maxControls:
				err = fmt.Errorf("%d targets have controls already, which is the most; resume some, or use their scope", maxControls)
			}
			if err != nil {
				return 0, fmt.Errorf("lock: control for %q: %w", typed, err)
			}
		}
		switch done, err := r.write(ctx, target, was.raw, string(text)); {
		case err != nil:
			return 0, err
		case done:
			r.dropEnded(ctx, state, target)
			_, err = r.Fetch(ctx)
			return ended, err
		}
	}
	return 0, fmt.Errorf("lock: control for %q: others change it all the time; try again", typed)
}

// signed is an order of this process as it is stored: by Redis' clock.
func (r *Reader) signed(o Order, state *State) *Order {
	o.Why, o.By, o.Since = strings.ToValidUTF8(o.Why, "\uFFFD"), strings.ToValidUTF8(r.o.Owner, "\uFFFD"), state.serverTime.UTC()
	if !o.Until.IsZero() {
		o.Until = o.Until.Add(state.skew()).UTC()
	}
	return &o
}

// write puts after in the place of before, each a stored entry or empty; done is false where before is there no longer.
func (r *Reader) write(ctx context.Context, target, before, after string) (done bool, err error) {
	if before == after {
		return true, nil
	}
	if err := r.o.Life.Enter(); err != nil {
		return false, err
	}
	defer r.o.Life.Done()
	reply, err := r.o.Conn.Run(ctx, writeScript, r.Keys, target, before, after)
	if err != nil {
		return false, redisx.Failed("control", r.Keys[0], err)
	}
	return reply == int64(1), nil
}

// dropEnded removes some entries whose pause has ended by itself, but for that of target. An error leaves them to the next change:
// nothing is in force of them.
func (r *Reader) dropEnded(ctx context.Context, state *State, target string) {
	most := 20
	for name, t := range state.targets {
		if name == target || t.Pause == nil || t.Limit != nil || t.isPaused(state.serverTime) {
			continue
		}
		if _, err := r.write(ctx, name, t.raw, ""); err != nil || most == 0 {
			return
		}
		most--
	}
}

// Ended is what the end of an operator's order has ended.
type Ended int

// Its values.
const (
	EndedNothing    Ended = iota // the order was not in force
	EndedOrder                   // the order
	EndedUnreadable              // an entry that could not be read, and so was not in force
)
