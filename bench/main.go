// Command bench runs the benchmarks of examples/bench from the top folder: go run ./bench -h lists
// its flags. They are in another module, so that this one does not require what they compare with.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
)

func main() {
	run := exec.CommandContext(context.Background(), "go", append([]string{"run", "github.com/automutex/automutex/examples/bench"}, os.Args[1:]...)...) //nolint:gosec // the arguments are those of who runs this
	run.Stdin, run.Stdout, run.Stderr = os.Stdin, os.Stdout, os.Stderr
	err := run.Run()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		os.Exit(exit.ExitCode())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}
