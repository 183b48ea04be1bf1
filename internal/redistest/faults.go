package redistest

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/redis/go-redis/v9"
)

// CommandFault is what becomes of a command: it fails with Err, before it is sent or, with Sent, after.
type CommandFault struct {
	Name string
	Err  error
	Sent bool
}

// CommandFaults are the ways in which a command fails.
var CommandFaults = []CommandFault{
	{"refused", ReplyError("READONLY You can't write against a read only replica."), false},
	{"loading", ReplyError("LOADING Redis is loading the dataset in memory"), false},
	{"cut off before", errors.New("EOF"), false},
	{"reply lost", errors.New("EOF"), true},
}

// SetsUp reports whether a command sets up a connection: no work of a caller depends on it.
func SetsUp(cmd redis.Cmder) bool {
	return slices.Contains([]string{"hello", "client", "select", "cluster", "command", "readonly", "ping"}, cmd.Name())
}

// NthFault is a hook that fails the n-th command that matches.
type NthFault struct {
	FailHook
	mu     sync.Mutex // guards what follows
	left   int        // commands until the one that fails
	failed redis.Cmder
}

// NewNthFault makes the hook. n counts from one. A script that Redis does not know yet does not count where the reply is
// to be lost, since nothing was done: the command that sends its source follows.
func NewNthFault(n int, kind CommandFault, matches func(redis.Cmder) bool) *NthFault {
	h := &NthFault{left: n}
	h.Before(func(cmd redis.Cmder) error {
		h.mu.Lock()
		defer h.mu.Unlock()
		if !matches(cmd) {
			return nil
		}
		if h.left--; h.left != 0 {
			return nil
		}
		h.failed = cmd
		if kind.Sent {
			return nil
		}
		return kind.Err
	})
	h.After(func(cmd redis.Cmder) error {
		h.mu.Lock()
		defer h.mu.Unlock()
		switch {
		case !kind.Sent || cmd != h.failed:
			return nil
		case redis.HasErrorPrefix(cmd.Err(), "NOSCRIPT"):
			h.left, h.failed = 1, nil
			return nil
		}
		return kind.Err
	})
	return h
}

// Failed is the name of the command that failed; empty: none did.
func (h *NthFault) Failed() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.failed == nil {
		return ""
	}
	return h.failed.Name()
}

// Resend is a hook that sends each command that it matches twice and gives the second reply, as go-redis does when the
// first reply is lost.
type Resend func(redis.Cmder) bool

// DialHook leaves connections as they are.
func (Resend) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessPipelineHook leaves pipelines as they are.
func (Resend) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// ProcessHook sends a command that matches, and did not fail, once more.
func (h Resend) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if err == nil && h(cmd) {
			return next(ctx, cmd)
		}
		return err
	}
}
