package e2e

import (
	"encoding/binary"
	"errors"
	"strconv"
	"strings"
	"testing"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
)

// A payload of another encoding: a number of two bytes.
func decodeNumber(payload []byte) (uint16, error) {
	if len(payload) != 2 {
		return 0, errors.New("secret " + string(payload) + " is not two bytes")
	}
	return binary.BigEndian.Uint16(payload), nil
}

func TestKeyWith(t *testing.T) {
	t.Parallel()
	decimal := func(n uint16) []string {
		if n == 0 {
			return nil
		}
		return []string{strconv.Itoa(int(n))}
	}
	guard := newGuard(t, redistest.Mini(t), &redistest.Log{}, &events{},
		automutex.Rule{Task: "number", Key: automutex.KeyWith(decodeNumber, decimal), Busy: automutex.Retry},
		automutex.Rule{Task: "nodecode", Key: automutex.KeyWith(nil, decimal), Busy: automutex.Retry},
		automutex.Rule{Task: "noparts", Key: automutex.KeyWith[uint16](decodeNumber, nil), Busy: automutex.Retry})
	keys, err := guard.Keys(t.Context(), asynq.NewTask("number", []byte{1, 255}))
	if err != nil || len(keys) != 1 || !strings.HasSuffix(keys[0], "{number|511}") {
		t.Errorf("got %v, %v", keys, err)
	}
	for _, c := range []struct{ task, payload, want string }{
		{"number", "7", "the payload cannot be decoded (a *errors.errorString); enqueue the task with"},
		{"number", "", "the payload cannot be decoded"},
		{"number", "\x00\x00", "the rule's Key gave no part"},
		{"nodecode", "\x00\x07", "KeyWith was given: a nil function"},
		{"noparts", "\x00\x07", "KeyWith was given: a nil function"},
	} {
		_, err := guard.Keys(t.Context(), asynq.NewTask(c.task, []byte(c.payload)))
		var never *automutex.KeyError
		if !errors.As(err, &never) || never.Task != c.task || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %q: got %v, want %s", c.task, c.payload, err, c.want)
		}
	}
	_, err = guard.Keys(t.Context(), asynq.NewTask("number", []byte("4111")))
	if strings.Contains(err.Error(), "4111") {
		t.Errorf("the error quotes the payload: %v", err)
	}
	var never *automutex.KeyError
	if !errors.As(err, &never) || never.Unwrap() == nil || never.Unwrap().Error() != "secret 4111 is not two bytes" {
		t.Errorf("the cause is %v", never.Unwrap())
	}
}
