package config

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/unique"
)

func mustParse(t *testing.T, text string) automutex.Config {
	t.Helper()
	cfg, _, err := Parse([]byte(text))
	if err != nil {
		t.Fatalf("%s\n%v", text, err)
	}
	return cfg
}

// Every key, and what a JSON file writes otherwise than a YAML file.
func TestLoad(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]automutex.Config{
		"testdata/every-key.yaml": {Prefix: "myapp", HashKeys: "9f2c41d07b6a8e35", History: 50, Rules: []automutex.Rule{
			{
				Name: "verify", Task: "itunes:verify", On: []string{"transaction_id", "user.id", "items.0.sku"},
				OnHeaders: []string{"tenant", "region"}, Scope: "itunes", Optional: true, Limit: 3, TTL: 90 * time.Second,
				Wait: 90 * time.Minute, MaxHold: 500 * time.Millisecond, Busy: automutex.Skip,
			},
			{
				Task: "cron:digest", TTL: time.Minute, Cooldown: 10 * time.Minute, Fence: true, Limit: 1,
				Rate: automutex.Rate{Starts: 100, Per: time.Minute, Burst: 10}, Busy: automutex.RetryIn(5 * time.Second),
			},
			{
				Task: "404", On: []string{"on", "1.0", "yes"}, OnHeaders: []string{"tenant"},
				TTL: time.Minute, Wait: 10 * time.Second, Busy: automutex.Archive,
			},
			{
				Task: "webhook", OnHeaders: []string{"tenant"}, TTL: time.Minute, Wait: 10 * time.Second,
				InOrder: true, OnArchive: automutex.Continue, MaxQueued: 1000, Busy: automutex.Park,
				StartWithin: 30 * time.Second, Late: automutex.Skip,
			},
		}},
		"testdata/rules.json": {Prefix: "myapp", Rules: []automutex.Rule{
			{Task: "itunes:verify", On: []string{"transaction_id"}, Limit: 3, Wait: 10 * time.Second,
				Busy: automutex.RetryIn(30 * time.Second)},
			{Task: `café / \ud83d bar`, Wait: 10 * time.Second, Busy: automutex.Skip},
		}},
	} {
		cfg, _, err := Load(path)
		redistest.Must(t, err)
		same(t, cfg, want)
	}
	cfg, once, err := Load("testdata/unique.yaml")
	redistest.Must(t, err)
	want := unique.Config{Prefix: "myapp", HashKeys: "0123456789012345", Rules: []unique.Rule{
		{
			Task: "reindex", Queue: "low", On: []string{"document_id"}, OnHeaders: []string{"tenant"}, Optional: true,
			Scope: "documents",
			Until: unique.UntilStart, Duplicate: unique.Postpone(5 * time.Second), MaxPostpone: time.Minute, KeepArchived: true,
		},
		{Task: "digest", On: []string{"user_id"}, Until: unique.For(10 * time.Minute), Duplicate: unique.Join},
		{Task: "mail:", Until: unique.UntilDone, Duplicate: unique.Replace},
		{Task: "other", Duplicate: unique.Reject},
	}}
	if !reflect.DeepEqual(once, want) || cfg.HashKeys != once.HashKeys || len(cfg.Rules) != 1 ||
		cfg.Rules[0].Wait != 10*time.Second {
		t.Errorf("got  %+v and %+v\nwant %+v", cfg, once, want)
	}
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

