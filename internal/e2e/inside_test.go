package e2e

import (
	"time"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/lock"
)

// inner has the calls of package lock that only the packages of this module make.
var inner = lock.Inside(inside.Pass{})

// What package automutex does, and does not export.
const (
	margin         = time.Second            // how long before its deadline a task ends its wait
	retakeDelay    = 100 * time.Millisecond // between two tries to take locks again
	minPauseSpread = 5 * time.Second        // how far apart the tasks of a paused key come back, at least
)
