package config

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/unique"
)

// file is a configuration. Its keys, and those of everything in it, are the fields of the Go types in snake_case that
// the tables below have a help for.
type file struct {
	Prefix, HashKeys string
	History          int
	Defaults         automutex.Rule
	Rules            []automutex.Rule
	Unique           []unique.Rule
}

// object is a mapping of the file that becomes a struct.
type object struct {
	what     string            // in errors
	help     map[string]string // of each key, for who edits a file with the schema
	not      map[string]string // what somebody may look for who knows the Go type, and why it is no key
	required []string
}

const unlimited, noRate = "unlimited", "none"

var (
	ofFile = object{what: "the file", help: map[string]string{
		"prefix":    "Begins every key in Redis; automutex where it is left out.",
		"hash_keys": "A secret that keeps payload values out of keys; at least 16 bytes.",
		"history":   "How many of the last runs of each key are kept for its page; none where it is left out.",
		"defaults":  "Keys of every rule in rules that does not have them itself.",
		"rules":     "What workers guard.",
		"unique":    "What producers enqueue once.",
	}, not: map[string]string{
		"decode":        "is a Go function: set Config.Decode of automutex and of unique in the program",
		"owner":         "belongs to the process: set Config.Owner in the program",
		"min_replicas":  "belongs to how Redis is set up: set Config.MinReplicas in the program",
		"private":       "belongs to the process: set Config.Private in the program",
		"wake_at_front": "leans on the layout of asynq: set Config.WakeAtFront in the program",
		"wait":          "belongs to the process that enqueues: set Config.Wait of unique in the program",
		"inspector":     "is a Go value: set Config.Inspector in the program",
		"logger":        "is a Go value: set Config.Logger in the program",
		"observe":       "is a Go function: set Config.Observe in the program",
	}}
	ofRule = object{what: "a rule", required: []string{"task"}, help: map[string]string{
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
	}, not: map[string]string{
		"limit_field":   "is written as limit: {field: tenant.max, default: 3}",
		"limit_of":      "is a Go function: set Rule.LimitOf in the program, or name a payload field in limit: {field: tenant.max, default: 3}",
		"key":           "is a Go function: set Rule.Key in the program, or name the payload fields in on",
		"payload":       "is a value of a Go type: set Rule.Payload in the program",
		"after_failure": "is a Go function: set Rule.Busy to AfterFailure(...) in the program",
	}}
	ofDefaults = func() object {
		o := object{what: "defaults", help: maps.Clone(ofRule.help), not: maps.Clone(ofRule.not)}
		o.not["name"], o.not["task"] = "names one rule, and so has no default", "is what each rule is for, and so has no default"
		delete(o.help, "name")
		delete(o.help, "task")
		return o
	}()
	ofUnique = object{what: "a unique rule", required: []string{"task"}, help: map[string]string{
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
	}, not: map[string]string{"key": ofRule.not["key"], "payload": ofRule.not["payload"]}}
	ofRate = object{what: "a rate, such as {starts: 100, per: 1m, burst: 10}", required: []string{"starts", "per"}, help: map[string]string{
		"starts": "How many handlers start in each period.", "per": "The period.", "burst": "How many may start at once.",
	}}
	ofLimit = object{what: "a limit, such as {field: tenant.max, default: 3, most: 50}", required: []string{"field"}, help: map[string]string{
		"field":   "The payload field with the limit, as a dotted path.",
		"default": "The limit where the field is missing; without it such a task is archived.",
		"most":    "The highest limit that a payload can set; no bound where it is left out.",
	}}
)

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

// keys are the keys of the object, in the order of the fields of t.
func (o object) keys(t reflect.Type) []string {
	var all []string
	for _, f := range reflect.VisibleFields(t) {
		if key := keyOf(f.Name); o.help[key] != "" {
			all = append(all, key)
		}
	}
	return all
}

// keyOf is the key of a Go field: TTL is ttl, MaxHold max_hold. The path of a limit is its field.
func keyOf(field string) string {
	if field == "Path" {
		return "field"
	}
	var b strings.Builder
	for i, r := range field {
		if upper := r >= 'A' && r <= 'Z'; upper && i > 0 && field[i-1] >= 'a' {
			b.WriteByte('_')
		}
		b.WriteString(strings.ToLower(string(r)))
	}
	return b.String()
}

func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// schema is a part of a JSON Schema.
type schema map[string]any

// Schema returns the JSON Schema (draft 2020-12) of a configuration file, for editors that complete and check YAML.
// It is made from what the decoder reads, so it knows the same keys. It is looser than [Load]: a file that fits the
// schema can still have mistakes that only Load finds.
func Schema() []byte {
	s := ofFile.schema(reflect.TypeFor[file]())
	s["$schema"], s["title"] = "https://json-schema.org/draft/2020-12/schema", "automutex"
	s["anyOf"] = []schema{{"required": []string{"rules"}}, {"required": []string{"unique"}}}
	text, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		panic(fmt.Sprintf("config: the schema is no JSON: %v", err)) // constants only: found by any test
	}
	return append(text, '\n')
}

func (o object) schema(t reflect.Type) schema {
	properties := schema{}
	for _, f := range reflect.VisibleFields(t) {
		key := keyOf(f.Name)
		if o.help[key] == "" {
			continue
		}
		property := schemaOf(f.Type)
		if key == "limit" {
			property = schema{"anyOf": []schema{property, {"const": unlimited}, ofLimit.schema(reflect.TypeFor[automutex.LimitField]())}}
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

func schemaOf(t reflect.Type) schema {
	if c, ok := choices[t]; ok {
		s := []schema{{"enum": sorted(c.words)}}
		if c.timed != "" {
			s = append(s, object{required: []string{c.timed}}.schema(reflect.TypeFor[struct{}]()))
			s[1]["properties"] = schema{c.timed: schemaOf(reflect.TypeFor[time.Duration]())}
		}
		return schema{"anyOf": s}
	}
	switch t {
	case reflect.TypeFor[automutex.Rate]():
		return schema{"anyOf": []schema{ofRate.schema(t), {"const": noRate}}}
	case reflect.TypeFor[automutex.Rule]():
		return ofDefaults.schema(t)
	case reflect.TypeFor[[]automutex.Rule]():
		return schema{"type": "array", "items": ofRule.schema(t.Elem())}
	case reflect.TypeFor[[]unique.Rule]():
		return schema{"type": "array", "items": ofUnique.schema(t.Elem())}
	case reflect.TypeFor[[]string]():
		return schema{"type": "array", "items": schemaOf(t.Elem())}
	case reflect.TypeFor[time.Duration]():
		return schema{"anyOf": []schema{
			{"type": "string", "pattern": `^\+?([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))*$|^0$`},
			{"const": 0},
		}, "examples": []string{"500ms", "30s", "1h30m"}}
	case reflect.TypeFor[int]():
		return schema{"type": "integer", "minimum": 0}
	case reflect.TypeFor[bool]():
		return schema{"type": "boolean"}
	}
	return schema{"type": []string{"string", "number", "boolean"}} // text is taken as it is written
}
