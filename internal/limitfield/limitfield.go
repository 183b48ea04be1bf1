// Package limitfield reads the arguments of automutex.LimitField back from the function that
// LimitField returned: New checks them, and the fleet says them.
package limitfield

import (
	"context"
	"reflect"

	"github.com/hibiken/asynq"
)

// Field is a limit that stands in a payload field. LimitField returns its method Limit.
type Field struct {
	Path           string // as LimitField was given it
	Fallback, Most int
	Read           func(context.Context, *asynq.Task) (int, error)
}

// asked is the context key under which Of has Limit store its Field.
type asked struct{}

// Limit returns the limit for a task.
func (f *Field) Limit(ctx context.Context, t *asynq.Task) (int, error) {
	if t == nil { // no worker has no task
		if to, ok := ctx.Value(asked{}).(**Field); ok {
			*to = f
			return 0, nil
		}
	}
	return f.Read(ctx, t)
}

// limit is where the code of each value of the method Limit is.
var limit = reflect.ValueOf((&Field{}).Limit).Pointer()

// Of returns the Field whose method Limit f is, and nil for any other function. It calls
// no function of a user: what has the code of Limit is Limit.
func Of(f func(context.Context, *asynq.Task) (int, error)) (field *Field) {
	if reflect.ValueOf(f).Pointer() != limit {
		return nil
	}
	_, _ = f(context.WithValue(context.Background(), asked{}, &field), nil) // fills in field
	return field
}
