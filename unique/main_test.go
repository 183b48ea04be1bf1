package unique

import (
	"flag"
	"os"
	"runtime"
	"strconv"
	"testing"

	"github.com/automutex/automutex/internal/redistest"
)

func TestMain(m *testing.M) {
	if os.Getenv(workerEnv) != "" {
		workerMain()
		return
	}
	flag.Parse()
	// Most tests here wait for something most of the time: where nothing else is
	// said, more of them run at once than there are cores.
	if p := flag.Lookup("test.parallel"); p.Value.String() == strconv.Itoa(runtime.GOMAXPROCS(0)) {
		_ = p.Value.Set("12")
	}
	redistest.Main(m)
}
