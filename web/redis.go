package web

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/blocked"
	"github.com/automutex/automutex/internal/control"
	"github.com/automutex/automutex/internal/engine"
	"github.com/automutex/automutex/internal/fleet"
	"github.com/automutex/automutex/internal/inspect"
	"github.com/automutex/automutex/internal/printable"
	"github.com/automutex/automutex/internal/stamp"
	"github.com/automutex/automutex/internal/tasknote"
)

const (
	// rulesFresh is how old the answer may be to what processes run; they write every 20 seconds.
	rulesFresh = 5 * time.Second
	// mostHeads is how many blocked keys the page names. asynq is asked for the task of each.
	mostHeads = 30
	// mostQueues is in how many queues a task is looked for.
	mostQueues = 20
)

// row is one lock, as it was when somebody looked. All times are by Redis' clock.
type row struct{ inspect.Lock }

func (p *page) walk(ctx context.Context) (s *snapshot, pause time.Duration, err error) {
	defer func() {
		if err != nil && p.ctx.Err() == nil {
			p.o.Logger.Warn("automutex: web: cannot list the locks; will try again", "error", err)
		}
	}()
	began := time.Now()
	s = &snapshot{}
	for l, err := range inspect.Walk(ctx, p.engine) {
		if err != nil {
			return nil, 0, err
		}
		s.add(row{Lock: l})
	}
	s.trim()
	s.at = time.Now()
	p.hour.add(s.at, s.totals)
	return s, pauseAfter(s.Locks, s.at.Sub(began)), nil
}

func (p *page) look(ctx context.Context, key string) (row, error) {
	return within(ctx, func(ctx context.Context) (row, error) {
		l, err := inspect.One(ctx, p.engine, key)
		return row{l}, err
	})
}

// keyOf is the Redis key that a request names: whole, or what stands between its braces.
func (p *page) keyOf(text string) string { return inspect.Key(p.o.Prefix, text) }

// noLock says why a Redis key is none of a lock; empty for one that can be.
func (p *page) noLock(key string) string {
	_, err := p.engine.Ref(key)
	if err == nil {
		return ""
	}
	// a method of package lock: here it is Keys
	why, _, _ := strings.Cut(strings.TrimPrefix(err.Error(), "lock: "), "; List tells")
	return "This is no key of a lock: " + printable.Short(why) + ". Search under Keys for a part of it."
}

// Breakable reports whether a break of all opens the gate.
func (r row) Breakable() bool { return r.Gate != nil && inspect.Breakable(r.Gate.Closed) }

// task is a task, or another text that a holder or waiter has left.
type task struct {
	Queue, ID string // empty: no task
	Text      string // what is shown
	URL       string // asynqmon's page of the task; empty without one
}

func (p *page) task(w inspect.Work) task {
	t := task{Queue: w.Queue, ID: w.Task, Text: printable.Short(w.Note)}
	if w.Task != "" {
		t.Text = printable.Short(w.TaskName())
		if p.o.AsynqmonPath != "" {
			t.URL = p.o.AsynqmonPath + "/queues/" + url.PathEscape(w.Queue) + "/tasks/" + url.PathEscape(w.Task)
		}
	}
	return t
}

func (p *page) controls(ctx context.Context) ([]control.Order, error) {
	return within(ctx, p.engine.Controls().Orders)
}

func (p *page) newEngine(owner string) *engine.Engine {
	isScope := func(text string) bool { return inspect.IsScope(cmp.Or(p.rules.last(), p.own).rules, text) }
	return engine.New(engine.Options{Client: p.rdb, Prefix: p.o.Prefix, Owner: owner, Log: slog.New(slog.DiscardHandler),
		Obeys: true, HasScope: isScope, HashKeys: p.o.HashKeys})
}

// mayBlock reports whether the next task of an ordered key may keep others waiting: asynq knows.
func (r row) mayBlock() bool { return r.Next != nil && r.Next.Head.MayBlock() }

// earlierHead orders keys whose next task may keep others waiting: archived ones first, then by age.
func earlierHead(a, b row) int { return blocked.First(a.Next.Head, b.Next.Head) }

