package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/big"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/keys"
	"github.com/automutex/automutex/internal/redistest"
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
		if one, oneErr := automutex.Fields(path)(t.Context(), keyTask(payload)); err == nil &&
			(oneErr != nil || one[0] != parts[0]) {
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

// allocated is how many bytes f allocates. Nothing else may run meanwhile, so its
// tests are not parallel: those run when the others have ended or stopped.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// costly are the values of a field, of about n bytes, that take the most memory or time to make a key of.
var costly = map[string]func(n int) string{
	"numbers":       func(n int) string { return "[" + strings.Repeat("1e399,", n/6) + "1]" },
	"small numbers": func(n int) string { return "[" + strings.Repeat("1e-399,", n/7) + "1]" },
	"numbers by name": func(n int) string {
		return `{"z":` + strings.Repeat(`{"z":1e399,"a":1e399,"b":`, n/50) + "1" + strings.Repeat("}", n/50) + `,"a":0}`
	},
	"nested unsorted": func(n int) string { return nestedUnsorted(99, max(n-99*13, 1)) },
	"nested numbers": func(n int) string {
		return strings.Repeat(`{"b":`, 98) + "[" + strings.Repeat("1,", max(n/2-700, 1)) + "1]" +
			strings.Repeat(`,"a":1}`, 98)
	},
	"lists": func(n int) string { return "[" + strings.Repeat("[],", n/3) + "[]]" },
	"deep lists": func(n int) string {
		return "[" + strings.Repeat(strings.Repeat("[", 98)+strings.Repeat("]", 98)+",", n/197) + "1]"
	},
	"deep objects": func(n int) string {
		return "[" + strings.Repeat(strings.Repeat(`{"b":`, 98)+"1"+strings.Repeat(`,"a":1}`, 98)+",", n/1180) + "1]"
	},
	"names":            func(n int) string { return "{" + manyNames(n/12) + "}" },
	"names in escapes": func(n int) string { return "{" + escapedNames(n/20) + "}" },
	"escapes":          func(n int) string { return `["` + strings.Repeat(`\u0061`, n/6) + `"]` },
	"a quoted string":  func(n int) string { return `"[` + strings.Repeat(`\"`, n/2) + `"` },
	"a string":         func(n int) string { return `"` + strings.Repeat(`\n`, n/2) + `"` },
	"strings":          func(n int) string { return "[" + strings.Repeat(`"\u0061",`, n/9) + "1]" },
	"a number":         func(n int) string { return "0." + strings.Repeat("0", n) + fmt.Sprintf("1e%d", n) },
}

func escapedNames(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `%s"\u0061%x":1`, strings.Repeat(",", min(i, 1)), i*7919%n)
	}
	return b.String()
}

// writtenOut is what is allocated for numbers that are written out, at most: their text has a bound of 1 MiB.
const writtenOut = 12 << 20

// FuzzKeyCost: no payload has much more allocated for its key than it has bytes.
func FuzzKeyCost(f *testing.F) {
	for _, name := range slices.Sorted(maps.Keys(costly)) {
		f.Add(costly[name](3000), 40)
		f.Add(costly[name](20), 500)
	}
	f.Add(`"\ud800":1,"v":`, 1000)
	maker := makeKeys([]string{"v"})
	f.Fuzz(func(t *testing.T, value string, times int) {
		times = int(uint(times) % 1000)
		repeated := "[" + strings.Repeat(value+",", times) + value + "]"
		for _, payload := range []string{`{"v":` + repeated + `}`, `{` + strings.Repeat(value+",", times) + `"w":1}`} {
			task := keyTask(payload)
			key := func() { _, _ = maker.Keys(t.Context(), task) }
			// encoding/json notes each open list in a slice that doubles, in up to three passes, and stops at 10,000 levels.
			const most, always, level = 32, 64 << 10, 256
			deep := min(strings.Count(payload, "[")+strings.Count(payload, "{"), 10_000)
			if taken := min(allocated(key), allocated(key),
				allocated(key)); taken > uint64(most*len(payload)+always+level*deep+writtenOut) {
				t.Errorf("%.100q: %d bytes have %d allocated", payload, len(payload), taken)
			}
		}
	})
}

