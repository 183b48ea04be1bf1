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
