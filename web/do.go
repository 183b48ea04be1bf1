package web

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex/internal/blocked"
	"github.com/automutex/automutex/internal/control"
	"github.com/automutex/automutex/internal/inspect"
	"github.com/automutex/automutex/internal/printable"
	"github.com/automutex/automutex/internal/tasknote"
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
	// maxActions is how many actions are remembered, until the page that follows has told of them.
	maxActions = 500
)

type action struct {
	button string
	back   string // the view that it belongs to, for who came from none
	typed  field  // what the operator types besides the reason
	// read reads what a link or a form says of it, and returns why that is no such action.
	read     func(p *page, f *form, v url.Values) (wrong string)
	question func(v *askView) string // templates/ask.html has the effects
	// look adds to v what Redis has of it, and returns why there is nothing to do; nil: there is always something.
	look func(ctx context.Context, p *page, v *askView) (status int, wrong string)
	// do does it, and says in a sentence what changed, unless there is an error.
	do func(ctx context.Context, p *page, f form, by string) (string, error)

	kind        *control.Kind // of the order that it gives or ends
	gives, ends bool
}

type field struct{ Name, Label string }

// actions are all of them, by their names. An order has the name of its kind.
var actions = map[string]*action{
	"break": {
		button: "Break", back: "key", look: lookAtHolders,
		read: func(p *page, f *form, v url.Values) string {
			f.Tokens = v["token"]
			return readKey(p, f, v)
		},
		question: func(v *askView) string {
			gate := ""
			if v.Gate {
				gate = ", and open its gate"
			}
			return "Take the lock " + v.lock() + " from " + printable.Count(len(v.Holders), "holder") + gate + "?"
		},
		do: breakLock,
	},
	"sweep": {
		button: "Sweep", back: "keys",
		read:     func(*page, *form, url.Values) string { return "" },
		question: func(*askView) string { return "Remove what dead processes left behind?" },
		do: func(ctx context.Context, p *page, _ form, _ string) (string, error) {
			removed, err := p.engine.Sweep(ctx)
			return fmt.Sprintf("Dead entries removed: %d.", removed), err
		},
	},
	"run": {
		button: "Run", back: "blocked", read: readTask,
		question: func(v *askView) string { return "Run task " + printable.Short(v.Task) + " of " + v.lock() + " again?" },
		do: func(_ context.Context, p *page, f form, _ string) (string, error) {
			queue, id, _ := tasknote.Parse(f.Task)
			info, err := p.o.Inspector.GetTaskInfo(queue, id)
			if err == nil && info.State != asynq.TaskStateArchived {
				err = fmt.Errorf("the task is %s, not archived", info.State)
			}
			if err == nil {
				err = p.o.Inspector.RunTask(queue, id)
			}
			return "Task " + printable.Short(f.Task) + " is on its way to a worker.", err
		},
	},
	"skip": {
		button: "Skip", back: "blocked", read: readTask,
		question: func(v *askView) string { return "Skip task " + printable.Short(v.Task) + " of " + v.lock() + "?" },
		do: func(ctx context.Context, p *page, f form, _ string) (string, error) {
			return "Task " + printable.Short(f.Task) + " was skipped: the next one of its key goes on.",
				blocked.Skip(ctx, p.engine, p.o.Inspector, f.Key, f.Task, f.ticket)
		},
	},
	"pause": giving(control.Pauses, "Pause", "Pause %s?",
		field{"for", "For how long (30m, 2h; empty: until somebody resumes it)"}),
	"resume": ending(control.Pauses, "Resume", "Resume %s?"),
	"limit": giving(control.Limits, "Limit", "Set another limit for %s?",
		field{"limit", "How many at once (0: as the program says)"}),
	"rate": giving(control.Rates, "Rate", "Set another rate for %s?",
		field{"rate", "How often (100/1m, 100/1m burst 10; empty: as the program says)"}),
}

