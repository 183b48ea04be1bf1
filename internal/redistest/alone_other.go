//go:build !unix

package redistest

// alone is for machines with flock.
func alone() {}
