package control

import (
	"context"
	"encoding/json"
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
	maxControls = 1000 // orders
	mostRead    = 10 * maxControls
)

// Pause keeps everybody from taking a lock of the target, until that time or, if until is zero, until Resume.
func (r *Reader) Pause(ctx context.Context, target string, until time.Time, why string) error {
	left := time.Until(until)
	switch {
	case until.IsZero():
	case left <= 0:
		return fmt.Errorf("lock: pause of %q until %s: that is in the past; give a time to come, or the zero time for a "+
			"pause until Resume", target, until.Format(time.RFC3339))
	case left > inside.MaxTTL:
		return fmt.Errorf("lock: pause of %q until %s: at most %s from now; give the zero time for a pause until Resume",
			target, until.Format(time.RFC3339), inside.MaxTTL)
	}
	return r.order(ctx, target, Order{Paused: true, Until: until, Why: why})
}

// SetLimit sets how many may hold a lock of the target at once.
func (r *Reader) SetLimit(ctx context.Context, target string, n int, why string) error {
	if n < 1 || n > maxLimit {
		return fmt.Errorf("lock: limit of %d for %q: from 1 to %d; to let nobody acquire it, use Pause", n, target, maxLimit)
	}
	return r.order(ctx, target, Order{Limit: n, Why: why})
}

// Resume ends a pause, and reports whether there was one.
func (r *Reader) Resume(ctx context.Context, target string) (bool, error) {
	return r.end(ctx, pauseOf, target)
}

// ClearLimit ends a limit, and reports whether there was one.
func (r *Reader) ClearLimit(ctx context.Context, target string) (bool, error) {
	return r.end(ctx, limitOf, target)
}

// order stores an order of this process, by Redis' clock, in place of the one of its kind for the target.
func (r *Reader) order(ctx context.Context, typed string, o Order) error {
	target, wrong := r.target(typed)
	switch {
	case r.o.Life.Unfit() != nil:
		return r.o.Life.Unfit()
	case wrong != nil:
		return wrong
	case len(o.Why) > maxWhy:
		return fmt.Errorf("lock: control for %q: the reason has %d bytes: at most %d", typed, len(o.Why), maxWhy)
	}
	state, err := r.Fetch(ctx)
	if err != nil {
		return err
	}
	if len(state.fields) >= maxControls && state.targets[target] == nil {
		return fmt.Errorf("lock: control for %q: there are %d orders already, which is the most; end some, or use "+
			"their scope", typed, maxControls)
	}
	o.Why, o.By, o.Since = strings.ToValidUTF8(o.Why, "\uFFFD"), strings.ToValidUTF8(r.o.Owner, "\uFFFD"),
		state.serverTime.UTC()
	field := limitOf + target
	if o.Paused {
		field = pauseOf + target
	}
	if !o.Until.IsZero() {
		o.Until = o.Until.Add(state.skew()).UTC()
	}
	text, err := json.Marshal(o)
	if err == nil {
		_, err = r.write(ctx, field, string(text), "")
	}
	if err != nil {
		return err
	}
	r.dropOver(ctx, state)
	_, err = r.Fetch(ctx)
	return err
}

// end ends the order of that kind for the target, and reports whether it was in force.
func (r *Reader) end(ctx context.Context, kind, typed string) (was bool, err error) {
	target, err := r.target(typed)
	if r.o.Life.Unfit() != nil {
		return false, r.o.Life.Unfit()
	}
	if err != nil {
		return false, err
	}
	raw, err := r.write(ctx, kind+target, "", "")
	if err != nil {
		return false, err
	}
	state, err := r.Fetch(ctx)
	if err != nil {
		return false, err
	}
	r.dropOver(ctx, state)
	o, unreadable := parseOrder(kind, typed, raw)
	return unreadable == nil && !o.isOver(state.serverTime), nil
}

// write puts text in the place of what the field has, which it returns; an empty text is none. With only, it does
// nothing if the field has something else.
func (r *Reader) write(ctx context.Context, field, text, only string) (was string, err error) {
	if err := r.o.Life.Enter(); err != nil {
		return "", err
	}
	defer r.o.Life.Done()
	reply, err := r.call(ctx, writeScript, field, text, only)
	if err != nil {
		return "", redisx.Failed("control", r.Keys[0], err)
	}
	was, _ = reply.(string)
	return was, nil
}

// dropOver removes some pauses that have ended by themselves. An error leaves them to the next change: nothing is in
// force of them.
func (r *Reader) dropOver(ctx context.Context, state *State) {
	most := 20
	for name, f := range state.fields {
		if f.wrong == nil && f.order.isOver(state.serverTime) && most > 0 {
			most--
			_, _ = r.write(ctx, name, "", f.raw)
		}
	}
}
