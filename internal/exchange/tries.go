package exchange

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/redis/go-redis/v9"
)

// go-redis sends a command again after some errors, and its caller sees the last outcome alone. An error
// reply such as READONLY or MOVED says that the copy before did not run, so that copy must not count as one
// that may have released a lock. A ClusterClient leaves the error of a copy in the command until it writes the
// next one: there a resent sees it. A *redis.Client hides its repeats, so releases are repeated
// here, where go-redis can leave that to the caller (Cmder.NoRetry).

// resent is a Counted as one exchange of a ClusterClient sends it. One goroutine uses it.
type resent struct {
	*Counted

	cmd     redis.Cmder // set before it is sent
	written bool
}

// MarshalBinary is called by go-redis each time the command is written. The copy after one that did not run
// takes its place in the count.
func (r *resent) MarshalBinary() ([]byte, error) {
	if r.written && NotRun(r.cmd.Err()) {
		return r.Body.wire, nil
	}
	r.written = true
	return r.Counted.MarshalBinary()
}

// redirects returns a as the commands of this Conn carry it. For a resent, the caller sets its cmd.
func (c *Conn) redirects(a *Counted) (arg any, r *resent) {
	if !c.cluster {
		return a, nil
	}
	r = &resent{Counted: a}
	return r, r
}

// single is a command that go-redis does not repeat once a copy was written. Hooks of the client see it in
// the place of a *redis.Cmd.
type single struct {
	*redis.Cmd

	body   *Counted
	before int32 // what body.Copies returned before
}

// NoRetry is called by go-redis before it would send the command again. Failed dials it may repeat.
func (s single) NoRetry() bool { return s.body.Copies() > s.before }

// repeats is how a *redis.Client repeats commands.
type repeats struct {
	most               int // 0: go-redis repeats
	minPause, maxPause time.Duration
}

// repeatsOf returns how the Conn repeats the releases of a client with these options: not at all, if this
// version of go-redis does not ask a command whether to repeat it.
func repeatsOf(o *redis.Options) repeats {
	if _, asks := any(redis.NewCmd(context.Background())).(interface{ NoRetry() bool }); !asks {
		return repeats{}
	}
	return repeats{o.MaxRetries, o.MinRetryBackoff, o.MaxRetryBackoff}
}

// processReleases sends a script and repeats it as go-redis would. A copy that did not run does not count.
func (c *Conn) processReleases(ctx context.Context, cmd *redis.Cmd, body *Counted) error {
	for n := 0; ; n++ {
		s := single{cmd, body, body.Copies()}
		err := c.process(ctx, s)
		if err == nil {
			return nil
		}
		written, again := s.NoRetry(), isRepeated(err)
		if n >= c.repeats.most || !written || !again {
			return err
		}
		if serverReplied(err) {
			body.copies.Add(-1)
		}
		pause := min(c.repeats.minPause<<n, c.repeats.maxPause)
		timer := time.NewTimer(pause/2 + rand.N(pause/2+1)) //nolint:gosec // jitter, no secret
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return err
		}
	}
}

// isRepeated reports whether a command of which a copy was written, and that ended with err, is sent again: if the
// server did not run it and may do so soon, or if there was no reply.
func isRepeated(err error) bool {
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return false
	case !serverReplied(err):
		return true
	}
	for _, code := range [...]string{"LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "NOREPLICAS"} {
		if redis.HasErrorPrefix(err, code) {
			return true
		}
	}
	return false
}
