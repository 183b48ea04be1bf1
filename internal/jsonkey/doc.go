// Package jsonkey makes the parts of a lock's key from a JSON payload and paths into
// it. It knows neither locks nor asynq.
//
// Read it in this order: paths.go takes a path apart, payload.go checks that a payload
// is JSON, fields.go finds the values at all paths in one pass (walk.go, cursor.go),
// value.go writes one value as a part (composite.go: an object or a list). gotype.go
// checks a path against the Go type that the payload is decoded into.
package jsonkey
