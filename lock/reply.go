package lock

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// errNoReply: go-redis returned a command with neither a reply nor an error, and
// its pipeline with no error either. The command may have run or not.
var errNoReply = errors.New("the client returned neither a reply nor an error")

// replyOf returns the reply of a script or the error, and never neither. exec is
// the error of the whole pipeline; nil for a command that was sent by itself.
//
// go-redis leaves each command of a pipeline without a reply and without an error
// when the server answers the set-up of the connection with an error reply, such
// as WRONGPASS after a change of the password. Only the error of the pipeline
// then says that nothing ran. No script of this package replies nil.
func replyOf(cmd *redis.Cmd, exec error) (any, error) {
	reply, err := cmd.Result()
	if err == nil && reply == nil {
		err = cmp.Or(exec, errNoReply)
	}
	return reply, err
}

// setReplyOf reports whether SET with NX set the key. exec as for replyOf.
func setReplyOf(cmd *redis.StatusCmd, exec error) (bool, error) {
	switch text, err := cmd.Result(); {
	case errors.Is(err, redis.Nil):
		return false, nil // the key exists
	case err != nil:
		return false, err
	case text == "":
		return false, cmp.Or(exec, errNoReply)
	case text != "OK":
		return false, unexpected(text)
	}
	return true, nil
}

// unexpected is the error for a reply that is none of those that the script's
// header lists.
func unexpected(reply any) error { return fmt.Errorf("unexpected reply %v", reply) }

// codeOf reads the reply of a script that answers with one number from 0 to most.
func codeOf(reply any, most int64) (int64, error) {
	n, ok := reply.(int64)
	if !ok || n < 0 || n > most {
		return 0, unexpected(reply)
	}
	return n, nil
}

// fields reads a list reply, field by field. wrong is set by a field that is
// missing or of another type; the values read are of no use then.
type fields struct {
	list  []any
	wrong bool
}

func listOf(reply any) *fields {
	list, ok := reply.([]any)
	return &fields{list, !ok}
}

// field is the field at i as a T, else the zero value and wrong.
func field[T any](f *fields, i int) (v T) {
	ok := i < len(f.list)
	if ok {
		v, ok = f.list[i].(T)
	}
	f.wrong = f.wrong || !ok
	return v
}

func (f *fields) num(i int) int64        { return field[int64](f, i) }
func (f *fields) text(i int) string      { return field[string](f, i) }
func (f *fields) ms(i int) time.Duration { return time.Duration(f.num(i)) * time.Millisecond }

// err is the error for the whole reply if a field was wrong.
func (f *fields) err(reply any) error {
	if f.wrong {
		return unexpected(reply)
	}
	return nil
}
