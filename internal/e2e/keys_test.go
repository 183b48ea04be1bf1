package e2e

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/keys"
	"github.com/automutex/automutex/internal/redistest"
)

func keyTask(payload string) *asynq.Task {
	return asynq.NewTask("test", []byte(payload))
}

func keyBy(t *testing.T, fn automutex.KeyFunc, task *asynq.Task) ([]string, error) {
	t.Helper()
	maker, err := automutex.NewKeyMaker(automutex.Config{Rules: []automutex.Rule{{Task: task.Type(), Key: fn}}})
	redistest.Must(t, err)
	if _, err := maker.Keys(t.Context(), task); err != nil {
		return nil, err
	}
	return fn(t.Context(), task)
}

func oneField(t *testing.T, payload string) (string, error) {
	t.Helper()
	parts, err := automutex.Fields("v")(t.Context(), keyTask(payload))
	if err != nil {
		if keyErr := (*automutex.KeyError)(nil); !errors.As(err, &keyErr) {
			t.Fatalf("%.80q: %T, want a *KeyError: %v", payload, err, err)
		}
		return "", err
	}
	if len(parts) != 1 {
		t.Fatalf("%.80q: %d parts, want 1", payload, len(parts))
	}
	return parts[0], nil
}

func TestFields_paths(t *testing.T) {
	t.Parallel()
	const payload = ` { "user" : {"id":7, "na.me":"Ada", "back\\slash":"b", "0":"zero"},
		"items": [ {"sku":"A"}, {"sku":"B","tags":["x",["y"]]}, 3 ], "\u0069d": 9, "": "nameless" } `
	for paths, want := range map[string]string{
		"user.id":          "7",
		`user.na\.me`:      "Ada",
		`user.back\\slash`: "b",
		"user.0":           "zero",
		"items.0.sku":      "A",
		"items.1.tags.1.0": "y",
		"items.2":          "3",
		"id":               "9",

		"items.1.sku id user.id items.0.sku": "B 9 7 A",
		"items.1 items.1.sku":                `{"sku":"B","tags":["x",["y"]]} B`,
		strings.Repeat("id ", 2):             "9 9",
		"user.id user.0 user items.0 items.0.sku items.1.sku items.1.tags.0 items.2 id": "7 zero " +
			`{"0":"zero","back\\slash":"b","id":7,"na.me":"Ada"} {"sku":"A"} A B x 3 9`,
	} {
		got, err := automutex.Fields(strings.Fields(paths)...)(t.Context(), keyTask(payload))
		if err != nil || !slices.Equal(got, strings.Fields(want)) {
			t.Errorf("%q gives %q (%v), want %q", paths, got, err, want)
		}
	}
	// Names that differ in letter case are nobody's affair where no path leads, or another path has the other one.
	// İ and ı are letters of their own, as encoding/json has it.
	const cases = `{"id":1,"ID":2,"x":1,"X":2,"list":{"a":1,"A":2},"\u0130d":3,"\u0131d":4}`
	got, err := automutex.Fields("id", "ID", "list")(t.Context(), keyTask(cases))
	if want := []string{"1", "2", `{"A":2,"a":1}`}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%q (%v), want %q", got, err, want)
	}
}

