package simulate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
	"github.com/automutex/automutex/unique"
)

type world struct {
	plan  *plan
	redis *redisServer
	book  *ledger

	producer      *asynq.Client
	once          *unique.Client
	ordered       *automutex.Client // nil: no task is in order
	producerEnds  [2]*endpoint
	producerRedis [2]*redis.Client
	operator      operator // who judges, and acts: no fault hits that but of Redis
	skipper       operator // who skips heads; faults may hit that

	work sync.WaitGroup // what the schedule has begun

	mu    sync.Mutex // guards what follows
	procs []*process // by number; the latest of each
	all   []*process
	asked map[string]int // see countAsked
	held  map[string]int // by task ID: how often its hold was ended
	// splitUntil is when the last split brain ends.
	splitUntil time.Time
}

type verdict struct {
	violations []string
	trace      []string
	figures
	counts map[string]int // commands by client: "lock 0"
	first  string         // what the first task became
}

func (v verdict) told() string {
	if !*verbose {
		return ""
	}
	return "\n" + strings.Join(v.trace, "\n")
}

// kinds are the first words of the violations.
func (v verdict) kinds() (kinds []string) {
	for _, text := range v.violations {
		kind, _, _ := strings.Cut(text, ":")
		if !slices.Contains(kinds, kind) {
			kinds = append(kinds, kind)
		}
	}
	return kinds
}

func play(t *testing.T, p *plan) (v verdict) {
	defer func() {
		// The bubble reports goroutines that are left, and a deadlock, by a panic.
		if r := recover(); r != nil {
			v.violations = append(v.violations, fmt.Sprintf("goroutine: %v", r))
		}
	}()
	synctest.Test(t, func(*testing.T) {
		// A bubble begins in the year 2000, at which no Redis clock can be right.
		time.Sleep(time.Until(time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)))
		w := newWorld(p)
		w.live()
		v = w.end()
	})
	return v
}

func newWorld(p *plan) *world {
	w := &world{plan: p, asked: map[string]int{}, held: map[string]int{}}
	w.book = newLedger(w)
	w.redis = newRedis(p, w.book.violationf)
	for i, kind := range []string{"asynq", "lock"} {
		w.producerEnds[i] = w.redis.endpoint(-1, kind, p.Seed, p.Faults)
		w.producerRedis[i] = w.producerEnds[i].client()
	}
	w.producer = asynq.NewClientFromRedisClient(w.producerRedis[0])
	w.operator = newOperator(p, w.redis.endpoint(-2, "operator", p.Seed, nil))
	w.skipper = newOperator(p, w.redis.endpoint(-2, skips, p.Seed, p.Faults))
	w.book.names = w.keyNames()
	w.ordered = w.newOrdered()
	if len(p.Unique) > 0 {
		var rules []unique.Rule
		for _, u := range p.Unique {
			rules = append(rules, u.rule())
		}
		var producer automutex.Enqueuer = w.producer
		if w.ordered != nil {
			producer = w.ordered
		}
		w.once = must(unique.New(producer, asynq.NewInspectorFromRedisClient(w.producerRedis[0]), w.producerRedis[1],
			unique.Config{Rules: rules, HashKeys: p.secret()}))
	}
	return w
}

// must is for what only a wrong plan makes fail.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func (w *world) live() {
	for n, pp := range w.plan.Procs {
		p := w.startProcess(n, pp)
		w.procs, w.all = append(w.procs, p), append(w.all, p)
	}
	last := time.Duration(0)
	later := func(at time.Duration, f func()) {
		last = max(last, at)
		w.work.Add(1)
		time.AfterFunc(at, func() {
			defer w.work.Done()
			f()
		})
	}
	for n, t := range w.plan.Tasks {
		if t.At >= 0 {
			later(t.At, func() { w.enqueue(n) })
		}
	}
	for _, f := range w.plan.Faults {
		if f.Nth == 0 && f.Saying == "" {
			later(f.At, func() { w.fault(f) })
			last = max(last, f.At+f.For)
		}
	}
	for _, op := range w.plan.Ops {
		later(op.At, func() { w.operate(op) })
	}
	time.Sleep(last + ms)
	w.work.Wait()
	w.drain()
	w.rest()
	w.endLeads()
	time.Sleep(w.plan.Quiet)
}

