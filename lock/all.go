package lock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Set is several locks taken as one: all or none. Two sets never wait for each
// other in a circle, whatever the order of their locks was given in: they are
// taken by key. In a Cluster they may live in different slots. Immutable, safe
// for concurrent use.
type Set struct {
	locker *Locker
	locks  []*Lock // by key, none twice
	err    error
}

// All is the set of these locks. A lock given twice is taken once, with the
// options of the first. Locks of another Locker, and two of one name that differ
// in holders, are refused by every operation.
func (l *Locker) All(locks ...*Lock) *Set {
	s := &Set{locker: l, locks: slices.Clone(locks), err: l.err}
	if s.err == nil && len(locks) == 0 {
		s.err = errors.New("lock: All of no locks: name at least one")
	}
	for _, m := range locks {
		switch {
		case s.err != nil:
			return s
		case m == nil:
			s.err = errors.New("lock: All: a lock is nil")
		case m.locker != l:
			s.err = fmt.Errorf("lock: All: %q belongs to another Locker; the order that prevents deadlocks is by Locker", m.name)
		default:
			s.err = m.err
		}
	}
	if s.err != nil {
		return s
	}
	slices.SortStableFunc(s.locks, func(a, b *Lock) int { return strings.Compare(a.Key(), b.Key()) })
	s.locks = slices.CompactFunc(s.locks, func(a, b *Lock) bool {
		if a.Key() == b.Key() && a.limit != b.limit {
			s.err = fmt.Errorf("lock: All: %q is given with %d and with %d holders", a.name, b.limit, a.limit)
		}
		return a.Key() == b.Key()
	})
	return s
}

// TryLock takes all locks or none, at once. The error is a *BusyError for the
// first that is taken.
func (s *Set) TryLock(ctx context.Context) (*Leases, error) {
	return s.take(ctx, (*Lock).TryLock)
}

// Lock takes all locks or none, waiting in the line of each in turn until ctx
// ends. What is already taken stays taken, and renewed, while it waits; the
// error Is ErrLost when one of these is lost meanwhile (it was broken, or is
// not renewed), and then none is held.
func (s *Set) Lock(ctx context.Context) (*Leases, error) {
	return s.take(ctx, (*Lock).Lock)
}

// Do runs f while holding all locks, as [Lock.Do] does for one.
func (s *Set) Do(ctx context.Context, f func(ctx context.Context) error) (err error) {
	leases, err := s.Lock(ctx)
	if err != nil {
		return err
	}
	defer func() {
		if released := leases.unlockRest(ctx); errors.Is(released, ErrNotHeld) {
			err = errors.Join(err, fmt.Errorf("%w: one of several ended before the work did", ErrLost))
		}
	}()
	return f(leases.Bind(ctx))
}

func (s *Set) take(ctx context.Context, take func(*Lock, context.Context) (*Lease, error)) (*Leases, error) {
	if s.err == nil && len(s.locks) == 0 {
		return nil, errors.New("lock: a Set that no All made: it has no locks")
	}
	if s.err != nil {
		return nil, s.err
	}
	leases, all := &Leases{}, false
	// Also when OnWait's function panics while a further lock is waited for.
	defer func() {
		if !all {
			leases.giveUp(ctx)
		}
	}()
	for _, m := range s.locks {
		lease, err := take(m, ctx)
		if err != nil {
			return nil, err
		}
		leases.list = append(leases.list, lease)
	}
	for _, lease := range leases.list {
		if !lease.Held() {
			return nil, fmt.Errorf("%w: %q, while the others of its set were waited for", ErrLost, lease.lock.name)
		}
	}
	all = true
	return leases, nil
}

// giveUp releases what is held of a set that nobody gets. What Redis could not
// be told of is tried again beside, as with every lease.
func (ls *Leases) giveUp(ctx context.Context) { _ = ls.Unlock(ctx) }

// Leases are those of a Set.
type Leases struct{ list []*Lease }

// Each gives the leases, in the order in which they were taken.
func (ls *Leases) Each() []*Lease { return slices.Clone(ls.list) }

// Of is the lease of m, or of another handle of the same lock; nil when the set
// has no such lock.
func (ls *Leases) Of(m *Lock) *Lease {
	for _, lease := range ls.list {
		if m != nil && lease.lock.Key() == m.Key() {
			return lease
		}
	}
	return nil
}

// Bind returns a context that ends when parent or any of the leases does.
func (ls *Leases) Bind(parent context.Context) context.Context {
	for _, lease := range ls.list {
		parent = lease.Bind(parent) //nolint:fatcontext // one of each, as deep as the set is large
	}
	return parent
}

// unlockRest is Unlock for the leases that their owner has not ended yet.
func (ls *Leases) unlockRest(ctx context.Context) error {
	rest := &Leases{list: slices.DeleteFunc(ls.Each(), (*Lease).endedByOwner)}
	return rest.Unlock(ctx)
}

// Unlock gives all locks back, last taken first. The error joins those of each;
// every lease is over in any case.
func (ls *Leases) Unlock(ctx context.Context) error {
	var errs []error
	for _, lease := range slices.Backward(ls.list) {
		errs = append(errs, lease.Unlock(ctx))
	}
	return errors.Join(errs...)
}
