package config

import (
	"strings"
	"testing"

	"github.com/hibiken/asynq"

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
	if cfg.Rules[0].Limit != 0 || cfg.Rules[0].LimitOf == nil || cfg.Rules[1].Limit != 5 || cfg.Rules[1].LimitOf != nil || cfg.Rules[2].Limit != automutex.Unlimited {
		t.Fatalf("%+v", cfg.Rules)
	}
	for payload, want := range map[string]int{`{"tenant": {"max": 10}}`: 10, `{"tenant": {}}`: 3, `{"tenant": {"max": 1000}}`: 50} {
		if n, err := cfg.Rules[0].LimitOf(t.Context(), asynq.NewTask("report", []byte(payload))); n != want || err != nil {
			t.Errorf("%s: %d, %v; want %d", payload, n, err, want)
		}
	}
	for limit, want := range map[string]string{
		"{default: 3}": "field is missing", "{field: n, default: 9, most: 3}": "more than most", "{field: a..b}": "a..b",
		"{feild: n}": "did you mean field", "{}": "limit: has no field; want a limit, such as {field: tenant.max, default: 3, most: 50}, or leave the key out", "{field: n, most: many}": "whole number", "many": "whole number", "Unlimited": "whole number", "[1]": "whole number",
	} {
		_, _, err := Parse([]byte("rules:\n  - task: report\n    limit: " + limit + "\n"))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %q", limit, err, want)
		}
	}
}
