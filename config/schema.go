package config

import (
	"encoding/json"
	"fmt"
)

// schema is a part of a JSON Schema.
type schema map[string]any

// Schema returns the JSON Schema (draft 2020-12) of a configuration file, for
// editors that complete and check YAML. It is made from the tables that the
// decoder uses, so it knows the same keys. It is looser than [Load]: a file that
// fits the schema can still have mistakes that only Load finds.
func Schema() []byte {
	file := objectSchema(documentKeys(nil, nil, nil))
	file["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	file["title"] = "automutex"
	file["anyOf"] = []schema{{"required": []string{"rules"}}, {"required": []string{"unique"}}}
	text, err := json.MarshalIndent(file, "", "  ")
	if err != nil {
		panic(fmt.Sprintf("config: the schema is no JSON: %v", err)) // constants only: found by any test
	}
	return append(text, '\n')
}

// The schemas of single values. YAML has numbers and booleans where a
// configuration has text, and the decoder takes them as they are written.
var (
	textSchema   = schema{"type": []string{"string", "number", "boolean"}}
	textsSchema  = listSchema(textSchema)
	numberSchema = schema{"type": "integer", "minimum": 0}
	flagSchema   = schema{"type": "boolean"}
	periodSchema = schema{"anyOf": []schema{
		{"type": "string", "pattern": `^\+?([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))*$|^0$`},
		{"const": 0},
	}, "examples": []string{"500ms", "30s", "1h30m"}}
)

func listSchema(of schema) schema { return schema{"type": "array", "items": of} }

// choiceSchema is one of the words, or the word that goes with a duration.
func choiceSchema(words []string, timed string) schema {
	return schema{"anyOf": []schema{
		{"enum": words},
		{"type": "object", "properties": schema{timed: periodSchema}, "required": []string{timed}, "additionalProperties": false},
	}}
}

// objectSchema is a mapping with these keys and no others.
func objectSchema[T any](keys []key[T], required ...string) schema {
	properties := schema{}
	for _, k := range keys {
		property := schema{"description": k.help}
		for name, part := range k.schema {
			property[name] = part
		}
		properties[k.name] = property
	}
	object := schema{"type": "object", "properties": properties, "additionalProperties": false}
	if len(required) > 0 {
		object["required"] = required
	}
	return object
}
