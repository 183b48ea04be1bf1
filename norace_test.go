//go:build !race

package automutex

const raceDetector = false
