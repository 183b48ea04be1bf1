//go:build race

package e2e

// raceDetector makes everything several times as slow.
const raceDetector = true
