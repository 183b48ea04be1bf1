//go:build race

package automutex

// raceDetector makes everything several times as slow.
const raceDetector = true
