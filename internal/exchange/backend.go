package exchange

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"
)

// ErrBackend says that Redis could not be reached, or replied with an error.
var ErrBackend = errors.New("lock: backend error")

// Failed makes an ErrBackend of err, for the operation op on key.
func Failed(op, key string, err error) error {
	return fmt.Errorf("%w: %s %q: %w", ErrBackend, op, key, err)
}

// Transient reports whether a repeated command may succeed: after an error of the network, or
// of a server that is loading, failing over, moving slots or busy. Other errors of Redis (a
// missing right, a wrong type) come again.
func Transient(err error) bool {
	var said redis.Error
	if !errors.As(err, &said) {
		return !errors.Is(err, redis.ErrClosed)
	}
	return slices.ContainsFunc([]string{
		"LOADING", "READONLY", "TRYAGAIN", "BUSY", "MOVED", "ASK", "CLUSTERDOWN", "MASTERDOWN",
		"NOREPLICAS", "OOM", "MISCONF", "max number of clients",
	}, func(code string) bool { return HasCode(said, code) }) || SlotMoves(err)
}

// WrongType reports whether the key has another type than the command expects. It looks for
// the code anywhere in the text: before Redis 7 an error inside a script is wrapped.
func WrongType(err error) bool {
	return err != nil && strings.Contains(err.Error(), "WRONGTYPE ")
}
