package config

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/unique"
)

// file is a configuration. Its keys, and those of everything in it, are the fields of the Go types in snake_case that
// the objects below have a help for.
type file struct {
	Prefix, HashKeys string
	History          int
	Defaults         defaults
	Rules            []automutex.Rule
	Unique           []unique.Rule
}

type defaults automutex.Rule

// object is a mapping of the file that becomes a struct.
type object struct {
	what     string            // in errors
	required []string          // keys
	help     map[string]string // of each key, for who edits a file with the schema
	not      map[string]string // what somebody may look for who knows the Go type, and why it is no key
}

const unlimited, noRate = "unlimited", "none"

// objects are what a file is made of, by their Go types.
var objects = func() map[reflect.Type]object {
	ofFile := object{what: "the file", help: map[string]string{
		"prefix":    "Begins every key in Redis; automutex where it is left out.",
		"hash_keys": "A secret that keeps payload values out of keys; at least 16 bytes.",
		"history":   "How many of the last runs of each key are kept for its page; none where it is left out.",
		"defaults":  "Keys of every rule in rules that does not have them itself.",
		"rules":     "What workers guard.",
		"unique":    "What producers enqueue once.",
	}, not: map[string]string{}}
	ofRule := object{what: "a rule", required: []string{"task"}, help: map[string]string{
		"name":       "A label for errors, events and metrics; the task where it is left out.",
		"task":       "The task type, or its prefix: an exact match first, then the longest prefix.",
		"on":         "Payload fields that make the key, as dotted paths: user.id, items.0.sku. A dot alone is the whole payload.",
		"on_headers": "Task headers that make the key.",
		"optional":   "Whether a task without one of these fields, or with an empty one, takes no lock of the rule. It is archived where it is left out.",
		"scope":      "Rules with the same scope share locks; the task's own type where it is left out.",
		"limit":      "How many may hold a key at once; 1 where it is left out. unlimited: only the rate or the cooldown bounds them. {field: tenant.max, default: 3, most: 50} reads it from the payload.",
		"ttl":        "How long a key stays taken after its process died; 30s where it is left out.",
		"wait":       "The longest time in line, in the worker, before the policy applies.",
		"max_hold":   "The longest time a handler may hold the key; no bound where it is left out.",
		"cooldown":   "After a success nobody starts until this long after the run began.",
		"rate":       "How often handlers start for a key: {starts: 100, per: 1m, burst: 10}. burst is how many may start at once after a pause; 1 where it is left out. none: no rate, whatever defaults say.",
		"in_order":   "Whether the tasks of a key run in the order in which they were enqueued, through failures.",
		"on_archive": "What happens to the key of an ordered task that is archived: hold (for an operator) or continue (with the next).",
		"max_queued": "How many tasks of a key may be enqueued and not done, in order; no bound where it is left out.",
		"fence":      "Whether handlers get a fence, a number that grows from run to run of a key.",
		"busy":       "The policy for a task that finds its key taken; park where it is left out.",
	}, not: map[string]string{"limit_field": "is written as limit: {field: tenant.max, default: 3}", "after_failure": "is a Go function: set Rule.Busy in the program"}}
	ofUnique := object{what: "a unique rule", required: []string{"task"}, help: map[string]string{
		"task":          ofRule.help["task"],
		"queue":         "The queue of the tasks; \"default\" where it is left out.",
		"on":            ofRule.help["on"],
		"on_headers":    ofRule.help["on_headers"],
		"optional":      "Whether a task without one of these fields, or with an empty one, is enqueued each time. It is refused where it is left out.",
		"scope":         "Rules with the same scope share keys; the task's own type where it is left out.",
		"until":         "How long a task stands in the way of the next one for its key.",
		"duplicate":     "What happens to a task that finds another one in its way.",
		"max_postpone":  "The longest time after the first call that postpone may put a task off.",
		"keep_archived": "Whether archived and completed tasks stay in the way.",
	}, not: map[string]string{}}
	ofFile.leave(automutex.Config{}, unique.Config{})
	ofRule.leave(automutex.Rule{})
	ofUnique.leave(unique.Rule{})
	ofDefaults := object{what: "defaults", help: maps.Clone(ofRule.help), not: maps.Clone(ofRule.not)}
	for _, key := range []string{"name", "task"} {
		delete(ofDefaults.help, key)
		ofDefaults.not[key] = "is of one rule, and so has no default"
	}
	return map[reflect.Type]object{
		reflect.TypeFor[file]():           ofFile,
		reflect.TypeFor[defaults]():       ofDefaults,
		reflect.TypeFor[automutex.Rule](): ofRule,
		reflect.TypeFor[unique.Rule]():    ofUnique,
		reflect.TypeFor[automutex.Rate](): {what: "a rate, such as {starts: 100, per: 1m, burst: 10}", required: []string{"starts", "per"}, help: map[string]string{
			"starts": "How many handlers start in each period.", "per": "The period.", "burst": "How many may start at once.",
		}},
		reflect.TypeFor[automutex.LimitField](): {what: "a limit, such as {field: tenant.max, default: 3, most: 50}", required: []string{"field"}, help: map[string]string{
			"field":   "The payload field with the limit, as a dotted path.",
			"default": "The limit where the field is missing; without it such a task is archived.",
			"most":    "The highest limit that a payload can set; no bound where it is left out.",
		}},
	}
}()

