package web

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/automutex/automutex/internal/history"
	"github.com/automutex/automutex/internal/inspect"
	"github.com/automutex/automutex/internal/keys"
	"github.com/automutex/automutex/internal/printable"
	"github.com/automutex/automutex/lock"
	"github.com/automutex/automutex/web/record"
)

const (
	// mostShown is how many of a line, and of the runs, are shown: asynq is asked for the states of as many.
	mostShown = mostStates
	// mostLooked is how many of a line a look sees: whom it does not see any more counts as gone.
	mostLooked = 100
	// lookWithin bounds the look at one lock.
	lookWithin = 3 * time.Second
)

// keyView is one lock.
type keyView struct {
	frame
	Key     string
	Name    string
	Rule    string
	Looked  bool // Redis has told what Info, Called, Holders and Line say
	Info    row
	Called  int
	Holders []holderView
	Line    []waiterView
	More    int // of the line that are not shown
	Err     string
	Chart   chart
	Bars    *bars          // who ran when; nil: nothing is known
	Kept    bool           // the history of the key tells of it
	Unread  string         // why that was not read
	Seen    time.Time      // since when looks at it are remembered
	Orders  []lock.Control // of operators, that are in force for this lock
	Paused  bool
	Behind  *blockedRow // the next task of an ordered key, if it keeps others waiting

	PausedHere  bool   // by an order for this lock itself
	PausedScope string // the scope, where an order for it pauses this lock
	Breakable   bool   // a break ends its hold or cooldown
	InUse       bool

	Target  string   // of orders for this lock
	Actions []Action // about this lock, newest first
	Done    *Action  // what the viewer has just done

	Timeline []record.Entry // about this lock, newest first; nil without a Recorder
	Reach    string         // how far back that goes
	Recorded bool           // there is a Recorder; the timeline then has the actions as well
}

type holderView struct {
	Token string
	Owner string
	Task  task
	State string
	Until time.Time
}

type waiterView struct {
	Place int
	Owner string
	Task  task
	State string // of the task
	Kind  string // waiting, parked or called
	Since time.Time
	Head  bool // of an ordered key: the others wait for this one, which does not run
}

// keyOf is the Redis key that a request names: whole, or what stands between its braces.
func (p *page) keyOf(text string) string { return inspect.Key(p.o.Prefix, text) }

// noLock says why a Redis key is none of a lock; empty for one that can be.
func (p *page) noLock(key string) string {
	err := inner.LockErr(inner.ByKey(p.locker, key))
	if err == nil {
		return ""
	}
	why, _, _ := strings.Cut(strings.TrimPrefix(err.Error(), "lock: "), "; List tells") // a method of package lock: here it is Keys
	return "This is no key of a lock: " + printable.Short(why) + ". Search under Keys for a part of it: there it stands as Redis has it."
}

// key answers with one lock.
func (p *page) key(w http.ResponseWriter, r *http.Request) {
	key := p.keyOf(r.URL.Query().Get("key"))
	if wrong := p.noLock(key); wrong != "" {
		p.fail(w, r, http.StatusBadRequest, wrong)
		return
	}
	p.render(w, http.StatusOK, "key", p.keyView(r, key))
}

