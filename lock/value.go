package lock

import (
	"context"
	"encoding"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"time"
)

// Acquire is Lock and TryLock for callers who count on the lock being busy: ok
// reports whether the lease was got, and a busy lock is no error. within is the
// longest wait in line: 0 tries once; below 0 is an error. A free
// lock is taken however short within is. Errors are ctx's own end, and what has
// nothing to do with the lock being busy.
func (m *Lock) Acquire(ctx context.Context, within time.Duration) (lease *Lease, ok bool, err error) {
	lease, err = m.lockWithin(ctx, within)
	if errors.Is(err, ErrBusy) {
		return nil, false, ctx.Err()
	}
	return lease, err == nil, err
}

// With runs f while holding m and returns what f does, as [Lock.Do] does for
// functions without a value. It releases on an error and on a panic. When the
// lease was lost meanwhile the value is f's all the same, and the error Is
// ErrLost.
func With[T any](ctx context.Context, m *Lock, f func(ctx context.Context) (T, error)) (T, error) {
	var value T
	err := m.Do(ctx, func(ctx context.Context) error {
		var err error
		value, err = f(ctx)
		return err
	})
	return value, err
}

// identified is a value with an identity of its own choice, for For.
type identified interface {
	// LockID is what tells the value from others of its type. Not empty.
	LockID() string
}

// For is the lock of a value: a string is the lock of that name, and a Room
// whose ID is 123 has the lock "Room" with the part "123". The ID is what
// LockID returns, else the field ID: a string, an integer, or what has a text
// form (MarshalText, else String: a UUID). Pointers are followed, embedded
// structs looked into. Parts in options are the local scope: they come after
// the ID. Types of one name in two packages share their locks.
//
// A value without ID, or with an empty or zero one (not saved yet), is refused
// by every operation of the lock: such values would all share one.
func (l *Locker) For(value any, options ...Option) *Lock {
	if name, ok := value.(string); ok {
		return l.Semaphore(name, 1, options...)
	}
	name, id, err := identify(value)
	withID := func(m *Lock) { m.parts = append([]string{id}, m.parts...) }
	m := l.Semaphore(name, 1, append(slices.Clip(options), withID)...)
	if err != nil && l.err == nil {
		m.err = err
	}
	return m
}

// identify gives the type's name and the ID of a value.
func identify(value any) (name, id string, err error) {
	v := reflect.ValueOf(value)
	for v.Kind() == reflect.Pointer && !v.IsNil() {
		v = v.Elem()
	}
	if !v.IsValid() || v.Kind() == reflect.Pointer {
		return "nil", "", fmt.Errorf("lock: For(%T(nil)): give a name, or a value with an ID", value)
	}
	if name = v.Type().Name(); name == "" {
		return "unnamed", "", fmt.Errorf("lock: For(%T): a type without a name has no locks of its own; give a name", value)
	}
	if own, ok := as[identified](v); ok {
		id = own.LockID()
	} else if v.Kind() == reflect.Struct {
		id, err = idField(v)
	} else {
		err = errors.New("it has no ID")
	}
	if err == nil && id == "" {
		err = errors.New("its ID is empty, as of a value that is not saved yet")
	}
	if err != nil {
		return name, "", fmt.Errorf("lock: For(%T): %w; give a name, a field ID (a string, an integer, or what has a text form), or a method LockID", value, err)
	}
	return name, id, nil
}

func idField(v reflect.Value) (string, error) {
	field, ok := v.Type().FieldByName("ID")
	if !ok {
		return "", errors.New("it has no field ID")
	}
	f, err := v.FieldByIndexErr(field.Index)
	if err != nil || !f.CanInterface() {
		return "", errors.New("its field ID cannot be reached")
	}
	for f.Kind() == reflect.Pointer && !f.IsNil() {
		f = f.Elem()
	}
	if f.IsZero() {
		return "", nil
	}
	if text, ok := as[encoding.TextMarshaler](f); ok {
		b, err := text.MarshalText()
		return string(b), err
	}
	switch f.Kind() { //nolint:exhaustive // the kinds that make an ID
	case reflect.String:
		return f.String(), nil
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return strconv.FormatInt(f.Int(), 10), nil
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return strconv.FormatUint(f.Uint(), 10), nil
	}
	if text, ok := as[fmt.Stringer](f); ok {
		return text.String(), nil
	}
	return "", fmt.Errorf("its ID is a %s", f.Type())
}

// as finds T among the methods of v and of a pointer to it, so that a value and
// a pointer to it have one identity.
func as[T any](v reflect.Value) (T, bool) {
	if t, ok := v.Interface().(T); ok {
		return t, true
	}
	p := reflect.New(v.Type())
	p.Elem().Set(v)
	t, ok := p.Interface().(T)
	return t, ok
}
