package inside

// Of is what a type of a public package embeds, under an alias that is not exported, to carry a value that only this module reaches:
//
//	type core = inside.Of[*engine.Engine]
//	type Locker struct{ core }
//
// Neither go doc nor another module sees the value. The packages of this module get it, and set it in a new Locker, with *inside.At(locker).
type Of[T any] struct{ value T }

// Make returns an Of with that value.
func Make[T any](value T) Of[T] { return Of[T]{value} }

func (o *Of[T]) at() *T { return &o.value }

// At returns the value that x carries.
func At[T any](x interface{ at() *T }) *T { return x.at() }
