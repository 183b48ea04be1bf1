package lock

import "github.com/automutex/automutex/internal/printable"

// memberArg is a member's name without its kind, as renewals send it. Commands carry a
// pointer to it.
type memberArg string

// MarshalBinary is called by go-redis each time the command is written.
func (a *memberArg) MarshalBinary() ([]byte, error) { return []byte(*a), nil }

// String is what tracing hooks print. Owners and notes are anybody's text.
func (a *memberArg) String() string { return printable.Text(string(*a)) }
