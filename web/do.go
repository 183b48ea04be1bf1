package web

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/automutex/automutex/internal/inspect"
	"github.com/automutex/automutex/internal/printable"
)

const (
	// maxForm bounds what a browser may send.
	maxForm = 256 << 10
	// maxWhy bounds the reason that an operator gives.
	maxWhy = 200
	// actWithin bounds an action; a sweep has several exchanges with Redis.
	actWithin = time.Minute
)

// What an operator can do.
const (
	doBreak  = "break"
	doDelete = "delete"
	doSweep  = "sweep"
	doDrop   = "drop"
	doPause  = "pause"
	doResume = "resume"
	doLimit  = "limit"
)

// errGone refuses an action on what is no longer so.
var errGone = errors.New("nothing was done")

// askView shows what an action will do, and asks for it.
type askView struct {
	frame
	Action   string
	Key      string // of the lock or claim; else empty
	Target   string // of the order; else empty
	Holder   string // of the claim; else empty
	Question string
	Effects  []string
	Button   string
	Back     string
	Holders  []holderView
}

// mayOperate answers 403 to whom it may concern.
func (p *page) mayOperate(w http.ResponseWriter, r *http.Request) bool {
	if p.o.Access(r) >= AccessOperate {
		return true
	}
	p.fail(w, r, http.StatusForbidden, "You may look, and not change anything.")
	return false
}