func TestFields_refusesPayload(t *testing.T) {
	t.Parallel()
	deep := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	type refused struct{ path, payload, want string }
	tests := []refused{
		{"v", `{}`, `field "v" is missing: the payload has no "v"`},
		{"v", `{"V":1}`, `the payload has no "v"`},
		{"v", `{"u":{"v":1}}`, `the payload has no "v"`},
		{"u.v.w", `{"u":{"v":{}}}`, `"u.v" has no "w"`},
		{"u.v", `{"u":"v"}`, `"u" is a string`},
		{"u.v", `{"u":12}`, `"u" is a number`},
		{"u.v", `{"u":true}`, `"u" is a boolean`},
		{"u.v", `{"u":null}`, `"u" is null`},
		{"u.v", `{"u":[{"v":1}]}`, `"u" is a list without an element "v"`},
		{"u.2", `{"u":[0,1]}`, `"u" is a list without an element "2"`},
		{"u.01", `{"u":[0,1]}`, `without an element "01"`},
		{"u.-0", `{"u":[0,1]}`, `without an element "-0"`},
		{"u.99999999999999999999", `{"u":[0,1]}`, `without an element`},
		{"v", `null`, `the payload is null`},
		{"v", `7`, `the payload is a number`},
		{"0", `[]`, `the payload is a list`},
		{"v", `{"v":null}`, `field "v" is null`},
		{"v", `{"v":""}`, `field "v" is an empty string`},
		{"v", `{"v":1`, `the payload is not JSON: it ends too early`},
		{"v", `{"v":1}x`,
			`the payload is not JSON (byte 8); set Rule.Key or Rule.OnHeaders for other encodings, or Config.Decode for JSON in an envelope`},
		{"v", `{"v":1}{"v":1}`, `the payload is not JSON (byte 8)`},
		{"v", `{"v":"\"[", "w" 1}`, `the payload is not JSON (byte 17)`},
		{"v", `v=1`, `the payload is not JSON (byte 1)`},
		{"v", "\x0a\x05hello", `the payload is not JSON (byte 2)`},
		{"v", `{"v":01}`, `the payload is not JSON (byte 7)`},
		{"\ufffd", `{"\ud800":1}`, `is missing`},
		{"u.v", `{"u":{"v":1},"u":{"w":1}}`, `the name "u" is there twice`},
		{"account", `{"account":"zzz","Account":"acct-7"}`,
			`field "account" has two values: one object has the names "account" and "Account", and encoding/json, which ignores letter case, gives the handler the later one; send one of them`},
		{"account", `{"ACCOUNT":"acct-7","account":"zzz"}`, `the names "account" and "ACCOUNT"`},
		{"σίσυφος", `{"σίσυφος":1,"ΣΊΣΥΦΟΣ":2}`, `the names "σίσυφος" and "ΣΊΣΥΦΟΣ"`},
		{"task", `{"task":"zzz","taſK":"acct-7"}`, `the names "task" and "taſK"`},
		{"task", `{"task":"zzz","ta\u017f\u212a":"acct-7"}`, "the names \"task\" and \"taſ\u212a\""},
		{"user.id", `{"user":{"x":1},"USER":{"id":2}}`, `the names "user" and "USER"`},
		{"user.0.id", `{"user":[{"id":1,"Id":2}]}`, `the names "id" and "Id"`},
		{"\ufffd", `{"\ufffd":1,"\ud800":2}`, `has two values`},
		{"account", `{"Account":1}`, `the payload has no "account", but "Account": letter case counts`},
		{"v", `{"v":[` + strings.Repeat("1e399,", 4000) + `1]}`, `numbers that take more than 1 MiB`},
		{"v", `{"v":` + deep(50_000) + `}`, `the payload is not JSON (byte 10005)`},
		{"v", strings.Repeat("[", 100_000), `the payload is not JSON (byte 10001)`},
	}
	for want, payloads := range map[string][]string{
		"half a surrogate pair": {
			`{"v":"a\ud800"}`, `{"v":"\udc00\ud800"}`, `{"v":"\ud800\ud800\udc00"}`, `{"v":"\ud800\\udc00"}`,
			`{"v":"\ud83exxdd8a"}`, `{"v":"\ud83e\ndd8a"}`, `{"v":"\uD83Ex\udd8a"}`, `{"v":["\ud800"]}`, `{"v":{"\ud800":1}}`,
		},
		"more than 400 digits": {
			`{"v":1e400}`, `{"v":-1e-400}`, `{"v":1` + strings.Repeat("0", 400) + `}`,
			`{"v":1` + strings.Repeat("0", 399) + `.5}`, `{"v":1e999999999}`, `{"v":1e18446744073709551617}`, // 2^64 + 1
			`{"v":1e-99999999999999999999999999}`, `{"v":[{"a":1e9999999999}]}`,
		},
		"more than 100 levels":           {`{"v":` + deep(101) + `}`, `{"v":` + deep(9000) + `}`},
		"the same name twice":            {`{"v":{"a":1,"b":2,"a":3}}`, `{"v":[{"a":1,"\u0061":1}]}`},
		"the payload is not valid UTF-8": {"{\"v\":\"a\xff\"}", "{\"v\":1,\"w\":\"\xed\xa0\x80\"}"},
		"the payload is empty":           {``, " \n"},
		`the name "v" is there twice`:    {`{"v":1,"v":1}`, `{"v":1,"\u0076":2}`},
		"the payload is not JSON":        {`{"v":NaN}`, "\ufeff{\"v\":1}", `{"v":"` + strings.Repeat(`\\`, 100_000)},
	} {
		for _, payload := range payloads {
			tests = append(tests, refused{"v", payload, want})
		}
	}
	for _, test := range tests {
		parts, err := automutex.Fields(test.path)(t.Context(), keyTask(test.payload))
		var keyErr *automutex.KeyError
		switch {
		case !errors.As(err, &keyErr):
			t.Errorf("%q of %.80s gives %q and %v, want a *KeyError", test.path, test.payload, parts, err)
		case !strings.Contains(err.Error(), test.want):
			t.Errorf("%q of %.80s:\n got %v\nwant %s", test.path, test.payload, err, test.want)
		case keyErr.Task != "test" || keyErr.Field != test.path:
			t.Errorf("%q of %.80s: Task %q, Field %q", test.path, test.payload, keyErr.Task, keyErr.Field)
		case !strings.HasPrefix(err.Error(), `automutex: no key for task "test"`) || !strings.Contains(err.Error(), "; "):
			t.Errorf("%q of %.80s: %v", test.path, test.payload, err)
		}
	}
}

