package keys

import (
	"slices"
	"strings"
	"testing"
)

func TestParsePath_refusesOtherNotations(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]string{
		"$": "$", "$.user.id": "$", "$[0].id": "$", "$['a.b'].c": "$", "x[0]": "[", `x["a.b"]`: "[", "x[*].id": "[",
		"x, y": ",", "x,y[0]": ",", "items.*.id": "*",
		"*": "*", `a\$,b`: ",", "x[": "[", "x]": "]", "$.": "$", "/a/b": "/", `lab\,els[0]`: "[", "$.items.*": "$",
		"a?": "?", "a?.b": "?", `a\\?`: "?",
		`é\\[0]`: "[", "\u00e9,\u732b.x": ",", "a.*": "*", "*.a": "*",
	} {
		segments, err := ParsePath(path)
		if err == nil || !strings.Contains(err.Error(), "has a \""+want+"\", as other notations have; ") ||
			!strings.Contains(err.Error(), `\`+want+" for one in a name") {
			t.Errorf("%s is %q, %v\nwant %s", path, segments, err, want)
		}
	}
	for path, want := range map[string][]string{
		`\$.x`:          {"$", "x"},
		`\$`:            {"$"},
		`what\?.a?b`:    {"what?", "a?b"},
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
	fields, err := Parse([]string{`\$.x\[0\]`, `a\,b`, `\*`, `b\?`, `c\\?`, "d.e?"})
	if err != nil {
		t.Fatal(err)
	}
	got, failed := fields.Parts([]byte(`{"$":{"x[0]":1},"a,b":2,"*":3,"b?":4,"c\\":"\"\"","d":5}`))
	if failed != nil || !slices.Equal(got, []string{"1", "2", "3", "4", `"\"\""`, `""`}) {
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
