package web

import (
	"context"
	"fmt"
	"net/url"
	"strconv"
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

// order changes a control.
func (p *page) order(ctx context.Context, a Action, form url.Values) (string, error) {
	controls, why := p.locker.Controls(), a.Why
	if a.By != "" { // the control itself names this process
		why = a.By + ": " + why
	}
	target := printable.Short(a.Target)
	switch a.Do {
	case doPause:
		var until time.Time
		result := target + " is paused until somebody resumes it."
		if typed := form.Get("for"); typed != "" {
			length, err := time.ParseDuration(typed)
			if err != nil || length <= 0 {
				return "", fmt.Errorf("%w: %q is not a duration: write 30m or 2h", errGone, printable.Short(typed))
			}
			until = time.Now().Add(length)
			result = target + " is paused for " + length.String() + "."
		}
		return result, controls.Pause(ctx, a.Target, until, why)
	case doResume:
		return p.resume(ctx, a.Target)
	default:
		limit, err := strconv.Atoi(form.Get("limit"))
		switch {
		case err != nil || limit < 0:
			return "", fmt.Errorf("%w: %q is not a number from 0 on", errGone, printable.Short(form.Get("limit")))
		case limit == 0:
			return target + " has the limit of the program again.", controls.ClearLimit(ctx, a.Target)
		}
		return fmt.Sprintf("%s is limited to %d at once.", target, limit), controls.SetLimit(ctx, a.Target, limit, why)
	}
}

// resume ends a pause, and removes an entry that cannot be read.
func (p *page) resume(ctx context.Context, target string) (string, error) {
	ended, err := inner.Resume(ctx, p.locker.Controls(), target)
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
		v.Effects = []string{"So many may hold a lock of this target at once, in place of the number in the program. A lower number takes effect as holders leave.", within}
	}
}
