package lock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// How long a campaign pauses when Redis cannot be asked: the first pause doubles
// up to the longest, each with up to half of it added at random.
const (
	campaignPause     = 500 * time.Millisecond
	campaignPauseMost = 8 * time.Second
)

// Lead runs f in one process at a time, of all that call Lead with the same
// name on the same Redis and prefix. The process that runs f is the leader.
//
// Lead campaigns: it waits in the line of the mutex called name. When it has the lease, it
// calls f. f's context ends when ctx ends, and with cause ErrLost when the lease is lost; f
// should then stop and return. If the lease was lost Lead campaigns again, and may call f
// again, in a new term. Otherwise Lead releases the lease and returns f's error, or nil.
//
// An outage of Redis does not end a campaign: Lead logs it and tries again, with
// growing pauses of at most 12 s. When ctx ends before f is called, Lead returns
// the cause of ctx. When the Locker is closed it returns ErrClosed: end ctx
// first. An error in name, f or options is returned at once.
//
// A leader that dies is replaced when its lease has ended, at most a TTL later. A leader that
// returns is replaced at once. f must return soon after its context has ended. If a process is
// stopped for longer than the TTL, another one leads meanwhile. f learns of that only when its
// process goes on, so let the fence protect what f writes. [FromContext] returns the lease in
// f's context. With [MaxHold] a term ends after that time, and leadership rotates.
//
// While an operator has paused name (see [Controls]) nobody becomes the leader, and a
// present leader goes on. Lead ignores a limit.
//
// Lead may be called at the same time from several goroutines; each call is a
// candidate of its own.
func (l *Locker) Lead(ctx context.Context, name string, f func(ctx context.Context) error, options ...Option) error {
	m := l.Mutex(name, options...)
	m.keepsLimit = true
	switch {
	case m.err != nil:
		return m.err
	case f == nil:
		return fmt.Errorf("lock: Lead of %q: the function is nil; give the one that the leader runs", name)
	}
	for {
		lease, err := m.campaign(ctx)
		if err != nil {
			return err
		}
		if again, err := lease.serveTerm(ctx, f); !again {
			return err
		}
	}
}

// campaign waits for the lease until ctx ends or the Locker closes.
func (m *Lock) campaign(ctx context.Context) (*Lease, error) {
	for pause := campaignPause; ; pause = min(2*pause, campaignPauseMost) {
		lease, err := m.Lock(ctx)
		switch {
		case err == nil:
			return lease, nil
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case !errors.Is(err, ErrBackend):
			return nil, err // the Locker is closed
		}
		m.locker.log.Warn("lock: a candidate for leadership cannot ask Redis; it tries again", "name", m.name, "error", err)
		// The timer is this goroutine's own; ctx and Close end the pause early.
		timer := time.NewTimer(pause + rand.N(pause/2)) //nolint:gosec // jitter, no secret
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, context.Cause(ctx)
		case <-m.locker.life.Closing.Done():
			timer.Stop()
			return nil, ErrClosed
		}
	}
}

// serveTerm runs f while the lease lasts. again means that the lease was lost, so that Lead
// has to campaign again.
func (le *Lease) serveTerm(ctx context.Context, f func(ctx context.Context) error) (again bool, err error) {
	term := le.Bind(ctx)
	// A plain defer, no recover: the lease is released on a panic and on
	// runtime.Goexit too, and the panic keeps its stack. A lost lease is released
	// without effect for its successor.
	defer func() {
		released := le.Unlock(ctx)
		if !again && errors.Is(released, ErrNotHeld) {
			le.lock.locker.log.Warn("lock: leadership had ended before the leader's function returned; another process may have led meanwhile",
				"name", le.lock.name)
		}
	}()
	err = f(term)
	cause := context.Cause(term)
	again = errors.Is(cause, ErrLost) && ctx.Err() == nil
	if again {
		le.lock.locker.log.Warn("lock: leadership was lost; the process campaigns again", "name", le.lock.name, "cause", cause, "error", err)
	}
	return again, err
}
