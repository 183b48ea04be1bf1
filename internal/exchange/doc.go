// Package exchange sends commands and scripts to Redis for package lock: each exchange
// ends within a bound, commands that go-redis sent twice are noticed, batches go to each
// node of a Cluster by itself, and what Redis refuses to this user is named.
//
// It knows neither locks nor lines: package lock says which script goes to which key, and
// what a reply means.
package exchange
