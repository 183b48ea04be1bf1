package web

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/automutex/automutex/internal/inspect"
	"github.com/automutex/automutex/internal/printable"
	"github.com/automutex/automutex/lock"
)

// askView shows what an action will do, and asks for it.
type askView struct {
	frame
	Action   string
	Key      string // of the lock or claim; else empty
	Target   string // of the order; else empty
	Holder   string // of the claim; else empty
	Task     string // that is to be skipped; else empty
	Ticket   string // of Task, as the list had it; else empty
	Question string
	Effects  []string
	Button   string
	From     string // of the request; see origin
	Back     string // where the operator goes who leaves it as it is
	Holders  []holderView
	Picked   []pickedKey // several locks at once; Key and Target are empty then
	Opens    bool        // a break ends the hold or cooldown as well
	Unknown  string      // why no task has Target
	Meant    string      // the target that was probably meant
	Order    orderForm   // what was typed for a pause or a limit
	Why      string      // as typed
}

// askFrame is the frame of a view that no link of the navigation leads to.
func (p *page) askFrame(r *http.Request) frame {
	f := p.frame(r, "", "")
	f.View = "-"
	return f
}

// ask shows what an action will do. It changes nothing.
func (p *page) ask(w http.ResponseWriter, r *http.Request) {
	if !p.mayOperate(w, r) {
		return
	}
	q := r.URL.Query()
	v := &askView{frame: p.askFrame(r), Action: q.Get("action"), Key: q.Get("key"), From: q.Get("from")}
	v.Back = p.origin(v.From, v.Action)
	if keys, ok := isPicked(v.Action, q); ok {
		p.askAboutPicked(w, r, v, keys)
		return
	}
	if v.Action == doBreak || v.Action == doDelete {
		v.Key = p.keyOf(v.Key)
		if wrong := p.noLock(v.Key); wrong != "" {
			p.fail(w, r, http.StatusBadRequest, wrong)
			return
		}
		v.Back = p.keyURL(v.Key)
	}
	switch v.Action {
	case doBreak, doDelete:
		if !p.askAboutLock(w, r, v) {
			return
		}
	case doSweep:
		v.Question, v.Button = "Remove what dead processes left behind?", "Sweep"
		v.Effects = []string{
			"Holders whose lease has ended, and waiters that have ceased to ask, are removed from all locks.",
			"Nothing depends on it: each lock does the same when a task asks for it.",
		}
	case doPause, doResume, doLimit:
		v.Target = q.Get("target")
		if strings.TrimSpace(v.Target) == "" {
			p.fail(w, r, http.StatusBadRequest, noTarget)
			return
		}
		if v.Action != doResume {
			v.Unknown, v.Meant = p.unknownTarget(r.Context(), v.Target)
		}
		v.describeOrder()
	case doSkip:
		v.Key, v.Task, v.Ticket = p.keyOf(v.Key), q.Get("task"), q.Get("ticket")
		if err := inner.LockErr(inner.ByKey(p.locker, v.Key)); err != nil || v.Task == "" {
			p.fail(w, r, http.StatusBadRequest, "This link names no task of a key.")
			return
		}
		v.describeSkip()
	case doDrop:
		v.Holder = q.Get("holder")
		v.Question, v.Button = "Drop the claim of "+printable.Short(v.Holder)+"?", "Drop"
		v.Effects = []string{
			"The next task for this key may be enqueued at once, whether or not this one has begun or ended.",
			"The task itself stays where it is: if it has not run, it runs.",
			"Only this task's claim is dropped, and not one that came meanwhile.",
		}
	default:
		p.fail(w, r, http.StatusBadRequest, "There is no such action.")
		return
	}
	v.Title = v.Question
	p.render(w, http.StatusOK, "ask", v)
}

// describeSkip says what skipping the next task of an ordered key does.
func (v *askView) describeSkip() {
	v.Question, v.Button = "Skip task "+printable.Short(v.Task)+" of "+printable.Short(inspect.InBraces(v.Key))+"?", "Skip"
	v.Effects = []string{
		"The task gives up its place, and the next task of the key goes on at once.",
		"The task itself is not changed. If asynq runs it later, it runs out of order, after the others.",
		"A task that runs now, or that is not the next one of its key any more, is not skipped.",
	}
}

// askAgain shows the form of an order again, with what was typed and what is wrong with it.
// Nothing was done.
func (p *page) askAgain(w http.ResponseWriter, r *http.Request, a Action, order orderForm, unknown, meant string) {
	if strings.TrimSpace(a.Target) == "" {
		p.fail(w, r, http.StatusBadRequest, noTarget)
		return
	}
	v := &askView{frame: p.askFrame(r), Action: a.Do, Target: a.Target, From: r.PostForm.Get("from"), Order: order, Why: a.Why}
	v.Back = p.origin(v.From, v.Action)
	v.Unknown, v.Meant = unknown, meant
	v.describeOrder()
	v.Title = v.Question
	p.render(w, http.StatusUnprocessableEntity, "ask", v)
}

// maxOrigin bounds the parameter "from": a key, and what the list is narrowed to.
const maxOrigin = 16 << 10