// rest looks whether a Guard whose tasks have all ended still asks Redis for something.
func (w *world) rest() {
	if !w.book.calm || !w.book.clean || len(w.plan.Ops) > 0 {
		return
	}
	// Another process than that of the last task looks after a line once more.
	time.Sleep(w.linesEmptyIn() + 2*w.plan.Latency + sec)
	before := w.evals()
	time.Sleep(15 * sec)
	if more := w.evals() - before; more > 0 {
		w.book.violationf("restless: %d scripts for locks in a quarter of a minute in which there was no task", more)
	}
}

// linesEmptyIn is how long the places of tasks that have ended stay in lines.
func (w *world) linesEmptyIn() (longest time.Duration) {
	if w.plan.isOrdered() {
		// A task whose time was up is looked for five seconds later, and so quiet a key every four.
		longest = 10 * sec
	}
	for info, err := range (*inside.At(w.operator.locker)).List(context.Background()) {
		if err != nil {
			panic(err) // no fault hits the operator
		}
		places := info.Parked + info.Called
		if places > 0 {
			longest = max(longest, 10*time.Second) // a missing task may be one that its producer is about to enqueue
		}
		if places > 0 && info.Gate.OpensIn > 0 {
			// To drop one takes half a dozen exchanges.
			longest = max(longest, info.Gate.OpensIn+time.Duration(places)*12*w.plan.Latency)
		}
	}
	return longest
}

func (w *world) evals() (n int) {
	for _, p := range w.all {
		p.locks.mu.Lock()
		n += p.locks.evals
		p.locks.mu.Unlock()
	}
	return n
}

func (w *world) fault(f faultPlan) {
	w.book.tracef("fault %s of %d %s for %s", f.Kind, f.Proc, f.Client, f.For)
	switch f.Kind {
	case split:
		w.split(f)
		return
	case noReplicas:
		w.redis.loseReplicas(f.For)
		return
	case starts:
		w.restart(f.Proc)
		return
	case stops:
		w.redis.faulted()
		w.process(f.Proc).stop()
		return
	case dies:
		w.redis.faulted()
		w.process(f.Proc).die()
		return
	}
	for _, e := range w.endpointsOf(f.Proc, f.Client) {
		e.start(f)
	}
}

func (w *world) process(n int) *process {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.procs[n]
}

func (w *world) restart(n int) {
	if old := w.process(n); !old.isEnded() {
		return
	}
	p := w.startProcess(n, w.plan.Procs[n])
	w.mu.Lock()
	defer w.mu.Unlock()
	w.procs[n], w.all = p, append(w.all, p)
}

func (w *world) endpointsOf(proc int, client string) (ends []*endpoint) {
	all := w.producerEnds[:]
	if proc >= 0 {
		all = w.process(proc).ends()
	}
	for _, e := range all {
		if client == "" || client == e.kind {
			ends = append(ends, e)
		}
	}
	return ends
}

func (w *world) enqueue(n int) {
	t := w.plan.Tasks[n]
	task := asynq.NewTask(t.Task, t.body(n))
	opts := t.options()
	w.book.asks(n)
	if w.plan.uniqueOf(t) != nil {
		info, err := w.once.Enqueue(task, opts...)
		w.book.enqueued(n, info, err)
		return
	}
	if w.plan.byClient(t) && !t.Plain {
		w.enqueueByClient(n, task, opts)
		return
	}
	info, err := w.producer.Enqueue(task, append(opts, asynq.TaskID(w.plan.id(n)))...)
	if errors.Is(err, asynq.ErrTaskIDConflict) {
		err = nil // go-redis sent it again
		info = &asynq.TaskInfo{ID: w.plan.id(n)}
	}
	w.book.enqueued(n, info, err)
}

