package demo

import (
	"fmt"
	"io"
	"os"
	"time"

	"charm.land/bubbles/v2/progress"
	"github.com/charmbracelet/colorprofile"
	"github.com/charmbracelet/x/ansi"
)

// newProgress gives a bar over total tasks, and a way to take it off the screen. Both do
// nothing where nobody sees it. update is called by one goroutine.
func newProgress(w io.Writer, visible bool, total int) (update func(done int), remove func()) {
	if !visible || total == 0 {
		return func(int) {}, func() {}
	}
	const often = 50 * time.Millisecond
	w = &colorprofile.Writer{Forward: w, Profile: colorprofile.Env(os.Environ())}
	bar := progress.New(progress.WithWidth(40))
	var drawn time.Time
	update = func(done int) {
		if time.Since(drawn) < often && done < total {
			return
		}
		drawn = time.Now()
		fmt.Fprintf(w, "\r%stasks %s %d/%d", ansi.EraseLineRight, bar.ViewAs(float64(done)/float64(total)), done, total)
	}
	return update, func() { fmt.Fprint(w, "\r"+ansi.EraseLineRight) }
}
