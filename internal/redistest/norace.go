//go:build !race

package redistest

import "time"

const (
	raced      = false
	checkEvery = 10 * time.Millisecond
	pollEvery  = 2 * time.Millisecond // the interval at which conditions are looked at
)