func (t taskPlan) options() []asynq.Option {
	opts := []asynq.Option{asynq.MaxRetry(t.MaxRetry)}
	if t.Timeout > 0 {
		opts = append(opts, asynq.Timeout(t.Timeout))
	}
	if t.Keep {
		opts = append(opts, asynq.Retention(24*time.Hour))
	}
	if t.Group != "" {
		opts = append(opts, asynq.Group(t.Group))
	}
	return opts
}

const queue = "default"

func (w *world) operate(op opPlan) {
	w.book.tracef("operator: %s task %d", op.Kind, op.Task)
	if w.control(op) || w.operateInOrder(op) {
		return
	}
	t := w.plan.Tasks[op.Task]
	switch op.Kind {
	case "pause":
		_ = w.operator.inspector.PauseQueue(queue) // paused already
		return
	case "unpause":
		_ = w.operator.inspector.UnpauseQueue(queue) // not paused
		return
	case "break":
		for _, r := range w.plan.rulesOf(t) {
			w.book.breaks(r.key(t))
			l := w.lockOf(r, t)
			_, _ = l.BreakAll(context.Background()) // it fails while Redis stands still
			w.book.breaks(r.key(t))
		}
		return
	}
	id := w.book.touch(op.Task)
	if id == "" {
		return
	}
	// asynq refuses what it cannot do in the task's state: then nothing was done.
	switch op.Kind {
	case "delete":
		if w.operator.inspector.DeleteTask(queue, id) == nil {
			w.book.deletes(op.Task)
		}
	case "archive":
		if w.operator.inspector.ArchiveTask(queue, id) == nil {
			w.book.explain(op.Task, endByHand)
		}
	case "run":
		_ = w.operator.inspector.RunTask(queue, id)
	}
	defer w.book.locked()()
	w.book.touchID(id) // a task may have got it meanwhile
}

// forgot tells whether Redis has lost what was written: then times prove nothing.
func (w *world) forgot() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.splitUntil.IsZero()
}

// drainWithin bounds how long tasks may take to end once nothing is wrong any more.
const drainWithin = 3 * time.Hour

// drain ends all faults, and waits until no task is left that is to be run.
func (w *world) drain() {
	w.redis.heal()
	w.book.tracef("all faults are over")
	w.book.quietSince = time.Now()
	_ = w.operator.inspector.UnpauseQueue(queue) // not paused
	w.endControls()
	alive := false
	for n := range w.plan.Procs {
		alive = alive || !w.process(n).isEnded() && w.process(n).isStopping().IsZero()
	}
	if !alive {
		p := w.process(0)
		if !p.isEnded() {
			<-p.dead
		}
		w.restart(0)
	}
	began := time.Now()
	looked := !w.plan.isOrdered()
	for pause := 200 * ms; ; pause = min(pause+pause/5, 20*sec) {
		left := w.left()
		ended := w.endHolds()
		if len(left) == 0 && !ended {
			if looked {
				return
			}
			time.Sleep(10 * sec) // a Guard looks for the last task, and may find it archived
			looked = true
			continue
		}
		looked = looked && !ended
		if well := time.Since(began); w.stands(left) || well > drainWithin {
			w.book.violationf("stuck: %s after everything was well: %s", well, strings.Join(left, ", "))
			return
		}
		time.Sleep(pause)
	}
}

// left are the tasks that asynq is to run, and those that a handler works on.
func (w *world) left() (left []string) {
	m := w.redis.mini
	base := "asynq:{" + queue + "}:"
	for _, list := range []string{"pending", "active"} {
		ids, _ := m.List(base + list) // no such key: none
		for _, id := range ids {
			left = append(left, list+" "+id)
		}
	}
	for _, set := range []string{"scheduled", "retry"} {
		ids, _ := m.ZMembers(base + set) // no such key: none
		for _, id := range ids {
			left = append(left, set+" "+id)
		}
	}
	return slices.Concat(left, w.inGroups(), w.book.working())
}

