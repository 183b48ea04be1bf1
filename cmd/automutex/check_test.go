package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/automutex/automutex/internal/keys"
)

const rules = `
defaults: {wait: 10s}
rules:
  - task: work
    on: [id]
  - {task: "report:", scope: report, on: [tenant.id], on_headers: [region], limit: 3, busy: {retry_in: 5s}}
  - {task: "report:daily", scope: report, on: [tenant.id], limit: 3}
  - {task: transfer, name: to, scope: account, on: [to]}
  - {task: transfer, name: from, scope: account, on: [from]}
`

func testCheck(t *testing.T, b binary) {
	r := b.run(t, "check", file(t, rules)).want(t, exitOK, "no mistakes; 5 rules, 0 unique rules", "note: ", "hides", "Wait: has no effect")
	for _, row := range []string{
		"work <type>|<id> 1 30s - park",
		"report: report|<tenant.id>|<header region> 3 30s 10s retry in 5s",
		"from transfer account|<from> 1 30s - park",
	} {
		if !strings.Contains(squeeze(r.stdout), row) {
			t.Errorf("no row %q in\n%s", row, r.stdout)
		}
	}
	if strings.Contains(r.stdout, "ALSO") {
		t.Errorf("a column for nothing:\n%s", r.stdout)
	}
	r = b.run(t, "check", file(t, `
rules:
  - {task: mail, on: [to], limit: {field: tenant.max, default: 3, most: 50}, rate: {starts: 10, per: 1s}}
  - {task: bill, limit: {field: max}, rate: {starts: 100, per: 1m, burst: 5}, cooldown: 10m, max_hold: 1h}
  - {task: work}
`)).want(t, exitOK)
	for _, row := range []string{
		"RULE TASK KEY LIMIT TTL WAIT BUSY ALSO\n",
		" mail <type>|<to> <tenant.max> (default 3, most 50) 30s - park rate 10 per 1s, burst 1\n",
		" bill <type> <max> 30s - park rate 100 per 1m, burst 5; cooldown 10m; held for at most 1h\n",
		" work <type> 1 30s - park -\n",
	} {
		if !strings.Contains(squeeze(r.stdout), row) {
			t.Errorf("no row %q in\n%s", row, r.stdout)
		}
	}
	b.run(t, "check", file(t, "rules: []")).want(t, exitOK, "no mistakes; 0 rules")

	r = b.run(t, "check", file(t, `
rules: [{task: reindex, on: [id]}, {task: import, busy: skip}]
unique:
  - {task: reindex, on: [id], until: start, duplicate: join}
  - {task: digest, on: [user], until: start, queue: low}
  - {task: mail, until: {for: 10m}, duplicate: {postpone: 5s}}
  - {task: import, until: start}
`)).want(t, exitOK, "2 rules, 4 unique rules", `note: unique rule "import": a worker skips the task that other producers rely on`, `note: unique rule "digest": until start, replace and postpone need a rule of the workers`,
		`note: unique rule "mail": until start, replace and postpone need a rule of the workers`)
	if !strings.Contains(squeeze(r.stdout), "mail default <type> for 10m postpone by 5s") || strings.Count(r.stdout, "note: ") != 3 {
		t.Errorf("got\n%s", r.stdout)
	}
}

// squeeze makes one space of many.
func squeeze(s string) string {
	var b strings.Builder
	for line := range strings.Lines(s) {
		b.WriteString(strings.Join(strings.Fields(line), " ") + "\n")
	}
	return b.String()
}