// leave says of the fields of Go structs that are no keys where they are set.
func (o object) leave(structs ...any) {
	for _, of := range structs {
		for _, f := range reflect.VisibleFields(reflect.TypeOf(of)) {
			key, kind := keyOf(f.Name), "is a Go value"
			if f.Type.Kind() == reflect.Func {
				kind = "is a Go function"
			}
			if o.help[key] == "" && o.not[key] == "" {
				o.not[key] = fmt.Sprintf("%s: set %s.%s in the program", kind, reflect.TypeOf(of).Name(), f.Name)
			}
		}
	}
}

// choice is a value that a word names, or a word with a duration: retry, or {retry_in: 5s}.
type choice struct {
	words map[string]any
	timed string
	with  func(time.Duration) any
	all   string
}

var choices = map[reflect.Type]choice{
	reflect.TypeFor[automutex.Policy](): {
		words(automutex.Retry, automutex.Skip, automutex.Archive, automutex.Fail, automutex.Park, automutex.Replace, automutex.Allow),
		"retry_in", func(d time.Duration) any { return automutex.RetryIn(d) }, "retry, skip, archive, fail, park, replace, allow or {retry_in: 5s}",
	},
	reflect.TypeFor[automutex.OnArchive](): {words: words(automutex.HoldKey, automutex.Continue), all: "hold or continue"},
	reflect.TypeFor[unique.Until](): {
		map[string]any{"done": unique.UntilDone, "start": unique.UntilStart},
		"for", func(d time.Duration) any { return unique.For(d) }, "done, start or {for: 10m}",
	},
	reflect.TypeFor[unique.Duplicate](): {
		words(unique.Reject, unique.Join, unique.Replace), "postpone", func(d time.Duration) any { return unique.Postpone(d) }, "reject, join, replace or {postpone: 5s}",
	},
}

// words are values by their names.
func words[V fmt.Stringer](values ...V) map[string]any {
	all := map[string]any{}
	for _, v := range values {
		all[v.String()] = v
	}
	return all
}

// fields are the fields of a struct by their keys in a file, in the order of keys.
func (o object) fields(t reflect.Type) (keys []string, fields map[string]reflect.StructField) {
	fields = map[string]reflect.StructField{}
	for _, f := range reflect.VisibleFields(t) {
		if key := keyOf(f.Name); o.help[key] != "" {
			keys, fields[key] = append(keys, key), f
		}
	}
	return keys, fields
}

var inWord = regexp.MustCompile("([a-z])([A-Z])")

// keyOf is the key of a Go field: TTL is ttl, MaxHold max_hold. The path of a limit is its field.
func keyOf(field string) string {
	if field == "Path" {
		return "field"
	}
	return strings.ToLower(inWord.ReplaceAllString(field, "${1}_$2"))
}

func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// schema is a part of a JSON Schema.
type schema map[string]any

// Schema returns the JSON Schema (draft 2020-12) of a configuration file, for editors that complete and check YAML.
// It is made from what the decoder reads, so it knows the same keys. It is looser than [Load]: a file that fits the
// schema can still have mistakes that only Load finds.
func Schema() []byte {
	s := schemaOf(reflect.TypeFor[file]())
	s["$schema"], s["title"] = "https://json-schema.org/draft/2020-12/schema", "automutex"
	s["anyOf"] = []schema{{"required": []string{"rules"}}, {"required": []string{"unique"}}}
	text, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		panic(fmt.Sprintf("config: the schema is no JSON: %v", err)) // constants only: found by any test
	}
	return append(text, '\n')
}

func schemaOf(t reflect.Type) schema {
	if o, ok := objects[t]; ok {
		return o.schema(t)
	}
	if c, ok := choices[t]; ok {
		s := []schema{{"enum": sorted(c.words)}}
		if c.timed != "" {
			timed := schema{c.timed: schemaOf(reflect.TypeFor[time.Duration]())}
			s = append(s, schema{"type": "object", "properties": timed, "additionalProperties": false, "required": []string{c.timed}})
		}
		return schema{"anyOf": s}
	}
	switch {
	case t == reflect.TypeFor[time.Duration]():
		return schema{"anyOf": []schema{
			{"type": "string", "pattern": `^\+?([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))*$|^0$`},
			{"const": 0},
		}, "examples": []string{"500ms", "30s", "1h30m"}}
	case t.Kind() == reflect.Slice:
		return schema{"type": "array", "items": schemaOf(t.Elem())}
	case t.Kind() == reflect.Int:
		return schema{"type": "integer", "minimum": 0}
	case t.Kind() == reflect.Bool:
		return schema{"type": "boolean"}
	}
	return schema{"type": []string{"string", "number", "boolean"}} // text is taken as it is written
}

func (o object) schema(t reflect.Type) schema {
	properties := schema{}
	_, fields := o.fields(t)
	for key, f := range fields {
		property := schemaOf(f.Type)
		switch key {
		case "limit":
			property = schema{"anyOf": []schema{property, {"const": unlimited}, schemaOf(reflect.TypeFor[automutex.LimitField]())}}
		case "rate":
			property = schema{"anyOf": []schema{property, {"const": noRate}}}
		}
		property["description"] = o.help[key]
		properties[key] = property
	}
	s := schema{"type": "object", "properties": properties, "additionalProperties": false}
	if o.required != nil {
		s["required"] = o.required
	}
	return s
}
