package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v4"

	"github.com/automutex/automutex/config"
	"github.com/automutex/automutex/internal/redistest"
)

// fileSchema compiles what "automutex schema" prints.
func fileSchema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(config.Schema()))
	redistest.Must(t, err)
	compiler := jsonschema.NewCompiler()
	redistest.Must(t, compiler.AddResource("automutex.json", doc))
	compiled, err := compiler.Compile("automutex.json")
	redistest.Must(t, err)
	return compiled
}

// fits tells what the schema says of a file, as an editor would.
func fits(t *testing.T, s *jsonschema.Schema, file []byte) error {
	t.Helper()
	if !json.Valid(file) {
		var doc any
		redistest.Must(t, yaml.Unmarshal(file, &doc))
		text, err := json.Marshal(doc)
		redistest.Must(t, err)
		file = text
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(file))
	redistest.Must(t, err)
	return s.Validate(value)
}

// A file that Load accepts fits the schema: the schema never marks what is right.
func TestSchema_acceptsWhatLoadAccepts(t *testing.T) {
	t.Parallel()
	s, accepted := fileSchema(t), 0
	for _, pattern := range []string{"config/testdata/*.*", "config/testdata/fuzz/FuzzParse/*",
		"examples/worker/rules.yaml"} {
		paths, err := filepath.Glob("../../" + pattern)
		redistest.Must(t, err)
		for _, path := range paths {
			data, err := os.ReadFile(path)
			redistest.Must(t, err)
			if _, quoted, isSeed := strings.Cut(string(data), "go test fuzz v1\n[]byte("); isSeed {
				text, err := strconv.Unquote(strings.TrimSuffix(strings.TrimSpace(quoted), ")"))
				redistest.Must(t, err)
				data = []byte(text)
			}
			if _, _, err := config.Parse(data); err != nil {
				continue
			}
			accepted++
			if err := fits(t, s, data); err != nil {
				t.Errorf("%s: Load accepts it, the schema does not: %v", path, err)
			}
		}
	}
	if accepted < 4 {
		t.Errorf("%d files are accepted by Load, want 4 or more", accepted)
	}
}

func TestSchema_refusesMistakes(t *testing.T) {
	t.Parallel()
	s := fileSchema(t)
	for what, file := range map[string]string{
		"nothing":              "prefix: x",
		"an unknown key":       "rules: [{task: a, limt: 3}]",
		"no task":              "rules: [{on: [id]}]",
		"a number for a time":  "rules: [{task: a, wait: 10}]",
		"a time without unit":  `rules: [{task: a, wait: "10"}]`,
		"an unknown policy":    "rules: [{task: a, busy: skipp}]",
		"a time for no policy": "rules: [{task: a, busy: {retry: 5s}}]",
		"text for a number":    "rules: [{task: a, limit: three}]",
		"text for a list":      "rules: [{task: a, on: id}]",
		"a task in defaults":   "defaults: {task: a}\nrules: [{task: a}]",
		"an unknown duplicate": "unique: [{task: a, duplicate: drop}]",
		"text for a flag":      "unique: [{task: a, keep_archived: maybe}]",
	} {
		if fits(t, s, []byte(file)) == nil {
			t.Errorf("%s: the schema accepts\n%s", what, file)
		}
		if _, _, err := config.Parse([]byte(file)); err == nil {
			t.Errorf("%s: Load accepts\n%s", what, file)
		}
	}
}
