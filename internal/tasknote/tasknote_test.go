package tasknote

import "testing"

func TestOf(t *testing.T) {
	t.Parallel()
	if Of("a/b", "c") == Of("a", "b/c") || Of("low", "7") != "low/7" {
		t.Error("two tasks share a text")
	}
}

func TestParse(t *testing.T) {
	t.Parallel()
	for _, queue := range []string{"low", "a/b", "%2F", "ü ?"} {
		q, id, ok := Parse(Of(queue, "x/y"))
		if q != queue || id != "x/y" || !ok {
			t.Errorf("%q comes back as %q, %q, %v", queue, q, id, ok)
		}
	}
	if _, _, ok := Parse("no slash"); ok {
		t.Error("a text without a queue is taken for a note")
	}
}
