package claims

import (
	"net/url"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"automutex:{reindex|7}", "automutex:{reindex|a/b%20c~d}", `automutex:{a\b|?#}`,
		"automutex:{ü|%7E}"} {
		for _, kind := range []Kind{Start, StartNew, DoneNew, KeptNew, Window, WindowNew} {
			id := ID(key, kind, "n.1")
			if got, gotKind, ok := Parse(id, "automutex"); !ok || got != key || gotKind != kind {
				t.Errorf("%q is parsed as %q, %q, %v", id, got, gotKind, ok)
			}
			if _, _, ok := Parse(id, "auto"); ok {
				t.Errorf("%q is taken for one of another prefix", id)
			}
		}
	}
	for _, id := range []string{"", "8a1c", "automutex", "automutex:{reindex|7}", "automutex:{reindex|7}:other:n.1",
		"automutex:{reindex|~2}:start:n.1", "automutex:{reindex|~2x}:start:n.1", "~2}:start:n.1",
		"automutex:{reindex|7~}:start:n.1"} {
		if key, kind, ok := Parse(id, "automutex"); ok {
			t.Errorf("%q is taken for a claim: %q, %q", id, key, kind)
		}
	}
}

func TestKind(t *testing.T) {
	t.Parallel()
	for kind, want := range map[Kind][3]bool{
		Start: {true, false, true}, StartNew: {true, true, true}, DoneNew: {false, true, true},
		KeptNew: {false, true, false}, Window: {false, false, false}, WindowNew: {false, true, false},
	} {
		if got := [3]bool{kind.EndsAtStart(), kind.CanBeSuperseded(), kind.EndsWithTask()}; got != want {
			t.Errorf("%s: ends at start, can be superseded, ends with its task: %v, want %v", kind, got, want)
		}
	}
}

// An ID is one segment of a URL path, also where nobody escapes it, and two keys never share an ID.
func FuzzTaskID(f *testing.F) {
	for _, key := range []string{"automutex:{push|octo/hello}", "automutex:{x|two%20words}", "a~2Fb", "a/b", `a\b`, "?#",
		"\x00\x7f ~"} {
		f.Add(key)
	}
	f.Fuzz(func(t *testing.T, key string) {
		id := TaskID(key)
		if back, ok := lockKey(id); !ok || back != key {
			t.Fatalf("%q became %q, and comes back as %q, %v", key, id, back, ok)
		}
		if strings.ContainsAny(id, "%/?#\\ ") {
			t.Fatalf("%q has the ID %q", key, id)
		}
		u, err := url.Parse("http://host/tasks/" + id)
		if err != nil || u.Path != "/tasks/"+id || u.RawQuery != "" || u.Fragment != "" {
			t.Fatalf("%q has the ID %q, which as a path is %q, %v", key, id, u, err)
		}
	})
}