// Every field of a Go rule is a key, but for what a file cannot have, and the schema says what each key is about.
func TestKeys_areTheFields(t *testing.T) {
	t.Parallel()
	for what, of := range objects {
		for _, f := range fields(of) {
			if f.Tag.Get("about") == "" {
				t.Errorf("%s: nothing is said about %s", what, f.Tag.Get("yaml"))
			}
		}
	}
	const others = " Key LimitField LimitOf RateOf AfterFailure Payload "
	for _, c := range []struct{ of, in reflect.Type }{
		{reflect.TypeFor[automutex.Rule](), reflect.TypeFor[rule]()},
		{reflect.TypeFor[unique.Rule](), reflect.TypeFor[uniqueRule]()},
	} {
		for _, f := range reflect.VisibleFields(c.of) {
			key, is := c.in.FieldByName(f.Name)
			if is == strings.Contains(others, " "+f.Name+" ") || is &&
				(key.Tag.Get("yaml") != keyOf(f.Name) || inFile(f.Name, nil) != keyOf(f.Name)) {
				t.Errorf("%s.%s has the key %q: %v; an error calls it %s", c.of, f.Name, key.Tag.Get("yaml"), is,
					inFile(f.Name, nil))
			}
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
		{Task: "a", On: []string{"tenant"}, Scope: "all", Limit: 2, TTL: time.Minute, Wait: 5 * time.Second,
			MaxHold: time.Hour,
			Rate:    automutex.Rate{Starts: 5, Per: time.Minute}, Busy: automutex.Skip},
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
	same(t, cfg, automutex.Config{Rules: []automutex.Rule{{Task: "$WORK", Scope: "${WORK}", On: []string{"%WORK%",
		"{{.WORK}}"}}}})
}

// A limit is a number, none, or of the payload, also beside a number in defaults.
func TestLimit(t *testing.T) {
	t.Parallel()
	cfg := mustParse(t, `
defaults: {limit: 5}
rules:
  - {task: a, limit: {field: tenant.max, default: 3, most: 50}}
  - {task: b}
  - {task: c, limit: unlimited, rate: {starts: 100, per: 1m}}
`)
	same(t, cfg, automutex.Config{Rules: []automutex.Rule{
		{Task: "a", LimitField: &automutex.LimitField{Path: "tenant.max", Default: 3, Most: 50}},
		{Task: "b", Limit: 5}, {Task: "c", Limit: automutex.Unlimited, Rate: automutex.Rate{Starts: 100, Per: time.Minute}},
	}})
}

// A rate and a cost of the payload: a text as people write a rate, and a number.
func TestRate_ofPayload(t *testing.T) {
	t.Parallel()
	cfg := mustParse(t, `
defaults: {limit: unlimited, rate: {starts: 1, per: 1s}, cost: {field: n}}
rules:
  - {task: a, rate: {field: plan.rate, default: 9/1h}, cost: {field: n, default: 1, most: 50}}
  - {task: b, rate: {field: plan.rate}, cost: none}
  - {task: c}
  - {task: d, cost: {field: n, default: 0}}
`)
	_, _, err := Parse([]byte("rules: [{task: a, rate: {starts: 1, per: 1s}, cost: {field: n, most: -1}}]"))
	if err == nil || !strings.Contains(err.Error(), "most: it is negative") {
		t.Errorf("a most of -1: %v", err)
	}
	if cost, err := cfg.Rules[3].Cost(t.Context(), asynq.NewTask("d", []byte("{}"))); cost != 0 || err != nil {
		t.Errorf("by default it costs %d, %v", cost, err)
	}
	nine := automutex.Rate{Starts: 9, Per: time.Hour}
	for payload, want := range map[string]struct {
		rate, alone  automutex.Rate // with the default, and without it
		cost, bare   int            // so
		wrong, lacks string
	}{
		`{"n": 0, "plan": {"rate": "100/1m burst 10"}}`: {automutex.Rate{Starts: 100, Per: time.Minute, Burst: 10},
			automutex.Rate{Starts: 100, Per: time.Minute, Burst: 10}, 0, 0, "", ""},
		`{"n": "77", "plan": {"rate": "none"}}`:    {cost: 50, bare: 77},
		`{}`:                                       {nine, automutex.Rate{}, 1, 0, "", "is missing"},
		`{"n": -1, "plan": {"rate": "1/1m x"}}`:    {wrong: "want a ", lacks: "want a "},
		`{"n": 1.5, "plan": {"rate": "0/1m"}}`:     {wrong: "want a ", lacks: "want a "},
		`{"n": [], "plan": {"rate": "1/1 burst"}}`: {wrong: "want a ", lacks: "want a "},
	} {
		task := asynq.NewTask("a", []byte(payload))
		check := func(got, want any, err error, says string) {
			t.Helper()
			var never *automutex.KeyError
			if errors.As(err, &never) != (says != "") || err != nil && !strings.Contains(err.Error(), says) ||
				err == nil && got != want {
				t.Errorf("%s: %v, %v; want %v, %q", payload, got, err, want, says)
			}
		}
		rate, err := cfg.Rules[0].RateOf(t.Context(), task)
		check(rate, want.rate, err, want.wrong)
		rate, err = cfg.Rules[1].RateOf(t.Context(), task)
		check(rate, want.alone, err, want.lacks)
		cost, err := cfg.Rules[0].Cost(t.Context(), task)
		check(cost, want.cost, err, want.wrong)
		cost, err = cfg.Rules[2].Cost(t.Context(), task)
		check(cost, want.bare, err, want.lacks)
	}
	if cfg.Rules[1].Cost != nil || cfg.Rules[2].RateOf != nil || cfg.Rules[2].Rate.Starts != 1 {
		t.Errorf("%+v", cfg.Rules)
	}
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
		if err == nil || !strings.HasPrefix(err.Error(), "config: ") || !strings.Contains(err.Error(), want) ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %v; want %q", path, err, want)
		}
		same(t, cfg, automutex.Config{})
	}
}

// The example of the package's comment is one.
func TestDoc(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("config.go")
	redistest.Must(t, err)
	_, example, _ := strings.Cut(string(source), "\n\n\tprefix:")
	example, _, _ = strings.Cut(example, "\n\n")
	cfg := mustParse(t, strings.ReplaceAll("\tprefix:"+example, "\n\t", "\n")[1:])
	if len(cfg.Rules) != 3 || cfg.Prefix != "myapp" || cfg.Rules[0].Wait != 10*time.Second || cfg.Rules[1].Wait != 0 {
		t.Errorf("got %+v", cfg)
	}
}
