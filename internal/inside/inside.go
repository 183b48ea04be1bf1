// Package inside is what the packages of this module share, and nobody else: Go lets no other module import it.
package inside

import (
	"context"
	"time"
)

const (
	// DefaultPrefix begins the keys and channels of a Locker without a Prefix.
	DefaultPrefix = "automutex"
	// MaxTTL is the longest lease, extension, cooldown and claim, ten years: beyond,
	// times would overflow, and a lock that nobody frees is no lease.
	MaxTTL = 10 * 365 * 24 * time.Hour
)

// Of is what a type of a public package embeds, under an alias that is not exported, to carry a value that only this
// module reaches, as lock.Locker carries its engine. The packages of this module get the value, and set it in a new
// Locker, with *inside.At(locker).
type Of[T any] struct{ value T }

// Make returns an Of with that value.
func Make[T any](value T) Of[T] { return Of[T]{value} }

func (o *Of[T]) at() *T { return &o.value }

// At returns the value that x carries.
func At[T any](x interface{ at() *T }) *T { return x.at() }

type onceKey struct{}

// WithOnce returns a context for enqueueing a task of a rule of package unique. A Client that gives the task a place in
// order, also one in a wrapper, first asks fits; holdsKey says that an archived task holds the key.
func WithOnce(ctx context.Context, fits func(holdsKey bool) error) context.Context {
	return context.WithValue(ctx, onceKey{}, fits)
}

// OnceIn returns what WithOnce has put in, or nil.
func OnceIn(ctx context.Context) func(holdsKey bool) error {
	fits, _ := ctx.Value(onceKey{}).(func(bool) error)
	return fits
}
