package config

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/automutex/automutex"
)

func mustLoad(t *testing.T, path string) automutex.Config {
	t.Helper()
	cfg, _, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

func mustParse(t *testing.T, text string) automutex.Config {
	t.Helper()
	cfg, _, err := Parse([]byte(text))
	if err != nil {
		t.Fatalf("%s\n%v", text, err)
	}
	return cfg
}

func TestLoad_everyKey(t *testing.T) {
	t.Parallel()
	want := automutex.Config{Prefix: "myapp", HashKeys: "9f2c41d07b6a8e35", History: 50, Rules: []automutex.Rule{
		{
			Name: "verify", Task: "itunes:verify", On: []string{"transaction_id", "user.id", "items.0.sku"},
			OnHeaders: []string{"tenant", "region"}, Scope: "itunes", Optional: true, Limit: 3, TTL: 90 * time.Second,
			Wait: 90 * time.Minute, MaxHold: 500 * time.Millisecond, Busy: automutex.Skip,
		},
		{
			Task: "cron:digest", OnHeaders: []string{}, TTL: time.Minute, Cooldown: 10 * time.Minute, Fence: true, Limit: 1, Rate: automutex.Rate{Starts: 100, Per: time.Minute, Burst: 10},
			Busy: automutex.RetryIn(5 * time.Second),
		},
		{
			Task: "404", On: []string{"on", "1.0", "yes"}, OnHeaders: []string{"tenant"},
			TTL: time.Minute, Wait: 10 * time.Second, Busy: automutex.Archive,
		},
		{
			Task: "webhook", OnHeaders: []string{"tenant"}, TTL: time.Minute, Wait: 10 * time.Second,
			InOrder: true, OnArchive: automutex.Continue, MaxQueued: 1000, Busy: automutex.Park,
		},
	}}
	same(t, mustLoad(t, "testdata/every-key.yaml"), want)
}

func TestLoad_json(t *testing.T) {
	t.Parallel()
	same(t, mustLoad(t, "testdata/rules.json"), automutex.Config{Prefix: "myapp", Rules: []automutex.Rule{
		{Task: "itunes:verify", On: []string{"transaction_id"}, Limit: 3, Wait: 10 * time.Second, Busy: automutex.RetryIn(30 * time.Second)},
		{Task: `café / 😀 \ud83d\ude00 bar`, Wait: 10 * time.Second, Busy: automutex.Skip},
	}})
}

// same compares, empty and nil lists alike.
func same(t *testing.T, got, want automutex.Config) {
	t.Helper()
	for _, cfg := range []*automutex.Config{&got, &want} {
		for i := range cfg.Rules {
			cfg.Rules[i].On = append([]string{}, cfg.Rules[i].On...)
			cfg.Rules[i].OnHeaders = append([]string{}, cfg.Rules[i].OnHeaders...)
		}
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

// Which fields of the Go types are keys is told by the test of every key; these are the others, and every key is a field.
func TestKeys_areTheFields(t *testing.T) {
	t.Parallel()
	others := map[string]string{
		"the file": "decode inspector logger min_replicas observe owner private wait wake_at_front",
		"a rule":   "after_failure key limit_field limit_of payload", "defaults": "after_failure key limit_field limit_of name payload task", "a unique rule": "key payload",
	}
	for of, o := range objects {
		if keys, _ := o.fields(of); len(keys) != len(o.help) {
			t.Errorf("%s has the keys %q, not %q", o.what, keys, sorted(o.help))
		}
		if got := strings.Join(sorted(o.not), " "); got != others[o.what] {
			t.Errorf("%s has no %q, want %q", o.what, got, others[o.what])
		}
	}
}

// All policies that a word names, those that New refuses in this version too.
func TestPolicies(t *testing.T) {
	t.Parallel()
	for word, want := range map[string]automutex.Policy{
		"retry": automutex.Retry, "skip": automutex.Skip, "archive": automutex.Archive, "fail": automutex.Fail,
		"park": automutex.Park, "allow": automutex.Allow, "{retry_in: 5s}": automutex.RetryIn(5 * time.Second),
	} {
		if got := mustParse(t, "rules: [{task: a, busy: "+word+"}]").Rules[0].Busy; got != want {
			t.Errorf("%s: got %s", word, got)
		}
	}
}

// A rule's own value takes the place of a default, an empty or zero one too.
func TestDefaults(t *testing.T) {
	t.Parallel()
	cfg := mustParse(t, `
defaults: {on: [tenant], scope: all, limit: 2, ttl: 1m, wait: 5s, max_hold: 1h, rate: {starts: 5, per: 1m}, busy: skip}
rules:
  - task: a
  - {task: b, on: [], scope: "", limit: 0, ttl: 0s, wait: 0, max_hold: 0s, rate: none, busy: retry}
`)
	same(t, cfg, automutex.Config{Rules: []automutex.Rule{
		{Task: "a", On: []string{"tenant"}, Scope: "all", Limit: 2, TTL: time.Minute, Wait: 5 * time.Second, MaxHold: time.Hour,
			Rate: automutex.Rate{Starts: 5, Per: time.Minute}, Busy: automutex.Skip},
		{Task: "b", Busy: automutex.Retry},
	}})
	// Rules do not share what they have of the defaults.
	cfg = mustParse(t, "defaults: {on: [tenant]}\nrules: [{task: a}, {task: b}]")
	cfg.Rules[0].On[0] = "changed"
	if cfg.Rules[1].On[0] != "tenant" {
		t.Error("two rules share one list")
	}
}

func TestParse_nothingIsExpanded(t *testing.T) {
	t.Setenv("WORK", "expanded")
	cfg := mustParse(t, "rules: [{task: $WORK, scope: '${WORK}', on: ['%WORK%', '{{.WORK}}']}]")
	same(t, cfg, automutex.Config{Rules: []automutex.Rule{{Task: "$WORK", Scope: "${WORK}", On: []string{"%WORK%", "{{.WORK}}"}}}})
}

func TestLoad_noFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for path, want := range map[string]string{
		filepath.Join(dir, "missing.yaml"): "no such file",
		dir:                                "is a directory",
		"":                                 "no such file",
		"nul\x00byte":                      "invalid argument",
	} {
		cfg, _, err := Load(path)
		if err == nil || !strings.HasPrefix(err.Error(), "config: ") || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %v; want %q", path, err, want)
		}
		same(t, cfg, automutex.Config{})
	}
}

// The errors are joined Errors, for programs that want more than their text.
func TestError(t *testing.T) {
	t.Parallel()
	_, _, err := Load("testdata/mistakes.yaml")
	var first *Error
	if !errors.As(err, &first) || first.File != "testdata/mistakes.yaml" || first.Line != 1 || first.Column != 1 || !strings.Contains(first.Text, `"prefx"`) {
		t.Errorf("got %+v", first)
	}
}

// The example of the package's comment is one.
func TestDoc(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("config.go")
	if err != nil {
		t.Fatal(err)
	}
	_, example, _ := strings.Cut(string(source), "\n\n\tprefix:")
	example, _, _ = strings.Cut(example, "\n\n")
	cfg := mustParse(t, strings.ReplaceAll("\tprefix:"+example, "\n\t", "\n")[1:])
	if len(cfg.Rules) != 4 || cfg.Prefix != "myapp" || cfg.Rules[1].Wait != 10*time.Second || cfg.Rules[2].Wait != 0 {
		t.Errorf("got %+v", cfg)
	}
}
