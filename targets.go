package automutex

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex/internal/keytext"
)

// targets gives the locks that a task needs, in the order in which it is to
// take them: by the rank of the scope, then by key. Any two tasks that need the
// same two locks take them in the same order, so no circle of tasks can wait
// for each other. Equal keys are one target, under the rule declared first. A
// rule whose Key answers NoLock gives none. Config.Decode is called once.
//
// The error is a *KeyError, or has one in it, or is a *keyFailedError.
func (rs *ruleSet) targets(ctx context.Context, t *asynq.Task, prefix string) ([]target, error) {
	return rs.targetsWithout(ctx, t, prefix, nil)
}

// targetsWithout is targets without the rules from which no key can be made and
// for which without, called with the reason, says true. A nil without says false.
func (rs *ruleSet) targetsWithout(ctx context.Context, t *asynq.Task, prefix string, without func(*compiled, error) bool) ([]target, error) {
	p := rs.find(t.Type())
	if p == nil {
		return nil, nil
	}
	t, undecoded := rs.decoded(p, t)
	var values [][]byte
	var unread error // why not all fields of all rules can be read
	if p.fields != nil && undecoded == nil {
		if values, unread = p.fields.find(t); unread != nil && without == nil {
			return nil, unread
		}
	}
	targets := make([]target, 0, len(p.rules))
	for _, rule := range p.rules {
		scope := rule.scope(t.Type())
		key := keytext.NewWriter(rs.secret, prefix, scope)
		var err error
		switch {
		case undecoded != nil && rule.readsPayload():
			err = rule.failed("Config.Decode", undecoded)
		case unread != nil && len(rule.On) > 0:
			values, err = p.findOf(rule, t)
		}
		if err == nil {
			err = rule.writeParts(ctx, key, t, p.fields, values)
		}
		switch {
		case err == nil:
			targets = append(targets, target{rule: rule, key: key.Key(), scope: scope})
		case errors.Is(err, NoLock), without != nil && without(rule, err):
		default:
			return nil, err
		}
	}
	if len(targets) > 1 {
		slices.SortStableFunc(targets, func(a, b target) int {
			return cmp.Or(cmp.Compare(a.rule.rank, b.rule.rank), strings.Compare(a.key, b.key))
		})
		targets = mergeEqual(targets)
	}
	return targets, nil
}

// findOf finds the fields of one rule alone, at the indexes that they have among
// those of all rules. It is for payloads that lack a field of some rule.
func (p *pattern) findOf(rule *compiled, t *asynq.Task) ([][]byte, error) {
	own, err := rule.fields.find(t)
	if err != nil {
		return nil, err
	}
	return append(make([][]byte, rule.onFrom, rule.onTo), own...), nil
}

// writeParts writes the rule's parts of the key; values are those of the On of all
// rules of its pattern, which fields found.
func (c *compiled) writeParts(ctx context.Context, key *keytext.Writer, t *asynq.Task, fields *fieldSet, values [][]byte) error {
	if c.Key != nil {
		parts, err := callKey(ctx, c.Key, t)
		for _, part := range parts {
			key.Part()
			key.WriteString(part)
		}
		return c.failed("the rule's Key", err)
	}
	for i := c.onFrom; i < c.onTo; i++ {
		key.Part()
		if err := writePart(key, values[i]); err != nil {
			return fields.fail(t, i, err.Error())
		}
	}
	for _, name := range c.OnHeaders {
		part, err := headerPart(t, name)
		if err != nil {
			return err
		}
		key.Part()
		key.WriteString(part)
	}
	return nil
}

// keyFailedError says that a rule's Key, or Config.Decode, returned an error that is
// no *KeyError: what it asks cannot be asked for now. Its text is UTF-8, or asynq
// could not file it.
type keyFailedError struct {
	rule     *compiled
	function string // "the rule's Key" or "Config.Decode"
	err      error
}

func (e *keyFailedError) Error() string {
	return strings.ToValidUTF8(fmt.Sprintf("automutex: rule %q: %s failed: %v", e.rule.Name, e.function, e.err), "\uFFFD")
}

func (e *keyFailedError) Unwrap() error { return e.err }

// keys makes the attempt's keys, or the verdict. Where a rule's Key or Config.Decode
// fails for now, the task comes back; on its last attempt it tries again in its worker,
// until the margin before its deadline.
func (a *attempt) keys() ([]target, *verdict) {
	g := a.guard
	for {
		targets, err := g.rules.targetsWithout(a.ctx, a.task, g.cfg.Prefix, a.runsUnkeyed)
		if err == nil {
			g.keyOutage.over(g.log)
			return targets, nil
		}
		if a.ctx.Err() != nil {
			// A KeyFunc may have failed for that alone: asynq has filed the task
			// already.
			return nil, &verdict{answer: context.Cause(a.ctx)}
		}
		var failed *keyFailedError
		if !errors.As(err, &failed) {
			return nil, a.unkeyed(err)
		}
		g.keyOutage.began(g.log, err)
		a.observe(Event{Kind: EventBackendError, Rule: failed.rule.Name, Err: err})
		delay := g.keyOutage.delay()
		if !a.last {
			return nil, a.handBack(target{rule: failed.rule}, err, delay)
		}
		if !a.pause(delay) {
			return nil, a.gaveUp(err)
		}
	}
}

// unkeyed is the verdict on a task that no key can be made from: archived, never
// run.
func (a *attempt) unkeyed(err error) *verdict {
	a.guard.log.Warn("automutex: no key can be made from the task; it is archived", "type", a.task.Type(), "task", a.note, "error", err)
	a.observe(Event{Kind: EventKeyError, Err: err})
	return &verdict{answer: archive{err}}
}

// runsUnkeyed tells whether the task runs without the lock of a rule that no key
// can be made for, since the rule is there to measure and enforces nothing.
func (a *attempt) runsUnkeyed(rule *compiled, err error) bool {
	if rule.Busy.kind != policyAllow || a.ctx.Err() != nil {
		return false
	}
	a.guard.log.Warn("automutex: no key can be made from the task; its rule has the policy allow, so it runs without the lock",
		"rule", rule.Name, "type", a.task.Type(), "task", a.note, "error", err)
	a.observe(Event{Kind: EventKeyError, Rule: rule.Name, Policy: rule.Busy, Err: err})
	return true
}
