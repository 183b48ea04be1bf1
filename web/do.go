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
	"github.com/automutex/automutex/lock"
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
	Opens    bool // a break ends the hold or cooldown as well
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

// askAboutLock fills in what a break or a delete will do to a lock. false: it has answered
// with what is wrong.
func (p *page) askAboutLock(w http.ResponseWriter, r *http.Request, v *askView) bool {
	look := &keyView{Key: v.Key}
	ctx, cancel := context.WithTimeout(r.Context(), lookWithin)
	defer cancel()
	if err := p.inspect(ctx, look); err != nil {
		p.fail(w, r, http.StatusBadGateway, "Redis: "+printable.Short(err.Error())+".")
		return false
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
	end := "The " + look.Info.Closed + " ends now, whoever ordered it."
	shown := "Only the holders below lose the lock, and nobody who came meanwhile."
	switch {
	case v.Action == doDelete:
		v.describeDelete(look, name, stop)
	case !v.Opens:
		v.Question, v.Button, v.Effects = take+"?", "Break", []string{stop, next, shown}
	case len(v.Holders) == 0:
		v.Question, v.Button, v.Effects = "End the "+look.Info.Closed+" of "+name+"?", "Break", []string{end, next}
	default:
		v.Question, v.Button, v.Effects = take+", and end its "+look.Info.Closed+"?", "Break", []string{stop, end, next, shown}
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
		"A cooldown, a hold and what is used up of a rate are forgotten: unless it is paused, the next task starts at once.",
		printable.Count(look.Info.Waiting, "place")+" of tasks that wait in workers: they stand in a new line within a second.",
		printable.Count(look.Info.Parked, "place")+" of parked tasks: nobody calls them any more; each comes back when its own retry is due.",
	)
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
			a.Result, a.Err = p.breakLock(ctx, a.Target, a.Tokens, form.Get("gate") != "")
		} else {
			a.Result, a.Err = p.deleteLock(ctx, a.Target, a.Tokens)
		}
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

// breakLock breaks the holders that the operator has seen, and nobody else, and ends a hold
// or a cooldown if it is to.
func (p *page) breakLock(ctx context.Context, key string, tokens []string, opens bool) (string, error) {
	if len(tokens) == 0 && !opens {
		return "", fmt.Errorf("%w: the form names no holder", errGone)
	}
	m, broken, opened := inner.ByKey(p.locker, key), 0, false
	for _, token := range tokens {
		ok, err := m.Break(ctx, token)
		if err != nil {
			return "", fmt.Errorf("after %d of %d: %w", broken, len(tokens), err)
		}
		if ok {
			broken++
		}
	}
	if opens {
		var err error
		if opened, err = inner.OpenGate(ctx, m); err != nil {
			return "", fmt.Errorf("after %d of %d: the hold or cooldown: %w", broken, len(tokens), err)
		}
	}
	var results []string
	if broken > 0 {
		results = append(results, fmt.Sprintf("The lock was taken from %d of %s.", broken, printable.Count(len(tokens), "holder")))
	}
	if opened {
		results = append(results, "The hold or cooldown has ended.")
	}
	switch {
	case len(results) > 0:
		return strings.Join(results, " "), nil
	case len(tokens) == 0:
		return "", fmt.Errorf("%w: the hold or cooldown is over", errGone)
	}
	return "", fmt.Errorf("%w: none of them holds the lock any more", errGone)
}

// deleteLock deletes a lock that nobody holds but the holders that the operator has seen.
func (p *page) deleteLock(ctx context.Context, key string, tokens []string) (string, error) {
	deleted, err := inner.DeleteFrom(ctx, inner.ByKey(p.locker, key), tokens...)
	switch {
	case errors.Is(err, lock.ErrBusy):
		return "", fmt.Errorf("%w: somebody else holds the lock now", errGone)
	case err != nil:
		return "", err
	case !deleted:
		return "", fmt.Errorf("%w: the lock is not there any more", errGone)
	}
	return "The lock and its line were deleted.", nil
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
