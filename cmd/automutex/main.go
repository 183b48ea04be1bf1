// Command automutex shows operators what the locks of automutex are doing, and
// lets them step in. Everything it knows of a lock it has from package lock;
// everything it knows of a task, from asynq's Inspector.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"

	"github.com/redis/go-redis/v9/logging"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/nearest"
	"github.com/automutex/automutex/internal/printable"
	"github.com/automutex/automutex/lock"
)

// inner has the calls of package lock that only the packages of this module make.
var inner = lock.Inside(inside.Pass{})

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program at once
	logging.Disable()            // go-redis' own; the errors reach us anyway
	os.Exit(explain(os.Stderr, newRoot(&app{in: os.Stdin, out: os.Stdout, errs: os.Stderr}).ExecuteContext(ctx)))
}

// app is what all commands share.
type app struct {
	in        io.Reader
	out, errs io.Writer
	conn      connection
	rules     automutex.Config // of the file that --rules names
}

const rootHelp = `Locks of asynq tasks, for operators

See what the locks of automutex are doing, and step in.

Exit codes: 0 done; 1 no (mistakes in a file, no such holder, findings of
doctor, interrupted); 2 wrong use; 3 Redis is out of reach, or refuses.

Each connection flag can be set by an environment variable: AUTOMUTEX_URI,
AUTOMUTEX_PASSWORD, AUTOMUTEX_PREFIX and so on. What asynq's own command reads
(URI, DB, PASSWORD, CLUSTER, CLUSTER_ADDRS, TLS_SERVER, INSECURE) counts where
there is none of these.`

func newRoot(a *app) *cobra.Command {
	root := command("automutex", rootHelp, cobra.ArbitraryArgs, func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			_ = cmd.Help() // cobra's own never fails
			return usage("no command; see above")
		}
		var names []string
		for _, known := range cmd.Commands() {
			names = append(names, known.Name())
		}
		return usage("there is no command %q%s; see automutex --help", printable.OneLine(args[0]), didYouMean(args[0], "", names))
	})
	root.Example = `  automutex check automutex.yaml
  automutex key automutex.yaml --type itunes:verify --payload '{"transaction_id": 7}'
  automutex list --uri redis://localhost:6379
  automutex break 'automutex:{itunes:verify|7}'`
	root.Version, root.SilenceUsage, root.SilenceErrors = "(unknown)", true, true
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		root.Version = info.Main.Version
	}
	root.SetVersionTemplate("automutex {{.Version}}\n")
	// --cluster-addrs and --cluster_addrs are one flag: asynq's command has the latter.
	root.SetGlobalNormalizationFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		return pflag.NormalizedName(strings.ReplaceAll(name, "-", "_"))
	})
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		_, flag, ok := strings.Cut(err.Error(), "unknown flag: --")
		if !ok {
			return err
		}
		var names []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
		path := strings.TrimPrefix(cmd.CommandPath(), "automutex ")
		return usage("%s: there is no flag --%s%s; see %s --help", path, printable.OneLine(flag), didYouMean(flag, "--", names), cmd.CommandPath())
	})
	a.conn.flags(root)
	root.AddCommand(newCheck(a), newSchema(a), newKey(a), newList(a), newShow(a), newBreak(a), newPause(a), newResume(a), newLimit(a), newControls(a), newBlocked(a), newSkip(a), newSweep(a), newDoctor(a), newWeb(a))
	return root
}

// command makes a command. The first line of help is what the list of commands says.
func command(use, help string, args cobra.PositionalArgs, run func(cmd *cobra.Command, args []string) error) *cobra.Command {
	short, _, _ := strings.Cut(help, "\n")
	return &cobra.Command{Use: use, Short: short, Long: help, Args: args, RunE: run}
}

// online makes a command that needs Redis.
func (a *app) online(use, help string, args cobra.PositionalArgs, run func(cmd *cobra.Command, args []string) error) *cobra.Command {
	cmd := command(use, help, args, run)
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error { return a.conn.environment(cmd) }
	return cmd
}

// onLocks makes a command that runs on the locks of Redis.
func (a *app) onLocks(use, help string, args cobra.PositionalArgs, run func(ctx context.Context, l locks, args []string) error) *cobra.Command {
	return a.online(use, help, args, func(cmd *cobra.Command, args []string) (err error) {
		if file := cmd.Flags().Lookup("rules"); file != nil && file.Value.String() != "" {
			if a.rules, err = a.loadFor(cmd, file.Value.String()); err != nil {
				return err
			}
		}
		return a.conn.onLocks(cmd.Context(), func(l locks) error { return run(cmd.Context(), l, args) })
	})
}

// didYouMean names what a misspelt word was probably meant to be; empty when nothing is near.
func didYouMean(typed, before string, names []string) string {
	if name, ok := nearest.Name(typed, names); ok {
		return "; did you mean " + before + name + "?"
	}
	return ""
}

// needs is cobra.RangeArgs with a text that says what is wanted.
func needs(least, most int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < least:
			return usage("%s: %s is missing; see automutex %[1]s --help", cmd.Name(), what)
		case len(args) > most:
			return usage("%s: unexpected argument %q; see automutex %[1]s --help", cmd.Name(), args[most])
		case slices.Contains(args, ""):
			return usage("%s: %s is empty", cmd.Name(), what)
		}
		return nil
	}
}

// What the program answers to the shell; the help of the root command lists these.
const (
	exitOK    = 0
	exitNo    = 1 // what was asked for is not so: mistakes in a file, nobody to break, findings of doctor
	exitUsage = 2 // the command line
	exitRedis = 3 // Redis is out of reach, or refused
)

// failure is an error with its answer to the shell.
type failure struct {
	exit int
	error
	// lines: the error is one mistake a line, as compilers print them, and not one line altogether.
	lines bool
}

func (f *failure) Unwrap() error { return f.error }

func no(format string, args ...any) error {
	return &failure{exit: exitNo, error: fmt.Errorf(format, args...)}
}

func usage(format string, args ...any) error {
	return &failure{exit: exitUsage, error: fmt.Errorf(format, args...)}
}

func backend(format string, args ...any) error {
	return &failure{exit: exitRedis, error: fmt.Errorf(format, args...)}
}

// explain prints an error and gives the exit code. An error of cobra's is about the command line.
func explain(stderr io.Writer, err error) int {
	var f *failure
	var file *fs.PathError
	exit, text := exitUsage, ""
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &f):
		exit = f.exit
	case errors.Is(err, lock.ErrBackend):
		exit = exitRedis
	case errors.Is(err, context.Canceled):
		exit, text = exitNo, "interrupted"
	case errors.As(err, &file): // stdout is full or closed
		exit = exitNo
	}
	if f != nil && f.lines {
		for line := range strings.SplitSeq(err.Error(), "\n") {
			fmt.Fprintln(stderr, printable.Text(line))
		}
		return exit
	}
	if text == "" {
		text = strings.TrimPrefix(err.Error(), "automutex: ")
	}
	fmt.Fprintf(stderr, "automutex: %s\n", printable.OneLine(text))
	return exit
}
