package automutex

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex/internal/jsonkey"
	"github.com/automutex/automutex/internal/limitfield"
)

// LimitFunc is the type of [Rule].LimitOf. It returns how many tasks may hold the key of the
// given task at once.
type LimitFunc = func(context.Context, *asynq.Task) (int, error)

// LimitField returns a [Rule].LimitOf that reads the limit from a payload field, such as that
// of the tenant's plan. path is as in [Rule].On. If the field is missing, null or empty the
// limit is fallback; if fallback is 0, such a field is a [*KeyError]. A value above most
// counts as most; if most is 0, there is no bound. A value that is not a whole number, or is
// below 1, is a KeyError. [New] reports wrong arguments.
func LimitField(path string, fallback, most int) LimitFunc {
	fields, err := jsonkey.Parse([]string{path})
	if wrong := CheckLimitField(path, fallback, most); wrong != nil {
		err = wrong
	}
	if err != nil {
		fails := mistaken("LimitField", err)
		read := func(ctx context.Context, t *asynq.Task) (int, error) {
			_, err := fails(ctx, t)
			return 0, err
		}
		return (&limitfield.Field{Path: path, Fallback: fallback, Most: most, Read: read}).Limit // New reports the mistake
	}
	read := func(_ context.Context, t *asynq.Task) (int, error) {
		parts, failed := fields.Parts(t.Payload())
		switch {
		case failed != nil && !failed.NotRead && fallback > 0:
			return fallback, nil
		case failed != nil:
			return 0, fieldError(t, failed, "its LimitField", false)
		}
		n, err := strconv.Atoi(parts[0])
		if errors.Is(err, strconv.ErrRange) && parts[0][0] != '-' {
			n, err = math.MaxInt, nil
		}
		if err != nil || n < 1 {
			return 0, &KeyError{Task: t.Type(), Field: path, reason: "is no limit: want a whole number, at least 1",
				advice: "enqueue the task with such a number, or change the rule's LimitOf"}
		}
		if most > 0 {
			n = min(n, most)
		}
		return n, nil
	}
	return (&limitfield.Field{Path: path, Fallback: fallback, Most: most, Read: read}).Limit
}

// CheckLimitField returns what is wrong with the arguments of [LimitField], or nil. [New]
// reports the same for a rule.
func CheckLimitField(path string, fallback, most int) error {
	_, err := jsonkey.Parse([]string{path})
	switch {
	case err != nil:
		return err
	case fallback < 0 || most < 0:
		return fmt.Errorf("field %q: the default is %d and most is %d: none may be below 0", path, fallback, most)
	case most > 0 && fallback > most:
		return fmt.Errorf("field %q: the default is %d, which is more than most, %d", path, fallback, most)
	}
	return nil
}

// limitOf returns how many tasks may hold the key of t at once.
func (c *compiledRule) limitOf(ctx context.Context, t *asynq.Task) (int, error) {
	if c.LimitOf == nil {
		return c.Limit, nil
	}
	n, err := c.LimitOf(ctx, t)
	if err == nil && n < 1 {
		err = &KeyError{Task: t.Type(), reason: fmt.Sprintf("the rule's LimitOf gave %d, and the least is 1", n), advice: "see the rule's LimitOf"}
	}
	return min(n, math.MaxInt32), c.failed("the rule's LimitOf", err)
}