// badPayloads are what producers have been seen to send, and what nobody should.
var badPayloads = []string{
	"", " ", "null", "{}", "[]", `"id"`, "7", "{", `{"id"`, `{"id":`, `{"id":1`, `{"id":1}}`, `{"id":1} {"id":2}`,
	"\xef\xbb\xbf{\"id\":1}",
	`{"id":null}`, `{"id":""}`, `{"id":"\u0000"}`, "{\"id\":\"\x00\"}", "{\"id\":\"\xff\"}", `{"id":"\ud800"}`,
	`{"id":"\udc00\ud800"}`,
	`{"id":"\ud83d\ude00"}`, `{"id":1,"id":2}`, `{"ID":1}`, `{"\u0069d":1}`, `{"id":1e400}`, `{"id":1e-400}`, `{"id":-0}`,
	`{"id":1e99999999999999999999}`,
	`{"id":123456789012345678901234567890}`, `{"id":{"b":[1,{}],"a":null}}`, `{"id":{"a":1,"a":1}}`, `{"id":[[[[[[]]]]]]}`,
	`{"id":NaN}`, `{"id":"a|b}{c~%7C"}`,
	`{"id":"'; redis.call('FLUSHALL') --"}`, `{"id":"` + strings.Repeat("x", 5000) + `"}`, `{"id":` +
		strings.Repeat("9", 401) + `}`,
	`{"id":` + strings.Repeat("[", 101) + strings.Repeat("]", 101) + `}`, strings.Repeat("[", 20_000), `{"id":"\u202e"}`,
	"\x80\x04}q\x00.", "<id>7</id>", "id=7",
	`{"id":1,"note":300}`, `{"id":true,"note":{}}`, `{"id":1,"note":"\xff"}`,
}

// badRules take keys from all that a producer decides on. The last one's error has the payload in it, as careless
// functions' errors have, and is no *KeyError: its tasks come back.
var badRules = []automutex.Rule{
	{Task: "path", On: []string{"id", `a\.b.0`}, Busy: automutex.Retry},
	{Task: "field", On: onID, Busy: automutex.Retry},
	{Task: "header", OnHeaders: []string{"tenant"}, Busy: automutex.Retry},
	{Task: "both", Name: "one", Scope: "one", On: onID, Busy: automutex.Retry},
	{Task: "both", Name: "two", Scope: "two", On: []string{"note"}, OnHeaders: []string{"tenant"}, Busy: automutex.Retry},
	{Task: "typed", Key: automutex.KeyOf(func(v struct {
		ID   any
		Note int8
	}) []string {
		return []string{fmt.Sprint(v.ID)}
	}), Busy: automutex.Retry},
	{Task: "raw", Key: func(_ context.Context, t *asynq.Task) ([]string, error) {
		return []string{string(t.Payload())}, nil
	}, Busy: automutex.Retry},
	{Task: "says", Key: func(_ context.Context, t *asynq.Task) ([]string, error) {
		return nil, fmt.Errorf("no shop %s", t.Payload())
	}, Busy: automutex.Retry},
	{Task: "itself", Key: func(_ context.Context, t *asynq.Task) ([]string, error) {
		return nil, fmt.Errorf("%s: %w", t.Payload(), &automutex.KeyError{Task: t.Type(), Field: string(t.Payload())})
	}, Busy: automutex.Retry},
	{Task: "", Busy: automutex.Retry}, // stands for a task without a rule; New never sees it
}

