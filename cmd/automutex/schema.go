package main

import (
	"github.com/spf13/cobra"

	"github.com/automutex/automutex/config"
)

func newSchema(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of configuration files",
		Long: `Print the JSON Schema of configuration files, for editors that complete and
check YAML. Save it, and name it in the first line of a file:

  automutex schema > automutex.schema.json
  # yaml-language-server: $schema=automutex.schema.json

The schema is looser than "automutex check", which finds every mistake. Redis is
not needed.`,
		Args: exactly(0, ""),
		RunE: func(*cobra.Command, []string) error {
			_, err := a.out.Write(config.Schema())
			return err
		},
	}
}
