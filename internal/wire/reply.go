package wire

import (
	"fmt"
	"time"
)

// Unexpected is the error for a reply that is none of those that the script's
// header lists.
func Unexpected(reply any) error { return fmt.Errorf("unexpected reply %v", reply) }

// CodeOf reads the reply of a script that answers with one number from 0 to most.
func CodeOf(reply any, most int64) (int64, error) {
	n, ok := reply.(int64)
	if !ok || n < 0 || n > most {
		return 0, Unexpected(reply)
	}
	return n, nil
}

// fields reads a list reply, field by field. wrong is set by a field that is
// missing or of another type; the values read are of no use then.
type fields struct {
	list  []any
	wrong bool
}

func listOf(reply any) *fields {
	list, ok := reply.([]any)
	return &fields{list, !ok}
}

// field is the field at i as a T, else the zero value and wrong.
func field[T any](f *fields, i int) (v T) {
	ok := i < len(f.list)
	if ok {
		v, ok = f.list[i].(T)
	}
	f.wrong = f.wrong || !ok
	return v
}

func (f *fields) num(i int) int64        { return field[int64](f, i) }
func (f *fields) text(i int) string      { return field[string](f, i) }
func (f *fields) ms(i int) time.Duration { return time.Duration(f.num(i)) * time.Millisecond }

// err is the error for the whole reply if a field was wrong.
func (f *fields) err(reply any) error {
	if f.wrong {
		return Unexpected(reply)
	}
	return nil
}