// ask shows what an action will do. It changes nothing.
func (p *page) ask(w http.ResponseWriter, r *http.Request) {
	if !p.mayOperate(w, r) {
		return
	}
	q := r.URL.Query()
	v := &askView{frame: p.frame(r, "", ""), Action: q.Get("action"), Key: q.Get("key"), Back: p.base}
	if v.Action == doBreak || v.Action == doDelete {
		if err := inner.LockErr(inner.ByKey(p.locker, v.Key)); err != nil {
			p.fail(w, r, http.StatusBadRequest, "This is no key of a lock: "+printable.Short(err.Error())+".")
			return
		}
		v.Back = p.keyURL(v.Key, "")
	}
	switch v.Action {
	case doBreak, doDelete:
		lock := &keyView{Key: v.Key}
		ctx, cancel := context.WithTimeout(r.Context(), lookWithin)
		defer cancel()
		if err := p.inspect(ctx, lock); err != nil {
			p.fail(w, r, http.StatusBadGateway, "Redis: "+printable.Short(err.Error())+".")
			return
		}
		v.Now, v.Holders = lock.Now, lock.Holders
		if token := q.Get("token"); token != "" && v.Action == doBreak {
			v.Holders = slices.DeleteFunc(v.Holders, func(h holderView) bool { return h.Token != token })
		}
		if v.Action == doBreak && len(v.Holders) == 0 || lock.Info.Held+lock.Info.line() == 0 {
			p.fail(w, r, http.StatusConflict, "Nobody holds this lock any more.")
			return
		}
		v.describe(lock)
	case doSweep:
		v.Question, v.Button = "Remove what dead processes left behind?", "Sweep"
		v.Effects = []string{
			"Holders whose lease has ended, and waiters that have ceased to ask, are removed from all locks.",
			"Nothing depends on it: each lock does the same when a task asks for it.",
		}
	case doPause, doResume, doLimit:
		v.Target = q.Get("target")
		if strings.TrimSpace(v.Target) == "" {
			p.fail(w, r, http.StatusBadRequest, "Name a target: a scope, or what stands between the braces of a key.")
			return
		}
		v.Back = p.base + "rules"
		v.describeOrder()
	case doDrop:
		v.Holder, v.Back = q.Get("holder"), p.base+"unique"
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

// describe says what a break or a delete will do to a lock.
func (v *askView) describe(lock *keyView) {
	next := "Nobody is in line, so the lock is free then."
	switch {
	case lock.Paused:
		next = "An operator has paused it: nobody gets it until it is resumed."
	case lock.Info.Closed != "":
		next = "Nobody gets it until " + lock.Info.Opens.UTC().Format("15:04:05") + " UTC: " + lock.Info.Closed + "."
	case lock.Info.Held > len(v.Holders):
		next = "Others hold it too, and stay."
	case len(lock.Line) > 0:
		next = "The first in line gets the lock at once."
	}
	stop := "The context of each holder's handler ends with lock.ErrLost, at its next renewal at the latest. Until then the handler may still be at work."
	if v.Action == doBreak {
		v.Question, v.Button = "Take the lock "+printable.Short(inspect.InBraces(v.Key))+" from "+printable.Count(len(v.Holders), "holder")+"?", "Break"
		v.Effects = []string{stop, next, "Only the holders below lose the lock, and nobody who came meanwhile."}
		return
	}
	v.Question, v.Button = "Delete the lock "+printable.Short(inspect.InBraces(v.Key))+" with its line?", "Delete"
	v.Effects = []string{
		stop,
		"A cooldown, a hold and what is used up of a rate are forgotten: unless it is paused, the next task starts at once.",
		printable.Count(lock.Info.Waiting, "place") + " of tasks that wait in workers: they stand in a new line within a second.",
		printable.Count(lock.Info.Parked, "place") + " of parked tasks: nobody calls them any more; each comes back when its own retry is due.",
	}
}

// do does what ask has shown. The answer is a redirect, so that reloading the next page
// does nothing again.
func (p *page) do(w http.ResponseWriter, r *http.Request) {
	if !p.mayOperate(w, r) {
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	if err := r.ParseForm(); err != nil {
		p.fail(w, r, http.StatusBadRequest, "The form could not be read.")
		return
	}
	a := Action{Do: r.PostForm.Get("action"), Target: r.PostForm.Get("key"), Tokens: r.PostForm["token"], Why: r.PostForm.Get("why"), Request: r}
	if runes := []rune(a.Why); len(runes) > maxWhy {
		a.Why = string(runes[:maxWhy])
	}
	if p.o.User != nil {
		a.By = p.o.User(r)
	}
	// An action that has begun goes on when the browser goes away.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), actWithin)
	defer cancel()
	back, wrong := p.act(ctx, &a, r.PostForm)
	if wrong != "" {
		p.fail(w, r, http.StatusBadRequest, wrong)
		return
	}
	done := doneCode(a, p.record(ctx, a))
	to := p.base + back + "?" + url.Values{"done": {done}}.Encode()
	if back == "key" {
		to = p.keyURL(a.Target, done)
	}
	w.Header().Set("Location", to)
	w.WriteHeader(http.StatusSeeOther)
}

// act does an action and fills in what came of it. back is the view to show then. wrong
// says what is wrong with the form; nothing was done then.
func (p *page) act(ctx context.Context, a *Action, form url.Values) (back, wrong string) {
	switch a.Do {
	case doBreak, doDelete:
		m := inner.ByKey(p.locker, a.Target)
		if err := inner.LockErr(m); err != nil {
			return "", "This is no key of a lock: " + printable.Short(err.Error()) + "."
		}
		if a.Do == doBreak {
			a.Result, a.Err = p.breakHolders(ctx, a.Target, a.Tokens)
			return "key", ""
		}
		a.Tokens = nil
		a.Result, a.Err = "The lock and its line were deleted.", m.Delete(ctx)
		return "key", ""
	case doSweep:
		a.Target, a.Tokens = "", nil
		removed, err := inner.Sweep(ctx, p.locker)
		a.Result, a.Err = fmt.Sprintf("Dead entries removed: %d.", removed), err
		return "", ""
	case doDrop:
		a.Tokens = nil
		a.Result, a.Err = p.dropClaim(ctx, a.Target, form.Get("holder"))
		return "unique", ""
	case doPause, doResume, doLimit:
		a.Target, a.Tokens = form.Get("target"), nil
		a.Result, a.Err = p.order(ctx, *a, form)
		p.orders.forget()
		return "rules", ""
	}
	return "", "There is no such action."
}

// breakHolders breaks the holders that the operator has seen, and nobody else.
func (p *page) breakHolders(ctx context.Context, key string, tokens []string) (string, error) {
	if len(tokens) == 0 {
		return "", fmt.Errorf("%w: the form names no holder", errGone)
	}
	m, broken := inner.ByKey(p.locker, key), 0
	for _, token := range tokens {
		ok, err := m.Break(ctx, token)
		if err != nil {
			return "", fmt.Errorf("after %d of %d: %w", broken, len(tokens), err)
		}
		if ok {
			broken++
		}
	}
	if broken == 0 {
		return "", fmt.Errorf("%w: none of them holds the lock any more", errGone)
	}
	return fmt.Sprintf("The lock was taken from %d of %s.", broken, printable.Count(len(tokens), "holder")), nil
}

// record keeps an action and tells Audit.
func (p *page) record(ctx context.Context, a Action) (id string) {
	a.At = time.Now()
	if a.Err != nil {
		a.Result = ""
	}
	id = p.actions.add(a)
	if err := p.past.write(ctx, a); err != nil {
		p.o.Logger.Warn("automutex: web: an action is not in the timeline", "action", a.Do, "error", err)
	}
	if p.o.Audit != nil {
		p.o.Audit(a)
	}
	return id
}

// doneCode names an action in the URL that its form is redirected to: what it was, whether it
// was done, and its ID.
func doneCode(a Action, id string) string {
	outcome := "ok"
	if a.Err != nil {
		outcome = "failed"
	}
	return a.Do + "." + outcome + "." + id
}

// errElsewhere stands for the error of an action that this process did not keep.
var errElsewhere = errors.New("so says this link; the process of the page that tried it knows why")

// done is the action that the viewer was redirected from; nil without one. The process that
// did it has it whole. Another process behind the same address, or one that has forgotten it,
// has a fixed text. Nothing of the URL itself is shown: anybody can make a link.
func (p *page) done(r *http.Request) *Action {
	code := strings.SplitN(r.URL.Query().Get("done"), ".", 3)
	if len(code) != 3 {
		return nil
	}
	if a, ok := p.actions.get(code[2]); ok {
		return &a
	}
	kinds := []string{doBreak, doDelete, doSweep, doDrop, doPause, doResume, doLimit}
	at := slices.Index(kinds, code[0])
	switch {
	case at >= 0 && code[1] == "ok":
		return &Action{Do: kinds[at], Result: kinds[at] + ": done, says this link. The process of the page that did it has the details."}
	case at >= 0 && code[1] == "failed":
		return &Action{Do: kinds[at], Err: errElsewhere}
	}
	return nil
}

// keyURL is the URL of a lock's view, with the code of an action that was done.
func (p *page) keyURL(key, done string) string {
	v := url.Values{"key": {key}}
	if done != "" {
		v.Set("done", done)
	}
	return p.base + "key?" + v.Encode()
}
