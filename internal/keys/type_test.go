package keys

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"
)

type selfDecoding struct{ x int }

func (s *selfDecoding) UnmarshalJSON([]byte) error { return nil }

type embedded struct {
	Inner  string `json:"inner"`
	Shadow string `json:"shadow"`
	Twice  string `json:"twice"`
	Tagged string
}

type Other struct {
	Renamed []string `json:"Tagged"`
	Twice   string   `json:"twice"`
	*Loop
}

type Loop struct {
	Back *Other `json:"back"`
	*Other
	Deep int
}

type Wrapped struct {
	Within int `json:"within"`
}

type examplePayload struct {
	embedded
	*Other
	Wrapped    `json:"wrapped"`
	Named      Other `json:"named"`
	Shadow     int   `json:"shadow"`
	FullName   string
	Dotted     int             `json:"dot.ted,omitempty"`
	Skipped    int             `json:"-"`
	Dash       int             `json:"-,"`
	Users      []*embedded     `json:"users"`
	Pair       [2]int          `json:"pair"`
	ByName     map[string]Loop `json:"by_name"`
	Any        any             `json:"any"`
	Raw        json.RawMessage `json:"raw"`
	At         time.Time       `json:"at"`
	Own        selfDecoding    `json:"own"`
	Bytes      []byte          `json:"bytes"`
	Number     json.Number     `json:"number"`
	Pointer    **embedded      `json:"pointer"`
	unexported int
}

func TestCheckType(t *testing.T) {
	t.Parallel()
	for _, path := range []string{
		"inner", "shadow", "FullName", `dot\.ted`, "-", "users", "users.0.inner", "pair.1", "by_name.any.Deep",
		"by_name.x.back.twice", "any.thing.at.0.all", "raw.x.y", "at.x", "own.x", "bytes", "number", "pointer.inner",
		"Deep", "named.Deep", "back.Deep", "named", "Tagged.0", "wrapped.within",
	} {
		for _, payload := range []any{examplePayload{}, &examplePayload{}, (*examplePayload)(nil)} {
			if err := checkPath(payload, path); err != nil {
				t.Errorf("%T: %s %v", payload, path, err)
			}
		}
	}
	for path, want := range map[string]string{
		"within":         `has no JSON field "within"`,
		"Wrapped":        `has no JSON field "Wrapped"`,
		"Tagged.x":       `is a list`,
		"iner":           `has no JSON field "iner"; did you mean "inner", `,
		"fullname":       `has no JSON field "fullname"; did you mean "FullName", `,
		"full_name":      `did you mean "FullName", `,
		"twice":          `has no JSON field "twice"`,
		"Skipped":        `has no JSON field "Skipped"`,
		"unexported":     `has no JSON field "unexported"`,
		"embedded.inner": `has no JSON field "embedded"`,
		"users.inner":    `is a list, and "inner" is no index`,
		"users.0.outer":  `keys.embedded has no JSON field "outer"`,
		"pair.2":         `has no element 2`,
		"shadow.x":       `int has no fields, and so no "x"`,
		"bytes.0":        `is a string in JSON`,
		"number.x":       `has no fields`,
		"by_name.x.y":    `keys.Loop has no JSON field "y"`,
	} {
		err := checkPath(examplePayload{}, path)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "keys.examplePayload") {
			t.Errorf("%s: got %v, want %s", path, err, want)
		}
	}
	for want, payload := range map[string]any{
		"int has no fields": 7, "struct {} has no JSON fields": struct{}{},
	} {
		if err := checkPath(payload, "x"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%T: got %v, want %s", payload, err, want)
		}
	}
	for _, payload := range []any{map[string]any{}, json.RawMessage{}, &selfDecoding{x: 1}, new(any)} {
		if err := checkPath(payload, "x.y"); err != nil {
			t.Errorf("%T: %v", payload, err)
		}
	}
}

func checkPath(payload any, path string) error {
	segments, err := ParsePath(path)
	return errors.Join(err, CheckType(payload, segments))
}

// A payload with both names has no key, and json.Marshal writes both.
func TestCheckType_refusesNamesThatDifferInLetterCase(t *testing.T) {
	t.Parallel()
	type inner struct {
		ID int `json:"id"`
	}
	type payload struct {
		inner
		Id   int //nolint:staticcheck // as in the field
		Kind int `json:"kind"`
		KIND int `json:"Kind"` // the Kelvin sign, which encoding/json takes for a k
		Sub  []inner
	}
	for path, refused := range map[string]bool{"id": true, "Id": true, "kind": true, "ID": true, "Sub.0.id": false,
		"Sub": false} {
		if err := checkPath(payload{}, path); (err != nil) != refused {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// The fields found are those that encoding/json writes.
func TestJSONFields_agreeWithEncodingJSON(t *testing.T) {
	t.Parallel()
	value := examplePayload{Other: &Other{Loop: &Loop{}}, Dotted: 1, unexported: 1}
	text, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	var written map[string]any
	if err := json.Unmarshal(text, &written); err != nil {
		t.Fatal(err)
	}
	found := jsonFields(reflect.TypeFor[examplePayload]())
	for name := range written {
		if found[name].Type == nil {
			t.Errorf("%q was not found", name)
		}
	}
	for name := range found {
		if _, ok := written[name]; !ok {
			t.Errorf("%q was found, and is not in %s", name, text)
		}
	}
}
