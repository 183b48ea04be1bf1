package inside

import (
	"encoding"
	"errors"
	"fmt"
	"reflect"
	"strconv"
)

type identified interface {
	// LockID returns what tells the value from others of its type. Not empty.
	LockID() string
}

// Identify returns the name of a value's type, and its ID. See lock.Locker.For.
func Identify(value any) (name, id string, err error) {
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
		return name, "", fmt.Errorf("lock: For(%T): %w; give a name, a field ID (a string, an integer, or what has a text "+
			"form), or a method LockID", value, err)
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

// as finds T among the methods of v and of a pointer to it, so that a value and a pointer to it have one identity.
func as[T any](v reflect.Value) (T, bool) {
	if t, ok := v.Interface().(T); ok {
		return t, true
	}
	p := reflect.New(v.Type())
	p.Elem().Set(v)
	t, ok := p.Interface().(T)
	return t, ok
}
