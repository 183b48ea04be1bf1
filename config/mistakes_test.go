package config

import (
	"strings"
	"testing"
)

// wantMistakes holds the mistakes in err against lines of "line:column words",
// all of them and in this order.
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
			if !strings.HasPrefix(got[i], file+":"+place+": ") || !strings.Contains(got[i], words) {
				t.Errorf("got %s\nwant %s %s", got[i], place, words)
			}
		}
	}
}

// Every mistake at once, each at its place.
func TestLoad_everyMistake(t *testing.T) {
	t.Parallel()
	_, _, err := Load("testdata/mistakes.yaml")
	wantMistakes(t, "testdata/mistakes.yaml", err, `
		1:1 unknown key "prefx" in the file; did you mean prefix?
		2:9 prefix "a{b}" has a brace
		3:1 set Config.Owner in the program
		5:3 task: cannot be in defaults
		6:8 defaults: ttl: 1ms is too short
		8:5 unknown key "taks" in a rule; did you mean task?
		9:9 on: want a list, such as [transaction_id], not "transaction_id"
		12:10 rule "report:": on: "tenant..id" has an empty segment
		12:25 on: there is no value
		13:12 limit: want a whole number in plain digits, such as 3, not "three"
		14:10 ttl: want a duration with its unit: 30s, 30ms, not "30"
		15:5 key: cannot be in a rule: it is a Go function: set Rule.Key in the program
		18:11 rule "cache:warm": wait: -1s is negative
		19:11 busy: "skp" is unknown; did you mean skip?
		20:5 busy: is there twice, first in line 19
		22:9 ttl: there is no value
		23:12 limit: want a whole number in plain digits, such as 3, not the text "3"
		24:12 busy: unknown key "retry_inn" in it; did you mean retry_in?
		25:5 rule "one": scope: is empty, and 2 rules have the Task "import"
		27:15 cooldown: want a duration in hours (a day is no unit here), such as 24h, not "1d"
		29:10 ttl: want a duration
		30:5 a rule is "import"; want keys with values: name, task, on,
		31:5 a rule is a list; want keys with values: name, task, on,
		32:5 rule "two": scope: is empty
		35:11 rule "two": rate: a rate of -1 starts: at least 1
		37:11 busy: retry_in goes with its time: {retry_in: 5s}
		38:5 unknown key "whatever" in a rule, which has name, task,`)
}

