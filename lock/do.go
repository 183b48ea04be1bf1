package lock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/automutex/automutex/internal/engine"
	"github.com/automutex/automutex/internal/inside"
)

// Do takes the lock as [Lock.Lock] does, runs f while holding it, and releases it when f returns or panics. If it
// cannot take the lock it returns the error of Lock and does not call f.
//
// f's context ends when ctx does, and with cause ErrLost if the lease is lost. Do returns the error of f. If the lease
// was lost before f returned, the error is joined with ErrLost: another holder may have worked beside f. f may end the
// lease itself; see [FromContext].
func (m *Lock) Do(ctx context.Context, f func(ctx context.Context) error) (err error) {
	if f == nil {
		return fmt.Errorf("lock: %q: the function to run is nil", m.name())
	}
	le, err := m.Lock(ctx)
	if err != nil {
		return err
	}
	// A plain defer, no recover: a panic keeps its own stack.
	defer func() {
		if errors.Is(le.inner().Err(), ErrNotHeld) {
			return // by f
		}
		if released := le.Unlock(ctx); errors.Is(released, ErrNotHeld) {
			err = errors.Join(err, fmt.Errorf("%w: %q ended before the work did", ErrLost, m.name()))
		}
	}()
	return f(le.Bind(ctx))
}

// With is [Lock.Do] for a function that returns a value. It returns f's value even with an error, and the zero value if
// f was not called.
func With[T any](ctx context.Context, m *Lock, f func(ctx context.Context) (T, error)) (T, error) {
	var value T
	err := m.Do(ctx, func(ctx context.Context) error {
		var err error
		value, err = f(ctx)
		return err
	})
	return value, err
}

// campaignPause follows an attempt to ask a Redis that is away: so long, and up to as long again, at random.
const campaignPause = 2 * time.Second

// Lead runs f in one process at a time, of all that call Lead with the same name on the same Redis and prefix. The
// process that runs f is the leader, see [Locker.Leader]. Each call, also of one process, is a candidate of its own.
//
// Lead campaigns: it waits in the line of the lock "<prefix>:{<name>}:lead", which no [Lock] is, no rule shares and no
// order of an operator is for (see [Controls]). When it has the lease, it calls f. f's context ends when ctx ends, and
// with cause ErrLost when the lease is lost; f should then stop and return. If the lease was lost Lead campaigns again,
// for a new term. Otherwise Lead releases the lease and returns f's error, or nil.
//
// An outage of Redis does not end a campaign: Lead logs it and tries again, after two to four seconds. When ctx ends
// before f is called, Lead returns the cause of ctx. When the Locker is closed it returns ErrClosed: end ctx first. An
// error in name, f or options is returned at once.
//
// A leader that dies is replaced when its lease has ended, at most a TTL later; one that returns, at once. If a process
// is stopped for longer than the TTL, another one leads meanwhile. f learns of that only when its process goes on, so
// let the fence protect what f writes. [FromContext] returns the lease in f's context. With [MaxHold] a term ends after
// that time, and leadership rotates.
//
// "automutex list", show and break know a leader by that key.
func (l *Locker) Lead(ctx context.Context, name string, f func(ctx context.Context) error, options ...Option) error {
	m := l.leaders(name, options...)
	switch h := inside.At(m); {
	case h.Err != nil:
		return h.Err
	case f == nil:
		return fmt.Errorf("lock: Lead of %q: the function is nil; give the one that the leader runs", name)
	}
	for {
		lease, err := m.campaign(ctx)
		if err != nil {
			return err
		}
		if again, err := m.serveTerm(ctx, lease, f); !again {
			return err
		}
	}
}

// Leader returns who leads under name, known by its Owner, see [Options]. It is the zero Holder if nobody does, or
// after an error (ErrBackend). One that has died leads until its lease ends.
func (l *Locker) Leader(ctx context.Context, name string) (leader Holder, err error) {
	holders, err := l.leaders(name).Holders(ctx)
	if len(holders) > 0 {
		leader = holders[0]
	}
	return leader, err
}

func (l *Locker) leaders(name string, options ...Option) *Lock {
	m := l.Mutex(name, options...)
	inside.At(m).Request.Key += engine.LeaderKey
	return m
}

// campaign waits for the lease until ctx ends or the Locker closes.
func (m *Lock) campaign(ctx context.Context) (*Lease, error) {
	for {
		lease, err := m.Lock(ctx)
		switch {
		case err != nil && ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case !errors.Is(err, ErrBackend):
			return lease, err // the only other error: the Locker is closed
		}
		m.engine().Options().Log.Warn("lock: a candidate for leadership cannot ask Redis; it tries again", "name", m.name(),
			"error", err)
		select { // then Lock finds out why
		case <-time.After(campaignPause + rand.N(campaignPause)): //nolint:gosec // jitter, no secret
		case <-ctx.Done():
		case <-m.engine().Life().Closing.Done():
		}
	}
}

// serveTerm runs f while the lease lasts. again means that the lease was lost, so that Lead has to campaign again.
func (m *Lock) serveTerm(ctx context.Context, le *Lease, f func(ctx context.Context) error) (again bool, err error) {
	term := le.Bind(ctx)
	// A plain defer, no recover: it releases on a panic and on runtime.Goexit too, and the panic keeps its stack. The
	// release of a lost lease does nothing.
	defer le.Unlock(ctx) //nolint:errcheck // see above
	err = f(term)
	cause := context.Cause(term)
	again = errors.Is(cause, ErrLost) && ctx.Err() == nil
	if again {
		m.engine().Options().Log.Warn("lock: leadership was lost; the process campaigns again", "name", m.name(),
			"cause", cause, "error", err)
	}
	return again, err
}
