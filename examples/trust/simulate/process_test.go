package simulate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
)

// Errors of handlers and functions that the plan asks for.
var (
	errFails = errors.New("simulate: the handler fails")
	errSoft  = errors.New("simulate: an error that does not count")
	errDead  = errors.New("simulate: the process is dead")
	errAfter = errors.New("simulate: AfterFailure fails")
	errKey   = errors.New("simulate: the key cannot be looked up at the moment")
)

// payload is what a task carries.
type payload struct {
	N int  `json:"n"` // the task's number in the plan
	A int  `json:"a"`
	B *int `json:"b,omitempty"`
}

// process is an asynq server with a Guard, which stops or dies.
type process struct {
	w    *world
	n    int
	plan procPlan

	locks, tasks *endpoint
	lockClient   *redis.Client
	taskClient   *redis.Client
	guard        *automutex.Guard
	server       *asynq.Server
	candidate    *candidate // nil: nobody leads in this world

	dead chan struct{} // closed when nothing of it counts any more
	shut chan struct{} // closed when stop has shut everything down
	gone chan struct{} // closed when all of its goroutines have been told to end, and its own have
	once sync.Once     // it ends once

	mu       sync.Mutex // guards what follows
	ended    bool
	stopping time.Time // since when; zero: it is not
	panicked bool
}

func (w *world) startProcess(n int, pp procPlan) *process {
	p := &process{w: w, n: n, plan: pp, dead: make(chan struct{}), gone: make(chan struct{}), shut: make(chan struct{})}
	p.locks = w.redis.endpoint(n, "lock", w.plan.Seed, w.plan.Faults)
	p.tasks = w.redis.endpoint(n, "asynq", w.plan.Seed+1, w.plan.Faults)
	p.lockClient, p.taskClient = p.locks.client(), p.tasks.client()
	p.guard = must(automutex.New(p.lockClient, automutex.Config{
		Rules: p.rules(), Owner: fmt.Sprintf("process-%d", n), Observe: p.observe,
		Logger: slog.New(slog.DiscardHandler), HashKeys: w.plan.secret(), MinReplicas: w.plan.MinReplicas, History: w.plan.History,
		Private: true, // the fleet is no part of the world: its commands would take faults meant for locks
	}))
	cfg := asynq.Config{
		Concurrency:              pp.Workers,
		TaskCheckInterval:        pp.Poll,
		DelayedTaskCheckInterval: pp.Forward,
		ShutdownTimeout:          pp.Shutdown,
		JanitorInterval:          10 * time.Minute,
		Logger:                   redistest.Silent{},
		LogLevel:                 asynq.FatalLevel,
		IsFailure:                func(err error) bool { return err != nil && !errors.Is(err, errSoft) },
		RetryDelayFunc:           func(n int, _ error, _ *asynq.Task) time.Duration { return time.Duration(1+n%5) * time.Second },
	}
	if g := w.plan.Groups; g != nil {
		cfg.GroupAggregator, cfg.GroupGracePeriod, cfg.GroupMaxDelay, cfg.GroupMaxSize = asynq.GroupAggregatorFunc(p.aggregate), g.Grace, g.MaxDelay, g.MaxSize
	}
	p.server = asynq.NewServerFromRedisClient(p.taskClient, p.guard.ServerConfig(cfg))
	if err := p.server.Start(asynq.HandlerFunc(p.attempt)); err != nil {
		panic(err)
	}
	p.candidate = p.campaigns()
	w.book.notef("process %d starts", n)
	return p
}

// ends are its clients.
func (p *process) ends() []*endpoint {
	if p.candidate == nil {
		return []*endpoint{p.tasks, p.locks}
	}
	return []*endpoint{p.tasks, p.locks, p.candidate.end}
}

// rules are the plan's, as the Guard takes them.
func (p *process) rules() (rules []automutex.Rule) {
	for _, r := range p.w.plan.Rules {
		rule := automutex.Rule{
			Name: r.name(), Task: r.Task, On: r.On, Scope: r.Scope, Limit: r.limit(), LimitOf: p.limitOf(r), Optional: r.Optional, TTL: r.TTL,
			Wait: r.Wait, MaxHold: r.MaxHold, Cooldown: r.Cooldown, Rate: r.rate(), Fence: r.fenced(), Busy: p.policy(r),
			InOrder: r.InOrder, OnArchive: r.onArchive(), MaxQueued: r.MaxQueued,
		}
		if r.LimitOf {
			rule.Limit = 0
		}
		if r.KeyFails > 0 || r.KeyLater > 0 {
			rule.On, rule.Key = nil, p.failingKey(r)
		}
		rules = append(rules, rule)
	}
	return rules
}

// simple are the policies that ask nobody.
var simple = map[string]automutex.Policy{
	"retry": automutex.Retry, "retry in": automutex.RetryIn(2 * time.Second), "skip": automutex.Skip, "archive": automutex.Archive,
	"fail": automutex.Fail, "park": automutex.Park, "replace": automutex.Replace, "allow": automutex.Allow,
}