type blockedRow struct {
	row
	Rule string
	Task task
	Why  string
}

// blockedOf asks asynq for the next task of each of those keys, and leaves out those that go on by themselves.
func (p *page) blockedOf(ctx context.Context, rows []row) (all []blockedRow) {
	whys := askAsynq(ctx, p, func(asked *asynq.Inspector) []string {
		heads := make([]engine.Head, len(rows))
		for i, r := range rows {
			heads[i] = r.Next.Head
		}
		return blocked.Whys(asked, heads)
	})
	for i, r := range rows {
		why := ""
		switch {
		case whys != nil:
			why = whys[i]
		case r.Next.Held: // asynq did not say in time
			why = "is archived"
		}
		if why != "" {
			all = append(all, blockedRow{r, p.rulesOf(r.Key), p.task(inspect.WorkOf(r.Next.Task)), printable.Short(why)})
		}
	}
	return all
}

// lateOf says in what time the tasks of a lock's line are late, as asynq has them; empty: nothing is known of that.
func (p *page) lateOf(ctx context.Context, key string, line []inspect.Waiter, now time.Time) []string {
	rules, scope := p.rulesNow(ctx).rules, inspect.ScopeOf(key)
	late := askAsynq(ctx, p, func(asked *asynq.Inspector) []string {
		late := make([]string, len(line))
		for i, w := range line {
			info, err := asked.GetTaskInfo(w.Queue, w.Task)
			if err != nil || info.Retried > 0 {
				continue // it is no task, has ended, or has begun
			}
			within := time.Duration(0)
			for _, r := range rules {
				its, _ := time.ParseDuration(r.StartWithin) // empty: none
				if its > 0 && (within == 0 || its < within) && r.Has(scope) && strings.HasPrefix(info.Type, r.Task) {
					within = its
				}
			}
			s, _ := stamp.Of(info.Headers, tasknote.Of(info.Queue, info.ID))
			if by := s.StartBy(within); by.After(now) {
				late[i] = "late in " + printable.Duration(by.Sub(now))
			}
		}
		return late
	})
	return append(late, make([]string, len(line)-len(late))...) // asynq may not say in time
}

// askAsynq asks asynq, whose Inspector takes no context, and whose Redis may hang: nobody waits longer than
// timeouts.asynq for an answer, and a question that hangs keeps its slot. What is not known in time is the zero value.
func askAsynq[A any](ctx context.Context, p *page, ask func(*asynq.Inspector) A) A {
	ctx, cancel := context.WithTimeout(ctx, p.within.asynq)
	defer cancel()
	answer, _ := within(ctx, func(ctx context.Context) (none A, err error) {
		select {
		case p.asynq <- struct{}{}:
			defer func() { <-p.asynq }()
			return ask(p.o.Inspector), nil
		case <-ctx.Done():
			return none, ctx.Err()
		}
	})
	return answer
}

// known is the rules that the page knows: those of its Options, or else those that workers say they run. It never
// changes.
type known struct {
	rules  []fleet.Rule
	keys   *automutex.KeyMaker
	hashed bool // some process hashes keys, and the page has no secret
}

// rulesNow reads what the processes say. Without their answer it gives what they said before.
func (p *page) rulesNow(ctx context.Context) *known {
	k, _ := p.rules.get(ctx, func(ctx context.Context) (*known, time.Duration, error) {
		processes, err := fleet.Read(ctx, p.rdb, p.o.Prefix)
		if err != nil {
			return nil, 0, err
		}
		k := *p.own
		for _, process := range processes {
			k.hashed = p.o.HashKeys == "" && (k.hashed || process.Hashed)
		}
		if p.o.Rules == nil {
			k.rules = fleet.Rules(processes)
			// rules that two workers see otherwise may be none together
			if maker, err := p.keyMaker(inspect.FromFleet(k.rules), slog.New(slog.DiscardHandler)); err == nil {
				k.keys = maker
			}
		}
		return &k, rulesFresh, nil
	})
	return cmp.Or(k, p.own)
}

