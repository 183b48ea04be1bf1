package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/keys"
)

// FuzzFields holds two payloads against each other: their fields give one part
// only if they are equal, by a reading of JSON that is not ours.
func FuzzFields(f *testing.F) {
	for _, pair := range [][2]string{
		{`1`, `"1"`}, {`1`, `1.0`}, {`1e2`, `100`}, {`1.5`, `"1.50"`}, {`-0`, `0`}, {`true`, `"true"`},
		{`{"a":1}`, `"{\"a\":1}"`}, {`"\"x\""`, `"x"`}, {`[1]`, `["1"]`}, {`{"a":1,"b":2}`, `{"b":2.0,"a":1}`},
		{`"\ud83e\udd8a"`, `"🦊"`}, {`"\ud800"`, `"\ufffd"`}, {`{"a":1,"a":2}`, `{"a":2}`}, {`1e400`, `1e401`},
		{`"<\u2028>"`, `"\u003c\u2028>"`}, {`{"":[{}]}`, `{"":[[]]}`}, {`1e-5`, `0.00001`}, {`null`, `""`},
		{`0e10000000000000000000`, `0`},
	} {
		f.Add(pair[0], pair[1])
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		partA, errA := oneField(t, `{"v":`+a+`}`)
		partB, errB := oneField(t, `{"v":`+b+`}`)
		if errA != nil || errB != nil {
			return
		}
		same := equalOnPurpose(referenceValue(t, a), referenceValue(t, b), true)
		if same != (partA == partB) {
			t.Errorf("%q and %q give %q and %q", a, b, partA, partB)
		}
		for _, part := range []string{partA, partB} {
			if part == "" || !utf8.ValidString(part) {
				t.Errorf("the part %q is unfit", part)
			}
		}
		if same != (keys.Key("p", "s", partA) == keys.Key("p", "s", partB)) {
			t.Errorf("%q and %q: the keys disagree with the parts", a, b)
		}
	})
}

// FuzzFields_oneSlot takes whole payloads and a path to a Redis key.
func FuzzFields_oneSlot(f *testing.F) {
	f.Add("user.id", `{"user":{"id":"{}"}}`, "a")
	f.Add(`items.0.s\.ku`, `{"items":[{"s.ku":1}]}`, "}{")
	f.Add("v", `{"v":{"b":[1,{}],"a":"x"}}`, "")
	f.Add("a", "{\"a\":\"\u2028\"}", "\xff")
	f.Add("a.b.c", `[[[[`, "s")
	f.Fuzz(func(t *testing.T, path, payload, scope string) {
		if _, err := keys.ParsePath(path); err != nil {
			return
		}
		parts, err := automutex.Fields(path, "id")(t.Context(), keyTask(payload))
		if one, oneErr := automutex.Fields(path)(t.Context(), keyTask(payload)); err == nil && (oneErr != nil || one[0] != parts[0]) {
			t.Errorf("alone %q gives %q (%v), with another path %q", path, one, oneErr, parts)
		}
		if err != nil {
			if !errors.As(err, new(*automutex.KeyError)) {
				t.Errorf("%T, want a *KeyError: %v", err, err)
			}
			return
		}
		key := keys.Key("p", scope, parts...)
		open, end := strings.IndexByte(key, '{'), strings.IndexByte(key, '}')
		if open != 2 || end != len(key)-1 || end == open+1 || strings.Count(key, "{") > 1 {
			t.Errorf("%q is not one slot", key)
		}
	})
}

// referenceValue reads a JSON value with encoding/json, numbers as text.
func referenceValue(t *testing.T, value string) (v any) {
	t.Helper()
	decoder := json.NewDecoder(strings.NewReader(value))
	decoder.UseNumber()
	if err := decoder.Decode(&v); err != nil {
		t.Fatalf("%q has a key but is not JSON: %v", value, err)
	}
	return v
}

