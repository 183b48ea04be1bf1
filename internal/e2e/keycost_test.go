package e2e

import (
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/automutex/automutex"
)

// allocated is how many bytes f allocates. Nothing else may run meanwhile, so its
// tests are not parallel: those run when the others have ended or stopped.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// costly are the values of a field, of about n bytes, that take the most memory or
// time to make a key of.
var costly = map[string]func(n int) string{
	"numbers":       func(n int) string { return "[" + strings.Repeat("1e399,", n/6) + "1]" },
	"small numbers": func(n int) string { return "[" + strings.Repeat("1e-399,", n/7) + "1]" },
	"numbers by name": func(n int) string {
		return `{"z":` + strings.Repeat(`{"z":1e399,"a":1e399,"b":`, n/50) + "1" + strings.Repeat("}", n/50) + `,"a":0}`
	},
	"nested unsorted": func(n int) string { return nestedUnsorted(99, max(n-99*13, 1)) },
	"nested numbers": func(n int) string {
		return strings.Repeat(`{"b":`, 98) + "[" + strings.Repeat("1,", max(n/2-700, 1)) + "1]" + strings.Repeat(`,"a":1}`, 98)
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

// What is allocated for a key is a few times the payload, and writtenOut, whatever is in it.
func TestKeys_allocateAFewTimesThePayload(t *testing.T) {
	const size, most = 1 << 18, 40 // the race detector's bookkeeping makes values escape to the heap
	for name, value := range costly {
		payload := `{"v":` + value(size) + `}`
		task := keyTask(payload)
		for _, secret := range []string{"", testSecret} {
			maker := valueKeys(secret)
			_, err := maker.Keys(t.Context(), task)
			if many := name == "numbers" || name == "small numbers"; many != (err != nil && strings.Contains(err.Error(), "numbers that take more than 1 MiB")) {
				t.Errorf("%s: %v", name, err)
			}
			taken := allocated(func() { _, _ = maker.Keys(t.Context(), task) })
			if taken > uint64(most*len(payload)+writtenOut) {
				t.Errorf("%s: a payload of %d bytes has %d allocated", name, len(payload), taken)
			}
		}
	}
}

// FuzzKeyCost: no payload has much more allocated for its key than it has bytes.
func FuzzKeyCost(f *testing.F) {
	for _, name := range slices.Sorted(maps.Keys(costly)) {
		f.Add(costly[name](3000), 40)
		f.Add(costly[name](20), 500)
	}
	f.Add(`"\ud800":1,"v":`, 1000)
	maker := valueKeys("")
	f.Fuzz(func(t *testing.T, value string, times int) {
		times = int(uint(times) % 1000)
		repeated := "[" + strings.Repeat(value+",", times) + value + "]"
		for _, payload := range []string{`{"v":` + repeated + `}`, `{` + strings.Repeat(value+",", times) + `"w":1}`} {
			task := keyTask(payload)
			key := func() { _, _ = maker.Keys(t.Context(), task) }
			// encoding/json notes each open list in a slice that doubles, in up to three passes, and stops at 10,000 levels.
			const most, always, level = 32, 64 << 10, 256
			deep := min(strings.Count(payload, "[")+strings.Count(payload, "{"), 10_000)
			if taken := min(allocated(key), allocated(key), allocated(key)); taken > uint64(most*len(payload)+always+level*deep+writtenOut) {
				t.Errorf("%.100q: %d bytes have %d allocated", payload, len(payload), taken)
			}
		}
	})
}

// valueKeys makes the keys of tasks by their field v.
func valueKeys(secret string) *automutex.KeyMaker {
	maker, err := automutex.NewKeyMaker(automutex.Config{Rules: []automutex.Rule{{Task: "test", On: []string{"v"}}}, HashKeys: secret, Prefix: "p"})
	if err != nil {
		panic(err)
	}
	return maker
}
