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
)

// fileSchema compiles what "automutex schema" prints.
func fileSchema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(config.Schema()))
	if err != nil {
		t.Fatal(err)
	}
	compiler := jsonschema.NewCompiler()
	if err := compiler.AddResource("automutex.json", doc); err != nil {
		t.Fatal(err)
	}
	compiled, err := compiler.Compile("automutex.json")
	if err != nil {
		t.Fatalf("the schema does not compile: %v", err)
	}
	return compiled
}

// fits tells what the schema says of a file, as an editor would.
func fits(t *testing.T, s *jsonschema.Schema, file []byte) error {
	t.Helper()
	text := file
	if !json.Valid(file) {
		var doc any
		err := yaml.Unmarshal(file, &doc)
		if err == nil {
			text, err = json.Marshal(doc)
		}
		if err != nil {
			t.Fatalf("neither JSON nor YAML: %v\n%s", err, file)
		}
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return s.Validate(value)
}

// A file that Load accepts fits the schema: the schema never marks what is right.
func TestSchema_acceptsWhatLoadAccepts(t *testing.T) {
	t.Parallel()
	s := fileSchema(t)
	files := map[string][]byte{}
	paths, err := filepath.Glob("../../config/testdata/*.*")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range append(paths, "../../examples/worker/rules.yaml") {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		files[path] = data
	}
	for _, path := range corpus(t) {
		files[path.name] = path.data
	}
	accepted := 0
	for name, data := range files {
		if _, _, err := config.Parse(data); err != nil {
			continue
		}
		accepted++
		if err := fits(t, s, data); err != nil {
			t.Errorf("%s: Load accepts it, the schema does not: %v", name, err)
		}
	}
	if accepted < 4 {
		t.Errorf("%d files are accepted by Load, want 4 or more", accepted)
	}
}

type seed struct {
	name string
	data []byte
}

// corpus is what the fuzzer of package config begins with.
func corpus(t *testing.T) []seed {
	t.Helper()
	paths, err := filepath.Glob("../../config/testdata/fuzz/FuzzParse/*")
	if err != nil {
		t.Fatal(err)
	}
	var seeds []seed
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		_, quoted, found := strings.Cut(string(data), "[]byte(")
		text, err := strconv.Unquote(strings.TrimSuffix(strings.TrimSpace(quoted), ")"))
		if !found || err != nil {
			t.Fatalf("%s is no seed of a fuzzer: %v", path, err)
		}
		seeds = append(seeds, seed{path, []byte(text)})
	}
	return seeds
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
