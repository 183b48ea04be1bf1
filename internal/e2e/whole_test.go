package e2e

import (
	"errors"
	"strings"
	"testing"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/keys"
)

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
		{`{"b":1,"a":[1.0,"x"]}`, ` {"a":[1e0,"\u0078"] , "b":1.00}` + "\n"}, {`{}`, `{ }`}, {`[]`}, {`{"b":1}`}, {`1`, `1.0`, ` 1`}, {`"1"`}, {`true`}, {`"true"`}, {`0`, `-0`},
		{`"{}"`}, {`hello`}, {`"hello"`}, {"\x0a\x05hello"}, {"\xff"}, {"{\"a\":\"\xff\"}"}, {"0xff"}, {`"0xff"`}, {"hello "}, {"\x00"}, {`{"a":1}x`}, {`{"a":1}`}, {strings.Repeat("\x80", 1<<21)},
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
		"": "the payload is empty", " ": "the payload is empty", "null": "the payload is null", `""`: "the payload is an empty string",
		`{"a":1,"a":2}`: "the payload has an object with the same name twice", `["\ud800"]`: "the payload has half a surrogate pair",
	} {
		var keyErr *automutex.KeyError
		if _, err := automutex.Fields(".")(t.Context(), keyTask(payload)); !errors.As(err, &keyErr) || keyErr.Field != "." || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", payload, err, want)
		}
	}
	// Beside other paths, and rules.
	both, err := makeKeys([]string{"id", "."}).Keys(t.Context(), keyTask(`{"id":7,"a":1}`))
	if want := keys.Key("p", "test", "7", `{"a":1,"id":7}`); err != nil || both[0] != want {
		t.Errorf("%q, %v; want %q", both, err, want)
	}
	if _, err := makeKeys([]string{".", "id"}).Keys(t.Context(), keyTask("hello")); err == nil || !strings.Contains(err.Error(), `field "id": the payload is not JSON`) {
		t.Errorf("a payload that is not JSON, with another path: %v", err)
	}
}

// makeKeys makes the keys of tasks by some paths.
func makeKeys(on []string) *automutex.KeyMaker {
	maker, err := automutex.NewKeyMaker(automutex.Config{Rules: []automutex.Rule{{Task: "test", On: on}}, Prefix: "p"})
	if err != nil {
		panic(err)
	}
	return maker
}
