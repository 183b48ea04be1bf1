package automutextest

import (
	"io"
	"strings"
	"testing"
)

// logOf returns a writer to the log of a test: the test's own Output, which exists
// from Go 1.25 on, or else one that calls Log for each line.
func logOf(tb testing.TB) io.Writer {
	tb.Helper()
	if own, ok := tb.(interface{ Output() io.Writer }); ok {
		return own.Output()
	}
	return lineLog{tb}
}

// lineLog calls Log for each line that is written. Log is safe for concurrent use.
type lineLog struct{ tb testing.TB }

// Write logs p, which holds whole lines: slog's handlers write a record at a time.
func (l lineLog) Write(p []byte) (int, error) {
	l.tb.Helper()
	l.tb.Log(strings.TrimSuffix(string(p), "\n"))
	return len(p), nil
}
