package e2e

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
)

// goldenKey is one line of testdata/keys.jsonl: the key that the first version gave
// a payload, and its key under a secret. Both are empty where it refused the payload.
type goldenKey struct {
	Task    string `json:"task,omitempty"` // empty: t
	Payload string `json:"payload"`
	Key     string `json:"key"`
	Hidden  string `json:"hidden"`
}

// goldenRules make the keys of testdata/keys.jsonl.
var goldenRules = []automutex.Rule{{Task: "t", Scope: "s c", On: []string{"v", "w"}, OnHeaders: []string{"h"},
	Busy: automutex.Retry}, {Task: "o", On: []string{"b", "v.w?"}}}

// goldenLarge are payloads too large for the file, which has their names instead.
var goldenLarge = map[string]func() string{
	"@numbers":     func() string { return `{"v":[` + strings.Repeat("1e399,", 999) + `-1e-399],"w":1}` },
	"@digits":      func() string { return `{"v":[` + strings.Repeat("0.10e1,", 9999) + `7],"w":1}` },
	"@unsorted":    func() string { return `{"w":1,"v":` + nestedUnsorted(90, 1<<16) + `}` },
	"@string":      func() string { return `{"w":"{","v":"` + strings.Repeat(`\u0001 |~\\`, 9999) + `"}` },
	"@quoted":      func() string { return `{"w":"{","v":"[` + strings.Repeat(`\u0001 |~\\\"`, 9999) + `"}` },
	"@names":       func() string { return `{"w":[],"v":{` + manyNames(5000) + `}}` },
	"@edge of 200": func() string { return `{"w":1,"v":["` + strings.Repeat("x", 191) + `"]}` },
	"@edge of 201": func() string { return `{"w":1,"v":["` + strings.Repeat("x", 192) + `"]}` },
}

// nestedUnsorted is an object in an object and so on, with a string of n bytes in
// the innermost one; the members of each are in the wrong order.
func nestedUnsorted(depth, n int) string {
	return strings.Repeat(`{"b":`, depth) + `"` + strings.Repeat("x", n) + `"` + strings.Repeat(`,"a":1}`, depth)
}

// manyNames are n members of an object, in no order.
func manyNames(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `%s"%x":%d`, strings.Repeat(",", min(i, 1)), i*7919%n, i)
	}
	return b.String()
}

func goldenKeyOf(t *testing.T, secret, task, payload string) string {
	t.Helper()
	maker, err := automutex.NewKeyMaker(automutex.Config{Rules: goldenRules, HashKeys: secret, Prefix: "p"})
	redistest.Must(t, err)
	if large := goldenLarge[payload]; large != nil {
		payload = large()
	}
	headers := map[string]string{"h": "é ~"}
	keys, err := maker.Keys(t.Context(), asynq.NewTaskWithHeaders(cmp.Or(task, "t"), []byte(payload), headers))
	if err != nil {
		return ""
	}
	return keys[0]
}

// A key names a lock in all processes, so no version may make another one of the same payload.
func TestKeys_areThoseOfTheFirstVersion(t *testing.T) {
	t.Parallel()
	file, err := os.ReadFile(filepath.Join("testdata", "keys.jsonl"))
	redistest.Must(t, err)
	lines := strings.Split(strings.TrimSpace(string(file)), "\n")
	if len(lines) < 400 {
		t.Errorf("the file has %d lines only", len(lines))
	}
	for _, line := range lines {
		var want goldenKey
		redistest.Must(t, json.Unmarshal([]byte(line), &want))
		if got := goldenKeyOf(t, "", want.Task, want.Payload); got != want.Key {
			t.Errorf("%.200s\n got %q\nwant %q", want.Payload, got, want.Key)
		}
		if got := goldenKeyOf(t, testSecret, want.Task, want.Payload); got != want.Hidden {
			t.Errorf("%.200s under a secret\n got %q\nwant %q", want.Payload, got, want.Hidden)
		}
	}
}
