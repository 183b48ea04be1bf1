package config

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/limitfield"
	"github.com/automutex/automutex/unique"
)

// everyField has each key of a file with a value in at least one rule.
func everyField() (automutex.Config, unique.Config) {
	const secret = "sixteen bytes and more"
	return automutex.Config{Prefix: "my", HashKeys: secret, Rules: []automutex.Rule{
			{
				Name: "no", Task: "404", On: []string{"on", "user.id", "items.0.sku"}, OnHeaders: []string{"tenant", "x: y #z", `quote " and \`},
				Scope: "café ]\u2028\u0085\ufeff\U0001F600", Limit: 3, TTL: 90 * time.Second, Wait: time.Hour, MaxHold: 1500 * time.Microsecond,
				Cooldown: 10 * time.Minute, Rate: automutex.Rate{Starts: 100, Per: time.Minute, Burst: 10}, Busy: automutex.RetryIn(90 * time.Minute),
			},
			{Task: "report", LimitOf: automutex.LimitField("tenant.max", 3, 50), Busy: automutex.Archive},
			{Task: "free", LimitOf: automutex.LimitField("n", 0, 0), Busy: automutex.Park},
			{Task: "plain:"},
		}}, unique.Config{Prefix: "my", HashKeys: secret, Rules: []unique.Rule{
			{
				Task: "~", Queue: "low", On: []string{"id"}, OnHeaders: []string{"null"}, Scope: "true", Until: unique.UntilStart,
				Duplicate: unique.Postpone(5 * time.Second), MaxPostpone: time.Minute, KeepArchived: true,
			},
			{Task: "window", Until: unique.For(10 * time.Minute), Duplicate: unique.Join},
		}}
}

// What Export writes, Parse reads as the same rules. Each key that a file knows is tried,
// so that a new one is not forgotten here.
func TestExport_roundTrip(t *testing.T) {
	t.Parallel()
	cfg, once := everyField()
	text := sameAgain(t, cfg, once)
	tried(t, text, ruleKeys, cfg.Rules)
	tried(t, text, uniqueKeys, once.Rules)
	for _, k := range append(names(rateKeys), append(names(limitKeys), "prefix", "hash_keys")...) {
		if !strings.Contains(text, k+": ") {
			t.Errorf("%s is not tried:\n%s", k, text)
		}
	}
	for word, policy := range policies {
		sameAgain(t, automutex.Config{Rules: []automutex.Rule{{Task: word, Busy: policy, Wait: map[bool]time.Duration{true: time.Second}[policy == automutex.Retry]}}}, unique.Config{})
	}
	files, err := filepath.Glob("testdata/*.*")
	if err != nil || len(files) < 3 {
		t.Fatalf("%v, %v", files, err)
	}
	for _, file := range files {
		if cfg, once, err := Load(file); err == nil {
			sameAgain(t, cfg, once)
		}
	}
}

// tried holds that each key of a rule stands in the text, and that the Go field is set.
func tried[T any](t *testing.T, text string, keys []key[T], rules []T) {
	t.Helper()
	for _, k := range keys {
		set := false
		for i := range rules {
			field := reflect.ValueOf(&rules[i]).Elem().FieldByName(goName(new(T), k.name))
			set = set || field.IsValid() && !field.IsZero()
		}
		if !set || !strings.Contains(text, k.name+": ") {
			t.Errorf("%s is not tried: set %t, in\n%s", k.name, set, text)
		}
	}
}

func sameAgain(t *testing.T, cfg automutex.Config, once unique.Config) string {
	t.Helper()
	text, err := Export(cfg, once)
	if err != nil {
		t.Fatal(err)
	}
	gotCfg, gotOnce, err := Parse(text)
	if err != nil {
		t.Fatalf("%s\n%v", text, err)
	}
	if got, want := plainly(gotCfg.Rules), plainly(cfg.Rules); !reflect.DeepEqual(got, want) {
		t.Errorf("%s\nmakes %+v\nwant  %+v", text, got, want)
	}
	if got, want := plainly(gotOnce.Rules), plainly(once.Rules); !reflect.DeepEqual(got, want) {
		t.Errorf("%s\nmakes %+v\nwant  %+v", text, got, want)
	}
	if gotCfg.Prefix != cfg.Prefix || gotCfg.HashKeys != cfg.HashKeys {
		t.Errorf("%s\nmakes %q %q", text, gotCfg.Prefix, gotCfg.HashKeys)
	}
	return string(text)
}

// plainly makes of rules what DeepEqual compares: no empty lists, and arguments for
// functions.
func plainly[T any](rules []T) []map[string]any {
	all := []map[string]any{}
	for i := range rules {
		fields := map[string]any{}
		for _, field := range reflect.VisibleFields(reflect.TypeFor[T]()) {
			value := reflect.ValueOf(rules[i]).FieldByIndex(field.Index)
			if value.IsZero() || value.Kind() == reflect.Slice && value.Len() == 0 {
				continue
			}
			fields[field.Name] = value.Interface()
			if limit, ok := value.Interface().(automutex.LimitFunc); ok {
				of := *limitfield.Of(limit)
				of.Read = nil // functions are never equal
				fields[field.Name] = of
			}
		}
		all = append(all, fields)
	}
	return all
}

// Export refuses what a file cannot say, all at once, each with its rule and field. A
// function of the user's is not called for it.
func TestExport_refuses(t *testing.T) {
	t.Parallel()
	called := func(context.Context, *asynq.Task) (int, error) {
		t.Error("a LimitOf of the program was called")
		return 1, nil
	}
	cfg := automutex.Config{Decode: func(*asynq.Task) ([]byte, error) { return nil, nil }, Owner: "w1", MaxWaiting: 7, Rules: []automutex.Rule{
		{Task: "a", Key: func(context.Context, *asynq.Task) ([]string, error) { return nil, nil }},
		{Name: "second", Task: "b", LimitOf: called},
		{Task: "c", Busy: automutex.AfterFailure(func(context.Context, *asynq.Task, *automutex.BusyError) error { return nil })},
		{Task: "d", On: []string{"ID"}, Payload: struct{ ID int }{}},
	}}
	once := unique.Config{Rules: []unique.Rule{{Task: "e", Key: cfg.Rules[0].Key}}}
	_, err := Export(cfg, once)
	if err == nil {
		t.Fatal("it was exported")
	}
	var got []string
	for _, leaf := range leaves(err) {
		var field *automutex.FieldError
		if !errors.As(leaf, &field) || !strings.Contains(leaf.Error(), "cannot be in a file: it is a Go function: set ") {
			t.Errorf("%v", leaf)
			continue
		}
		got = append(got, fmt.Sprintf("%d %s %s", field.Rule, field.RuleName, field.Field))
	}
	if want := "[-1  Decode 0 a Key 1 second LimitOf 2 c Busy 0 e Key]"; fmt.Sprint(got) != want {
		t.Errorf("refused %v\nwant    %s", got, want)
	}
	for name, c := range map[string]struct {
		cfg  automutex.Config
		once unique.Config
		want string
	}{
		"nothing":          {automutex.Config{}, unique.Config{}, "no rules to export"},
		"prefixes":         {automutex.Config{Prefix: "a", Rules: []automutex.Rule{{Task: "a"}}}, unique.Config{Rules: []unique.Rule{{Task: "a"}}}, `is "a" here and "" in unique.Config`},
		"secrets":          {automutex.Config{HashKeys: "sixteen bytes and more", Rules: []automutex.Rule{{Task: "a"}}}, unique.Config{Rules: []unique.Rule{{Task: "a"}}}, "Config.HashKeys: differs"},
		"New":              {automutex.Config{Rules: []automutex.Rule{{Task: "a", Limit: -1}}}, unique.Config{}, `rule "a" (Rules[0]): Limit`},
		"unique.New":       {automutex.Config{}, unique.Config{Rules: []unique.Rule{{Task: ""}}}, `unique: rule "" (Rules[0]): Task`},
		"not UTF-8":        {automutex.Config{Rules: []automutex.Rule{{Task: "a\xff"}}}, unique.Config{}, "UTF-8"},
		"not a LimitField": {automutex.Config{Rules: []automutex.Rule{{Task: "a", LimitOf: automutex.LimitField("a..b", 1, 2)}}}, unique.Config{}, "LimitOf"},
	} {
		if text, err := Export(c.cfg, c.once); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q\n%s", name, err, c.want, text)
		}
	}
}

// FuzzExport: whatever the text in a rule, what is written reads back.
func FuzzExport(f *testing.F) {
	for _, s := range []string{"a", "null", "~", "1e3", "a: b", "#", "x\u0085y", "\\u0041", "'", "- a", "a:", ":a", "0x1F", "<<", "=", "!tag", "\u200d", "\ud7ff\ue000\uffff\U0010ffff"} {
		f.Add(s, s, s, int64(time.Second))
	}
	f.Fuzz(func(t *testing.T, task, on, scope string, wait int64) {
		cfg := automutex.Config{Rules: []automutex.Rule{{Name: scope + task, Task: task, OnHeaders: []string{on, task}, Scope: scope, Wait: time.Duration(wait)}}}
		if _, err := Export(cfg, unique.Config{}); err != nil {
			var field *automutex.FieldError
			if !errors.As(err, &field) {
				t.Fatalf("refused without a field: %v", err)
			}
			return
		}
		sameAgain(t, cfg, unique.Config{})
	})
}
