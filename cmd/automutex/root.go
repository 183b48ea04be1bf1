package main

import (
	"io"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/automutex/automutex/internal/nearest"
	"github.com/automutex/automutex/internal/printable"
)

// app is what all commands share.
type app struct {
	in   io.Reader
	out  io.Writer
	errs io.Writer
	conn *connection
}

const rootHelp = `See what the locks of automutex are doing, and step in.

Exit codes: 0 done; 1 no (mistakes in a file, no such holder, findings of
doctor, interrupted); 2 wrong use; 3 Redis is out of reach, or refuses.

Each connection flag can be set by an environment variable: AUTOMUTEX_URI,
AUTOMUTEX_PASSWORD, AUTOMUTEX_PREFIX and so on. What asynq's own command reads
(URI, DB, PASSWORD, CLUSTER, CLUSTER_ADDRS, TLS_SERVER, INSECURE) counts where
there is none of these.`

func newRoot(a *app) *cobra.Command {
	root := &cobra.Command{
		Use:   "automutex",
		Short: "Locks of asynq tasks, for operators",
		Long:  rootHelp,
		Example: `  automutex check automutex.yaml
  automutex key automutex.yaml --type itunes:verify --payload '{"transaction_id": 7}'
  automutex list --uri redis://localhost:6379
  automutex break 'automutex:{itunes:verify|7}'`,
		Version:       version(),
		SilenceUsage:  true,
		SilenceErrors: true,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			var names []string
			for _, known := range cmd.Commands() {
				names = append(names, known.Name())
			}
			return usage("there is no command %q%s; see automutex --help", printable.OneLine(args[0]), didYouMean(args[0], "", names))
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			_ = cmd.Help() // cobra's own never fails
			return usage("no command; see above")
		},
	}
	root.SetVersionTemplate("automutex {{.Version}}\n")
	// --cluster-addrs and --cluster_addrs are one flag: asynq's command has the
	// latter.
	root.SetGlobalNormalizationFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		return pflag.NormalizedName(underscored(name))
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
	root.AddCommand(
		newCheck(a), newSchema(a), newKey(a), newList(a), newShow(a), newWatch(a), newBreak(a), newPause(a), newResume(a), newLimit(a), newControls(a), newBlocked(a), newSkip(a), newSweep(a), newDoctor(a), newWeb(a),
	)
	return root
}

// didYouMean names what a misspelt word was probably meant to be; empty when nothing is near.
func didYouMean(typed, before string, names []string) string {
	if name, ok := nearest.Name(typed, names); ok {
		return "; did you mean " + before + name + "?"
	}
	return ""
}

// version is that of the module this binary was built from.
func version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(unknown)"
}

// exactly is cobra.ExactArgs with a text that says what is wanted.
func exactly(n int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < n:
			return usage("%s: %s is missing; see automutex %[1]s --help", cmd.Name(), what)
		case len(args) > n:
			return usage("%s: unexpected argument %q; see automutex %[1]s --help", cmd.Name(), args[n])
		}
		for _, arg := range args {
			if arg == "" {
				return usage("%s: %s is empty", cmd.Name(), what)
			}
		}
		return nil
	}
}
