package inside

import "context"

type onceKey struct{}

// WithOnce returns a context for enqueueing a task of a rule of package unique. A Client that gives the task a place in order, also
// one in a wrapper, first asks fits; holdsKey says that an archived task holds the key.
func WithOnce(ctx context.Context, fits func(holdsKey bool) error) context.Context {
	return context.WithValue(ctx, onceKey{}, fits)
}

// OnceIn returns what WithOnce has put in, or nil.
func OnceIn(ctx context.Context) func(holdsKey bool) error {
	fits, _ := ctx.Value(onceKey{}).(func(bool) error)
	return fits
}
