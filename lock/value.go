package lock

import (
	"encoding"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"

	"github.com/automutex/automutex/internal/inside"
)

// identified is a value for For that returns its ID itself.
type identified interface {
	// LockID returns what tells the value from others of its type. Not empty.
	LockID() string
}

// For returns the mutex of value. If value is a string, that is the lock's name. A Room whose ID is 123 has the lock "Room" with the part
// "123". The ID is the result of a method LockID() string, or else the field ID: a string, an integer, or a value with a text form
// (MarshalText, or else String), such as a UUID. For follows pointers and finds the field in embedded structs. [Parts] in options come
// after the ID. Types with the same name in two packages share their locks.
//
// If value has no ID, or an empty or zero one (it is not saved yet), every operation of the lock returns an error.
func (l *Locker) For(value any, options ...Option) *Lock {
	if name, ok := value.(string); ok {
		return l.Semaphore(name, 1, options...)
	}
	name, id, err := identify(value)
	withID := func(m *Lock) { m.parts = append([]string{id}, m.parts...) }
	m := l.Semaphore(name, 1, append(slices.Clip(options), withID)...)
	if err != nil && l.engine().Life().Unfit() == nil {
		inside.At(m).Err = err
	}
	return m
}

// identify returns the type's name and the ID of a value.
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
	switch f.Kind() { // the kinds that make an ID
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
