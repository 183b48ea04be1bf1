//go:build race

package redistest

// slower is how much less often tests look at things under the race detector.
const slower = 4
