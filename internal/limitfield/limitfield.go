// Package limitfield lets config.Export read the arguments of automutex.LimitField back
// from the function that LimitField returned.
package limitfield

import (
	"context"
	"errors"
	"reflect"
	"runtime"
	"strings"

	"github.com/hibiken/asynq"
)

// Ask is the task for which a function of LimitField returns its arguments, as an *Args,
// in place of a limit. No worker ever gets this task.
var Ask = asynq.NewTask("", nil)

// Args are the arguments of LimitField.
type Args struct {
	Path           string
	Fallback, Most int
}

// Error makes Args an error, so that a LimitFunc can return it.
func (a *Args) Error() string { return "automutex: LimitField was asked for its arguments" }

// Of returns the arguments of the LimitField that made f, and nil for any other function.
// It calls no function of a user.
func Of(f func(context.Context, *asynq.Task) (int, error)) *Args {
	// A closure is named after the function that it stands in, also where that one was inlined.
	code := runtime.FuncForPC(reflect.ValueOf(f).Pointer())
	if code == nil || !strings.Contains(code.Name(), "LimitField.func") {
		return nil
	}
	_, err := f(context.Background(), Ask)
	var args *Args
	if !errors.As(err, &args) {
		return nil
	}
	return args
}