func TestParse_mistakes(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                                 "1:1 the file is empty",
		"# nothing\n":                      "1:1 the file is empty",
		"---\n...\n":                       "2:1 the file is nothing",
		"~":                                "1:1 the file is nothing",
		"rules":                            `1:1 the file is "rules"; want keys with values: prefix, hash_keys, history, defaults, rules, unique`,
		"- task: a":                        "1:1 the file is a list",
		"prefix: a":                        "1:1 there are no rules",
		"decode: f\nrules: [{task: a}]":    "1:1 decode: cannot be in the file: it is a Go function: set Config.Decode in the program",
		"rules:":                           "1:7 rules: is nothing; it is a list",
		"rules: {task: a}":                 "1:8 rules: is a mapping; it is a list",
		"rules:\n  -":                      "2:4 a rule is nothing",
		"rules: [[]]":                      "1:9 a rule is a list",
		"rules: [{}]":                      "1:9 task: \"\" is blank",
		"defaults: []\nrules: [{task: a}]": "1:11 defaults is a list",
		"rules: [{task: a}]\nrules: []":    "2:1 rules: is there twice, first in line 1",
		"rules: [{task: [a]}]":             "1:16 task: want text, not a list",
		"rules: [{task: a, scope: {}}]":    "1:26 scope: want text, not a mapping",
		"rules: [{task: a, on: {b: c}}]":   "1:23 on: want a list, such as [a, b], not a mapping",
		"rules: [{task: a, on: [b, b]}]":   `1:27 on: "b" is there twice`,
		"rules: [{task: a, on_headers: [x, '']}]":                        `1:35 on_headers: is empty`,
		"rules: [{task: a, on_archive: stop}]":                           `1:31 on_archive: "stop" is unknown; there are hold or continue`,
		"rules: [{task: a, on_archive: [hold]}]":                         `1:31 on_archive: want hold or continue, not a list`,
		"hash_keys: ''\nrules: [{task: a}]":                              `1:12 the secret is empty`,
		"rules: [{task: a, limit: 1.5}]":                                 `1:26 limit: want a whole number in plain digits, such as 3, not "1.5"`,
		"rules: [{task: a, limit: 0x10}]":                                `1:26 limit: want a whole number in plain digits`,
		"rules: [{task: a, limit: 99999999999999999999}]":                `1:26 limit: want a whole number`,
		"rules: [{task: a, limit: -1}]":                                  `1:26 rule "a": limit: -1 is negative`,
		"rules: [{task: a, ttl: [30s]}]":                                 "1:24 ttl: want a duration such as 500ms, 30s or 1h30m, not a list",
		"rules: [{task: a, ttl: 50ms}]":                                  "1:24 ttl: 50ms is too short",
		"rules: [{task: a, max_hold: 1us}]":                              "1:29 max_hold: 1µs is too short",
		"rules: [{task: a, busy: }]":                                     "1:25 busy: there is no value; want retry, skip,",
		"rules: [{task: a, busy: {}}]":                                   "1:25 busy: want retry, skip,",
		"rules: [{task: a, busy: [skip]}]":                               "1:25 busy: want retry, skip,",
		"rules: [{task: a, busy: after_failure}]":                        `1:25 busy: "after_failure" is unknown; there are retry,`,
		"rules: [{task: a, busy: {retry_in: 0s}}]":                       "1:25 busy: RetryIn(0s) is no delay",
		"rules: [{task: a, busy: {retry_in: soon}}]":                     "1:36 busy: retry_in: want a duration",
		"rules: [{task: a, busy: explode}]":                              `1:25 busy: "explode" is unknown; there are retry,`,
		"rules: [{task: a, ? [b] : c}]":                                  `1:21 unknown key "a list" in a rule`,
		"rules: [{task: a, <<: {ttl: 1m}}]":                              "1:19 the merge key <<",
		"rules: [{task: a, ttl: !!str 1m}]":                              "1:24 the tag !!str",
		"rules: [{task: a, payload: Args}]":                              "1:19 payload: cannot be in a rule: it is a Go value: set Rule.Payload in the program",
		"rules: [{task: a}]\n---\nrules: []\n":                           "2:1 a second document",
		"rules: [{task: a}]\n...\n[":                                     "4:1 not YAML",
		"rules:\n\t- task: a":                                            "2:1 not YAML",
		"rules: [{task: a}":                                              "2:1 not YAML",
		"rules:\n  - task: 'b\x00'":                                      "2:13 the byte 0x00 is no text",
		"rules:\n  - task: é\xff":                                        "2:12 the byte 0xff is no text; save the file as UTF-8",
		"\xff\xfer\x00u\x00":                                             "1:1 the byte 0xff is no text; save the file as UTF-8",
		"\ufeffrules: [{task: a, x: 1}]":                                 `1:19 unknown key "x"`,
		"a: &a [x]\nb: &b [*a, *a]\nrules: []":                           "1:4 the anchor &a\n2:4 the anchor &b\n2:8 the alias *a\n2:12 the alias *a",
		"rules: [{task: a, limit: 2, scope: s}, {task: b, scope: s}]":    `1:40 rule "b": limit: is 1, but rule "a" (line 1) has 2 for the same scope "s"`,
		"rules:\n- {task: a, name: n}\n- {task: b, name: n}":             `3:19 rule "n": name: is that of line 2 too`,
		"rules:\n- {task: a, name: 'Rules[7]'}\n- {task: b, ttl: -1s}":   `3:18 rule "b": ttl: -1s is too short`,
		"rules: [{task: " + strings.Repeat("a", 1000) + " , ttl: zzzz}]": `1:1024 ttl: want a duration`,
		"rules: [{task: a, " + strings.Repeat("k", 1000) + ": 1}]":       `1:19 unknown key "` + strings.Repeat("k", 60) + `"... in a rule`,
	} {
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

// A text that ends in a colon is to be quoted, and the mistake says so.
func TestParse_textThatEndsInAColon(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"rules:\n- task: report:\n":                     `2:`,
		"rules:\n- task: report: # all\n  on: [id]":     `2:`,
		"rules:\r\n- task: report:\r\n  on: [id]\r\n":   `2:`,
		"rules: [{task: report:, on: [id]}]":            `1:`,
		"rules: [{task: report: }]":                     `1:`,
		"rules:\n- task:\n    report:\n":                `3:`,
		"rules:\n- task: a\n  on_headers:\n  - report:": `4:`,
	} {
		_, _, err := Parse([]byte(text))
		if err == nil || !strings.HasPrefix(err.Error(), "config:"+want) || !strings.Contains(err.Error(), `put a text that ends in a colon in quotes: "report:"`) {
			t.Errorf("%q: %v, want the hint in %s", text, err, want)
		}
	}
	_, _, err := Parse([]byte("rules:\n- task: a\n   on: [id]\n"))
	if err == nil || strings.Contains(err.Error(), "ends in a colon") {
		t.Errorf("another mistake: %v", err)
	}
}

