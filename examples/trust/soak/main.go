// Command soak runs servers, workers, producers and operators against each other for a long time, with faults
// at random: kill -9, stopped processes, cut and slow connections, lost messages, restarts. The books of the
// simulation's oracle are balanced after each round: of each task it is known what became of it, no key had
// two holders, nothing is left. It prints a line a minute.
//
//	go run ./examples/trust/soak -for 1h
//
// After it tasks run in order while their producers and workers are killed, a sixth of that time, and
// last come failovers of Sentinel and Cluster.
package main

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"time"
)

func main() {
	length := flag.Duration("for", time.Hour, "how long; the last round is finished, and tasks in order and failovers come after it")
	seed := flag.Uint64("seed", 0, "what decides about everything at random; 0: by the clock, and printed")
	failovers := flag.Bool("failovers", true, "play failovers at the end")
	verbose := flag.Bool("v", false, "print all that the tests say")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	err := play(ctx, *verbose, "^TestSoak$", *length+30*time.Minute, "-soak", length.String(), "-seed", strconv.FormatUint(*seed, 10))
	if err == nil {
		err = play(ctx, *verbose, "^TestOrder_killed$", *length+30*time.Minute, "-order", (*length / 6).String(), "-seed", strconv.FormatUint(*seed, 10))
	}
	if err == nil && *failovers {
		err = play(ctx, *verbose, "^TestFailover", time.Hour)
	}
	if err != nil {
		fmt.Println("soak: FAILED:", err)
		os.Exit(1) //nolint:gocritic // stop has nothing left to do
	}
	fmt.Println("soak: every promise held")
}

// play runs tests of package trust, and prints the lines of the soak and what failed.
func play(ctx context.Context, verbose bool, which string, timeout time.Duration, flags ...string) error {
	args := append([]string{"test", "-count", "1", "-v", "-timeout", timeout.String(), "-run", which, "github.com/automutex/automutex/examples/trust"}, flags...)
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Env = append(os.Environ(), "AUTOMUTEX_TEST_REDIS=require", "AUTOMUTEX_TEST_ALL=1", "AUTOMUTEX_TEST_REALTIME=1")
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = time.Minute
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		return err
	}
	failed := false
	for lines := bufio.NewScanner(out); lines.Scan(); {
		line := lines.Text()
		failed = failed || strings.Contains(line, "FAIL") || strings.HasPrefix(line, "panic")
		if verbose || failed || strings.HasPrefix(line, "soak ") || strings.HasPrefix(line, "order ") || strings.HasPrefix(line, "--- ") || strings.Contains(line, "_test.go:") {
			fmt.Println(line)
		}
	}
	return cmd.Wait()
}
