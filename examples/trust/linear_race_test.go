//go:build race

package trust

// linShare: under the race detector everything takes four times as long, and one
// part in so many shows what it can find.
const linShare = 5