// Header values are strings of the key, and what a header cannot give is told by its name.
func TestHeaders(t *testing.T) {
	t.Parallel()
	task := asynq.NewTaskWithHeaders("test", nil, map[string]string{
		"tenant": "acme", "region": "eu", "list": `["x"]`, "empty": "", "bad": "\xff",
	})
	keysOf := func(task *asynq.Task, names ...string) ([]string, error) {
		maker, err := automutex.NewKeyMaker(automutex.Config{Prefix: "p",
			Rules: []automutex.Rule{{Task: "test", OnHeaders: names}}})
		redistest.Must(t, err)
		return maker.Keys(t.Context(), task)
	}
	got, err := keysOf(task, "region", "tenant", "list")
	if want := keys.Key("p", "test", "eu", "acme", `"[\"x\"]"`); err != nil || got[0] != want {
		t.Errorf("got %q (%v), want %q", got, err, want)
	}
	for name, want := range map[string]string{
		"nope":   `header "nope" is missing`,
		"Tenant": `header "Tenant" is missing`,
		"empty":  `header "empty" is empty`,
		"bad":    `header "bad" is not valid UTF-8`,
	} {
		_, err := keysOf(task, "tenant", name)
		var keyErr *automutex.KeyError
		if !errors.As(err, &keyErr) || keyErr.Field != name || keyErr.Task != "test" || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want a *KeyError with %q", name, err, want)
		}
	}
	if _, err := keysOf(keyTask("{}"), "tenant"); err == nil {
		t.Error("a task without headers has a key")
	}
}

// Keys by functions of the user's: of a struct, of what a decoder of the user's makes (here a number of two bytes), of
// the task.
func TestKeyOf(t *testing.T) {
	t.Parallel()
	type order struct {
		ID   int    `json:"id"`
		Shop string `json:"shop"`
	}
	decode := func(payload []byte) (uint16, error) {
		if len(payload) != 2 {
			return 0, errors.New("secret " + string(payload) + " is not two bytes")
		}
		return binary.BigEndian.Uint16(payload), nil
	}
	decimal := func(n uint16) (parts []string) {
		if n > 0 {
			parts = []string{strconv.Itoa(int(n))}
		}
		return parts
	}
	own, noShop := fmt.Errorf("looked: %w", errNever), &automutex.KeyError{Task: "test", Err: errors.New("no such shop")}
	gives := func(err error, parts ...string) automutex.KeyFunc {
		return func(context.Context, *asynq.Task) ([]string, error) { return parts, err }
	}
	of := automutex.KeyOf(func(o order) []string { return []string{o.Shop, fmt.Sprint(o.ID)} })
	with := automutex.KeyWith(decode, decimal)
	for _, c := range []struct {
		key     automutex.KeyFunc
		payload string
		want    []string
	}{
		{of, `{"id":7,"shop":"a|b","x":"\ud800"}`, []string{"a|b", "7"}},
		{of, `{"id":7,"shop":"\ufffd"}`, []string{"\uFFFD", "7"}},
		{with, "\x01\xff", []string{"511"}},
	} {
		if got, err := keyBy(t, c.key, keyTask(c.payload)); err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%q: got %q (%v), want %q", c.payload, got, err, c.want)
		}
	}
	for _, c := range []struct {
		key           automutex.KeyFunc
		payload, want string
		cause         error
	}{
		{of, ``, "the payload is empty", nil},
		{of, `{`, "the payload is not JSON", nil},
		{of, strings.Repeat(" ", 100) + "null\n", "the payload is null", nil},
		{of, `{"id":"7"}`, "does not fit", nil},
		{of, `[]`, "does not fit", nil},
		{of, "{\"id\":7,\"shop\":\"\xff\"}", "not valid UTF-8", nil},
		{of, `{"id":7,"shop":""}`, "part 0 that the rule's Key gave is empty", nil},
		{with, "4111", "the payload cannot be decoded (a *errors.errorString); enqueue the task with", nil},
		{with, "\x00\x00", "the rule's Key gave no part", nil},
		{gives(nil), "", "gave no part", nil},
		{gives(nil, "a", ""), "", "part 1 that the rule's Key gave is empty", nil},
		{gives(nil, "a\xff"), "", "part 0 that the rule's Key gave is not valid UTF-8", nil},
		{gives(own), "", `looked: automutex: no key for task "work": field "shop"`, own},
		{gives(noShop), "", `no key for task "test": no such shop`, noShop},
		{automutex.Fields(), "{}", "Fields was given: no path", nil},
		{automutex.Fields("a", "a..b"), `{"a":1}`, `Fields was given: "a..b" has an empty`, nil},
	} {
		got, err := keyBy(t, c.key, keyTask(c.payload))
		var keyErr *automutex.KeyError
		switch {
		case !errors.As(err, &keyErr) || !strings.Contains(err.Error(), c.want),
			c.cause == nil && keyErr.Task != "test", c.cause != nil && !errors.Is(err, c.cause):
			t.Errorf("%q: got %q and %v, want a *KeyError with %q", c.payload, got, err, c.want)
		case c.payload == "4111" && (strings.Contains(err.Error(), c.payload) ||
			keyErr.Unwrap().Error() != "secret 4111 is not two bytes"):
			t.Errorf("%v quotes the payload, or has lost its cause, %v", err, keyErr.Unwrap())
		}
	}
}