func (w *world) end() verdict {
	w.book.judgeIdle()
	virtual := w.book.at()
	var stopping sync.WaitGroup
	for _, p := range w.all {
		if !p.isEnded() {
			stopping.Go(p.stop)
		}
	}
	stopping.Wait()
	for _, p := range w.all {
		<-p.gone
	}
	w.book.judgeEnds()
	w.book.judgeBalance()
	w.skipper.close()
	w.operator.close() // it would read the controls for the hours that judgeKeys waits
	w.judgeKeys()
	for _, c := range w.producerRedis {
		_ = c.Close()
	}
	w.redis.mini.Close()
	time.Sleep(time.Minute)
	synctest.Wait()
	for _, stack := range others() {
		w.book.violationf("goroutine: left when all is closed: %s", stack)
	}
	v := verdict{
		violations: w.book.violations, trace: w.book.trace, counts: map[string]int{}, first: w.book.books[0].became(),
		figures: figures{1, virtual, w.redis.executed, w.redis.faults, len(w.plan.Tasks), len(w.book.runs)},
	}
	for _, e := range w.redis.ends {
		client := fmt.Sprintf("%s %d", e.kind, e.proc)
		v.counts[client] = max(v.counts[client], e.count) // a process that is started again begins anew
	}
	return v
}

var stackBuffers = sync.Pool{New: func() any { return make([]byte, 1<<20) }}

// others are the stacks of the bubble's other goroutines, but for those that carry it.
func others() (stacks []string) {
	buf := stackBuffers.Get().([]byte)
	defer stackBuffers.Put(buf) //nolint:staticcheck // a slice of it is not worth a pointer
	all := strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n")
	_, bubble, _ := strings.Cut(all[0], "synctest bubble ")
	bubble, _, _ = strings.Cut(bubble, "]")
	for _, stack := range all[1:] {
		head, _, _ := strings.Cut(stack, "\n")
		if strings.HasSuffix(head, "synctest bubble "+bubble+"]:") &&
			!strings.Contains(stack, "synctest.Run(") && !strings.Contains(stack, "testingSynctestTest(") {
			stacks = append(stacks, stack)
		}
	}
	return stacks
}

// skips is the client of an operator who skips heads, and whom faults may hit. Process -2 has it.
const skips = "skip"

type operator struct {
	rdb       *redis.Client
	locker    *lock.Locker
	inspector *asynq.Inspector
}

func newOperator(p *plan, e *endpoint) operator {
	rdb := e.client()
	locker := lock.New(rdb, lock.Options{Owner: "operator", HashKeys: p.secret(), Logger: slog.New(slog.DiscardHandler)})
	return operator{rdb, locker, asynq.NewInspectorFromRedisClient(rdb)}
}

func (o operator) close() {
	_ = o.locker.Close()
	_ = o.rdb.Close()
}

func (b *ledger) touch(n int) string {
	defer b.locked()()
	b.books[n].op = true
	b.touchID(b.books[n].id)
	return b.books[n].id
}

// touchID says that an operator does something to the tasks with that ID. One that was joined to another has the ID of
// that one; under UntilDone one that comes later has it too, and its producer may still wait for the answer.
func (b *ledger) touchID(id string) {
	for _, t := range b.books {
		t.op = t.op || t.id != "" && t.id == id
	}
	b.seq++
	b.touches[id] = b.seq
}

func (b *ledger) breaks(key string) {
	defer b.locked()()
	b.key(key).opens()
	for _, r := range b.runs {
		if r.lives() {
			b.addf("task %d holds while %q is broken", r.n, key)
		}
	}
}

var (
	errFails = errors.New("simulate: the handler fails")
	errSoft  = errors.New("simulate: an error that does not count")
	errDead  = errors.New("simulate: the process is dead")
	errAfter = errors.New("simulate: AfterFailure fails")
	errKey   = errors.New("simulate: the key cannot be looked up at the moment")
)

