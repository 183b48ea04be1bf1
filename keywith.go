package automutex

import (
	"context"
	"errors"
	"fmt"

	"github.com/hibiken/asynq"
)

// KeyWith makes a key from a payload in an encoding other than JSON, such as
// protobuf or msgpack: decode reads the payload, fn gives the parts. Parts are taken
// as they are: 1 and "1" are the same part. Most encodings give the zero value for a
// field that is missing, so fn should return no parts, or an empty one, for a zero
// value; that is a [*KeyError].
//
// Every error of decode is a [*KeyError] too, because the same bytes fail again on a
// retry. The error does not show the text of decode's error, which may quote the
// payload; errors.Unwrap returns it. decode gets the bytes as they are, an
// empty payload included, and must not change or keep them.
//
// decode and fn are called by many goroutines at once. When one of them is nil every
// task is a KeyError. For JSON, see [KeyOf].
func KeyWith[T any](decode func(payload []byte) (T, error), fn func(T) []string) KeyFunc {
	if decode == nil || fn == nil {
		return mistaken("KeyWith", errors.New("a nil function; give one that decodes the payload, and one that makes the parts of the key"))
	}
	return func(_ context.Context, t *asynq.Task) ([]string, error) {
		v, err := decode(t.Payload())
		if err != nil {
			return nil, &KeyError{
				Task: t.Type(), reason: fmt.Sprintf("the payload cannot be decoded (a %T)", err),
				cause: err, quiet: true, advice: "enqueue the task with a payload that the rule's KeyWith decodes, or change the rule",
			}
		}
		return fn(v), nil
	}
}
