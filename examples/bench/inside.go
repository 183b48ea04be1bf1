package main

import (
	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/lock"
)

// inner has the calls of package lock that only the packages of this module make.
var inner = lock.Inside(inside.Pass{})