func (p *page) ownRules() (err error) {
	p.own = &known{rules: inspect.Describe(p.o.Rules)}
	if p.own.keys, err = p.keyMaker(p.o.Rules, p.o.Logger); err != nil {
		return fmt.Errorf("web: Options: %w", err)
	}
	return nil
}

func (p *page) keyMaker(rules []automutex.Rule, log *slog.Logger) (*automutex.KeyMaker, error) {
	return automutex.NewKeyMaker(automutex.Config{Rules: rules, Prefix: p.o.Prefix, HashKeys: p.o.HashKeys,
		Decode: p.o.Decode, Logger: log})
}

// namesFor gives the names of the rules whose locks have that scope: those that name the scope, else those with the
// longest Task that the scope begins with. Scopes that no rule makes give none.
func (k *known) namesFor(scope string) (names []string) {
	longest := 0
	for _, r := range k.rules {
		if !r.Has(scope) {
			continue
		}
		n := len(r.Task)
		if _, byType := r.ScopeText(); !byType {
			n = math.MaxInt // it names the scope
		}
		if n > longest {
			names, longest = nil, n
		}
		if n == longest {
			names = append(names, r.Name)
		}
	}
	return names
}

// rulesOf gives the names of the rules of a key, as far as the page knows them.
func (p *page) rulesOf(key string) string {
	return strings.Join(cmp.Or(p.rules.last(), p.own).namesFor(inspect.ScopeOf(key)), ", ")
}

func (p *page) lends(key string) (r fleet.Rule) {
	for _, r = range cmp.Or(p.rules.last(), p.own).rules {
		if r.LeaveIdle > 0 && r.Has(inspect.ScopeOf(key)) {
			return r
		}
	}
	return fleet.Rule{}
}

// unknownTarget says why no task has the target of an order; empty if one may have it, or if Redis does not tell in
// time.
func (p *page) unknownTarget(ctx context.Context, target string) string {
	ctx, cancel := context.WithTimeout(ctx, p.within.redis)
	defer cancel()
	k := p.rulesNow(ctx)
	why, _ := within(ctx, func(ctx context.Context) (string, error) {
		return inspect.Unknown(ctx, p.engine, k.rules, k.hashed || p.o.HashKeys != "", target)
	})
	if why != "" {
		why += "."
	}
	return why
}

// foundTask is a task whose ID somebody searched for.
type foundTask struct {
	Task  task
	State string
	Keys  []string
	Why   string // there are no Keys
}

// findTask asks asynq for the task with that ID, in each queue or in that of <queue>/<ID>, and makes its keys.
// Nothing is asked for what can be no ID.
func (p *page) findTask(ctx context.Context, text string) (found []foundTask) {
	text = strings.TrimSpace(text)
	if len(text) < 3 || len(text) > 300 || strings.ContainsAny(text, " *?[") {
		return nil
	}
	infos := askAsynq(ctx, p, func(asked *asynq.Inspector) (infos []*asynq.TaskInfo) {
		queues, _ := asked.Queues() // an error: nothing is found
		isNamed := func(queue string) bool { return strings.HasPrefix(text, queue+"/") }
		if named := slices.IndexFunc(queues, isNamed); named > 0 {
			queues[0], queues[named] = queues[named], queues[0]
		}
		for _, queue := range queues[:min(len(queues), mostQueues)] {
			if info, err := asked.GetTaskInfo(queue, strings.TrimPrefix(text, queue+"/")); err == nil {
				infos = append(infos, info)
			}
		}
		return infos
	})
	k := p.rulesNow(ctx)
	for _, info := range infos {
		one := foundTask{Task: p.task(inspect.Work{Queue: info.Queue, Task: info.ID}),
			State: printable.Short(info.Type) + ", " + info.State.String() + " in asynq"}
		var err error
		switch one.Keys, err = k.keys.Keys(ctx, asynq.NewTaskWithHeaders(info.Type, info.Payload, info.Headers)); {
		case k.hashed:
			one.Keys, one.Why = nil, "its keys are hashed, and the page does not have the secret"
		case err != nil:
			one.Why = printable.Short(err.Error())
		case len(one.Keys) == 0:
			one.Why = "no rule that the page knows gives it a key"
		}
		found = append(found, one)
	}
	return found
}
