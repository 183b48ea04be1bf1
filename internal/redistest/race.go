//go:build race

package redistest

import "time"

const (
	raced      = true
	checkEvery = 40 * time.Millisecond
	pollEvery  = 10 * time.Millisecond
)
