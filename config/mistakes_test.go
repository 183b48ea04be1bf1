package config

import (
	"errors"
	"strings"
	"testing"
)

// wantMistakes holds the mistakes in err against lines of "line:column words", all of them and in this order.
func wantMistakes(t *testing.T, file string, err error, want string) {
	t.Helper()
	if err == nil {
		t.Fatal("no mistake")
	}
	got, wanted := strings.Split(err.Error(), "\n"), strings.Split(strings.TrimSpace(want), "\n")
	for i := range max(len(got), len(wanted)) {
		switch {
		case i >= len(got):
			t.Errorf("missing: %s", wanted[i])
		case i >= len(wanted):
			t.Errorf("not wanted: %s", got[i])
		default:
			place, words, _ := strings.Cut(strings.TrimSpace(wanted[i]), " ")
			if !strings.HasPrefix(got[i], file+":"+place+": "+words) {
				t.Errorf("got %s\nwant %s %s", got[i], place, words)
			}
		}
	}
}

// Every mistake at once, each at its place; what New would refuse of rules with such mistakes is told once these are
// gone.
func TestLoad_everyMistake(t *testing.T) {
	t.Parallel()
	_, _, err := Load("testdata/mistakes.yaml")
	wantMistakes(t, "testdata/mistakes.yaml", err, `
		1:1 unknown key "prefx"; did you mean prefix?
		2:9 prefix: lock: prefix "a{b}" has a brace
		3:1 unknown key "owner"; there are prefix, hash_keys,
		5:8 defaults: ttl: 1ms is too short
		7:5 unknown key "taks"; did you mean task?
		8:9 on: want a list, such as [a, b], not text
		11:25 on: there is no value
		12:12 limit: want a whole number, such as 3, not text
		13:10 ttl: want a duration with its unit, such as 500ms, 30s or 24h, not number
		14:5 unknown key "key"; there are name, task,
		19:5 mapping key "busy" already defined at line 18
		21:9 ttl: there is no value; give one, or leave the key out; a text with a colon at its end needs quotes
		22:12 limit: want a whole number, such as 3, not text
		23:11 busy: "retry_inn" is unknown; did you mean {retry_in: 5s}?
		26:15 cooldown: want a duration with its unit, such as 500ms, 30s or 24h, not text
		28:10 ttl: want a duration
		29:5 want keys with values, not text
		30:5 want keys with values, not a list
		34:11 rule "two": rate: a rate of -1 starts: at least 1
		37:11 rule "three": wait: -1s is too short`)
	var first *Error
	if !errors.As(err, &first) || first.File != "testdata/mistakes.yaml" || first.Line != 1 || first.Column != 1 {
		t.Errorf("the first is %+v", first)
	}
}

