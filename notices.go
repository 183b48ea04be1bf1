package automutex

import (
	"fmt"
	"strings"
)

// notices tells of what is allowed but may surprise.
func (rs *ruleSet) notices() (notices []string) {
	for _, p := range rs.declared {
		if strings.Contains(p.task, "*") {
			notices = append(notices, fmt.Sprintf("automutex: %s: Task: %q matches only types that have that * in them: "+
				"a Task is a type or its beginning, and needs no *", p.rules[0].where(), p.task))
		}
	}
	for _, p := range rs.declared {
		for _, rule := range p.rules {
			if notice := rule.noticeLongWait(); notice != "" {
				notices = append(notices, notice)
			}
		}
	}
	for _, p := range rs.declared {
		notices = append(notices, p.noticeReplaceThenEnd()...)
	}
	for _, p := range rs.declared {
		if shorter, ok := rs.byType.FindShorter(p.task); ok {
			notices = append(notices, fmt.Sprintf(
				"automutex: %s hides %s from tasks whose type begins with %q: the longest Task wins; declare the latter for that Task too if both are meant",
				p.rules[0].where(), shorter.rules[0].where(), p.task))
		}
	}
	for _, p := range rs.declared {
		for _, rule := range p.rules {
			if rule.Scope == "" {
				continue
			}
			other := rs.find(rule.Scope)
			if other == nil || other.rules[0].Scope != "" {
				continue
			}
			if shared := other.rules[0]; shared.Limit != rule.Limit || shared.TTL != rule.TTL {
				notices = append(notices, fmt.Sprintf(
					"automutex: a task of type %q would share the scope of %s under %s, which has another Limit or TTL; if there is such a task, give the latter a Scope",
					rule.Scope, rule.where(), shared.where()))
			}
		}
	}
	return notices
}

// noticeLongWait says that the rule's Wait is longer than the Timeout that tasks
// have by default; "" when it is not.
func (c *compiledRule) noticeLongWait() string {
	wait := c.longestWait()
	if wait <= asynqTimeout-margin {
		return ""
	}
	return fmt.Sprintf("automutex: %s: Wait: a task may stand in line for %s, and that time counts against its Timeout, which is %s unless asynq.Timeout or asynq.Deadline says otherwise: "+
		"a wait ends a second before the task's deadline; shorten the Wait, or enqueue the tasks with a longer Timeout", c.where(), wait, asynqTimeout)
}

// noticeReplaceThenEnd tells of a rule with the policy Replace whose lock is taken
// before that of a rule which may end the task unrun: then neither runs, the older
// task, which was asked to stop, nor the newer one.
func (p *pattern) noticeReplaceThenEnd() (notices []string) {
	for _, replaces := range p.rules {
		if replaces.Busy.kind != policyReplace {
			continue
		}
		for _, ends := range p.rules {
			kind := ends.Busy.kind
			if (kind == policySkip || kind == policyArchive || kind == policyFail) && ends.rank >= replaces.rank {
				notices = append(notices, fmt.Sprintf("automutex: %s has the policy replace, and takes its lock before %s, which has %s: "+
					"a task may stop the older one and then not run itself; declare the latter first, or give it another policy", replaces.where(), ends.where(), ends.Busy))
			}
		}
	}
	return notices
}
