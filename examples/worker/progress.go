package main

import (
	"io"
	"time"

	"github.com/schollz/progressbar/v3"
)

// newProgress gives a bar over total tasks, and a way to take it off the
// screen. Both do nothing where nobody sees it.
func newProgress(w io.Writer, visible bool, total int) (update func(done int), remove func()) {
	if !visible || total == 0 {
		return func(int) {}, func() {}
	}
	bar := progressbar.NewOptions(total,
		progressbar.OptionSetWriter(w),
		progressbar.OptionSetDescription("tasks"),
		progressbar.OptionSetWidth(40),
		progressbar.OptionShowCount(),
		progressbar.OptionSetPredictTime(false),
		progressbar.OptionThrottle(50*time.Millisecond),
		progressbar.OptionClearOnFinish(),
	)
	// The bar only decorates: what it can't write, it need not.
	return func(done int) { _ = bar.Set(done) }, func() { _ = bar.Clear() }
}
