package automutextest

import (
	"flag"
	"testing"

	"github.com/automutex/automutex/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(few{m}) }

// few runs few tests at once: each keeps the processor busy.
type few struct{ *testing.M }

func (f few) Run() int {
	_ = flag.Set("test.parallel", "4")
	return f.M.Run()
}
