package e2e

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
)

// Each mistake is a *FieldError that names its rule, its field and, in a list, its
// element: what shows mistakes elsewhere than in a log needs no texts taken apart.
func TestFieldError_oneForEachMistake(t *testing.T) {
	t.Parallel()
	_, err := automutex.NewKeyMaker(automutex.Config{Prefix: "{", Rules: []automutex.Rule{
		{Task: "a", On: []string{"id", "x..y"}, OnHeaders: []string{"h", ""}},
		{Task: "a", Scope: "s", TTL: 1, Busy: automutex.RetryIn(0)},
		{Name: "last", Task: "b", Scope: "s", Limit: 2},
		{Task: "c", Scope: "u"}, {Task: "c", Scope: "v"}, {Task: "d", Scope: "v"}, {Task: "d", Scope: "u"},
	}})
	type place struct {
		rule    int
		name    string
		field   string
		element int
	}
	var got []place
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		t.Fatalf("%T is no join: %v", err, err)
	}
	for _, err := range joined.Unwrap() {
		var e *automutex.FieldError
		if !errors.As(err, &e) {
			t.Errorf("%T: %v", err, err)
			continue
		}
		got = append(got, place{e.Rule, e.RuleName, e.Field, e.Element})
		if e.Err == nil || !strings.Contains(err.Error(), e.Err.Error()) || !strings.HasPrefix(err.Error(), "automutex: "+e.Error()) {
			t.Errorf("%v is not the text of %v", err, e)
		}
	}
	want := []place{
		{-1, "", "Prefix", -1},
		{0, "a", "On", 1},
		{0, "a", "OnHeaders", 1},
		{1, "a#2", "TTL", -1},
		{1, "a#2", "Busy", -1},
		{0, "a", "Scope", -1},
		{2, "last", "Limit", -1},
		{2, "last", "TTL", -1},
		{6, "d#2", "Scope", -1},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("the mistakes are\n%v\nwant\n%v\n%v", got, want, err)
	}
}

// A KeyMaker makes the keys that a Guard makes.
func TestKeyMaker_makesTheKeysOfAGuard(t *testing.T) {
	t.Parallel()
	cfg := automutex.Config{Prefix: "p", HashKeys: "a secret of 16 bytes", Rules: []automutex.Rule{
		{Task: "report:", Scope: "report", On: []string{"tenant"}, Limit: 3},
		{Task: "report:", Scope: "all", Limit: 10},
		{Task: "mail", OnHeaders: []string{"to"}, TTL: time.Minute},
	}}
	maker, err := automutex.NewKeyMaker(cfg)
	redistest.Must(t, err)
	guard, err := automutex.NewFromConnOpt(asynq.RedisClientOpt{Addr: "localhost:0"}, cfg) // does not dial
	redistest.Must(t, err)
	defer func() { redistest.Must(t, guard.Close(t.Context())) }()
	for _, task := range []*asynq.Task{
		asynq.NewTask("report:daily", []byte(`{"tenant":7}`)),
		asynq.NewTaskWithHeaders("mail", nil, map[string]string{"to": "x"}),
		asynq.NewTask("mail", nil), // no key
		asynq.NewTask("other", nil),
	} {
		got, gotErr := maker.Keys(t.Context(), task)
		want, wantErr := guard.Keys(t.Context(), task)
		if !reflect.DeepEqual(got, want) || (gotErr == nil) != (wantErr == nil) {
			t.Errorf("%s: %q, %v, want %q, %v", task.Type(), got, gotErr, want, wantErr)
		}
	}
	if _, err := maker.Keys(t.Context(), nil); err == nil {
		t.Error("a nil task has keys")
	}
}
