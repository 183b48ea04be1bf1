package automutex

import (
	"errors"
	"strings"

	"github.com/hibiken/asynq"
)

// setDecode has the rules read what decode returns instead of the payload; nil
// changes nothing. compile calls it before the rules are used.
func (rs *ruleSet) setDecode(decode func(*asynq.Task) ([]byte, error)) {
	if decode == nil {
		return
	}
	rs.decode = decode
	for _, p := range rs.declared {
		if p.fields != nil {
			p.fields.decoded = true
		}
		for _, rule := range p.rules {
			if rule.fields != nil {
				rule.fields.decoded = true
			}
		}
	}
}

// readsPayload tells whether the rule makes its key from the payload. A Key may do
// so; OnHeaders, and a rule for a whole scope, do not.
func (c *compiled) readsPayload() bool { return c.Key != nil || len(c.On) > 0 }

// decoded gives the task as the rules of p read it: with the payload that
// Config.Decode returns. It calls Decode once for all rules, and only if one of them
// reads the payload. With an error it gives t itself, for the rules that do not.
func (rs *ruleSet) decoded(p *pattern, t *asynq.Task) (*asynq.Task, error) {
	if rs.decode == nil || !p.readsPayload {
		return t, nil
	}
	payload, err := rs.decode(t)
	if err != nil {
		return t, err
	}
	return asynq.NewTaskWithHeaders(t.Type(), payload, t.Headers()), nil
}

// failed is the error of the rule when a function of the user failed: a *KeyError
// and NoLock stay what they are, any other error is one for now.
func (c *compiled) failed(function string, err error) error {
	var never *KeyError
	if err == nil || errors.As(err, &never) || errors.Is(err, NoLock) {
		return err
	}
	return &keyFailedError{rule: c, function: function, err: err}
}

// unreadable is the error for a payload that is not JSON, or not UTF-8, for the
// reason that checkPayload gave.
func (fs *fieldSet) unreadable(t *asynq.Task, reason string) error {
	err := &KeyError{Task: t.Type(), Field: fs.paths[0].text, reason: reason, advice: adviceEncoding}
	if fs.decoded {
		err.reason = strings.Replace(reason, "the payload", "the payload that Config.Decode returned", 1)
		err.advice = adviceDecoded
	}
	return err
}
