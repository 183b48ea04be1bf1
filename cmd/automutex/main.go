// Command automutex shows operators what the locks of automutex are doing, and
// lets them step in. Everything it knows of a lock it has from package lock;
// everything it knows of a task, from asynq's Inspector.
//
// One file for each command; connect.go finds Redis, output.go prints, exit.go
// says what the shell is told.
package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/redis/go-redis/v9/logging"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program at once
	logging.Disable()            // go-redis' own; the errors reach us anyway
	os.Exit(run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// run is main with everything it touches handed in.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	root := newRoot(&app{in: stdin, out: stdout, errs: stderr, conn: &connection{}})
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	return explain(stderr, root.ExecuteContext(ctx))
}