func (p *process) policy(r rulePlan) automutex.Policy {
	if policy, ok := simple[r.Policy]; ok {
		return policy
	}
	return automutex.AfterFailure(func(ctx context.Context, t *asynq.Task, busy *automutex.BusyError) error {
		n := number(t)
		if busy.Reason == automutex.ReasonClosed || busy.Reason == automutex.ReasonPaused {
			p.w.book.violationf("held: AfterFailure is asked about task %d, whose key is only on hold or paused", n)
		}
		switch r.After {
		case "done":
			if busy.SameTask {
				return busy
			}
			p.w.book.explain(n, endDropped)
			return nil
		case "skip":
			p.w.book.explain(n, endArchived)
			return errors.Join(errAfter, asynq.SkipRetry)
		case "fail":
			p.w.book.spend(n, 1, 1, "AfterFailure fails")
			return errAfter
		case "later":
			return p.asksBack(ctx, n, busy)
		}
		return busy
	})
}

// failingKey is a key function that does I/O, and fails a few times for each task.
func (p *process) failingKey(r rulePlan) automutex.KeyFunc {
	return func(ctx context.Context, t *asynq.Task) ([]string, error) {
		n := number(t)
		switch asked := p.w.countAsked("key of "+r.name(), n); {
		case asked <= r.KeyFails:
			return nil, errKey
		case asked <= r.KeyFails+r.KeyLater:
			return nil, p.asksBack(ctx, n, errKey)
		}
		return r.parts(p.w.plan.Tasks[n]), nil
	}
}

func number(t *asynq.Task) int {
	var pl payload
	if err := json.Unmarshal(t.Payload(), &pl); err != nil {
		panic(err) // the plan's payloads are JSON
	}
	return pl.N
}

// observe is Config.Observe.
func (p *process) observe(_ context.Context, e automutex.Event) {
	if p.isEnded() {
		return
	}
	p.w.book.event(p, e)
	if e.Kind == p.w.plan.ObserverPanics {
		p.mu.Lock()
		first := !p.panicked
		p.panicked = true
		p.mu.Unlock()
		if first {
			panic("simulate: the observer panics")
		}
	}
}

func (p *process) isEnded() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ended
}

// isStopping tells since when the process stops; zero: it does not.
func (p *process) isStopping() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stopping
}

// attempt is what asynq calls: the Guard, and around it a look at what came of it.
func (p *process) attempt(ctx context.Context, t *asynq.Task) error {
	a := p.w.book.arrive(p, ctx, number(t))
	defer func() { p.w.book.depart(a, recover()) }()
	return p.middleware(t.Type()).ProcessTask(ctx, t)
}

// handle is the handler: it does what the plan says.
func (p *process) handle(ctx context.Context, t *asynq.Task) error {
	n := number(t)
	r := p.w.book.begin(p, ctx, n)
	if r == nil {
		return errDead
	}
	p.w.book.judgeFences(r)
	step := p.w.plan.Tasks[n].step(r.nth)
	if step.Then > 0 && p.w.book.isNew(step.Then-1) {
		p.w.enqueue(step.Then - 1)
	}
	ended := ctx.Done()
	if step.Deaf {
		ended = nil
	}
	timer := time.NewTimer(step.Work)
	defer timer.Stop()
	select {
	case <-timer.C:
		p.goesOn()
	case <-ended:
		p.goesOn()
		p.w.book.end(r, stepPlan{End: "cut short"})
		return context.Cause(ctx)
	case <-p.dead:
		return errDead
	}
	p.hold(ctx, r, step)
	p.w.book.end(r, step)
	switch step.End {
	case "fail":
		return errFails
	case "soft":
		return errSoft
	case "panic":
		panic("simulate: the handler panics")
	case "skip":
		return fmt.Errorf("simulate: %w", asynq.SkipRetry)
	case "revoke":
		return fmt.Errorf("simulate: %w", asynq.RevokeTask)
	case "later":
		return automutex.RetryAfter(step.Later, errUpstream)
	}
	return nil
}

// stop ends the process as a program does on SIGTERM: Close beside Shutdown, and then
// it exits, whatever still runs. It returns when that is done.
func (p *process) stop() {
	p.mu.Lock()
	if p.ended || !p.stopping.IsZero() {
		p.mu.Unlock()
		<-p.gone
		return
	}
	p.stopping = time.Now()
	p.mu.Unlock()
	p.w.book.notef("process %d stops", p.n)
	p.shutDown(p.plan.Shutdown + time.Second)
	close(p.shut)
	p.die()
}

// shutDown ends what runs, whatever still does after a while.
func (p *process) shutDown(within time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	var closing sync.WaitGroup
	closing.Go(func() { _ = p.guard.Close(ctx) }) // an error is that handlers still ran: the plan's
	closing.Go(p.candidate.resigns)
	p.server.Shutdown()
	closing.Wait()
}

// die ends the process at once: nothing that it still sends arrives, and nothing
// that its goroutines still do counts.
func (p *process) die() {
	p.once.Do(func() {
		p.mu.Lock()
		p.ended = true
		stopped := !p.stopping.IsZero()
		p.mu.Unlock()
		p.w.book.died(p)
		close(p.dead)
		for _, e := range p.ends() {
			e.die()
		}
		go func() { // its goroutines would be gone; here they have to be told
			defer close(p.gone)
			if stopped {
				<-p.shut // it dies while it stops
			} else {
				p.shutDown(time.Second) // nothing of it reaches Redis
			}
			_ = p.lockClient.Close()
			_ = p.taskClient.Close()
		}()
	})
}