// giving gives an order of that kind, or ends it if that is typed.
func giving(kind *control.Kind, button, question string, typed field) *action {
	a := ending(kind, button, question)
	a.typed, a.gives, a.ends = typed, true, false
	return a
}

func ending(kind *control.Kind, button, question string) *action {
	a := &action{button: button, back: "rules", read: readTarget, kind: kind, ends: true}
	a.question = func(v *askView) string { return fmt.Sprintf(question, printable.Short(v.Target)) }
	a.do = func(ctx context.Context, p *page, f form, by string) (string, error) {
		controls, done := p.asOperator(by)
		defer done()
		target := printable.Short(f.Target)
		if text := f.order.Text(time.Now()); text != "" {
			f.order.Why = f.Why
			return target + " is " + text + ".", controls.Give(ctx, kind, f.Target, f.order)
		}
		ended, err := controls.End(ctx, kind, f.Target)
		if err == nil && !ended && a.ends {
			err = fmt.Errorf("nothing was done: %s %s", target, kind.None)
		}
		return target + " " + kind.Ended + ".", err
	}
	return a
}

type button struct {
	Action, Target, Text string
	Ends                 bool
}

// buttonsFor give orders for a target, and end those of a list: for the target, or for a wider one.
func buttonsFor(target string, orders []control.Order) (all []button) {
	for _, kind := range control.Kinds {
		its := []button{{kind.Name, target, actions[kind.Name].button, false}}
		for _, o := range orders {
			b := buttonOf(o)
			switch {
			case o.Kind != kind || !b.Ends:
			case control.Bare(o.Target) == control.Bare(target):
				b.Target, its[0] = target, b
			default:
				b.Text += " its scope"
				its = append(its[:1], b)
			}
		}
		all = append(all, its...)
	}
	return all
}

func buttonOf(o control.Order) button {
	for name, a := range actions {
		if a.ends && a.kind == o.Kind {
			return button{name, o.Target, a.button, true}
		}
	}
	return button{o.Kind.Name, o.Target, actions[o.Kind.Name].button, false}
}

func readKey(p *page, f *form, v url.Values) string {
	f.Key = p.keyOf(v.Get("key"))
	return p.noLock(f.Key)
}

func readTask(p *page, f *form, v url.Values) string {
	if wrong := readKey(p, f, v); wrong != "" {
		return wrong
	}
	var malformed error
	f.ticket, malformed = strconv.ParseInt(cmp.Or(f.Ticket, "0"), 10, 64) // 0 is the head of now
	if f.Task == "" || malformed != nil {
		return "This names no task of a key."
	}
	return ""
}

func readTarget(_ *page, f *form, v url.Values) string {
	if f.Target = v.Get("target"); strings.TrimSpace(f.Target) == "" {
		return "Name a target: a scope, or a scope and its values."
	}
	return ""
}

// form is an action that is not done yet: what a link or a form says of it.
type form struct {
	Action string // its name
	Key    string // of the lock; empty for an order or a sweep
	Target string // of the order
	Tokens []string
	Task   string // that is to be skipped
	Ticket string // of Task, as the list had it
	Gate   bool   // a break opens the gate as well
	Anyway bool   // no task has Target, and the operator knows
	From   string // see origin
	Why    string

	Typed, Wrong string          // what was typed in its field, and what is wrong with it
	order        control.Control // that Typed asks for
	ticket       int64
}

func (f form) its() *action { return actions[f.Action] }

// Field is that of the action.
func (f form) Field() field { return f.its().typed }

// readForm reads a link or a form. wrong says why it is none of an action; what is wrong with a typed field stands
// beside the field.
func (p *page) readForm(v url.Values) (f form, wrong string) {
	f = form{
		Action: v.Get("action"), Task: v.Get("task"), Ticket: v.Get("ticket"), Gate: v.Get("gate") != "",
		Anyway: v.Has("anyway"), From: v.Get("from"),
	}
	if f.its() == nil {
		return f, "There is no such action."
	}
	why := []rune(v.Get("why"))
	f.Why, f.Typed = string(why[:min(len(why), maxWhy)]), strings.TrimSpace(v.Get(f.Field().Name))
	return f, f.its().read(p, &f, v)
}