// A text of the user's that looks as if it named a rule is left as it is.
func TestParse_textThatNamesARule(t *testing.T) {
	t.Parallel()
	_, _, err := Parse([]byte("rules:\n- {task: a, limit: 2, scope: 'Rules[9]'}\n- {task: b, scope: 'Rules[9]'}\n"))
	wantMistakes(t, "config", err, `3:3 rule "b": limit: is 1, but rule "a" (line 2) has 2 for the same scope "Rules[9]"`)
}

// What New refuses of paths and durations is told at its place in the file, with what
// is to be written instead.
func TestParse_saysHowToWritePathsAndDurations(t *testing.T) {
	t.Parallel()
	_, _, err := Parse([]byte("rules:\n- task: a\n  on: ['$.x', 'x[0]']\n  wait: 10\n- task: b\n  wait: 10ns\n  busy: {retry_in: 7ns}\nunique:\n- task: c\n  on: ['items.*.id']\n"))
	wantMistakes(t, "config", err, `
		3:8 rule "a": on: "$.x" begins as JSONPath does; write "x"
		3:15 rule "a": on: "x[0]" has a bracket; write "x.0"
		4:9 wait: want a duration with its unit: 10s, 10ms, not "10"
		6:9 rule "b": wait: 10ns is too short; use 0 to not wait in line, or at least 1ms; did you mean 10s?
		7:9 rule "b": busy: RetryIn(7ns) is no delay; give at least 1ms, or use Retry; did you mean 7s?
		10:8 unique rule "c": on: "items.*.id" has a *, and lists are not searched; name one element, as in "items.0.id"
	`)
}

// A rate is a mapping that has a number and a period, and is not all zero.
func TestParse_rate(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"5":                               `rate: want a rate, such as {starts: 100, per: 1m, burst: 10}, not "5"`,
		"{}":                              "rate: has no starts and no per; want a rate, such as {starts: 100, per: 1m, burst: 10}, or leave the key out",
		"{starts: 5}":                     "rate: has no per; want a rate",
		"{per: 1s}":                       "rate: has no starts; want",
		"{start: 5, per: 1s}":             "did you mean starts?",
		"{starts: 0, per: 0}":             "rate: is all zero",
		"{starts: 0, per: 1s}":            "rate: it needs both Starts and Per",
		"{starts: 2, per: 1us}":           "rate: a rate of 2 starts per 1µs: at most one a microsecond",
		"{starts: 1, per: 9000h}":         "rate: a rate per 9000h0m0s: at most 8760h",
		"{starts: 1, per: 1s, burst: -1}": "rate: a Burst of -1 is negative",
		"{starts: 1, per: 1s, burst: x}":  "rate: burst: want a whole number",
	} {
		_, _, err := Parse([]byte("rules: [{task: a, limit: 1, rate: " + text + "}]"))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want one mistake: %s", text, err, want)
		}
	}
}
