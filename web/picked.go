package web

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/automutex/automutex/internal/inspect"
	"github.com/automutex/automutex/internal/printable"
)

// pickedKey is one of several locks that an action is for.
type pickedKey struct {
	Key     string
	Holders []holderView
	Now     time.Time
	Text    string // instead of Holders
}

// isPicked reports whether an action is for locks that were picked in the list, and which.
// Only the list's form has an action with a "from" and no target.
func isPicked(action string, q url.Values) (keys []string, ok bool) {
	if action != doBreak && action != doPause || q.Has("target") {
		return nil, false
	}
	keys = q["key"]
	return keys, len(keys) > 1 || q.Has("from") || action == doPause && len(keys) > 0
}

// askAboutPicked asks once for an action on several locks.
func (p *page) askAboutPicked(w http.ResponseWriter, r *http.Request, v *askView, keys []string) {
	if len(keys) == 0 || len(keys) > perPage {
		p.fail(w, r, http.StatusBadRequest, fmt.Sprintf("Pick at least one lock in the list, and at most %d.", perPage))
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), lookWithin)
	defer cancel()
	holders, tasks := 0, []task(nil)
	for _, text := range keys {
		picked := pickedKey{Key: p.keyOf(text)}
		if wrong := p.noLock(picked.Key); wrong != "" {
			p.fail(w, r, http.StatusBadRequest, wrong)
			return
		}
		if v.Action == doBreak {
			look := &keyView{Key: picked.Key}
			if err := p.look(ctx, look); err != nil {
				p.fail(w, r, http.StatusBadGateway, trouble(err, reload)+". Nothing was done.")
				return
			}
			picked.Holders, picked.Now, picked.Text = look.Holders, look.Now, "Nobody holds it."
			holders += len(look.Holders)
			for _, h := range look.Holders {
				tasks = append(tasks, h.Task)
			}
		}
		v.Picked = append(v.Picked, picked)
	}
	states := p.states.ask(ctx, tasks)
	for _, picked := range v.Picked {
		for i := range picked.Holders {
			picked.Holders[i].State = stateOf(picked.Holders[i].Task, states)
		}
	}
	v.Key = ""
	locks := printable.Count(len(keys), "lock")
	switch v.Action {
	case doBreak:
		v.Question, v.Button = "Take "+locks+" from "+printable.Count(holders, "holder")+"?", "Break"
		v.Effects = []string{
			"The context of each holder's handler ends with lock.ErrLost, at its next renewal at the latest. Until then the handler may still be at work.",
			"The first in line of each gets its lock at once, unless it is paused or closed.",
			"Only the holders below lose their locks, and nobody who came meanwhile.",
		}
	default:
		v.describeOrder()
		v.Question = "Pause " + locks + "?"
		v.Effects[0] = "Nobody new gets one of these locks; who holds one keeps it."
	}
	v.Title = v.Question
	p.render(w, http.StatusOK, "ask", v)
}

// doPicked does an action on several locks, one after the other, and tells Audit of each. It
// returns what came of all of them.
func (p *page) doPicked(ctx context.Context, a Action, form url.Values, order orderForm) (all Action, wrong string) {
	keys := form["picked"]
	if len(keys) > perPage || a.Do != doBreak && a.Do != doPause {
		return a, "There is no such action."
	}
	for _, key := range keys { // before the first of them loses its holders
		if wrong := p.noLock(p.keyOf(key)); wrong != "" {
			return a, wrong
		}
	}
	done := 0
	var failed []string
	for _, key := range keys {
		one := a
		one.Target, one.Tokens = key, form["token:"+key]
		its := url.Values{"target": {inspect.InBraces(p.keyOf(key))}}
		p.act(ctx, &one, its, order) // nothing is wrong with the form: the keys were looked at above
		p.record(ctx, one)
		if one.Err != nil {
			failed = append(failed, inspect.InBraces(key)+": "+one.Err.Error())
			continue
		}
		done++
	}
	a.Target, a.At = "", time.Now()
	a.Result = fmt.Sprintf("%s: done for %d of %s.", a.Do, done, printable.Count(len(keys), "lock"))
	if len(failed) > 0 {
		a.Result += " Not done: " + strings.Join(failed[:min(len(failed), 3)], "; ")
		if more := len(failed) - 3; more > 0 {
			a.Result += fmt.Sprintf("; and %d more", more)
		}
	}
	return a, ""
}
