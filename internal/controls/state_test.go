package controls

import (
	"errors"
	"testing"
)

// A reply that is none, and one that says that there are too many controls, leave in force what was read before.
func TestParseControls_refused(t *testing.T) {
	t.Parallel()
	if state, err := parseControls([]any{int64(1), int64(0), []any{}}, nil); err != nil || len(state.targets) != 0 {
		t.Errorf("none: %+v, %v", state, err)
	}
	for _, reply := range []any{nil, "1", []any{}, []any{int64(0), int64(0), []any{}}, []any{int64(1), int64(1), []any{"report"}}} {
		if state, err := parseControls(reply, nil); err == nil {
			t.Errorf("%v is %+v", reply, state)
		}
	}
	if _, err := parseControls([]any{int64(1), int64(mostRead + 1), []any{}}, nil); !errors.Is(err, errManyControls) {
		t.Errorf("too many: %v", err)
	}
}
