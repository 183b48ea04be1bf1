// Package exchange sends commands and scripts to Redis for package lock. It bounds the time
// of each exchange, counts commands that go-redis may have sent twice, splits batches by the
// master of a Cluster, and names the command in the error if Redis refuses one to this user.
//
// It knows nothing of locks: package lock says which script goes to which key, and what a
// reply means.
package exchange
