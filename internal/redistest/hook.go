package redistest

import (
	"context"
	"sync"

	"github.com/redis/go-redis/v9"
)

// ReplyError is an error as a server answers it ("READONLY You can't write
// against a read only replica."), for go-redis and for redis.HasErrorPrefix.
type ReplyError string

// Error gives the server's text.
func (e ReplyError) Error() string { return string(e) }

// RedisError marks the error as one that the server answered, see redis.Error.
func (e ReplyError) RedisError() {}

// FailHook is a redis.Hook that puts errors in the place of what commands give.
// The zero value lets everything pass. Added after other hooks it is beneath
// them, and they take its errors for the server's.
//
// go-redis runs hooks around its own retries, so an injected error is never
// retried by it: for what happens beneath, there is [Proxy]. Of a *redis.Client
// they also see the commands that set up a connection (hello, client), so a
// function chooses by name what it fails.
type FailHook struct {
	mu     sync.Mutex // guards both functions, not held while they run
	before func(redis.Cmder) error
	after  func(redis.Cmder) error
}

var _ redis.Hook = (*FailHook)(nil)

// Before sets what is asked before a command is sent; on an error it is not
// sent, and fails with it. Of a pipeline the other commands are sent; of a
// MULTI/EXEC transaction none. nil lets all pass. f may run on several
// goroutines at once.
func (h *FailHook) Before(f func(redis.Cmder) error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.before = f
}

// After sets what is asked after a command has run; an error takes the place of
// its outcome, which f may look at. nil lets all pass. f may run on several
// goroutines at once.
func (h *FailHook) After(f func(redis.Cmder) error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.after = f
}

func (h *FailHook) functions() (before, after func(redis.Cmder) error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return orPass(h.before), orPass(h.after)
}

func orPass(f func(redis.Cmder) error) func(redis.Cmder) error {
	if f == nil {
		return func(redis.Cmder) error { return nil }
	}
	return f
}

// DialHook is part of redis.Hook and changes nothing.
func (h *FailHook) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook is part of redis.Hook.
func (h *FailHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		before, after := h.functions()
		if err := before(cmd); err != nil {
			cmd.SetErr(err)
			return err
		}
		err := next(ctx, cmd)
		cmd.SetErr(err) // as go-redis does when its hooks have run
		if injected := after(cmd); injected != nil {
			cmd.SetErr(injected)
			return injected
		}
		return err
	}
}

// ProcessPipelineHook is part of redis.Hook.
func (h *FailHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		before, after := h.functions()
		var first, injected error // of the pipeline, and the first of ours
		var send []redis.Cmder
		for _, cmd := range cmds {
			if err := before(cmd); err != nil {
				cmd.SetErr(err)
				injected = firstOf(injected, err)
			} else {
				send = append(send, cmd)
			}
		}
		if injected != nil && cmds[0].Name() == "multi" {
			for _, cmd := range cmds {
				cmd.SetErr(injected)
			}
			return injected
		}
		if len(send) > 0 {
			first = next(ctx, send)
		}
		for _, cmd := range send {
			if err := after(cmd); err != nil {
				cmd.SetErr(err)
				injected = firstOf(injected, err)
			}
		}
		return firstOf(injected, first)
	}
}

func firstOf(a, b error) error {
	if a != nil {
		return a
	}
	return b
}