// equalOnPurpose is true for values that Fields gives one part: equal ones and,
// at the top, scalars and the strings that read like them.
func equalOnPurpose(a, b any, top bool) bool {
	if top {
		textA, scalarA := referenceText(a)
		textB, scalarB := referenceText(b)
		if scalarA || scalarB {
			return scalarA && scalarB && textA == textB
		}
	}
	switch a := a.(type) {
	case map[string]any:
		b, ok := b.(map[string]any)
		if !ok || len(a) != len(b) {
			return false
		}
		for name := range a {
			if other, ok := b[name]; !ok || !equalOnPurpose(a[name], other, false) {
				return false
			}
		}
		return true
	case []any:
		b, ok := b.([]any)
		return ok && slices.EqualFunc(a, b, func(x, y any) bool { return equalOnPurpose(x, y, false) })
	case json.Number:
		textA, _ := referenceText(a)
		textB, _ := referenceText(b)
		_, ok := b.(json.Number)
		return ok && textA == textB
	}
	return reflect.DeepEqual(a, b)
}

func referenceText(v any) (text string, scalar bool) {
	switch v := v.(type) {
	case string:
		return v, true
	case bool:
		return fmt.Sprint(v), true
	case json.Number:
		r, ok := new(big.Rat).SetString(v.String())
		if !ok { // an exponent beyond big.Rat, which only zero may have
			mantissa, _, _ := strings.Cut(strings.ToLower(v.String()), "e")
			r, _ = new(big.Rat).SetString(mantissa)
		}
		digits, _ := r.FloatPrec()
		return r.FloatString(digits), true
	}
	return "", false
}

// Random composites, whatever the order of their members and the spelling of
// their numbers and strings, give the part of the same value written plainly.
func TestFields_compositesAreCanonical(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		value := randomValue(random, 4)
		plain, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		var spelled bytes.Buffer
		spellOtherwise(&spelled, random, value)
		a, errA := oneField(t, `{"v":`+string(plain)+`}`)
		b, errB := oneField(t, `{"v":`+spelled.String()+`}`)
		if errA != nil || errB != nil || a != b {
			t.Fatalf("%s and %s give %q (%v) and %q (%v)", plain, &spelled, a, errA, b, errB)
		}
	}
}

func randomValue(random *rand.Rand, depth int) any {
	kind := random.IntN(6)
	if depth == 4 {
		kind = 4 + random.IntN(2)
	}
	switch kind {
	case 0:
		return json.Number(fmt.Sprint(random.IntN(2000) - 1000))
	case 1:
		return random.IntN(2) == 0
	case 2:
		return nil
	case 4:
		list := make([]any, random.IntN(4)*min(depth, 1))
		for i := range list {
			list[i] = randomValue(random, depth-1)
		}
		return list
	case 5:
		members := map[string]any{}
		for range random.IntN(5) * min(depth, 1) {
			members[randomText(random)] = randomValue(random, depth-1)
		}
		return members
	}
	return randomText(random)
}

func randomText(random *rand.Rand) string {
	alphabet := []rune("ab\"\\/\n\x01é🦊<{[ ")
	text := make([]rune, random.IntN(4))
	for i := range text {
		text[i] = alphabet[random.IntN(len(alphabet))]
	}
	return string(text)
}

// spellOtherwise writes a value as JSON with members in any order, spaces
// anywhere, numbers with exponents and strings with needless escapes.
func spellOtherwise(w *bytes.Buffer, random *rand.Rand, v any) {
	space := func() { w.WriteString(strings.Repeat("\n", random.IntN(2))) }
	space()
	switch v := v.(type) {
	case string:
		w.WriteByte('"')
		for _, r := range v {
			switch {
			case r > 0xFFFF:
				fmt.Fprintf(w, `\u%04x\u%04X`, 0xD800+(r-0x10000)>>10, 0xDC00+(r-0x10000)&0x3FF)
			case r < 0x20 || r == '"' || r == '\\' || random.IntN(2) == 0:
				fmt.Fprintf(w, `\u%04X`, r)
			default:
				w.WriteRune(r)
			}
		}
		w.WriteByte('"')
	case json.Number:
		fmt.Fprintf(w, "%s.000e+00", v)
	case []any:
		w.WriteByte('[')
		for i, element := range v {
			if i > 0 {
				w.WriteByte(',')
			}
			spellOtherwise(w, random, element)
		}
		w.WriteByte(']')
	case map[string]any:
		w.WriteByte('{')
		first := true
		for name, member := range v { // in any order
			if !first {
				w.WriteByte(',')
			}
			first = false
			spellOtherwise(w, random, name)
			w.WriteByte(':')
			spellOtherwise(w, random, member)
		}
		w.WriteByte('}')
	default:
		fmt.Fprintf(w, "%v", map[any]string{nil: "null", true: "true", false: "false"}[v])
	}
	space()
}
