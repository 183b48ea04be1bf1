package web

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/config"
	"github.com/automutex/automutex/unique"
)

// rulesFile answers with the rules of the page as a file for the command line. The secret
// of HashKeys is not in it. Rules that a file cannot say are a 422 with a line for each field.
func (p *page) rulesFile(w http.ResponseWriter, _ *http.Request) {
	cfg := automutex.Config{Prefix: p.o.Prefix, Rules: p.o.Rules, Decode: p.o.Decode}
	text, err := config.Export(cfg, unique.Config{Prefix: p.o.Prefix, Rules: p.o.Unique, Decode: p.o.Decode})
	if err != nil {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.WriteHeader(http.StatusUnprocessableEntity)
		fmt.Fprintln(w, strings.ToValidUTF8(err.Error(), "\uFFFD"))
		return
	}
	w.Header().Set("Content-Type", "application/yaml")
	if p.o.HashKeys != "" {
		fmt.Fprintln(w, "# hash_keys is left out: give the secret to commands in AUTOMUTEX_HASH_KEYS")
	}
	_, _ = w.Write(text) // the browser went away
}
