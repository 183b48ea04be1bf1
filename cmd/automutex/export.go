package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/automutex/automutex/config"
	"github.com/automutex/automutex/internal/printable"
)

// rulesOfPage is where the page has its rules, and maxRules the most that is read of them.
const (
	rulesOfPage = "rules.yaml"
	maxRules    = 4 << 20
)

func newExport(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "export URL",
		Short: "Print the rules of a running Go program as a configuration file",
		Long: `Print the rules of a running Go program as YAML, for check, key, doctor and web. URL is
that of the program's page (package web, with Options.Rules), or of a handler of your own
that answers with what config.Export returns. Redis is not needed.

What a file cannot say, such as a Key that is a Go function, is refused with the rule and
the field. The secret of HashKeys is not exported by the page: set AUTOMUTEX_HASH_KEYS.
AUTOMUTEX_WEB_USER and AUTOMUTEX_WEB_PASSWORD are sent as the login where they are set.`,
		Example: `  automutex export http://localhost:8080/locks > automutex.yaml
  automutex doctor automutex.yaml`,
		Args: exactly(1, "URL"),
		RunE: func(cmd *cobra.Command, args []string) error {
			at, err := exportURL(args[0])
			if err != nil {
				return err
			}
			text, err := a.fetchRules(cmd.Context(), at)
			if err != nil {
				return err
			}
			if _, _, err := config.Parse(text); err != nil {
				return no("%s does not answer with rules: %w", at.Redacted(), err)
			}
			_, err = a.out.Write(text)
			return err
		},
	}
}

// exportURL is where the rules are: what ends in .yaml is the file itself, else it is the page.
func exportURL(text string) (*url.URL, error) {
	at, err := url.Parse(text)
	if err != nil || at.Scheme != "http" && at.Scheme != "https" || at.Host == "" {
		return nil, usage("export: want the URL of the program's page, as in http://localhost:8080/locks")
	}
	at.RawQuery, at.Fragment = "", ""
	if !strings.HasSuffix(at.Path, ".yaml") {
		at = at.JoinPath(rulesOfPage)
	}
	return at, nil
}

func (a *app) fetchRules(ctx context.Context, at *url.URL) (text []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, a.conn.timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), nil)
	if err != nil {
		return nil, usage("export: %w", err)
	}
	if user := os.Getenv(webUserEnv); user != "" && at.User == nil {
		req.SetBasicAuth(user, os.Getenv(webPasswordEnv))
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, no("%w", err)
	}
	defer func() { err = errors.Join(err, resp.Body.Close()) }()
	if text, err = io.ReadAll(io.LimitReader(resp.Body, maxRules+1)); err != nil {
		return nil, no("%s: %w", at.Redacted(), err)
	}
	switch {
	case resp.StatusCode == http.StatusUnprocessableEntity: // what web answers, a mistake a line
		return nil, &failure{exit: exitNo, err: errors.New(strings.TrimSpace(string(text))), lines: true}
	case resp.StatusCode == http.StatusUnauthorized:
		return nil, no("%s wants a login: set %s and %s", at.Redacted(), webUserEnv, webPasswordEnv)
	case resp.StatusCode != http.StatusOK:
		first, _, _ := bytes.Cut(bytes.TrimSpace(text), []byte("\n"))
		return nil, no("%s answers %s: %s", at.Redacted(), resp.Status, cmp.Or(printable.Short(string(first)), "nothing"))
	case len(text) > maxRules:
		return nil, no("%s answers with more than %d MiB: that is no list of rules", at.Redacted(), maxRules>>20)
	}
	return text, nil
}
