// Command bench is go test -run '^$' -bench . for examples/bench, which is in another module; further flags follow.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
)

func main() {
	args := append([]string{"test", "-run", "^$", "-bench", ".", "-timeout", "2h",
		"github.com/automutex/automutex/examples/bench"}, os.Args[1:]...)
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
