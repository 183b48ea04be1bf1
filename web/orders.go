package web

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/printable"
	"github.com/automutex/automutex/lock"
)

// controls gives the controls of operators, as Redis has them, at most freshFor old. With an
// error it gives those of before.
func (p *page) controls(ctx context.Context) ([]lock.Control, error) {
	return p.orders.get(ctx, freshFor, p.locker.Controls().List)
}

// noTarget answers an order without a target.
const noTarget = "Name a target: a scope, or what stands between the braces of a key."

const (
	// shortestPause is the shortest time that a pause may be for, as for the command.
	shortestPause = 100 * time.Millisecond
	// maxLimit bounds a limit, as package lock does.
	maxLimit = math.MaxInt32
)

// orderForm is what an operator types for a pause or a limit, and what it says.
type orderForm struct {
	For, WrongFor     string // as typed, and what is wrong with it
	Limit, WrongLimit string
	length            time.Duration // of a pause; 0: until somebody resumes it
	limit             int           // 0: as the program says
}

func (o orderForm) wrong() bool { return o.WrongFor != "" || o.WrongLimit != "" }

// MaxLimit is the greatest limit, for the form.
func (orderForm) MaxLimit() int { return maxLimit }

// readOrder reads the fields that the form of an action has.
func readOrder(action string, form url.Values) (o orderForm) {
	var err error
	switch action {
	case doPause:
		o.For = form.Get("for")
		if typed := strings.TrimSpace(o.For); typed == "" {
			return o
		} else if o.length, err = time.ParseDuration(typed); err != nil {
			o.WrongFor = fmt.Sprintf("%q is not a duration: write 30m or 2h, or leave it empty.", printable.Short(typed))
		} else if o.length < shortestPause {
			o.WrongFor = fmt.Sprintf("%q is too short: a pause is at least %s.", printable.Short(typed), shortestPause)
		}
	case doLimit:
		o.Limit = form.Get("limit")
		typed := strings.TrimSpace(o.Limit)
		if o.limit, err = strconv.Atoi(typed); err != nil || o.limit < 0 || o.limit > maxLimit {
			o.WrongLimit = fmt.Sprintf("%q is not a whole number from 0 to %d.", printable.Short(typed), maxLimit)
		}
	}
	return o
}

// order changes a control. The control names the operator where the action does, and else
// this page.
func (p *page) order(ctx context.Context, a Action, o orderForm) (string, error) {
	locker := p.locker
	if a.By != "" {
		locker = lock.New(p.rdb, lock.Options{Prefix: p.o.Prefix, Owner: a.By, Logger: slog.New(slog.DiscardHandler)})
		defer locker.Close()
	}
	controls, target := locker.Controls(), printable.Short(a.Target)
	switch {
	case a.Do == doResume:
		return p.resume(ctx, controls, a.Target)
	case a.Do == doPause && o.length > 0:
		return target + " is paused for " + printable.Exact(o.length) + ".", controls.Pause(ctx, a.Target, time.Now().Add(o.length), a.Why)
	case a.Do == doPause:
		return target + " is paused until somebody resumes it.", controls.Pause(ctx, a.Target, time.Time{}, a.Why)
	case o.limit == 0:
		return target + " has the limit of the program again.", controls.ClearLimit(ctx, a.Target)
	}
	return fmt.Sprintf("%s is limited to %d at once.", target, o.limit), controls.SetLimit(ctx, a.Target, o.limit, a.Why)
}

// resume ends a pause, and removes an entry that cannot be read.
func (p *page) resume(ctx context.Context, controls *lock.Controls, target string) (string, error) {
	ended, err := inner.Resume(ctx, controls, target)
	switch name := printable.Short(target); {
	case err != nil:
		return "", err
	case ended == inside.EndedNothing:
		return "", fmt.Errorf("%w: %s is not paused", errGone, name)
	case ended == inside.EndedUnreadable:
		return "The entry of " + name + ", which could not be read and was not in force, is removed.", nil
	default:
		return name + " is not paused any more.", nil
	}
}

// describeOrder says what a control will do.
func (v *askView) describeOrder() {
	target := printable.Short(v.Target)
	within := "Every worker obeys within two seconds; it outlives restarts."
	switch v.Action {
	case doPause:
		v.Question, v.Button = "Pause "+target+"?", "Pause"
		v.Effects = []string{
			"Nobody new gets a lock of this target; who holds one keeps it.",
			"Tasks go back to asynq, their attempts not spent, whatever the policy of their rule.", within,
		}
	case doResume:
		v.Question, v.Button = "Resume "+target+"?", "Resume"
		v.Effects = []string{"Tasks get the locks of this target again. A pause of the whole scope stays in force for one key of it.", within}
	default:
		v.Question, v.Button = "Set another limit for "+target+"?", "Set"
		v.Effects = []string{"So many may hold a lock of this target at once, in place of the number in the program. A lower number takes effect as holders leave.", "Ordered keys go on with one at a time, whatever the number.", within}
	}
}
