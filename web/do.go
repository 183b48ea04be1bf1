package web

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/automutex/automutex/internal/blocked"
	"github.com/automutex/automutex/internal/control"
	"github.com/automutex/automutex/internal/inspect"
	"github.com/automutex/automutex/internal/printable"
	"github.com/automutex/automutex/lock"
)

const (
	// maxForm bounds what a browser may send.
	maxForm = 256 << 10
	// maxWhy bounds the reason that an operator gives.
	maxWhy = 200
	// maxOrigin bounds the parameter "from": a key, and what the list is narrowed to.
	maxOrigin = 16 << 10
	// actWithin bounds an action; a sweep has several exchanges with Redis.
	actWithin = time.Minute
	// shortestPause is the shortest time that a pause may be for, as for the command.
	shortestPause = 100 * time.Millisecond
	// maxLimit bounds a limit, as package lock does.
	maxLimit = math.MaxInt32
	// maxActions is how many actions are remembered, until the page that follows has told of them.
	maxActions = 500
)

// form is an action that is not done yet: what a link or a form says of it.
type form struct {
	Action string
	Key    string // of the lock; empty for an order or a sweep
	Target string // of the order
	Tokens []string
	Task   string // that is to be skipped
	Ticket string // of Task, as the list had it
	Gate   bool   // a break opens the gate as well
	Anyway bool   // no task has Target, and the operator knows
	From   string // see origin
	Why    string

	Typed, Wrong string        // the length of a pause, or a limit, and what is wrong with it
	length       time.Duration // of a pause; 0: until somebody resumes it
	limit        int           // 0: as the program says
	ticket       int64
}

// readForm reads a link or a form. wrong says why it is none of an action; what is wrong with a typed field stands
// beside the field.
func (p *page) readForm(v url.Values) (f form, wrong string) {
	f = form{
		Action: v.Get("action"), Tokens: v["token"], Task: v.Get("task"), Ticket: v.Get("ticket"), Gate: v.Get("gate") != "",
		Anyway: v.Has("anyway"), From: v.Get("from"), Typed: strings.TrimSpace(v.Get("for") + v.Get("limit")),
	}
	why := []rune(v.Get("why"))
	f.Why = string(why[:min(len(why), maxWhy)])
	switch f.Action {
	case "sweep":
	case "break", "skip":
		f.Key = p.keyOf(v.Get("key"))
		if wrong := p.noLock(f.Key); wrong != "" {
			return f, wrong
		}
		var malformed error
		f.ticket, malformed = strconv.ParseInt(cmp.Or(f.Ticket, "0"), 10, 64) // 0 is the head of now
		if f.Action == "skip" && (f.Task == "" || malformed != nil) {
			return f, "This names no task of a key."
		}
	case "pause", "resume", "limit":
		if f.Target = v.Get("target"); strings.TrimSpace(f.Target) == "" {
			return f, "Name a target: a scope, or what stands between the braces of a key."
		}
	default:
		return f, "There is no such action."
	}
	return f, ""
}

// readTyped reads what the operator has typed for a pause or a limit, and reports whether it can be read.
func readTyped(f *form) bool {
	var err error
	switch {
	case f.Action == "pause" && f.Typed != "":
		if f.length, err = time.ParseDuration(f.Typed); err != nil {
			f.Wrong = fmt.Sprintf("%q is not a duration: write 30m or 2h, or leave it empty.", printable.Short(f.Typed))
		} else if f.length < shortestPause {
			f.Wrong = fmt.Sprintf("%q is too short: a pause is at least %s.", printable.Short(f.Typed), shortestPause)
		}
	case f.Action == "limit":
		if f.limit, err = strconv.Atoi(f.Typed); err != nil || f.limit < 0 || f.limit > maxLimit {
			f.Wrong = fmt.Sprintf("%q is not a whole number from 0 to %d.", printable.Short(f.Typed), maxLimit)
		}
	}
	return f.Wrong == ""
}

// MaxLimit is the greatest limit, for the form.
func (form) MaxLimit() int { return maxLimit }

// askView shows what an action will do, and asks for it.
type askView struct {
	frame
	form
	Question, Button string
	Effects          []string
	Back             string // where the operator goes who leaves it as it is
	Holders          []inspect.Holder
	Unknown          string // why no task has Target
}

// operators lets nobody but operators through.
func (p *page) operators(handle http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if p.o.Access(r) < AccessOperate {
			p.fail(w, http.StatusForbidden, "You may look, and not change anything.")
			return
		}
		handle(w, r)
	}
}

// ask shows what an action will do. It changes nothing.
func (p *page) ask(w http.ResponseWriter, r *http.Request) {
	f, wrong := p.readForm(r.URL.Query())
	if wrong != "" {
		p.fail(w, http.StatusBadRequest, wrong)
		return
	}
	p.show(w, r, http.StatusOK, f)
}

