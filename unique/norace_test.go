//go:build !race

package unique

// raced: the tests run under the race detector, several times as slow.
const raced = false
