// Command bench runs the benchmarks of examples/bench, which are in another module so that this one does not require
// what they compare with: go run ./bench is go test -run '^$' -bench . for them, and further flags of go test follow.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
)

func main() {
	args := append([]string{"test", "-run", "^$", "-bench", ".", "-timeout", "2h", "github.com/automutex/automutex/examples/bench"}, os.Args[1:]...)
	test := exec.CommandContext(context.Background(), "go", args...) //nolint:gosec // the arguments are those of who runs this
	test.Stdout, test.Stderr = os.Stdout, os.Stderr
	err := test.Run()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		os.Exit(exit.ExitCode())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}