func testCheckMistakes(t *testing.T, b binary) {
	name := file(t, "prefx: a\nrules:\n  - {task: a, ttl: 1ms, limt: 3}\n  - {task: b, busy: skp}\n")
	r := b.run(t, "check", name).want(t, exitNo)
	want := []string{"1:1: unknown key", "3:20: rule", "3:25: unknown key", "4:21: busy:"}
	got := strings.Split(strings.TrimSpace(r.stderr), "\n")
	if len(got) != len(want) || r.stdout != "" {
		t.Fatalf("got %q", r.stderr)
	}
	for i := range got {
		if !strings.HasPrefix(got[i], name+":"+want[i]) {
			t.Errorf("got %s, want %s", got[i], want[i])
		}
	}

	binary := filepath.Join(t.TempDir(), "binary\x1b[31m")
	for content, want := range map[string]string{
		"":                              ":1:1: the file is empty",
		"\x00\x01\xff":                  ":1:1: a control character",
		"rules: [{task: '\x1b[31mred'}": ":1:17: a control character",
		"rules: [{task: \"\\e[31m\", \"\\e[31m\": 1}]": `unknown key "\x1b[31m"`,
	} {
		if err := os.WriteFile(binary, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		r := b.run(t, "check", binary).want(t, exitNo)
		if !strings.Contains(r.stderr, want) || strings.Contains(r.stderr, "\x1b") || strings.Count(r.stderr, "\n") != 1 {
			t.Errorf("%q: got %q, want %q", content, r.stderr, want)
		}
	}
	b.run(t, "check", t.TempDir()).wantError(t, exitNo, "is a directory")
	b.run(t, "check", filepath.Join(t.TempDir(), "missing")).wantError(t, exitNo, "no such file")
	b.run(t, "check", "/dev/zero").wantError(t, exitNo, "more than 4 MiB")
}

func testKey(t *testing.T, b binary) {
	name := file(t, rules)
	b.run(t, "key", name, "--type", "work", "--payload", `{"id": 1.0}`).want(t, exitOK, "work|1 ", "automutex:{work|1}")
	// In the order in which the locks are taken, which is that of the keys.
	r := b.run(t, "key", name, "-t", "transfer", "--payload", `{"from": 2, "to": "b c"}`).want(t, exitOK)
	if got := squeeze(r.stdout); got != "RULE KEY REDIS\nfrom account|2 automutex:{account|2}\nto account|b%20c automutex:{account|b%20c}\n" {
		t.Errorf("got\n%s", r.stdout)
	}
	// The longest Task alone, by its name; a header that its rule does not name; JSON.
	r = b.run(t, "key", name, "--type", "report:daily:x", "--payload", `{"tenant": {"id": "é"}}`, "--header", "region=eu", "--json").want(t, exitOK)
	if got := lines[match](t, r.stdout); len(got) != 1 || got[0] != (match{Rule: "report:daily", Key: "report|é", Name: "automutex:{report|é}"}) {
		t.Errorf("got %+v", got)
	}
	// With a secret: of the file, else of the environment.
	const secret, payload = "0123456789abcdef", `{"id": 1}`
	hashed := keys.HashedKey(secret, "automutex", "work", "1")
	with := file(t, "hash_keys: "+secret+"\n"+rules)
	b.run(t, "key", with, "--type", "work", "--payload", payload).want(t, exitOK, hashed)
	b.runWith(t, "", []string{"AUTOMUTEX_HASH_KEYS=" + secret}, "key", name, "--type", "work", "--payload", payload).want(t, exitOK, hashed)
	b.runWith(t, "", []string{"AUTOMUTEX_HASH_KEYS=another one that counts not"}, "key", with, "--type", "work", "--payload", payload).want(t, exitOK, hashed)
	b.runWith(t, "", []string{"AUTOMUTEX_HASH_KEYS=short"}, "key", name, "--type", "work", "--payload", payload).wantError(t, exitNo, "has 5 bytes")
	long := strings.Repeat("x", 100_000)
	b.run(t, "key", name, "--type", "work", "--payload", `{"id": "`+long+`"}`).want(t, exitOK, "automutex:{work|~")

	optional := file(t, "rules: [{task: work, scope: one, on: [id], optional: true}, {task: work, scope: all}]")
	b.run(t, "key", optional, "--type", "work", "--payload", `{"id": null}`).want(t, exitOK, "automutex:{all}")
	optional = file(t, "rules: [{task: work, on: [id], optional: true}]")
	b.run(t, "key", optional, "--type", "work", "--payload", `{}`).wantError(t, exitNo, "lacks a field")

	b.run(t, "key", name, "--type", "play").wantError(t, exitNo, "no rule matches")
	b.run(t, "key", name, "--type", "work").wantError(t, exitNo, "payload")
	b.run(t, "key", name, "--type", "work", "--payload", `{"ID": 1}`).wantError(t, exitNo, `field "id" is missing`)
	b.run(t, "key", name, "--type", "work", "--payload", "\xff\xfe").wantError(t, exitNo, "payload is not JSON")
	b.run(t, "key", name, "--type", "report:x", "--payload", `{"tenant": {"id": 1}}`).wantError(t, exitNo, `header "region" is missing`)
	b.run(t, "key", name, "--type", " ", "--payload", `{}`).wantError(t, exitUsage, "--type")
	b.run(t, "key", name, "--payload", `{}`).wantError(t, exitUsage, "--type")
	b.run(t, "key", name, "--type", long).wantError(t, exitNo, "no rule matches")
	b.run(t, "key", name, "--type", "work", "--header", "region").wantError(t, exitUsage, "header")
	if r := b.run(t, "key", file(t, "rules: 1"), "--type", "work"); r.exit != exitNo || !strings.Contains(r.stderr, ":1:8: ") {
		t.Errorf("%d, %s", r.exit, r.stderr)
	}
}

// testKeyUnique: what a producer does with a task is shown with what a worker does.
func testKeyUnique(t *testing.T, b binary) {
	name := file(t, `
prefix: shop
rules:
  - {task: report, on: [tenant]}
unique:
  - {task: report, on: [tenant], queue: low}
  - {task: mail, on: [to], until: start}
`)
	r := b.run(t, "key", name, "--type", "report", "--payload", `{"tenant": 7}`).want(t, exitOK)
	if got, want := squeeze(r.stdout), "RULE KEY REDIS\nreport report|7 shop:{report|7}\n\n"+
		"UNIQUE KEY QUEUE UNTIL REDIS\nreport report|7 low done shop:{report|7}\n"; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	b.run(t, "key", name, "--type", "mail", "--payload", `{"to": "a"}`).want(t, exitOK, "no rule guards it", "start", "shop:{mail|a}:claim")
	r = b.run(t, "key", name, "--type", "mail", "--payload", `{"to": "a"}`, "--json").want(t, exitOK)
	if got := lines[match](t, r.stdout); len(got) != 1 || got[0] != (match{"", "mail", "mail|a", "default", "start", "shop:{mail|a}:claim"}) {
		t.Errorf("got %+v", got)
	}
	b.run(t, "key", name, "--type", "mail", "--payload", `{}`).wantError(t, exitNo, `field "to" is missing`)
	b.run(t, "key", name, "--type", "other").wantError(t, exitNo, "no rule matches")
}