// show shows the form of an action, with what was typed and what is wrong with it.
func (p *page) show(w http.ResponseWriter, r *http.Request, status int, f form) {
	v := &askView{frame: frame{page: p, Base: p.base, View: "-"}, form: f, Back: p.origin(f)}
	if f.Action == "break" {
		ctx, cancel := context.WithTimeout(r.Context(), p.within.redis)
		defer cancel()
		info, err := p.look(ctx, f.Key)
		if err != nil {
			p.fail(w, http.StatusBadGateway, trouble(err, reload)+". Nothing was done.")
			return
		}
		v.Now, v.Holders = info.At, slices.DeleteFunc(info.Holders, func(h inspect.Holder) bool {
			return len(f.Tokens) > 0 && !slices.Contains(f.Tokens, h.Token)
		})
		v.Gate = len(f.Tokens) == 0 && info.Breakable()
		if len(v.Holders) == 0 && !v.Gate {
			p.fail(w, http.StatusConflict, "Nobody holds this lock, and no hold or cooldown has closed its gate: there is "+
				"nothing to break.")
			return
		}
	}
	if (f.Action == "pause" || f.Action == "limit") && !f.Anyway {
		v.Unknown = p.unknownTarget(r.Context(), f.Target)
	}
	v.describe()
	v.Title = v.Question
	p.render(w, status, "ask", v)
}

// describe says what an action does.
func (v *askView) describe() {
	target, key := printable.Short(v.Target), printable.Short(control.Bare(v.Key))
	within := "Every worker obeys within two seconds; it outlives restarts."
	switch v.Action {
	case "break":
		v.Button, v.Question = "Break", "Take the lock "+key+" from "+printable.Count(len(v.Holders), "holder")
		if v.Effects = []string{
			"The context of each holder's handler ends with lock.ErrLost, at its next renewal at the latest. Until then the " +
				"handler may still be at work.",
			"The first in line gets the lock at once, unless it is paused or its gate is closed.",
			"Only the holders below lose the lock, and nobody who came meanwhile.",
		}; v.Gate {
			v.Question += ", and open its gate"
			v.Effects = append(v.Effects, "A hold or a cooldown ends now, whoever ordered it.")
		}
		v.Question += "?"
	case "sweep":
		v.Button, v.Question = "Sweep", "Remove what dead processes left behind?"
		v.Effects = []string{
			"Holders whose lease has ended, and waiters that have ceased to ask, are removed from all locks.",
			"Nothing depends on it: each lock does the same when a task asks for it.",
		}
	case "skip":
		v.Button, v.Question = "Skip", "Skip task "+printable.Short(v.Task)+" of "+key+"?"
		v.Effects = []string{
			"The task gives up its place, and the next task of the key goes on at once.",
			"The task itself is not changed. If asynq runs it later, it takes its old place, before those that still wait.",
			"A task that runs now, or that is not the next one of its key any more, is not skipped.",
		}
	case "pause":
		v.Button, v.Question = "Pause", "Pause "+target+"?"
		v.Effects = []string{
			"Nobody new gets a lock of this target; who holds one keeps it.",
			"Tasks go back to asynq, their attempts not spent, whatever the policy of their rule.", within,
		}
	case "resume":
		v.Button, v.Question = "Resume", "Resume "+target+"?"
		v.Effects = []string{"Tasks get the locks of this target again. A pause of the whole scope stays in force for one " +
			"key of it.", within}
	case "limit":
		v.Button, v.Question = "Set", "Set another limit for "+target+"?"
		v.Effects = []string{
			"So many may hold a lock of this target at once, in place of the number in the program. A lower number takes " +
				"effect as holders leave.",
			"Ordered keys go on with one at a time, whatever the number.", within,
		}
	}
}

// do does what ask has shown. The answer is a redirect, so that reloading the next page does nothing again.
func (p *page) do(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	if err := r.ParseForm(); err != nil {
		if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
			p.fail(w, http.StatusRequestEntityTooLarge, "The form has more than 256 kB: it is for too many holders. Nothing "+
				"was done; break them one by one, or with automutex break.")
			return
		}
		p.fail(w, http.StatusBadRequest, "The form could not be read. Nothing was done.")
		return
	}
	f, wrong := p.readForm(r.PostForm)
	if wrong != "" {
		p.fail(w, http.StatusBadRequest, wrong)
		return
	}
	if !readTyped(&f) {
		p.show(w, r, http.StatusUnprocessableEntity, f)
		return
	}
	if (f.Action == "pause" || f.Action == "limit") && !f.Anyway {
		if unknown := p.unknownTarget(r.Context(), f.Target); unknown != "" {
			p.show(w, r, http.StatusUnprocessableEntity, f)
			return
		}
	}
	a := Action{Do: f.Action, Target: cmp.Or(f.Key, f.Target), Why: f.Why, Request: r}
	if f.Action == "break" {
		a.Tokens = f.Tokens
	}
	if p.o.User != nil {
		a.By = p.o.User(r)
	}
	// An action that has begun goes on when the browser goes away.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), actWithin)
	defer cancel()
	if a.Result, a.Err = p.act(ctx, f, a.By); a.Err != nil {
		a.Result = ""
	}
	a.At = time.Now()
	id := p.actions.add(a)
	if p.o.Audit != nil {
		p.o.Audit(a)
	}
	if a.Err != nil {
		status := http.StatusConflict
		if errors.Is(a.Err, lock.ErrBackend) || ctx.Err() != nil {
			status = http.StatusBadGateway
		}
		p.fail(w, status, a.Do+" failed: "+printable.Short(a.Err.Error()))
		return
	}
	view, query, _ := strings.Cut(p.origin(f), "?")
	if query != "" {
		query += "&"
	}
	w.Header().Set("Location", view+"?"+query+"done="+id)
	w.WriteHeader(http.StatusSeeOther)
}

