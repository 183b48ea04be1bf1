package automutex

import (
	"fmt"
	"time"
)

// warnOnce logs a warning for the first call with the same what, and does
// nothing for later ones. It is for mistakes of a setup, which every task meets.
func (g *Guard) warnOnce(what, text string, args ...any) {
	if _, told := g.warned.LoadOrStore(what, true); !told {
		g.log.Warn("automutex: "+text, args...)
	}
}

// asynqTimeout is the Timeout that asynq gives to a task enqueued with neither
// asynq.Timeout nor asynq.Deadline.
const asynqTimeout = 30 * time.Minute

// longestWait is the longest time that a task of the rule stands in line in its
// worker before the policy applies. Park does not wait for a fixed time.
func (c *compiled) longestWait() time.Duration {
	switch {
	case c.Busy.kind == policyPark:
		return 0
	case c.Busy.kind == policyReplace && c.Wait == 0:
		return c.TTL
	}
	return c.Wait
}

// noticeLongWait says that the rule's Wait is longer than the Timeout that tasks
// have by default; "" when it is not.
func (c *compiled) noticeLongWait() string {
	wait := c.longestWait()
	if wait <= asynqTimeout-margin {
		return ""
	}
	return fmt.Sprintf("automutex: %s: Wait: a task may stand in line for %s, and that time counts against its Timeout, which is %s unless asynq.Timeout or asynq.Deadline says otherwise: "+
		"a wait ends a second before the task's deadline; shorten the Wait, or enqueue the tasks with a longer Timeout", c.where(), wait, asynqTimeout)
}

// warnLongWait warns once for a rule whose Wait is longer than the time that a
// task came with.
func (a *attempt) warnLongWait(t target) {
	deadline, ok := a.ctx.Deadline()
	wait := t.rule.longestWait()
	if !ok || wait <= deadline.Sub(a.came)-margin {
		return
	}
	a.guard.warnOnce("long wait of "+t.rule.Name, "a rule's Wait is longer than the Timeout of its task, and time in line counts against that: "+
		"the handler may begin with a second left; shorten the Wait, or enqueue the task with a Timeout of at least the Wait and the work together",
		"rule", t.rule.Name, "wait", wait, "timeout", deadline.Sub(a.came).Round(time.Millisecond), "task", a.note)
}