// origin is the URL of the view that an operator came from to an action. from is frame.Here of
// that view; empty means the view that the action belongs to. Anybody can make a link with
// another text there, so it leads to a lock or to the list of locks, or is not used.
func (p *page) origin(from, action string) string {
	view, query, _ := strings.Cut(from, "?")
	values, err := url.ParseQuery(query)
	if from == "" || len(from) > maxOrigin || err != nil || !slices.Contains([]string{"", "keys", "key", "blocked", "rules", "processes", "unique", "doctor"}, view) {
		return p.base + map[string]string{doDrop: "unique", doSkip: "blocked", doPause: "rules", doResume: "rules", doLimit: "rules"}[action]
	}
	values.Del("done")
	if len(values) == 0 {
		return p.base + view
	}
	return p.base + view + "?" + values.Encode()
}

// askAboutLock fills in what a break or a delete will do to a lock. false: it has answered
// with what is wrong.
func (p *page) askAboutLock(w http.ResponseWriter, r *http.Request, v *askView) bool {
	look := &keyView{Key: v.Key}
	ctx, cancel := context.WithTimeout(r.Context(), lookWithin)
	defer cancel()
	if err := p.inspect(ctx, look); err != nil {
		p.fail(w, r, http.StatusBadGateway, trouble(err, reload)+". Nothing was done.")
		return false
	}
	if controls, err := p.controls(ctx); err == nil { // without them it counts as not paused
		_, _, pause := inner.ControlsFor(controls, v.Key)
		look.Paused = pause != nil
	}
	v.Now, v.Holders = look.Now, look.Holders
	token := r.URL.Query().Get("token")
	if v.Action == doBreak && token != "" {
		v.Holders = slices.DeleteFunc(v.Holders, func(h holderView) bool { return h.Token != token })
	}
	v.Opens = v.Action == doBreak && token == "" && inspect.Breakable(look.Info.Closed)
	switch {
	case v.Action == doBreak && len(v.Holders) == 0 && !v.Opens && token == "" && look.Info.Closed != "":
		p.fail(w, r, http.StatusConflict, "Nobody holds this lock. Its rate is used up, which a break leaves as it is.")
	case v.Action == doBreak && len(v.Holders) == 0 && !v.Opens, look.Info.Held+look.Info.line() == 0 && look.Info.Closed == "":
		p.fail(w, r, http.StatusConflict, "Nobody holds this lock any more.")
	default:
		v.describe(look)
		return true
	}
	return false
}

// describe says what a break or a delete will do to a lock.
func (v *askView) describe(look *keyView) {
	next := "Nobody is in line, so the lock is free then."
	switch {
	case look.Paused:
		next = "An operator has paused it: nobody gets it until it is resumed."
	case look.Info.Closed != "" && !v.Opens:
		next = "Nobody gets it until " + look.Info.Opens.UTC().Format("15:04:05") + " UTC: " + look.Info.Closed + "."
	case look.Info.Held > len(v.Holders):
		next = "Others hold it too, and stay."
	case len(look.Line) > 0:
		next = "The first in line gets the lock at once."
	}
	stop := "The context of each holder's handler ends with lock.ErrLost, at its next renewal at the latest. Until then the handler may still be at work."
	name := printable.Short(inspect.InBraces(v.Key))
	take := "Take the lock " + name + " from " + printable.Count(len(v.Holders), "holder")
	open, end := "end its "+look.Info.Closed, "The "+look.Info.Closed+" ends now, whoever ordered it."
	alone := "End the " + look.Info.Closed + " of " + name + "?"
	if look.Info.Closed == lock.ReasonClosed {
		open, end, alone = "open its gate", "The gate opens now, whoever closed it.", "Open the gate of "+name+"?"
	}
	shown := "Only the holders below lose the lock, and nobody who came meanwhile."
	switch {
	case v.Action == doDelete:
		v.describeDelete(look, name, stop)
	case !v.Opens:
		v.Question, v.Button, v.Effects = take+"?", "Break", []string{stop, next, shown}
	case len(v.Holders) == 0:
		v.Question, v.Button, v.Effects = alone, "Break", []string{end, next}
	default:
		v.Question, v.Button, v.Effects = take+", and "+open+"?", "Break", []string{stop, end, next, shown}
	}
}

// describeDelete says what a delete will do to a lock; stop is what it does to holders.
func (v *askView) describeDelete(look *keyView, name, stop string) {
	v.Question, v.Button = "Delete the lock "+name+" with its line?", "Delete"
	if len(v.Holders) > 0 {
		v.Effects = []string{stop, "When somebody else holds the lock by then than the holders below, nothing is deleted."}
	} else {
		v.Effects = []string{"When somebody holds the lock by then, nothing is deleted."}
	}
	v.Effects = append(v.Effects,
		"A cooldown, a closed gate and what is used up of a rate are forgotten: unless it is paused, the next task starts at once.",
		printable.Count(look.Info.Waiting, "place")+" of tasks that wait in workers: they stand in a new line within a second.",
		printable.Count(look.Info.Parked, "place")+" of parked tasks: nobody calls them any more; each comes back when its own retry is due.",
	)
	if look.Info.Queued > 0 {
		v.Effects = append(v.Effects, printable.Count(look.Info.Queued, "place")+" of tasks in order: they run in the order in which they come, and none keeps the others waiting any more.")
	}
}
