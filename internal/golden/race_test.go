//go:build race

package golden

const raceDetector = true
