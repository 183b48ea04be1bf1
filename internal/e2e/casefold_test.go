package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/automutex/automutex"
)

// decodedAs is what encoding/json gives a handler whose struct has one field of that
// name: the type is made here, so that the name may be any.
func decodedAs(t *testing.T, name, payload string) (value string) {
	t.Helper()
	tag, err := json.Marshal(name + ",") // or "-" would mean none
	if err != nil {
		t.Fatal(err)
	}
	typed := reflect.New(reflect.StructOf([]reflect.StructField{{
		Name: "Field", Type: reflect.TypeFor[string](), Tag: reflect.StructTag(fmt.Sprintf(`json:%s`, tag)),
	}}))
	if err := json.Unmarshal([]byte(payload), typed.Interface()); err != nil {
		t.Fatalf("%s: %v", payload, err)
	}
	return typed.Elem().Field(0).String()
}

// otherCases gives names that differ from name in the case of their letters, among
// them the long s and the Kelvin sign.
func otherCases(name string) (others []string) {
	runes := []rune(name)
	for i, r := range runes {
		for other := unicode.SimpleFold(r); other != r; other = unicode.SimpleFold(other) {
			changed := slices.Clone(runes)
			changed[i] = other
			others = append(others, string(changed))
		}
	}
	return append(others, strings.ToUpper(name), strings.ToLower(name), strings.Title(name)) //nolint:staticcheck // one more case
}

// A payload cannot have the lock of one value and give the handler another one, which
// encoding/json takes from a name in another letter case.
func TestFields_agreesWithWhatEncodingJSONGivesTheHandler(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(5, 6))
	names := []string{"account", "Account", "task_id", "kind", "straße", "ΣΊΣΥΦΟΣ", "k-s", "ſo", "Ǆ", "İd", "ıd", "x1"}
	letters := []rune("abcksKSKſéßΣσςµμÅåÅ_-1ǅ")
	for range 300 {
		name := make([]rune, 1+random.IntN(6))
		for i := range name {
			name[i] = letters[random.IntN(len(letters))]
		}
		names = append(names, string(name))
	}
	refused, taken := 0, 0
	for _, name := range names {
		others := append(otherCases(name), names[random.IntN(len(names))], name+"s", strings.ReplaceAll(name, "_", ""))
		for _, other := range others {
			own, its := `"`+name+`":"own"`, `"`+other+`":"its"`
			for _, payload := range []string{"{" + own + "," + its + "}", "{" + its + "," + own + "}", "{" + its + "}"} {
				parts, err := automutex.Fields(escapePath(name))(t.Context(), keyTask(payload))
				decoded := decodedAs(t, name, payload)
				if err == nil && parts[0] != decoded {
					t.Errorf("%s: the lock of %q, and the handler gets %q", payload, parts[0], decoded)
				}
				if keyErr := (*automutex.KeyError)(nil); err != nil && !errors.As(err, &keyErr) {
					t.Errorf("%s: %T", payload, err)
				}
				// Refused is what encoding/json takes for the field too, and nothing else.
				if alone := decodedAs(t, name, "{"+its+"}"); strings.Contains(payload, own) {
					if (err != nil) != (alone == "its") {
						t.Errorf("%s: %v; encoding/json takes %q for %q: %v", payload, err, other, name, alone == "its")
					}
					if err != nil {
						refused++
					} else {
						taken++
					}
				}
			}
		}
	}
	if refused < 1000 || taken < 300 {
		t.Errorf("%d refused, %d taken: of both there are to be many", refused, taken)
	}
}

// escapePath writes a name so that a path has it as one segment.
func escapePath(name string) string {
	return regexp.MustCompile(`[.\\$\[\],*]`).ReplaceAllString(name, `\$0`)
}

func TestFields_refusesNamesThatDifferInCase(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ path, payload, want string }{
		{"account", `{"account":"zzz","Account":"acct-7"}`, `field "account" has two values: one object has the names "account" and "Account", and encoding/json, which ignores letter case, gives the handler the later one; send one of them`},
		{"account", `{"ACCOUNT":"acct-7","account":"zzz"}`, `the names "account" and "ACCOUNT"`},
		{"task", `{"task":"zzz","taſK":"acct-7"}`, `the names "task" and "taſK"`},
		{"task", `{"task":"zzz","ta\u017f\u212a":"acct-7"}`, "the names \"task\" and \"taſ\u212a\""},
		{"user.id", `{"user":{"id":1},"User":{"id":2}}`, `the names "user" and "User"`},
		{"user.id", `{"user":{"x":1},"USER":{"id":2}}`, `the names "user" and "USER"`},
		{"user.id", `{"user":{"id":1,"ID":2}}`, `the names "id" and "ID"`},
		{"user.0.id", `{"user":[{"id":1,"Id":2}]}`, `the names "id" and "Id"`},
		{"\ufffd", `{"\ufffd":1,"\ud800":2}`, `has two values`},
		{"account", `{"Account":1}`, `the payload has no "account", but "Account": letter case counts`},
	} {
		parts, err := automutex.Fields(test.path)(t.Context(), keyTask(test.payload))
		if keyErr := (*automutex.KeyError)(nil); !errors.As(err, &keyErr) || keyErr.Field != test.path || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %q, %v\nwant %s", test.payload, parts, err, test.want)
		}
		rule := automutex.Rule{Task: "test", On: []string{test.path}, Busy: automutex.Retry}
		if maker, err := automutex.NewKeyMaker(automutex.Config{Rules: []automutex.Rule{rule}}); err != nil {
			t.Error(err)
		} else if _, err := maker.Keys(t.Context(), keyTask(test.payload)); err == nil {
			t.Errorf("%s has a key", test.payload)
		}
	}
	// What is on no path is nobody's affair, nor is a name that another path has.
	for _, test := range []struct {
		paths   []string
		payload string
		want    []string
	}{
		{[]string{"id"}, `{"id":1,"x":1,"X":2,"user":{"id":1,"ID":2}}`, []string{"1"}},
		{[]string{"user"}, `{"user":{"a":1,"A":2}}`, []string{`{"A":2,"a":1}`}},
		{[]string{"id", "ID"}, `{"id":1,"ID":2}`, []string{"1", "2"}},
		{[]string{"user.id"}, `{"user":{"id":1},"id":2,"ID":3}`, []string{"1"}},
	} {
		got, err := automutex.Fields(test.paths...)(t.Context(), keyTask(test.payload))
		if err != nil || !slices.Equal(got, test.want) {
			t.Errorf("%s: %q (%v)", test.payload, got, err)
		}
	}
}
