package simulate

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/lock"
)

// What follows is how keys are written, and how many replicas have to know of a lease.

// secret is what keys are hashed with, where a plan says so.
func (p *plan) secret() string {
	if p.HashKeys {
		return "the secret of the simulation"
	}
	return ""
}

// storage draws how keys are written.
func (d *drawer) storage(length time.Duration) {
	s := d.aside("storage")
	s.p.HashKeys = s.chance(0.2)
	if !s.chance(0.15) {
		return
	}
	s.p.MinReplicas = 1
	if s.chance(0.5) {
		s.p.Faults = append(s.p.Faults, faultPlan{
			Kind: noReplicas, Client: "lock", At: s.span(0, int(length/time.Millisecond)), For: s.span(500, 10_000),
		})
	}
}

// history draws how many runs of a key are kept.
func (d *drawer) history() {
	if s := d.aside("history"); s.chance(0.3) {
		s.p.History = 1 + s.IntN(5)
	}
}

// isHistory tells whether a key has runs of another key, or names those that have.
func isHistory(key string) bool {
	return strings.HasSuffix(key, ":history") || strings.HasSuffix(key, ":{stats}:histories")
}

// judgeHistory looks at the runs that were kept: of some key, and of none too many.
func (w *world) judgeHistory() {
	kept := 0
	for _, key := range w.redis.mini.Keys() {
		if !strings.HasSuffix(key, ":history") {
			continue
		}
		kept++
		if runs, err := w.redis.mini.Stream(key); err != nil || len(runs) == 0 || len(runs) > w.plan.History {
			w.book.violationf("history: %q has %d runs, and %d are kept of a key; %v", key, len(runs), w.plan.History, err)
		}
	}
	guarded := slices.ContainsFunc(w.book.runs, func(r *run) bool { return len(w.plan.rulesOf(w.plan.Tasks[r.n])) > 0 })
	if w.book.calm && w.book.clean && w.plan.History > 0 && guarded && kept == 0 {
		w.book.violationf("history: no key has one")
	}
}

// losesReplicas tells whether replicas are away at some time: then grants are undone and
// asked for again at growing intervals, and what a wait may take is not judged.
func (p *plan) losesReplicas() bool {
	return slices.ContainsFunc(p.Faults, func(f faultPlan) bool { return f.Kind == noReplicas })
}

// grantSlack is how long after Redis granted a lease its task may hear of that: with
// replicas, they have to acknowledge it before.
func (p *plan) grantSlack() time.Duration {
	slack := 50 * time.Millisecond
	if p.MinReplicas > 0 {
		slack += inside.ReplicasWithin + 4*p.Latency
	}
	return slack
}

// keyNames are the plan's names of keys, by what stands in braces in Redis.
func (w *world) keyNames() map[string]string {
	names := map[string]string{}
	for _, t := range w.plan.Tasks {
		for _, r := range w.plan.rulesOf(t) {
			names[inBraces(w.lockOf(r, t).Key())] = r.key(t)
		}
	}
	return names
}

func inBraces(key string) string {
	_, key, _ = strings.Cut(key, "{")
	if end := strings.LastIndexByte(key, '}'); end >= 0 {
		key = key[:end]
	}
	return key
}

// lockOf is the lock that a task needs under a rule, as the operator sees it.
func (w *world) lockOf(r rulePlan, t taskPlan) *lock.Lock {
	return w.operator.locker.Semaphore(r.scope(), r.limit(), lock.Parts(r.parts(t)...))
}

// wait answers WAIT, which miniredis does not know: all replicas have everything, or,
// while they are away, none has it when the time that the command gives them is over.
func (p *peer) wait(command []string) {
	s := p.redis
	s.mu.Lock()
	away := time.Now().Before(s.replicasAway)
	s.mu.Unlock()
	away = away || p.conn.end.suffers(split)
	if !away {
		p.conn.deliver([]byte(":1\r\n"))
		return
	}
	ms, err := strconv.Atoi(command[len(command)-1])
	if err != nil {
		panic("simulate: not a WAIT: " + strings.Join(command, " "))
	}
	time.AfterFunc(time.Duration(ms)*time.Millisecond, func() { p.conn.deliver([]byte(":0\r\n")) })
}

// loseReplicas has replicas acknowledge nothing for a time.
func (s *redisServer) loseReplicas(length time.Duration) {
	s.faulted()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.replicasAway = time.Now().Add(length)
	s.freezes = append(s.freezes, activeFault{noReplicas, time.Now(), s.replicasAway})
}
