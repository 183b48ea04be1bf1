package config

import (
	"reflect"
	"testing"
	"time"

	"github.com/automutex/automutex/unique"
)

func TestLoad_unique(t *testing.T) {
	t.Parallel()
	cfg, once, err := Load("testdata/unique.yaml")
	if err != nil {
		t.Fatal(err)
	}
	want := unique.Config{Prefix: "myapp", HashKeys: "0123456789012345", Rules: []unique.Rule{
		{
			Task: "reindex", Queue: "low", On: []string{"document_id"}, OnHeaders: []string{"tenant"}, Optional: true, Scope: "documents",
			Until: unique.UntilStart, Duplicate: unique.Postpone(5 * time.Second), MaxPostpone: time.Minute, KeepArchived: true,
		},
		{Task: "digest", On: []string{"user_id"}, Until: unique.For(10 * time.Minute), Duplicate: unique.Join},
		{Task: "mail:", Until: unique.UntilDone, Duplicate: unique.Replace},
		{Task: "other", Duplicate: unique.Reject},
	}}
	if !reflect.DeepEqual(once, want) {
		t.Errorf("got  %+v\nwant %+v", once, want)
	}
	if cfg.Prefix != "myapp" || cfg.HashKeys != once.HashKeys || len(cfg.Rules) != 1 || cfg.Rules[0].Wait != 10*time.Second {
		t.Errorf("got %+v", cfg)
	}
	// One half will do.
	if _, once, err := Parse([]byte("unique: [{task: a}]")); err != nil || len(once.Rules) != 1 {
		t.Errorf("got %+v, %v", once, err)
	}
}

func TestLoad_uniqueMistakes(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"unique: {}":                                                        "1:9 unique: is a mapping; it is a list",
		"unique: [a]":                                                       "1:10 a unique rule is \"a\"",
		"unique: [{tsk: a}]":                                                `1:11 unknown key "tsk" in a unique rule; did you mean task?`,
		"unique: [{task: a, limit: 1}]":                                     `1:20 unknown key "limit" in a unique rule, which has task, queue,`,
		"unique: [{task: a, key: b}]":                                       "1:20 key: cannot be in a unique rule: it is a Go function",
		"unique: [{task: ''}]":                                              "1:17 unique rule \"\": task: \"\" is blank",
		"unique: [{task: a, on: [b..c]}]":                                   `1:25 unique rule "a": on: "b..c" has an empty segment`,
		"unique: [{task: a, queue: ' '}]":                                   `1:27 unique rule "a": queue: " " is blank`,
		"unique: [{task: a, until: sttart}]":                                `1:27 until: "sttart" is unknown; did you mean start? There are done, start or {for: 10m}`,
		"unique: [{task: a, until: for}]":                                   `1:27 until: for goes with its time: {for: 5s}`,
		"unique: [{task: a, until: {for: 10}}]":                             `1:33 until: for: want a duration with its unit: 10s, 10ms, not "10"`,
		"unique: [{task: a, until: {for: 0s}}]":                             `1:27 until: For(0s) is no window`,
		"unique: [{task: a, duplicate: jion}]":                              `1:31 duplicate: "jion" is unknown; did you mean join?`,
		"unique: [{task: a, duplicate: {postpne: 1s}}]":                     `1:32 duplicate: unknown key "postpne" in it; did you mean postpone?`,
		"unique: [{task: a, duplicate: {postpone: -1s}}]":                   `1:31 duplicate: Postpone(-1s) is no delay`,
		"unique: [{task: a, max_postpone: 1m}]":                             `1:34 max_postpone: 1m0s has no meaning with Duplicate reject`,
		"unique: [{task: a, keep_archived: 1}]":                             `1:35 keep_archived: want true or false, not "1"`,
		"unique:\n- {task: a, scope: s}\n- {task: a, scope: s}":             `3:10 unique rule "a": task: is that of line 2 too`,
		"unique:\n- {task: a, scope: s}\n- {task: b, scope: s, queue: low}": `3:30 unique rule "b": queue: is low, but rule "a" (line 2) has default for the same scope`,
		// Each once, although both halves have it.
		"prefix: 'a b'\nrules: [{task: a}]\nunique: [{task: a}]":       `1:9 prefix: lock: prefix "a b"`,
		"hash_keys: true\nrules: [{task: a}]\nunique: [{task: a}]":     "1:12 hash_keys: lock: the secret for hashed keys has 4 bytes: at least 16",
		"rules: [{task: a, limit: -1}]\nunique: [{task: b, until: x}]": "1:26 rule \"a\": limit\n2:27 until: \"x\" is unknown",
	} {
		_, _, err := Parse([]byte(text))
		wantMistakes(t, "config", err, want)
	}
}
