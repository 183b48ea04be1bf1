package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
)

func keyTask(payload string) *asynq.Task {
	return asynq.NewTask("test", []byte(payload))
}

// keyBy gives what fn makes of a task, if a rule takes it for a key.
func keyBy(t *testing.T, fn automutex.KeyFunc, task *asynq.Task) ([]string, error) {
	t.Helper()
	maker, err := automutex.NewKeyMaker(automutex.Config{Rules: []automutex.Rule{{Task: task.Type(), Key: fn}}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := maker.Keys(t.Context(), task); err != nil {
		return nil, err
	}
	return fn(t.Context(), task)
}

// oneField gives the part for the field v of a payload.
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

func TestFields_values(t *testing.T) {
	t.Parallel()
	digits := strings.Repeat("1234567890", 40)
	tests := []struct{ value, want string }{
		// Strings are taken as they are.
		{`"octo/hello"`, `octo/hello`},
		{`"a:b|c ~"`, `a:b|c ~`},
		{`"1.0"`, `1.0`},
		{`"null"`, `null`},
		{`" "`, ` `},
		{`"\u00e9\ud83e\udd8a\n\"\\\/\b\f\r\t"`, "é🦊\n\"\\/\b\f\r\t"},
		{`"\uFFFD"`, "\uFFFD"},
		{`"\u0000"`, "\x00"},
		// But those that begin as other values' text does are marked.
		{`"{\"a\":1}"`, `"{\"a\":1}"`},
		{`"[1]"`, `"[1]"`},
		{`"\"x\""`, `"\"x\""`},
		{`"{\u001f\u2028<"`, "\"{\\u001f\u2028<\""},
		{`"x{"`, `x{`},
		// Numbers, exactly, in one way each.
		{`1`, `1`}, {`"1"`, `1`}, {`1.0`, `1`}, {`1e0`, `1`}, {`10e-1`, `1`}, {`0.1E+1`, `1`}, {`1.000`, `1`},
		{`0`, `0`}, {`-0`, `0`}, {`-0.0`, `0`}, {`0e999999999999999999999`, `0`}, {`0.000e-5`, `0`},
		{`-1`, `-1`}, {`-1.50`, `-1.5`}, {`1.5`, `1.5`}, {`15e-1`, `1.5`}, {`0.1`, `0.1`}, {`1e-1`, `0.1`},
		{`100`, `100`}, {`1e2`, `100`}, {`1.25e1`, `12.5`}, {`0.00120`, `0.0012`}, {`12e-4`, `0.0012`},
		{`9007199254740993`, `9007199254740993`}, {`9007199254740993.0`, `9007199254740993`},
		{`0.1000000000000000055511151231257827`, `0.1000000000000000055511151231257827`},
		{digits, digits}, {`-` + digits, `-` + digits}, {`1e399`, `1` + strings.Repeat("0", 399)},
		{`1e-399`, `0.` + strings.Repeat("0", 398) + `1`},
		// Booleans.
		{`true`, `true`}, {`"true"`, `true`}, {`false`, `false`},
		// Composites, canonical.
		{`{}`, `{}`}, {`[]`, `[]`}, {`[ ]`, `[]`},
		{`{"b": 1.0, "a": [1e1, "1", null, true, ""]}`, `{"a":[10,"1",null,true,""],"b":1}`},
		{`{"a":{"z":-0,"y":{"x":[{},[[]]]}}}`, `{"a":{"y":{"x":[{},[[]]]},"z":0}}`},
		{`{"\u0062":1,"a\u0000":"\u00e9<>&"}`, `{"a\u0000":"é<>&","b":1}`},
		{`{"":1}`, `{"":1}`},
	}
	for _, test := range tests {
		got, err := oneField(t, `{"x":[{"v":0}],"v":`+test.value+`, "y":"v"}`)
		if err != nil {
			t.Errorf("%.80s: %v", test.value, err)
		} else if got != test.want {
			t.Errorf("%.80s gives %.80s, want %.80s", test.value, got, test.want)
		}
	}
}

func TestFields_paths(t *testing.T) {
	t.Parallel()
	const payload = ` { "user" : {"id":7, "na.me":"Ada", "back\\slash":"b", "0":"zero"},
		"items": [ {"sku":"A"}, {"sku":"B","tags":["x",["y"]]}, 3 ], "\u0069d": 9, "": "nameless" } `
	tests := []struct {
		paths []string
		want  []string
	}{
		{[]string{"user.id"}, []string{"7"}},
		{[]string{`user.na\.me`}, []string{"Ada"}},
		{[]string{`user.back\\slash`}, []string{"b"}},
		{[]string{"user.0"}, []string{"zero"}},
		{[]string{"items.0.sku"}, []string{"A"}},
		{[]string{"items.1.tags.1.0"}, []string{"y"}},
		{[]string{"items.2"}, []string{"3"}},
		{[]string{"id"}, []string{"9"}},
		{[]string{"items.1.sku", "id", "user.id", "items.0.sku"}, []string{"B", "9", "7", "A"}},
		{[]string{"items.1", "items.1.sku"}, []string{`{"sku":"B","tags":["x",["y"]]}`, "B"}},
		{[]string{"id", "id"}, []string{"9", "9"}},
		{
			[]string{"user.id", "user.0", "user", "items.0", "items.0.sku", "items.1.sku", "items.1.tags.0", "items.2", "id"},
			[]string{"7", "zero", `{"0":"zero","back\\slash":"b","id":7,"na.me":"Ada"}`, `{"sku":"A"}`, "A", "B", "x", "3", "9"},
		},
	}
	for _, test := range tests {
		got, err := automutex.Fields(test.paths...)(t.Context(), keyTask(payload))
		if err != nil || !slices.Equal(got, test.want) {
			t.Errorf("%q gives %q (%v), want %q", test.paths, got, err, test.want)
		}
	}
	// Names that differ in letter case are nobody's affair where no path leads, or another path has the other one.
	const cases = `{"id":1,"ID":2,"x":1,"X":2,"list":{"a":1,"A":2}}`
	got, err := automutex.Fields("id", "ID", "list")(t.Context(), keyTask(cases))
	if want := []string{"1", "2", `{"A":2,"a":1}`}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%q (%v), want %q", got, err, want)
	}
}

func TestFields_refusesPayload(t *testing.T) {
	t.Parallel()
	deep := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	tests := []struct{ path, payload, want string }{
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
		{"v", ``, `the payload is empty`},
		{"v", " \n", `the payload is empty`},
		{"v", `{"v":1`, `the payload is not JSON: it ends too early`},
		{"v", `{"v":1}x`, `the payload is not JSON (byte 8); set Rule.Key or Rule.OnHeaders for other encodings, or Config.Decode for JSON in an envelope`},
		{"v", `{"v":1}{"v":1}`, `the payload is not JSON (byte 8)`},
		{"v", `{"v":"\"[", "w" 1}`, `the payload is not JSON (byte 17)`},
		{"v", `v=1`, `the payload is not JSON (byte 1)`},
		{"v", "\x0a\x05hello", `the payload is not JSON (byte 2)`},
		{"v", `{"v":01}`, `the payload is not JSON (byte 7)`},
		{"v", `{"v":NaN}`, `the payload is not JSON`},
		{"v", "\ufeff{\"v\":1}", `the payload is not JSON`},
		{"v", "{\"v\":\"a\xff\"}", `the payload is not valid UTF-8`},
		{"v", "{\"v\":1,\"w\":\"\xed\xa0\x80\"}", `the payload is not valid UTF-8`},
		{"v", `{"v":"a\ud800"}`, `half a surrogate pair`},
		{"v", `{"v":"\udc00\ud800"}`, `half a surrogate pair`},
		{"v", `{"v":"\ud800\ud800\udc00"}`, `half a surrogate pair`},
		{"v", `{"v":"\ud800\\udc00"}`, `half a surrogate pair`},
		{"v", `{"v":"\ud83exxdd8a"}`, `half a surrogate pair`},
		{"v", `{"v":"\ud83e\ndd8a"}`, `half a surrogate pair`},
		{"v", `{"v":"\uD83Ex\udd8a"}`, `half a surrogate pair`},
		{"v", `{"v":["\ud800"]}`, `half a surrogate pair`},
		{"v", `{"v":{"\ud800":1}}`, `half a surrogate pair`},
		{"\ufffd", `{"\ud800":1}`, `is missing`},
		{"v", `{"v":1,"v":1}`, `the name "v" is there twice`},
		{"v", `{"v":1,"\u0076":2}`, `the name "v" is there twice`},
		{"u.v", `{"u":{"v":1},"u":{"w":1}}`, `the name "u" is there twice`},
		{"v", `{"v":{"a":1,"b":2,"a":3}}`, `the same name twice`},
		{"v", `{"v":[{"a":1,"\u0061":1}]}`, `the same name twice`},
		{"account", `{"account":"zzz","Account":"acct-7"}`, `field "account" has two values: one object has the names "account" and "Account", and encoding/json, which ignores letter case, gives the handler the later one; send one of them`},
		{"account", `{"ACCOUNT":"acct-7","account":"zzz"}`, `the names "account" and "ACCOUNT"`},
		{"task", `{"task":"zzz","taſK":"acct-7"}`, `the names "task" and "taſK"`},
		{"task", `{"task":"zzz","ta\u017f\u212a":"acct-7"}`, "the names \"task\" and \"taſ\u212a\""},
		{"user.id", `{"user":{"x":1},"USER":{"id":2}}`, `the names "user" and "USER"`},
		{"user.0.id", `{"user":[{"id":1,"Id":2}]}`, `the names "id" and "Id"`},
		{"\ufffd", `{"\ufffd":1,"\ud800":2}`, `has two values`},
		{"account", `{"Account":1}`, `the payload has no "account", but "Account": letter case counts`},
		{"v", `{"v":1e400}`, `more than 400 digits`},
		{"v", `{"v":-1e-400}`, `more than 400 digits`},
		{"v", `{"v":1` + strings.Repeat("0", 400) + `}`, `more than 400 digits`},
		{"v", `{"v":1` + strings.Repeat("0", 399) + `.5}`, `more than 400 digits`},
		{"v", `{"v":1e999999999}`, `more than 400 digits`},
		{"v", `{"v":1e18446744073709551617}`, `more than 400 digits`}, // 2^64 + 1
		{"v", `{"v":1e-99999999999999999999999999}`, `more than 400 digits`},
		{"v", `{"v":[{"a":1e9999999999}]}`, `more than 400 digits`},
		{"v", `{"v":` + deep(101) + `}`, `more than 100 levels`},
		{"v", `{"v":` + deep(9000) + `}`, `more than 100 levels`},
		{"v", `{"v":` + deep(50_000) + `}`, `the payload is not JSON (byte 10005)`},
		{"v", strings.Repeat("[", 100_000), `the payload is not JSON (byte 10001)`},
		{"v", `{"v":"` + strings.Repeat(`\\`, 100_000), `the payload is not JSON`},
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

func TestKeyFunc_mistakesKeyNothing(t *testing.T) {
	t.Parallel()
	for want, fn := range map[string]automutex.KeyFunc{
		"Fields was given: no path":             automutex.Fields(),
		`Fields was given: "a..b" has an empty`: automutex.Fields("a", "a..b"),
		"Headers was given: no name":            automutex.Headers(),
		"Headers was given: an empty name":      automutex.Headers("a", ""),
		"KeyOf was given: no function":          automutex.KeyOf[int](nil),
	} {
		parts, err := keyBy(t, fn, asynq.NewTask("t", []byte(`{"a":1}`)))
		if !errors.As(err, new(*automutex.KeyError)) || !strings.Contains(err.Error(), want) {
			t.Errorf("gives %q, %v, want a KeyError with %q", parts, err, want)
		}
	}
}

func TestHeaders(t *testing.T) {
	t.Parallel()
	task := asynq.NewTaskWithHeaders("test", nil, map[string]string{
		"tenant": "acme", "region": "eu", "list": `["x"]`, "empty": "", "bad": "\xff",
	})
	got, err := automutex.Headers("region", "tenant", "list")(t.Context(), task)
	if want := []string{"eu", "acme", `"[\"x\"]"`}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %q (%v), want %q", got, err, want)
	}
	for name, want := range map[string]string{
		"nope":   `header "nope" is missing`,
		"Tenant": `header "Tenant" is missing`,
		"empty":  `header "empty" is empty`,
		"bad":    `header "bad" is not valid UTF-8`,
	} {
		_, err := automutex.Headers("tenant", name)(t.Context(), task)
		var keyErr *automutex.KeyError
		if !errors.As(err, &keyErr) || keyErr.Field != name || keyErr.Task != "test" || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want a *KeyError with %q", name, err, want)
		}
	}
	if _, err := automutex.Headers("tenant")(t.Context(), keyTask("{}")); err == nil {
		t.Error("a task without headers has a key")
	}
}

func TestKeyOf(t *testing.T) {
	t.Parallel()
	type order struct {
		ID   int    `json:"id"`
		Shop string `json:"shop"`
	}
	key := automutex.KeyOf(func(o order) []string { return []string{o.Shop, fmt.Sprint(o.ID)} })
	got, err := keyBy(t, key, keyTask(`{"id":7,"shop":"a|b","x":"\ud800"}`))
	if want := []string{"a|b", "7"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %q (%v), want %q", got, err, want)
	}
	if got, err := keyBy(t, key, keyTask(`{"id":7,"shop":"\ufffd"}`)); err != nil || got[0] != "\uFFFD" {
		t.Errorf("U+FFFD itself: got %q, %v", got, err)
	}
	for payload, want := range map[string]string{
		``:                                       "the payload is empty",
		`{`:                                      "the payload is not JSON",
		` null `:                                 "the payload is null",
		`{"id":"7"}`:                             "does not fit",
		`[]`:                                     "does not fit",
		"{\"id\":7,\"shop\":\"\xff\"}":           "not valid UTF-8",
		`{"id":7,"shop":"\ud800"}`:               "half a surrogate pair",
		`{"id":7,"shop":"\ufffd","x":"\udc00"}`:  "half a surrogate pair",
		`{"id":7,"shop":""}`:                     "part 0 that the rule's Key gave is empty",
		strings.Repeat(" ", 100) + `null` + "\n": "the payload is null",
	} {
		got, err := keyBy(t, key, keyTask(payload))
		var keyErr *automutex.KeyError
		if !errors.As(err, &keyErr) || keyErr.Task != "test" || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %q and %v, want a *KeyError with %q", payload, got, err, want)
		}
	}
}

func TestCallKey(t *testing.T) {
	t.Parallel()
	own := fmt.Errorf("looked: %w", &automutex.KeyError{Task: "test", Field: "shop"})
	tests := []struct {
		parts []string
		err   error
		want  string
	}{
		{nil, nil, "gave no part"},
		{[]string{}, nil, "gave no part"},
		{[]string{"a", ""}, nil, "part 1 that the rule's Key gave is empty"},
		{[]string{"a\xff"}, nil, "part 0 that the rule's Key gave is not valid UTF-8"},
		{nil, own, `looked: automutex: no key for task "test": field "shop"`},
		{nil, &automutex.KeyError{Task: "test", Err: errors.New("no such shop")}, `no key for task "test": no such shop`},
	}
	for _, test := range tests {
		fn := func(context.Context, *asynq.Task) ([]string, error) { return test.parts, test.err }
		_, err := keyBy(t, fn, keyTask(""))
		if !errors.As(err, new(*automutex.KeyError)) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("got %v, want a *KeyError with %q", err, test.want)
		}
		if test.err != nil && !errors.Is(err, test.err) {
			t.Errorf("%v has lost its cause", err)
		}
	}
}