// readTyped reports whether what was typed can be read.
func readTyped(f *form) bool {
	if its := f.its(); its.gives {
		var err error
		if f.order, err = its.kind.Typed(f.Typed); err != nil {
			f.Wrong = err.Error() + "."
		}
	}
	return f.Wrong == ""
}

// askView shows what an action will do, and asks for it.
type askView struct {
	frame
	form
	Button  string
	Back    string // where the operator goes who leaves it as it is
	Holders []inspect.Holder
	Unknown string // why no task has Target
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
	if look := f.its().look; look != nil {
		ctx, cancel := context.WithTimeout(r.Context(), p.within.redis)
		defer cancel()
		if status, wrong := look(ctx, p, v); wrong != "" {
			p.fail(w, status, wrong)
			return
		}
	}
	v.Unknown = p.unknownTo(r.Context(), f)
	v.Title, v.Button = f.its().question(v), f.its().button
	p.render(w, status, "ask", v)
}

// unknownTo says why no task has the target of the order that f gives; empty if one may have it, or the operator knows.
func (p *page) unknownTo(ctx context.Context, f form) string {
	if !f.its().gives || f.Anyway {
		return ""
	}
	return p.unknownTarget(ctx, f.Target)
}

// lookAtHolders adds the holders, and the gate, that a break is for.
func lookAtHolders(ctx context.Context, p *page, v *askView) (status int, wrong string) {
	info, err := p.look(ctx, v.Key)
	if err != nil {
		return http.StatusBadGateway, trouble(err, reload) + ". Nothing was done."
	}
	v.Now, v.Holders = info.At, slices.DeleteFunc(info.Holders, func(h inspect.Holder) bool {
		return len(v.Tokens) > 0 && !slices.Contains(v.Tokens, h.Token)
	})
	v.Gate = len(v.Tokens) == 0 && info.Breakable()
	if len(v.Holders) == 0 && !v.Gate {
		return http.StatusConflict, "Nobody holds this lock, and neither CloseGate nor a cooldown has closed its gate: " +
			"there is nothing to break."
	}
	return 0, ""
}

func (v *askView) lock() string { return printable.Short(control.Bare(v.Key)) }

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
	if !readTyped(&f) || p.unknownTo(r.Context(), f) != "" {
		p.show(w, r, http.StatusUnprocessableEntity, f)
		return
	}
	a := Action{Do: f.Action, Target: cmp.Or(f.Key, f.Target), Tokens: f.Tokens, Why: f.Why, Request: r}
	if p.o.User != nil {
		a.By = p.o.User(r)
	}
	// An action that has begun goes on when the browser goes away.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), actWithin)
	defer cancel()
	if a.Result, a.Err = f.its().do(ctx, p, f, a.By); a.Err != nil {
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

// asOperator gives the controls in the name of who acts.
func (p *page) asOperator(by string) (*control.Reader, func()) {
	if by == "" {
		return p.engine.Controls(), func() {}
	}
	e := p.newEngine(by)
	return e.Controls(), e.Close // it has no lease
}

// breakLock breaks the holders that the operator has seen, and nobody else, and opens the gate if it is to.
func breakLock(ctx context.Context, p *page, f form, _ string) (string, error) {
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
	case len(f.From) <= maxOrigin && malformed == nil &&
		slices.Contains([]string{"keys", "key", "blocked", "rules"}, view):
		return p.base + f.From
	case f.its().back == "key":
		return p.base + "key?" + url.Values{"key": {f.Key}}.Encode()
	}
	return p.base + f.its().back
}

// actionLog keeps the last actions of this process, oldest first.
type actionLog struct {
	mu   sync.Mutex // guards kept; nobody does I/O under it
	kept []Action
}

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