// act does an action, and says in a sentence what changed, unless there is an error.
func (p *page) act(ctx context.Context, f form, by string) (string, error) {
	switch f.Action {
	case "break":
		return p.breakLock(ctx, f)
	case "sweep":
		removed, err := p.engine.Sweep(ctx)
		return fmt.Sprintf("Dead entries removed: %d.", removed), err
	case "skip":
		return "Task " + printable.Short(f.Task) + " was skipped: the next one of its key goes on.",
			blocked.Skip(ctx, p.engine, p.o.Inspector, f.Key, f.Task, f.ticket)
	}
	controls, done := p.asOperator(by)
	defer done()
	target := printable.Short(f.Target)
	switch {
	case f.Action == "resume":
		ended, err := controls.Resume(ctx, f.Target)
		if err == nil && !ended {
			err = fmt.Errorf("nothing was done: %s is not paused", target)
		}
		return target + " is not paused any more.", err
	case f.Action == "pause" && f.length > 0:
		return target + " is paused for " + printable.Exact(f.length) + ".",
			controls.Pause(ctx, f.Target, time.Now().Add(f.length), f.Why)
	case f.Action == "pause":
		return target + " is paused until somebody resumes it.", controls.Pause(ctx, f.Target, time.Time{}, f.Why)
	case f.limit == 0:
		_, err := controls.ClearLimit(ctx, f.Target)
		return target + " has the limit of the program again.", err
	}
	return fmt.Sprintf("%s is limited to %d at once.", target, f.limit), controls.SetLimit(ctx, f.Target, f.limit, f.Why)
}

// asOperator gives the controls in the name of who acts.
func (p *page) asOperator(by string) (*control.Reader, func()) {
	if by == "" {
		return p.engine.Controls(), func() {}
	}
	e := p.newEngine(by)
	return e.Controls(), e.Close // it has no lease
}

// breakLock breaks the holders that the operator has seen, and nobody else, and opens the gate if it is to.
func (p *page) breakLock(ctx context.Context, f form) (string, error) {
	broken, opened, err := inspect.Break(ctx, p.engine, f.Key, f.Tokens, f.Gate)
	var done []string
	if broken > 0 {
		done = append(done, fmt.Sprintf("The lock was taken from %d of %s.", broken,
			printable.Count(len(f.Tokens), "holder")))
	}
	if opened {
		done = append(done, "Its gate is open.")
	}
	if err == nil && done == nil {
		err = errors.New("nothing was done: none of the holders that you saw has the lock any more, nor is a gate closed " +
			"that they closed")
	}
	return strings.Join(done, " "), err
}

// origin is the URL of the view that an operator came from to an action. From is frame.Here of that view; empty means
// the view that the action belongs to. Anybody can make a link with another text there, so it leads to a view of the
// page, or is not used.
func (p *page) origin(f form) string {
	view, query, _ := strings.Cut(f.From, "?")
	_, malformed := url.ParseQuery(query)
	switch {
	case len(f.From) <= maxOrigin && malformed == nil && slices.Contains([]string{"keys", "key", "blocked", "rules"},
		view):
		return p.base + f.From
	case f.Action == "break":
		return p.base + "key?" + url.Values{"key": {f.Key}}.Encode()
	case f.Action == "skip":
		return p.base + "blocked"
	case f.Action == "sweep":
		return p.base + "keys"
	}
	return p.base + "rules"
}

// actionLog keeps the last actions of this process, oldest first.
type actionLog struct {
	mu   sync.Mutex // guards kept; nobody does I/O under it
	kept []Action
}

// add keeps an action and gives its ID.
func (l *actionLog) add(a Action) (id string) {
	a.Request, a.id = nil, rand.Text()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.kept = append(l.kept, a)
	l.kept = slices.Delete(l.kept, 0, max(0, len(l.kept)-maxActions))
	return a.id
}

// get gives the action with that ID, which a redirect has in its URL; nil if this process does not know it: nothing of
// the URL itself is shown, since anybody can make a link.
func (l *actionLog) get(id string) *Action {
	l.mu.Lock()
	defer l.mu.Unlock()
	if at := slices.IndexFunc(l.kept, func(a Action) bool { return a.id == id }); at >= 0 {
		a := l.kept[at]
		return &a
	}
	return nil
}