type payload struct {
	N int  `json:"n"` // the task's number in the plan
	A int  `json:"a"`
	B *int `json:"b,omitempty"`
}

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
}

func (w *world) startProcess(n int, pp procPlan) *process {
	p := &process{w: w, n: n, plan: pp, dead: make(chan struct{}), gone: make(chan struct{}), shut: make(chan struct{})}
	p.locks = w.redis.endpoint(n, "lock", w.plan.Seed, w.plan.Faults)
	p.tasks = w.redis.endpoint(n, "asynq", w.plan.Seed+1, w.plan.Faults)
	p.lockClient, p.taskClient = p.locks.client(), p.tasks.client()
	p.guard = must(automutex.New(p.lockClient, automutex.Config{
		Rules: p.rules(), Owner: fmt.Sprintf("process-%d", n), Observe: p.observe,
		Logger: slog.New(slog.DiscardHandler), HashKeys: w.plan.secret(), MinReplicas: w.plan.MinReplicas,
		History: w.plan.History,
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
		RetryDelayFunc: func(n int, _ error, _ *asynq.Task) time.Duration {
			return time.Duration(1+n%5) * sec
		},
	}
	if g := w.plan.Groups; g != nil {
		cfg.GroupAggregator, cfg.GroupGracePeriod, cfg.GroupMaxDelay,
			cfg.GroupMaxSize = asynq.GroupAggregatorFunc(p.aggregate), g.Grace, g.MaxDelay, g.MaxSize
	}
	p.server = asynq.NewServerFromRedisClient(p.taskClient, p.guard.ServerConfig(cfg))
	if err := p.server.Start(asynq.HandlerFunc(p.attempt)); err != nil {
		panic(err)
	}
	p.candidate = p.campaigns()
	w.book.tracef("process %d starts", n)
	return p
}

func (p *process) ends() []*endpoint {
	if p.candidate == nil {
		return []*endpoint{p.tasks, p.locks}
	}
	return []*endpoint{p.tasks, p.locks, p.candidate.end}
}

func (p *process) rules() (rules []automutex.Rule) {
	for _, r := range p.w.plan.Rules {
		rule := automutex.Rule{
			Name: r.name(), Task: r.Task, On: r.On, Scope: r.Scope, Limit: r.limit(), LimitOf: p.limitOf(r),
			Optional: r.Optional, TTL: r.TTL,
			Wait: r.Wait, MaxHold: r.MaxHold, Cooldown: r.Cooldown, Rate: r.rate(), Fence: r.fenced(), Busy: p.policy(r),
			LeaveIdle: r.LeaveIdle,
			InOrder:   r.InOrder, OnArchive: r.onArchive(), MaxQueued: r.MaxQueued, StartWithin: r.StartWithin, Late: p.late(r),
		}
		if r.LimitOf {
			rule.Limit = 0
		}
		if r.Dear {
			r.priced(&rule)
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
	"retry": automutex.Retry, "retry in": automutex.RetryIn(2 * sec), "skip": automutex.Skip,
	"archive": automutex.Archive,
	"fail":    automutex.Fail, "park": automutex.Park, "replace": automutex.Replace, "allow": automutex.Allow,
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

func (p *process) observe(_ context.Context, e automutex.Event) {
	if p.isEnded() {
		return
	}
	p.w.book.event(p, e)
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
	p.w.book.tracef("process %d stops", p.n)
	p.shutDown(p.plan.Shutdown + sec)
	close(p.shut)
	p.die()
}

func (p *process) shutDown(within time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	var closing sync.WaitGroup
	closing.Go(func() { _ = p.guard.Close(ctx) }) // an error is that handlers still ran: the plan's
	closing.Go(p.candidate.resigns)
	p.server.Shutdown()
	closing.Wait()
}

// die ends the process at once: nothing that it still sends arrives, and nothing that its goroutines still do counts.
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
				p.shutDown(sec) // nothing of it reaches Redis
			}
			_ = p.lockClient.Close()
			_ = p.taskClient.Close()
		}()
	})
}