func (p *page) keyView(r *http.Request, key string) *keyView {
	name := inspect.InBraces(key)
	v := &keyView{frame: p.frame(r, "key", printable.Short(name)), Key: key, Name: name, Rule: p.namesFor(inspect.ScopeOf(key))}
	v.Here = "key?" + url.Values{"key": {key}}.Encode()
	v.Live = p.liveURL("key", url.Values{"key": {key}}.Encode())
	ctx, cancel := context.WithTimeout(r.Context(), lookWithin)
	defer cancel()
	if err := p.inspect(ctx, v); err != nil {
		v.Err = trouble(err, triesAgain)
	} else {
		v.Looked = true
	}
	slot := slotOf(v.Now)
	v.Target = name
	controls, err := p.controls(ctx)
	if err != nil && v.Err == "" {
		v.Err = trouble(err, triesAgain)
	}
	if v.Looked {
		_, _ = p.fleetNow(ctx) // without its answer the lock has no rule
		v.Rule = p.namesFor(inspect.ScopeOf(key))
	}
	var pause *lock.Control
	v.Orders, _, pause = inner.ControlsFor(controls, key)
	v.Paused = pause != nil
	for _, c := range v.Orders {
		switch {
		case !c.Paused:
		case c.Target == name || name == keys.ControlScope && c.Target == keys.Controls:
			v.PausedHere = true
		default:
			v.PausedScope = c.Target
		}
	}
	v.Breakable, v.InUse = inspect.Breakable(v.Info.Closed), v.Info.Held+v.Info.line() > 0 || v.Info.Closed != ""
	v.Actions, v.Done = p.actions.about(key, name, inspect.ScopeOf(key)), p.done(r)
	if v.Recorded = p.past.recorder != nil; v.Recorded {
		if v.Timeline, v.Reach, err = p.past.about(ctx, key, name, inspect.ScopeOf(key)); err != nil && v.Err == "" {
			v.Err = trouble(err, triesAgain)
		}
	}
	v.Chart = newChart("This lock", p.sampler.lastHour(key, slot), slot, 600, 100)
	return v
}

// inspect asks Redis for the lock, and asynq for its tasks.
func (p *page) inspect(ctx context.Context, v *keyView) error {
	if err := p.look(ctx, v); err != nil {
		return err
	}
	tasks := make([]task, 0, len(v.Holders)+len(v.Line))
	for _, h := range v.Holders {
		tasks = append(tasks, h.Task)
	}
	for _, waiter := range v.Line {
		tasks = append(tasks, waiter.Task)
	}
	states := p.states.ask(ctx, tasks)
	for i := range v.Holders {
		v.Holders[i].State = stateOf(v.Holders[i].Task, states)
	}
	for i := range v.Line {
		v.Line[i].State = stateOf(v.Line[i].Task, states)
	}
	if rows := p.blockedRows(ctx, []row{v.Info}); len(rows) > 0 {
		v.Behind = &rows[0]
		for i := range v.Line {
			v.Line[i].Head = v.Line[i].Task == v.Behind.Task
		}
	}
	return nil
}

// look asks Redis for the lock.
func (p *page) look(ctx context.Context, v *keyView) error {
	m := inner.ByKey(p.locker, v.Key)
	kept, unread := within(ctx, func(ctx context.Context) ([]history.Run, error) { // before the look: what goes on then is not in it
		return history.Read(ctx, p.rdb, v.Key, mostBars)
	})
	info, err := inner.Inspect(ctx, m)
	if err != nil {
		return err
	}
	v.Now = time.Now()
	v.Info, v.Called = newRow(info, v.Now), info.Called
	p.sampler.follow(v.Info)
	line, err := inner.Line(ctx, m, info, mostLooked)
	if err != nil {
		return err
	}
	for _, h := range info.Holders {
		v.Holders = append(v.Holders, holderView{h.Token, printable.Short(h.Owner), p.taskOf(h.Note), "", v.Now.Add(h.ExpiresIn)})
	}
	var ahead time.Duration
	if len(line)+len(kept) > 0 { // their times are by Redis' clock
		redisNow, err := within(ctx, func(ctx context.Context) (time.Time, error) { return p.rdb.Time(ctx).Result() })
		if err != nil {
			return err
		}
		ahead = time.Until(redisNow).Round(100 * time.Millisecond) // so that the times of what has ended stay the same from look to look
	}
	for i, waiter := range line[:min(len(line), mostShown)] {
		v.Line = append(v.Line, waiterView{i + 1, printable.Short(waiter.Owner), p.taskOf(waiter.Note), "", inspect.WaiterState(waiter), waiter.Since.Add(-ahead), false})
	}
	v.More = max(0, v.Info.line()-len(v.Line))
	seen, since := p.seen.look(v.Key, v.Now, v.Info.Since, ahead, info.Holders, line)
	v.Bars, v.Kept, v.Seen = p.newBars(joined(kept, ahead, seen)), len(kept) > 0, since
	if unread != nil {
		v.Unread = trouble(unread, triesAgain)
	}
	return nil
}
