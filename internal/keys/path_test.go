package keys

import (
	"slices"
	"strings"
	"testing"
)

func TestParsePath_refusesOtherNotationsAndSaysHowToWriteIt(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]string{
		"$":               `is JSONPath for the whole payload; write "."`,
		"$.user.id":       `write "user.id" `,
		"$[0].id":         `write "0.id" `,
		"$['a.b'].c":      `write "a\\.b.c" `,
		"x[0]":            `write "x.0", `,
		"x[0].y[12]":      `write "x.0.y.12", `,
		`x["a.b"]`:        `write "x.a\\.b", `,
		"x[*].id":         `write "x.0.id", `,
		"x, y":            `write "x", "y", one path each`,
		"x,y[0]":          `write "x", "y.0", one path each`,
		"items.*.id":      `name one element, as in "items.0.id", `,
		"*":               `name one element, as in "0", `,
		`a\$,b`:           `write "a\$", "b", `,
		"x[":              `write "items.0.id" for an element`,
		"x]":              `write "items.0.id" for an element`,
		"$.":              `is JSONPath for the whole payload`,
		"/a/b":            `begins as a JSON pointer does; write "a.b", `,
		`lab\,els[0]`:     `write "lab\\,els.0", `,
		"$.items.*":       `write "items.0" `,
		`é\\[0]`:          `write "é\\\\.0", `,
		"\u00e9,\u732b.x": `write "é", "猫.x", `,
	} {
		segments, err := ParsePath(path)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s is %q, %v\nwant %s", path, segments, err, want)
		}
	}
	for path, want := range map[string][]string{
		`\$.x`:          {"$", "x"},
		`\$`:            {"$"},
		`x\[0\]`:        {"x[0]"},
		`x\[0]`:         {"x[0]"},
		`\/a`:           {"/a"},
		"a/b":           {"a/b"},
		`x\,y`:          {"x,y"},
		`items.\*.id`:   {"items", "*", "id"},
		"$ref.$id":      {"$ref", "$id"},
		"price$":        {"price$"},
		"a*b.**":        {"a*b", "**"},
		`a\\.b\.c\\\,d`: {`a\`, `b.c\,d`},
	} {
		if got, err := ParsePath(path); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s is %q (%v), want %q", path, got, err, want)
		}
	}
	fields, err := Parse([]string{`\$.x\[0\]`, `a\,b`, `\*`})
	if err != nil {
		t.Fatal(err)
	}
	got, failed := fields.Parts([]byte(`{"$":{"x[0]":1},"a,b":2,"*":3}`))
	if failed != nil || !slices.Equal(got, []string{"1", "2", "3"}) {
		t.Errorf("such names give %q, %v", got, failed)
	}
}

func TestParsePath(t *testing.T) {
	t.Parallel()
	for path, want := range map[string][]string{
		"id":            {"id"},
		"user.id":       {"user", "id"},
		`a\.b.c`:        {"a.b", "c"},
		`a\\.b`:         {`a\`, "b"},
		`a\\\.b`:        {`a\.b`},
		" .é":           {" ", "é"},
		".":             nil,
		"items.0.sku":   {"items", "0", "sku"},
		`\.`:            {"."},
		"a b|c~{d}.%7C": {"a b|c~{d}", "%7C"},
	} {
		if got, err := ParsePath(path); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q is %q (%v), want %q", path, got, err, want)
		}
	}
	for path, want := range map[string]string{
		"":        "is empty",
		"a.":      "empty segment",
		".a":      "empty segment",
		"a..b":    "empty segment",
		`a\`:      "lone backslash",
		`a\b`:     "lone backslash",
		"a\xffb":  "not valid UTF-8",
		`a\\\`:    "lone backslash",
		"a.b.\\.": "",
	} {
		_, err := ParsePath(path)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: got %v, want %q", path, err, want)
		}
	}
}
