package limitfield

import (
	"context"
	"testing"

	"github.com/hibiken/asynq"
)

// Of finds the Field of a limit, and calls no other function, whatever it is made of.
func TestOf(t *testing.T) {
	t.Parallel()
	reads := func(context.Context, *asynq.Task) (int, error) {
		t.Error("a function of the user was called")
		return 3, nil
	}
	a, b := &Field{Path: "a", Read: reads}, &Field{Path: "b", Fallback: 2, Read: reads}
	if Of(a.Limit) != a || Of(b.Limit) != b {
		t.Error("a Field was not found")
	}
	wrapped := func(ctx context.Context, t *asynq.Task) (int, error) { return a.Limit(ctx, t) }
	for name, f := range map[string]func(context.Context, *asynq.Task) (int, error){"nil": nil, "a function": reads, "one around a limit": wrapped} {
		if Of(f) != nil {
			t.Errorf("%s has a Field", name)
		}
	}
	a.Read = func(context.Context, *asynq.Task) (int, error) { return 5, nil }
	if n, err := a.Limit(context.Background(), asynq.NewTask("x", nil)); n != 5 || err != nil {
		t.Errorf("a task's limit is %d, %v; want 5", n, err)
	}
}
