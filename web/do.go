package web

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/automutex/automutex/internal/blocked"
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
	doSkip   = "skip"
)

// errGone refuses an action on what is no longer so.
var errGone = errors.New("nothing was done")

// mayOperate answers 403 to whom it may concern.
func (p *page) mayOperate(w http.ResponseWriter, r *http.Request) bool {
	if p.o.Access(r) >= AccessOperate {
		return true
	}
	p.fail(w, r, http.StatusForbidden, "You may look, and not change anything.")
	return false
}

// do does what ask has shown. The answer is a redirect, so that reloading the next page
// does nothing again.
func (p *page) do(w http.ResponseWriter, r *http.Request) {
	if !p.mayOperate(w, r) {
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	if err := r.ParseForm(); err != nil {
		if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
			p.fail(w, r, http.StatusRequestEntityTooLarge, "The form has more than 256 kB: it is for too many holders. Nothing was done; break them one by one, or with automutex break.")
			return
		}
		p.fail(w, r, http.StatusBadRequest, "The form could not be read. Nothing was done.")
		return
	}
	a := Action{Do: r.PostForm.Get("action"), Target: r.PostForm.Get("key"), Tokens: r.PostForm["token"], Why: r.PostForm.Get("why"), Request: r}
	if runes := []rune(a.Why); len(runes) > maxWhy {
		a.Why = string(runes[:maxWhy])
	}
	order := readOrder(a.Do, r.PostForm)
	if order.wrong() && !r.PostForm.Has("picked") {
		a.Target = r.PostForm.Get("target")
		p.askAgain(w, r, a, order, "", "")
		return
	}
	if target := r.PostForm.Get("target"); (a.Do == doPause || a.Do == doLimit) && target != "" && !r.PostForm.Has("anyway") {
		if unknown, meant := p.unknownTarget(r.Context(), target); unknown != "" {
			a.Target = target
			p.askAgain(w, r, a, order, unknown, meant)
			return
		}
	}
	if p.o.User != nil {
		a.By = p.o.User(r)
	}
	// An action that has begun goes on when the browser goes away.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), actWithin)
	defer cancel()
	var wrong, id string
	if r.PostForm.Has("picked") {
		if order.wrong() {
			wrong = order.WrongFor
		} else if a, wrong = p.doPicked(ctx, a, r.PostForm, order); wrong == "" {
			id = p.actions.add(a)
		}
	} else if wrong = p.act(ctx, &a, r.PostForm, order); wrong == "" {
		id = p.record(ctx, a)
	}
	if wrong != "" {
		p.fail(w, r, http.StatusBadRequest, wrong)
		return
	}
	done, to := doneCode(a, id), p.origin(r.PostForm.Get("from"), a.Do)
	if (a.Do == doBreak || a.Do == doDelete) && a.Target != "" {
		to = p.keyURL(a.Target)
	}
	if strings.Contains(to, "?") {
		to += "&"
	} else {
		to += "?"
	}
	w.Header().Set("Location", to+url.Values{"done": {done}}.Encode())
	w.WriteHeader(http.StatusSeeOther)
}

// act does an action and fills in what came of it. wrong says what is wrong with the form;
// nothing was done then.
func (p *page) act(ctx context.Context, a *Action, form url.Values, order orderForm) (wrong string) {
	switch a.Do {
	case doBreak, doDelete:
		a.Target = p.keyOf(a.Target)
		if wrong := p.noLock(a.Target); wrong != "" {
			return wrong
		}
		if a.Do == doBreak {
			a.Result, a.Err = p.breakLock(ctx, a.Target, a.Tokens, form.Get("gate") != "")
		} else {
			a.Result, a.Err = p.deleteLock(ctx, a.Target, a.Tokens)
		}
	case doSweep:
		a.Target, a.Tokens = "", nil
		removed, err := inner.Sweep(ctx, p.locker)
		a.Result, a.Err = fmt.Sprintf("Dead entries removed: %d.", removed), err
	case doDrop:
		a.Tokens = nil
		a.Result, a.Err = p.dropClaim(ctx, a.Target, form.Get("holder"))
	case doPause, doResume, doLimit:
		a.Target, a.Tokens = form.Get("target"), nil
		if strings.TrimSpace(a.Target) == "" {
			return noTarget
		}
		a.Result, a.Err = p.order(ctx, *a, order)
		p.orders.forget()
	case doSkip:
		a.Target, a.Tokens = p.keyOf(a.Target), nil
		task := form.Get("task")
		ticket, malformed := strconv.ParseInt(cmp.Or(form.Get("ticket"), "0"), 10, 64) // 0 is the head of now
		if err := inner.LockErr(inner.ByKey(p.locker, a.Target)); err != nil || malformed != nil || task == "" {
			return "The form names no task of a key."
		}
		a.Result, a.Err = "Task "+printable.Short(task)+" was skipped: the next one of its key goes on.", blocked.Skip(ctx, p.locker, p.states.inspector, a.Target, task, ticket)
	default:
		return "There is no such action."
	}
	return ""
}

// breakLock breaks the holders that the operator has seen, and nobody else, and opens its
// gate if it is to.
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
			return "", fmt.Errorf("after %d of %d: the gate: %w", broken, len(tokens), err)
		}
	}
	var results []string
	if broken > 0 {
		results = append(results, fmt.Sprintf("The lock was taken from %d of %s.", broken, printable.Count(len(tokens), "holder")))
	}
	if opened {
		results = append(results, "Its gate is open.")
	}
	switch {
	case len(results) > 0:
		return strings.Join(results, " "), nil
	case len(tokens) == 0:
		return "", fmt.Errorf("%w: its gate is open already", errGone)
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
	kinds := []string{doBreak, doDelete, doSweep, doDrop, doPause, doResume, doLimit, doSkip}
	at := slices.Index(kinds, code[0])
	switch {
	case at >= 0 && code[1] == "ok":
		return &Action{Do: kinds[at], Result: kinds[at] + ": done, says this link. The process of the page that did it has the details."}
	case at >= 0 && code[1] == "failed":
		return &Action{Do: kinds[at], Err: errElsewhere}
	}
	return nil
}

// keyURL is the URL of a lock's view.
func (p *page) keyURL(key string) string { return p.base + "key?" + url.Values{"key": {key}}.Encode() }
