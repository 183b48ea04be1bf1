package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/unique"
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

// Every field of the Go types is a key, or has a reason why it is none; and every key is a field.
func TestKeys_areTheFields(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		object object
		of     []reflect.Type
	}{
		{ofRule, []reflect.Type{reflect.TypeFor[automutex.Rule]()}},
		{ofFile, []reflect.Type{reflect.TypeFor[automutex.Config](), reflect.TypeFor[unique.Config](), reflect.TypeFor[file]()}},
		{ofUnique, []reflect.Type{reflect.TypeFor[unique.Rule]()}},
		{ofRate, []reflect.Type{reflect.TypeFor[automutex.Rate]()}},
		{ofLimit, []reflect.Type{reflect.TypeFor[automutex.LimitField]()}},
	} {
		fields := map[string]bool{}
		for _, of := range test.of {
			for _, field := range reflect.VisibleFields(of) {
				key := keyOf(field.Name)
				fields[key] = true
				if (test.object.help[key] != "") == (test.object.not[key] != "") {
					t.Errorf("%s.%s: %q is to be a key, or to have a reason why not", of, field.Name, key)
				}
			}
		}
		for key := range test.object.help {
			if !fields[key] {
				t.Errorf("%s: %q is no field", test.object.what, key)
			}
		}
	}
}

// All policies that a word names, those that New refuses in this version too.
func TestPolicies(t *testing.T) {
	t.Parallel()
	for word, want := range map[string]automutex.Policy{
		"retry": automutex.Retry, "skip": automutex.Skip, "archive": automutex.Archive, "fail": automutex.Fail,
		"park": automutex.Park, "replace": automutex.Replace, "allow": automutex.Allow,
		"{retry_in: 5s}": automutex.RetryIn(5 * time.Second),
	} {
		d := &decoder{file: "config"}
		f, _, _, _ := d.document(d.root(fmt.Appendf(nil, "rules: [{task: a, busy: %s}]", word)))
		if len(d.mistakes) > 0 || f.Rules[0].Busy != want {
			t.Errorf("%s: got %s, %v", word, f.Rules[0].Busy, d.err())
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
	large := filepath.Join(dir, "large.yaml")
	if err := os.WriteFile(large, []byte(strings.Repeat("# comment\n", maxSize/10+1)), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		filepath.Join(dir, "missing.yaml"): "no such file",
		dir:                                "is a directory",
		large:                              "more than 4 MiB",
		"":                                 "no such file",
		"nul\x00byte":                      "invalid argument",
	} {
		cfg, _, err := Load(path)
		if err == nil || !strings.HasPrefix(err.Error(), "config: ") || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %v; want %q", path, err, want)
		}
		same(t, cfg, automutex.Config{})
	}
	if _, _, err := Parse(make([]byte, maxSize+1)); err == nil || !strings.Contains(err.Error(), "4 MiB") {
		t.Errorf("got %v", err)
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