// The path of the whole payload: equal JSON makes equal keys, and other payloads have the key of their bytes.
func TestFields_wholePayload(t *testing.T) {
	t.Parallel()
	of := func(payload string) string {
		t.Helper()
		parts, err := automutex.Fields(".")(t.Context(), keyTask(payload))
		made, madeErr := makeKeys([]string{"."}).Keys(t.Context(), keyTask(payload))
		if err != nil || madeErr != nil || made[0] != keys.Key("p", "test", parts...) {
			t.Errorf("%q: Fields gives %q, %v; On %q, %v", payload, parts, err, made, madeErr)
			return ""
		}
		return parts[0]
	}
	seen := map[string]string{}
	for _, alike := range [][]string{
		{`{"b":1,"a":[1.0,"x"]}`, ` {"a":[1e0,"\u0078"] , "b":1.00}` + "\n"}, {`{}`, `{ }`}, {`[]`}, {`{"b":1}`},
		{`1`, `1.0`, ` 1`}, {`"1"`}, {`true`}, {`"true"`}, {`0`, `-0`},
		{`"{}"`}, {`hello`}, {`"hello"`}, {"\x0a\x05hello"}, {"\xff"}, {"{\"a\":\"\xff\"}"}, {"0xff"}, {`"0xff"`}, {"hello "},
		{"\x00"}, {`{"a":1}x`}, {`{"a":1}`}, {strings.Repeat("\x80", 1<<21)},
	} {
		part := of(alike[0])
		if before, known := seen[part]; known {
			t.Errorf("%.80q and %.80q have one key", before, alike[0])
		}
		seen[part] = alike[0]
		for _, other := range alike[1:] {
			if got := of(other); got != part {
				t.Errorf("%q gives %q, and %q gives %q", alike[0], part, other, got)
			}
		}
	}
	for payload, want := range map[string]string{
		"": "the payload is empty", " ": "the payload is empty", "null": "the payload is null",
		`""`:            "the payload is an empty string",
		`{"a":1,"a":2}`: "the payload has an object with the same name twice",
		`["\ud800"]`:    "the payload has half a surrogate pair",
	} {
		var keyErr *automutex.KeyError
		if _, err := automutex.Fields(".")(t.Context(), keyTask(payload)); !errors.As(err, &keyErr) || keyErr.Field != "." ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", payload, err, want)
		}
	}
	// Beside other paths, and rules.
	both, err := makeKeys([]string{"id", "."}).Keys(t.Context(), keyTask(`{"id":7,"a":1}`))
	if want := keys.Key("p", "test", "7", `{"a":1,"id":7}`); err != nil || both[0] != want {
		t.Errorf("%q, %v; want %q", both, err, want)
	}
	if _, err := makeKeys([]string{".", "id"}).Keys(t.Context(), keyTask("hello")); err == nil ||
		!strings.Contains(err.Error(), `field "id": the payload is not JSON`) {
		t.Errorf("a payload that is not JSON, with another path: %v", err)
	}
}

func makeKeys(on []string) *automutex.KeyMaker {
	maker, err := automutex.NewKeyMaker(automutex.Config{Rules: []automutex.Rule{{Task: "test", On: on}}, Prefix: "p"})
	if err != nil {
		panic(err)
	}
	return maker
}
