package control

import (
	"cmp"
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

// Give gives an order of this process, by Redis' clock, in place of the one of its kind for the target. Of c counts
// what the kind and Why say.
func (r *Reader) Give(ctx context.Context, kind *Kind, typed string, c Control) error {
	target, wrong := r.Target(typed)
	if wrong == nil {
		wrong = checkOrder(kind, typed, c)
	}
	if err := cmp.Or(r.o.Life.Unfit(), wrong); err != nil {
		return err
	}
	state, err := r.Fetch(ctx)
	if err != nil {
		return err
	}
	over := r.dropOver(ctx, state)
	if len(state.fields)-over >= maxControls && state.targets[target] == nil {
		return fmt.Errorf("lock: control for %q: there are %d orders already, which is the most; end some, or use "+
			"their scope", typed, maxControls)
	}
	o := Control{Why: strings.ToValidUTF8(c.Why, "\uFFFD"), By: strings.ToValidUTF8(r.o.Owner, "\uFFFD"),
		Since: state.serverTime.UTC()}
	if kind.merge(&o, c); !o.PausedUntil.IsZero() {
		o.PausedUntil = o.PausedUntil.Add(state.skew()).UTC()
	}
	o.Paused = false
	text, err := json.Marshal(o)
	if err == nil {
		_, err = r.write(ctx, kind.Name+" "+target, string(text), "")
	}
	if err != nil {
		return err
	}
	_, err = r.Fetch(ctx)
	return err
}

func checkOrder(kind *Kind, typed string, c Control) (err error) {
	left := time.Until(c.PausedUntil)
	switch {
	case len(c.Why) > maxWhy:
		err = fmt.Errorf("the reason has %d bytes: at most %d", len(c.Why), maxWhy)
	case kind.check != nil:
		err = kind.check(c)
	case c.PausedUntil.IsZero():
	case left <= 0:
		err = fmt.Errorf("a pause until %s: that is in the past; give a time to come, or the zero time for a pause until "+
			"Resume", c.PausedUntil.Format(time.RFC3339))
	case left > inside.MaxTTL:
		err = fmt.Errorf("a pause until %s: at most %s from now; give the zero time for a pause until Resume",
			c.PausedUntil.Format(time.RFC3339), inside.MaxTTL)
	}
	if err != nil {
		err = fmt.Errorf("lock: control for %q: %w", typed, err)
	}
	return err
}

// End ends the order of that kind for the target, and reports whether it was in force.
func (r *Reader) End(ctx context.Context, kind *Kind, typed string) (was bool, err error) {
	target, err := r.Target(typed)
	if err = cmp.Or(r.o.Life.Unfit(), err); err != nil {
		return false, err
	}
	raw, err := r.write(ctx, kind.Name+" "+target, "", "")
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

// dropOver removes some pauses that are over. An error leaves them to the next change.
func (r *Reader) dropOver(ctx context.Context, state *State) (dropped int) {
	for name, f := range state.fields {
		if f.wrong == nil && f.order.isOver(state.serverTime) && dropped < 20 {
			dropped++
			_, _ = r.write(ctx, name, "", f.raw)
		}
	}
	return dropped
}
