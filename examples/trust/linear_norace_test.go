//go:build !race

package trust

const linShare = 1