func TestParse_mistakes(t *testing.T) {
	t.Parallel()
	texts := map[string]string{
		"":                 "1:1 not YAML: no documents",
		"---\n...\n":       "2:1 there is no value",
		"rules":            "1:1 want keys with values",
		"- task: a":        "1:1 want keys with values",
		"prefix: a":        "1:1 there are no rules",
		"rules: []":        "1:1 there are no rules",
		"rules:":           "1:7 rules: there is no value",
		"rules: {task: a}": "1:8 rules: want a list of rules",
		"rules:\n  -":      "2:4 there is no value",
		"rules: [{}]":      `1:9 rule "": task: "" is blank`,

		"rules: [{task: a}]\nrules: []":        `2:1 mapping key "rules" already defined at line 1`,
		"defaults: [a, b]\nrules: [{task: a}]": "1:11 defaults: want keys with values",

		"defaults: {task: a}\nrules: [{task: a}]": `1:12 defaults: unknown key "task"; there are on,`,
		"rules: [{task: [a]}]":                    "1:16 task: want text, not a list",
		"hash_keys: ''\nrules: [{task: a}]":       "1:12 hash_keys: the secret is empty",
		"rules: [{task: a, limit: 1, scope: s}, {task: b, limit: 1, scope: s, rate: {field: x}}]": `1:76 rule "b": rate: is true, but rule "a" (line 1) has false`,
		"<<: 1\nrules: [{task: a}]": "1:1 anchors,\n1:1 go-yaml load error",
		"a: &a [x]\nb: &b [*a, *a]\nrules: []": "1:1 unknown key \"a\"\n1:4 a: anchors,\n2:1 unknown " +
			"key \"b\"\n2:4 b: anchors,\n2:8 b: anchors,\n2:12 b: anchors,",
		"rules: [{task: a}]\n---\nrules: []\n": "1:1 not YAML: expected single document",
		"rules: [{task: a}]\n...\n[":           "4:1 not YAML",
		"rules:\n\t- task: a":                  "2:1 not YAML",
		"rules:\n  - task: 'b\x00'":            "1:1 not YAML: control characters are not allowed",
		"rules:\n  - task: é\xff":              "1:1 not YAML: invalid leading UTF-8",
		"rules:\n- task: report:\n": "2:15 not YAML: mapping values are not allowed in " +
			"this context; a text with a colon at its end needs quotes",
		"rules: [{task: report:, on: [id]}]": "1:22 not YAML: while parsing a flow mapping: did not " +
			"find expected ',' or '}'; a text with a colon at its end needs quotes",
		"\ufeffrules: [{task: a}]\nx: 1": `2:1 unknown key "x"`,
		"rules: [{task: a, " + strings.Repeat("k", 1000) + ": 1}]": `1:19 unknown key "` + strings.Repeat("k", 60) +
			`"; there are name`,
		"rules: [{task: a, limit: 2, scope: s}, {task: b, scope: s}]": `1:40 rule "b": limit: is 1, but rule "a" (line 1) has 2 for the same scope "s"`,

		"rules:\n- {task: a, name: n}\n- {task: b, name: n}": `3:19 rule "n": name: is that of line 2 too`,

		"rules:\n- {task: a, name: 'Rules[7]'}\n- {task: b, ttl: -1s}": `3:18 rule "b": ttl: -1s is too short`,

		"rules:\n- {task: a, limit: 2, scope: 'Rules[9]'}\n- {task: b, scope: 'Rules[9]'}": `3:3 rule "b": limit: is 1, but rule "a" (line 2) has 2 for the same scope "Rules[9]"`,

		"unique: {}":  "1:9 unique: want a list of rules",
		"unique: [a]": "1:10 want keys with values",
		"unique:\n- {task: a, scope: s}\n- {task: b, scope: s, queue: low}": `3:30 unique rule "b": queue: is low, but rule "a" (line 2) has default for the same scope`,
		"defaults: {fence: true}\nrules: [{task: a, limit: 2}, {task: b, limit: x}]": "1:19 defaults: fence: needs a " +
			"limit of 1\n2:47 limit: want a whole number",
		"defaults: {scope: s}\nrules: [{task: a}]\nunique:\n  - {task: b, on: [x]}\n  - {task: b, on: [y]}": "" +
			"4:5 unique rule " +
			"\"b\": scope: is empty\n5:5 unique rule \"b#2\": scope: is empty\n5:12 unique rule \"b\": task: is that of line 4",
		"defaults: {ttl: 1x}\nrules: [{task: a, wait: 1ns}, {task: b, ttl: 1ns}]": "1:17 defaults: ttl: want a duration\n" +
			"2:25 rule \"a\": wait: 1ns is too short\n2:46 rule \"b\": ttl: 1ns is too short",
		"unique:\n- {task: a, queue: 'Rules[9]', scope: s}\n- {task: b, scope: s}": `3:3 unique rule "b": queue: is default, but rule "a" (line 2) has rules[9] for`,
		// Each once, although both halves have it.
		"prefix: 'a b'\nrules: [{task: a}]\nunique: [{task: a}]": `1:9 prefix: lock: prefix "a b"`,
		"rules: [{task: a, limit: -1}]\nunique: [{task: b, until: x}]": "1:26 rule \"a\": limit\n2:27 until: " +
			"\"x\" is unknown",
	}
	// What stands after the task of a rule in that list.
	for list, mistakes := range map[string]map[string]string{
		"rules": {
			"? [b] : c":          "1:21 want text, not a list",
			"on: [b, b]":         `1:27 rule "a": on: "b" is there twice`,
			"on_archive: stop":   `1:31 on_archive: "stop" is unknown; there are continue, hold`,
			"on_archive: [hold]": `1:31 on_archive: "" is unknown`,
			"optional: 1":        "1:29 optional: want true or false",
			"wait: 10ns":         `1:25 rule "a": wait: 10ns is too short; use 0 to not wait in line, or at least 1ms; did you mean 10s?`,
			"on: ['x[0]']":       `1:24 rule "a": on: "x[0]" has a "[", as other notations have; write names`,
			"busy: skp":          `1:25 busy: "skp" is unknown; did you mean skip?`,
			"busy: retry_in":     `1:25 busy: "retry_in" is unknown; did you mean {retry_in: 5s}?`,
			"busy: {skip: 5s}":   "1:25 busy: ",
			"limit: {feild: n}":  `1:27 limit: unknown key "feild"; did you mean field?`,
			"limit: {}":          `1:26 rule "a": limit: "" is empty`,
			"limit: Unlimited":   "1:26 limit: want a whole number",
			"limit: 1, rate: 5":  "1:35 rate: want keys with values",
			"limit: 1, rate: {}": "1:35 rate: is empty; give starts and per",
			"cost: {field: x}":   `1:25 rule "a": cost: counts starts of a rate, and the rule has none; give it one, or leave cost out`,
			"<<: {ttl: 1m}":      "1:19 anchors, aliases, merge keys and tags are not read here",
			"ttl: !!str 1m":      "1:24 ttl: anchors,",

			"on_headers: [x, '']":           `1:35 rule "a": on_headers: is empty`,
			"busy: after_failure":           `1:25 busy: "after_failure" is unknown; there are allow, archive, fail, park, replace, retry, skip, {retry_in: 5s}`,
			"busy: {retry_in: soon}":        "1:36 busy: retry_in: want a duration",
			"busy: {retry_in: 7ns}":         "1:25 rule \"a\": busy: retry_in(7ns) is no delay",
			"limit: {field: n, most: many}": "1:43 limit: most: want a whole number",
			"limit: 1, rate: {start: 5}":    `1:36 rate: unknown key "start"; did you mean starts?`,
			"limit: 1, rate: {field: $.x}":  `1:35 rate: "$.x" has a "$"`,
			"limit: 1, rate: {field: x?}":   `1:35 rate: "x?" has a "?"`,
			"cost: {field: x, most: y}":     "1:42 cost: most: want a whole number",
			"limit: 1, rate: {starts: 5}":   `1:35 rule "a": rate: it needs both starts and per, such as 100 per minute`,

			"ttl: soon": "1:24 ttl: want a duration with its unit, such as 500ms, 30s or 24h, not text `soon`",

			"busy: {retry_in: 5s, skip: 1s}": `1:25 busy: "" is unknown`,

			"limit: {field: n, default: 9, most: 3}": `1:26 rule "a": limit: `,

			"limit: 1, rate: {field: x, default: 5}": "1:35 rate: want a rate within its bounds, such as 100/1m",

			// What New calls by its name in Go has that of the file, and what the user calls so keeps it.
			"name: Limit, rate: {starts: 1, per: 1m}": `1:9 rule "Limit": limit: is 0, and the rule has a rate: say 1 if its tasks also run one at a time, or unlimited if only the rate`,
		},
		"unique": {
			"limit: 1":                 `1:20 unknown key "limit"; there are task, queue,`,
			"on: [b..c]":               `1:25 unique rule "a": on: "b..c" has an empty segment`,
			"until: {for: 0s}":         `1:27 unique rule "a": until: for(0s) is no window`,
			"duplicate: {postpne: 1s}": `1:31 duplicate: "postpne" is unknown; did you mean {postpone: 5s}?`,
			"max_postpone: 1m":         `1:34 unique rule "a": max_postpone: 1m0s has no meaning with duplicate reject; leave it out, or use postpone`,

			"until: {for: 10}": "1:33 until: for: want a duration with its unit, such as 500ms, 30s or 24h, not number `10`",
		},
	} {
		for text, want := range mistakes {
			texts[list+": [{task: a, "+text+"}]"] = want
		}
	}
	for text, want := range texts {
		_, _, err := Parse([]byte(text))
		t.Run("", func(t *testing.T) {
			t.Parallel()
			wantMistakes(t, "config", err, want)
			if t.Failed() {
				t.Logf("in %.80q", text)
			}
		})
	}
}
