package config

import (
	"strings"
	"testing"

	"github.com/automutex/automutex"
)

// A limit from the payload, also beside a number in defaults.
func TestLimitField(t *testing.T) {
	t.Parallel()
	cfg, _, err := Parse([]byte(`
defaults:
  limit: 5
rules:
  - task: report
    limit: {field: tenant.max, default: 3, most: 50}
  - task: other
  - task: paced
    limit: unlimited
    rate: {starts: 100, per: 1m}
`))
	if err != nil {
		t.Fatal(err)
	}
	if r := cfg.Rules; r[0].Limit != 0 || r[0].LimitField == nil || *r[0].LimitField != (automutex.LimitField{Path: "tenant.max", Default: 3, Most: 50}) || r[1].Limit != 5 || r[1].LimitField != nil || r[2].Limit != automutex.Unlimited {
		t.Fatalf("%+v", cfg.Rules)
	}
	for limit, want := range map[string]string{
		"{default: 3}": "has no field", "{field: n, default: 9, most: 3}": "more than Most", "{field: a..b}": "a..b",
		"{feild: n}": "did you mean field", "{}": "limit: has no field; want a limit, such as {field: tenant.max, default: 3, most: 50}, or leave the key out", "{field: n, most: many}": "whole number", "many": "whole number", "Unlimited": "whole number", "[1]": "whole number",
	} {
		_, _, err := Parse([]byte("rules:\n  - task: report\n    limit: " + limit + "\n"))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %q", limit, err, want)
		}
	}
}
