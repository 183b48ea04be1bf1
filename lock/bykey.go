package lock

import (
	"context"
	"errors"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/operate"
)

// byKey returns the lock whose Redis key is key, as list and [Lock.Key] return it, for
// operators. If key does not have the form of a lock's key under the Locker's prefix, that
// is the error of every operation.
//
// A key does not say how many may hold the lock, nor whether [Locker.Lead] uses it, which
// ignores a control's limit. So byKey assumes one holder, whatever limit a control sets. Locked
// and Available use that number. If Break frees several slots of a semaphore, it grants one,
// and waiters get the others when they ask again, within a second.
func (l *Locker) byKey(key string) *Lock {
	name, err := operate.ParseKey(l.prefix, key)
	if err != nil {
		return &Lock{locker: l, kind: lockKind{}, err: errors.Join(l.life.Unfit(), err), keys: []string{key}}
	}
	m := l.Mutex(name)
	m.keepsLimit = true
	m.keys = []string{key} // the name stands in it as it is: escaped, or a hash
	return m
}

// listLine returns the first entries of the line, as many as most; see [operate.Runner.Line]. info is what inspect has
// returned.
func (m *Lock) listLine(ctx context.Context, info inside.Info, most int) ([]inside.Waiter, error) {
	if m.err != nil {
		return nil, m.err
	}
	return m.locker.runner().Line(ctx, m.locker.rdb, m.Key(), info, most)
}
