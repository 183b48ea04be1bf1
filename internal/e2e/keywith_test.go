package e2e

import (
	"encoding/binary"
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/automutex/automutex"
)

// A payload of another encoding: a number of two bytes. The error tells nothing of the payload, but its cause does.
func TestKeyWith(t *testing.T) {
	t.Parallel()
	decode := func(payload []byte) (uint16, error) {
		if len(payload) != 2 {
			return 0, errors.New("secret " + string(payload) + " is not two bytes")
		}
		return binary.BigEndian.Uint16(payload), nil
	}
	decimal := func(n uint16) []string { return []string{strconv.Itoa(int(n))}[:min(n, 1)] }
	got, err := keyBy(t, automutex.KeyWith(decode, decimal), keyTask("\x01\xff"))
	if err != nil || !slices.Equal(got, []string{"511"}) {
		t.Errorf("got %v, %v", got, err)
	}
	for _, c := range []struct {
		key           automutex.KeyFunc
		payload, want string
	}{
		{automutex.KeyWith(decode, decimal), "4111", "the payload cannot be decoded (a *errors.errorString); enqueue the task with"},
		{automutex.KeyWith(decode, decimal), "\x00\x00", "the rule's Key gave no part"},
		{automutex.KeyWith(nil, decimal), "\x00\x07", "KeyWith was given: a nil function"},
		{automutex.KeyWith[uint16](decode, nil), "\x00\x07", "KeyWith was given: a nil function"},
	} {
		_, err := keyBy(t, c.key, keyTask(c.payload))
		var never *automutex.KeyError
		if !errors.As(err, &never) || never.Task != "test" || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "4111") {
			t.Errorf("%q: got %v, want %s", c.payload, err, c.want)
		}
		if c.payload == "4111" && (never.Unwrap() == nil || never.Unwrap().Error() != "secret 4111 is not two bytes") {
			t.Errorf("the cause is %v", never.Unwrap())
		}
	}
}
