//go:build !race

package redistest

const slower = 1
