package redistest

import (
	"cmp"
	"context"
	"sync"

	"github.com/redis/go-redis/v9"
)

// ReplyError is an error as a server answers it ("READONLY You can't write against a read only replica."), for go-redis
// and for redis.HasErrorPrefix.
type ReplyError string

// Error gives the server's text.
func (e ReplyError) Error() string { return string(e) }

// RedisError marks the error as one that the server answered, see redis.Error.
func (e ReplyError) RedisError() {}

// FailHook is a redis.Hook that puts errors in the place of what commands give. The zero value lets everything pass.
// Added after other hooks it is beneath them, and they take its errors for the server's.
//
// go-redis runs hooks around its own retries, so an injected error is never retried by it: for what happens beneath,
// there is [Proxy]. Of a *redis.Client they also see the commands that set up a connection (hello, client), so a
// function chooses by name what it fails.
type FailHook struct {
	mu            sync.Mutex // guards before and after, not held while they run
	before, after func(redis.Cmder) error
	again         func(redis.Cmder) bool // nil: no command is sent twice
}

// Resend makes a hook that sends each command that it matches, and that did not fail, twice, and gives the second
// reply, as go-redis does when the first reply is lost. Pipelines it leaves as they are.
func Resend(match func(redis.Cmder) bool) *FailHook { return &FailHook{again: match} }

// Before sets what is asked before a command is sent; on an error it is not sent, and fails with it. Of a pipeline the
// other commands are sent; of a MULTI/EXEC transaction none. nil lets all pass. f may run on several goroutines at
// once.
func (h *FailHook) Before(f func(redis.Cmder) error) { h.set(&h.before, f) }

// After sets what is asked after a command has run; an error takes the place of its outcome, which f may look at. nil
// lets all pass. f may run on several goroutines at once.
func (h *FailHook) After(f func(redis.Cmder) error) { h.set(&h.after, f) }

func (h *FailHook) set(which *func(redis.Cmder) error, f func(redis.Cmder) error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	*which = f
}

// fails asks one of the functions, and has the command fail if that says so.
func (h *FailHook) fails(cmd redis.Cmder, which *func(redis.Cmder) error) (err error) {
	h.mu.Lock()
	f := *which
	h.mu.Unlock()
	if f != nil {
		err = f(cmd)
	}
	if err != nil {
		cmd.SetErr(err)
	}
	return err
}

// DialHook is part of redis.Hook and changes nothing.
func (h *FailHook) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook is part of redis.Hook.
func (h *FailHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if err := h.fails(cmd, &h.before); err != nil {
			return err
		}
		err := next(ctx, cmd)
		if err == nil && h.again != nil && h.again(cmd) {
			err = next(ctx, cmd)
		}
		cmd.SetErr(err) // as go-redis does when its hooks have run
		return cmp.Or(h.fails(cmd, &h.after), err)
	}
}

// ProcessPipelineHook is part of redis.Hook.
func (h *FailHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		var first, injected error // of the pipeline, and the first of ours
		var send []redis.Cmder
		for _, cmd := range cmds {
			err := h.fails(cmd, &h.before)
			if injected = cmp.Or(injected, err); err == nil {
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
			injected = cmp.Or(injected, h.fails(cmd, &h.after))
		}
		return cmp.Or(injected, first)
	}
}