// FuzzPayload: whatever the payload, the headers and the rest of a task's type, the handler runs with the locks that
// the task needs, or does not run and the task is archived with a *KeyError, or handed back, as asynq can file it. It
// never panics, never runs unguarded, and leaves nothing in Redis.
func FuzzPayload(f *testing.F) {
	for i, payload := range badPayloads {
		f.Add([]byte(payload), badPayloads[(i+5)%len(badPayloads)], payload, i, i%2 == 0)
	}
	s := redistest.StartMini(f)
	rdb := s.Client(f)
	mux := asynq.NewServeMux() // which tasks have a rule, by asynq's own matching
	for _, rule := range badRules[:len(badRules)-1] {
		if rule.Name != "two" {
			mux.Handle(rule.Task, asynq.NotFoundHandler())
		}
	}
	guards := map[bool]*automutex.Guard{}
	for _, hashed := range []bool{false, true} {
		// Private: the keys of the fleet, written a second after the first task, would be taken for what a task left.
		cfg := automutex.Config{Private: true, Rules: badRules[:len(badRules)-1], Logger: slog.New(slog.DiscardHandler)}
		if hashed {
			cfg.HashKeys = testSecret
		}
		guard, err := automutex.New(rdb, cfg)
		redistest.Must(f, err)
		f.Cleanup(func() { _ = guard.Close(context.Background()) })
		guards[hashed] = guard
	}
	f.Fuzz(func(t *testing.T, payload []byte, tenant, more string, which int, hashed bool) {
		guard, rule := guards[hashed], badRules[uint(which)%uint(len(badRules))]
		task := asynq.NewTaskWithHeaders(rule.Task+more, payload, map[string]string{"tenant": tenant, more: tenant})
		_, pattern := mux.Handler(task)
		matched := pattern != ""
		keys, keyless := guard.Keys(t.Context(), task)
		ran := 0
		handler := asynq.HandlerFunc(func(ctx context.Context, got *asynq.Task) error {
			ran++
			if !bytes.Equal(got.Payload(), payload) {
				t.Errorf("the handler is given %q", got.Payload())
			}
			held := s.Mini().Keys() // sorted
			if want := slices.Sorted(slices.Values(keys)); !slices.Equal(held, slices.Compact(want)) {
				t.Errorf("it runs, and Redis has %q, not its keys %q", held, want)
			}
			if _, ok := automutex.Lease(ctx); ok != matched {
				t.Errorf("a lease: %v, a rule: %v", ok, matched)
			}
			return nil
		})
		err := guard.Middleware(handler).ProcessTask(context.Background(), task)
		if err == nil && (ran != 1 || keyless != nil || matched && len(keys) == 0) {
			t.Errorf("done: it ran %d times, with the keys %q (%v)", ran, keys, keyless)
		}
		if rule.Task == "says" && matched {
			if isFailure := guard.ServerConfig(asynq.Config{}).IsFailure; isFailure(err) || ran > 0 || keyless == nil ||
				!utf8.ValidString(err.Error()) {
				t.Errorf("it ran %d times, and is not handed back: %v", ran, err)
			}
		} else if err != nil {
			var keyErr *automutex.KeyError
			if !errors.As(err, &keyErr) || ran > 0 || keyless == nil || !errors.Is(err, asynq.SkipRetry) || !matched {
				t.Errorf("it ran %d times, and ends with %T: %v; keys %q (%v)", ran, err, err, keys, keyless)
			} else if keyErr.Task != task.Type() || !utf8.ValidString(err.Error()) {
				t.Errorf("asynq cannot file %q", err)
			}
		}
		if ran == 1 && rule.On != nil && !json.Valid(payload) {
			t.Errorf("it ran under the keys %q, although %q is no JSON", keys, payload)
		}
		for _, key := range keys {
			if hashed && len(payload) > 20 && strings.Contains(key, string(payload)) {
				t.Errorf("the hashed key %q tells the payload", key)
			}
		}
		if left := s.Mini().Keys(); len(left) > 0 {
			t.Errorf("%q is left", left)
		}
	})
}
