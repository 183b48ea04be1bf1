package config

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/nearest"
	"github.com/automutex/automutex/unique"
)

// file is a configuration. Each tag says what the key is about, for who edits a file with the schema.
type file struct {
	Prefix   string      `yaml:"prefix" about:"Begins every key in Redis; automutex where it is left out."`
	HashKeys string      `yaml:"hash_keys" about:"A secret that keeps payload values out of keys; at least 16 bytes."`
	History  int         `yaml:"history" about:"How many of the last runs of each key are kept for its page; none where it is left out."`
	Defaults yaml.Node   `yaml:"defaults" about:"Keys of every rule in rules that does not have them itself."`
	Rules    []yaml.Node `yaml:"rules" about:"What workers guard."`
	Unique   []yaml.Node `yaml:"unique" about:"What producers enqueue once."`
}

// later is what the nodes of a file are read into.
var later = map[string]reflect.Type{
	"defaults": reflect.TypeFor[defaults](), "rules": reflect.TypeFor[[]rule](), "unique": reflect.TypeFor[[]uniqueRule](),
}

// rule is an automutex.Rule, and defaults what rules may have in common.
type rule struct {
	Name     string `yaml:"name" about:"A label for errors, events and metrics; the task where it is left out."`
	Task     string `yaml:"task" about:"The task type, or its prefix: an exact match first, then the longest prefix."`
	defaults `yaml:",inline"`
}

type defaults struct {
	parts     `yaml:",inline"`
	Limit     limit                       `yaml:"limit" about:"How many may hold a key at once; 1 where it is left out. unlimited: only the rate or the cooldown bounds them. {field: tenant.max, default: 3, most: 50} reads it from the payload."`
	TTL       duration                    `yaml:"ttl" about:"How long a key stays taken after its process died; 30s where it is left out."`
	Wait      duration                    `yaml:"wait" about:"The longest time in line, in the worker, before the policy applies."`
	MaxHold   duration                    `yaml:"max_hold" about:"The longest time a handler may hold the key; no bound where it is left out."`
	Cooldown  duration                    `yaml:"cooldown" about:"After a success nobody starts until this long after the run began."`
	Rate      rate                        `yaml:"rate" about:"How often handlers start for a key: {starts: 100, per: 1m, burst: 10}. burst is how many may start at once after a pause; 1 where it is left out. none: no rate, whatever defaults say."`
	InOrder   bool                        `yaml:"in_order" about:"Whether the tasks of a key run in the order in which they were enqueued, through failures."`
	OnArchive choice[automutex.OnArchive] `yaml:"on_archive" about:"What happens to the key of an ordered task that is archived: hold (for an operator) or continue (with the next)."`
	MaxQueued int                         `yaml:"max_queued" about:"How many tasks of a key may be enqueued and not done, in order; no bound where it is left out."`
	Fence     bool                        `yaml:"fence" about:"Whether handlers get a fence, a number that grows from run to run of a key."`
	Busy      choice[automutex.Policy]    `yaml:"busy" about:"The policy for a task that finds its key taken; park where it is left out."`
}

// parts are what a rule, or a unique rule, makes keys of.
type parts struct {
	On        []string `yaml:"on" about:"Payload fields that make the key, as dotted paths: user.id, items.0.sku. A dot alone is the whole payload."`
	OnHeaders []string `yaml:"on_headers" about:"Task headers that make the key."`
	Optional  bool     `yaml:"optional" about:"Whether a task without one of these fields, or with an empty one, takes no lock of the rule, or is enqueued each time. Where it is left out the task is archived, or refused."`
	Scope     string   `yaml:"scope" about:"Rules with the same scope share locks, or keys; the task's own type where it is left out."`
}

func (r rule) rule() automutex.Rule {
	return automutex.Rule{
		Name: r.Name, Task: r.Task, On: slices.Clone(r.On), OnHeaders: slices.Clone(r.OnHeaders), Optional: r.Optional, Scope: r.Scope,
		Limit: r.Limit.number, LimitField: r.Limit.field, TTL: time.Duration(r.TTL), Wait: time.Duration(r.Wait), MaxHold: time.Duration(r.MaxHold),
		Cooldown: time.Duration(r.Cooldown), Rate: automutex.Rate{Starts: r.Rate.Starts, Per: time.Duration(r.Rate.Per), Burst: r.Rate.Burst},
		InOrder: r.InOrder, OnArchive: r.OnArchive.value, MaxQueued: r.MaxQueued, Fence: r.Fence, Busy: r.Busy.value,
	}
}

// uniqueRule is a unique.Rule.
type uniqueRule struct {
	Task         string `yaml:"task" about:"The task type, or its prefix: an exact match first, then the longest prefix."`
	Queue        string `yaml:"queue" about:"The queue of the tasks; \"default\" where it is left out."`
	parts        `yaml:",inline"`
	Until        choice[unique.Until]     `yaml:"until" about:"How long a task stands in the way of the next one for its key."`
	Duplicate    choice[unique.Duplicate] `yaml:"duplicate" about:"What happens to a task that finds another one in its way."`
	MaxPostpone  duration                 `yaml:"max_postpone" about:"The longest time after the first call that postpone may put a task off."`
	KeepArchived bool                     `yaml:"keep_archived" about:"Whether archived and completed tasks stay in the way."`
}

func (u uniqueRule) rule() unique.Rule {
	return unique.Rule{
		Task: u.Task, Queue: u.Queue, On: u.On, OnHeaders: u.OnHeaders, Optional: u.Optional, Scope: u.Scope,
		Until: u.Until.value, Duplicate: u.Duplicate.value, MaxPostpone: time.Duration(u.MaxPostpone), KeepArchived: u.KeepArchived,
	}
}

// objects are the mappings of a file, by the names of their Go types.
var objects = map[string]struct {
	what     string
	of       reflect.Type
	required []string
}{
	"file": {"the file", reflect.TypeFor[file](), nil}, "defaults": {"defaults", reflect.TypeFor[defaults](), nil},
	"rule": {"a rule", reflect.TypeFor[rule](), []string{"task"}}, "uniqueRule": {"a unique rule", reflect.TypeFor[uniqueRule](), []string{"task"}},
	"starts": {"a rate", reflect.TypeFor[starts](), []string{"starts", "per"}}, "limitField": {"a limit", reflect.TypeFor[limitField](), []string{"field"}},
}

// What package yaml says of a key that a struct has no field for, and of a value that fits no field. A text of another form
// is shown as it is.
var (
	notFound = regexp.MustCompile(`^field (.*) not found in type config\.(\w+)$`)
	unfit    = regexp.MustCompile(`^cannot construct (.*) into (?:config\.)?(\S+)$`)
	wants    = map[string]string{"int": "a whole number, such as 3", "bool": "true or false", "string": "text", "[]string": "a list, such as [a, b]", "[]libyaml.Node": "a list of rules"}
)

// explain says in the words of a file what package yaml says in those of Go.
func explain(text string) string {
	if m := unfit.FindStringSubmatch(text); m != nil {
		return fmt.Sprintf("want %s, not %s", cmp.Or(wants[m[2]], "keys with values"), m[1])
	}
	m := notFound.FindStringSubmatch(text)
	if m == nil {
		return text
	}
	o := objects[m[2]]
	var keys []string
	for _, f := range fields(o.of) {
		keys = append(keys, f.Tag.Get("yaml"))
	}
	if name, ok := nearest.Name(m[1], keys); ok {
		return fmt.Sprintf("unknown key %.60q in %s; did you mean %s?", m[1], o.what, name)
	}
	return fmt.Sprintf("unknown key %.60q in %s, which has %s", m[1], o.what, strings.Join(keys, ", "))
}

// fields are the fields of a struct that are keys of a file.
func fields(t reflect.Type) []reflect.StructField {
	return slices.DeleteFunc(reflect.VisibleFields(t), func(f reflect.StructField) bool { return f.Anonymous })
}

var inWord = regexp.MustCompile("([a-z])([A-Z])")

// keyOf is the key of a Go field: TTL is ttl, MaxHold max_hold.
func keyOf(field string) string { return strings.ToLower(inWord.ReplaceAllString(field, "${1}_$2")) }

// duration is written as in Go.
type duration time.Duration

// UnmarshalYAML reads 30s, or 0.
func (d *duration) UnmarshalYAML(n *yaml.Node) error {
	v, err := time.ParseDuration(n.Value)
	_, notNumber := strconv.ParseFloat(n.Value, 64)
	switch *d = duration(v); {
	case err == nil:
		return nil
	case notNumber == nil:
		return fmt.Errorf("want a duration with its unit: %[1]ss, %[1]sms, not %[1]q", n.Value)
	case strings.HasSuffix(n.Value, "d"):
		return fmt.Errorf("want a duration in hours (a day is no unit here), such as 24h, not %.60q", n.Value)
	}
	return fmt.Errorf("want a duration such as 500ms, 30s or 1h30m, not %.60q", n.Value)
}

// limit is a number, unlimited, or a payload field.
type limit struct {
	number int
	field  *automutex.LimitField
}

type limitField struct {
	Path    string `yaml:"field" about:"The payload field with the limit, as a dotted path."`
	Default int    `yaml:"default" about:"The limit where the field is missing; without it such a task is archived."`
	Most    int    `yaml:"most" about:"The highest limit that a payload can set; no bound where it is left out."`
}

const unlimited, noRate = "unlimited", "none"

// UnmarshalYAML takes the place of a limit of another kind, which may come from defaults.
func (l *limit) UnmarshalYAML(n *yaml.Node) error {
	*l = limit{}
	switch {
	case n.Value == unlimited:
		l.number = automutex.Unlimited
	case n.Kind == yaml.MappingNode:
		var of limitField
		if err := n.Load(&of, yaml.WithKnownFields()); err != nil {
			return err
		}
		l.field = (*automutex.LimitField)(&of)
	default:
		return n.Load(&l.number)
	}
	return nil
}

// rate is none, or how often handlers start.
type rate struct{ starts }

type starts struct {
	Starts int      `yaml:"starts" about:"How many handlers start in each period."`
	Per    duration `yaml:"per" about:"The period."`
	Burst  int      `yaml:"burst" about:"How many may start at once."`
}

// UnmarshalYAML takes the place of a rate of defaults.
func (r *rate) UnmarshalYAML(n *yaml.Node) error {
	if r.starts = (starts{}); n.Value == noRate {
		return nil
	}
	return n.Load(&r.starts, yaml.WithKnownFields())
}

// choice is a value that a word names, or a word with a duration: retry, or {retry_in: 5s}.
type choice[V any] struct{ value V }

func (choice[V]) words() map[string]any { return choices[reflect.TypeFor[V]()] }

// choices are the words of each type: a value of it, or a function that makes one of the duration that goes with the word.
var choices = map[reflect.Type]map[string]any{
	reflect.TypeFor[automutex.Policy](): {
		"retry": automutex.Retry, "skip": automutex.Skip, "archive": automutex.Archive, "fail": automutex.Fail, "park": automutex.Park,
		"replace": automutex.Replace, "allow": automutex.Allow, "retry_in": automutex.RetryIn,
	},
	reflect.TypeFor[automutex.OnArchive](): {"hold": automutex.HoldKey, "continue": automutex.Continue},
	reflect.TypeFor[unique.Until]():        {"done": unique.UntilDone, "start": unique.UntilStart, "for": unique.For},
	reflect.TypeFor[unique.Duplicate]():    {"reject": unique.Reject, "join": unique.Join, "replace": unique.Replace, "postpone": unique.Postpone},
}

// UnmarshalYAML reads a word, or a mapping of the word that goes with a duration.
func (c *choice[V]) UnmarshalYAML(n *yaml.Node) error {
	words, word, value := c.words(), n.Value, n
	if n.Kind == yaml.MappingNode && len(n.Content) == 2 {
		word, value = n.Content[0].Value, n.Content[1]
	}
	switch its := words[word].(type) {
	case func(time.Duration) V:
		if n.Kind == yaml.MappingNode {
			var d duration
			err := value.Load(&d)
			c.value = its(time.Duration(d))
			return err
		}
	case V:
		if n.Kind == yaml.ScalarNode {
			c.value = its
			return nil
		}
	}
	hint, all := "", []string{}
	if name, ok := nearest.Name(word, slices.Sorted(maps.Keys(words))); ok {
		hint = "did you mean " + name + "? "
	}
	for word, its := range words {
		if _, alone := its.(V); !alone {
			word = "{" + word + ": 5s}"
		}
		all = append(all, word)
	}
	slices.Sort(all) // a brace comes after the letters
	return fmt.Errorf("%.60q is unknown; %sthere are %s", word, hint, strings.Join(all, ", "))
}

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
	either := func(some ...schema) schema { return schema{"anyOf": some} }
	switch t {
	case reflect.TypeFor[duration]():
		const unit = `([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)`
		s := either(schema{"type": "string", "pattern": `^\+?` + unit + `(` + unit + `)*$|^0$`}, schema{"const": 0})
		s["examples"] = []string{"500ms", "30s", "1h30m"}
		return s
	case reflect.TypeFor[limit]():
		return either(schemaOf(reflect.TypeFor[int]()), schema{"const": unlimited}, schemaOf(reflect.TypeFor[limitField]()))
	case reflect.TypeFor[rate]():
		return either(schemaOf(reflect.TypeFor[starts]()), schema{"const": noRate})
	}
	if c, ok := reflect.Zero(t).Interface().(interface{ words() map[string]any }); ok {
		var alone []string
		var some []schema
		for word, its := range c.words() {
			if reflect.TypeOf(its).Kind() == reflect.Func {
				some = append(some, object([]string{word}, schema{word: schemaOf(reflect.TypeFor[duration]())}))
			} else {
				alone = append(alone, word)
			}
		}
		slices.Sort(alone)
		return either(append([]schema{{"enum": alone}}, some...)...)
	}
	switch t.Kind() {
	case reflect.Slice:
		return schema{"type": "array", "items": schemaOf(t.Elem())}
	case reflect.Int:
		return schema{"type": "integer", "minimum": 0}
	case reflect.Bool:
		return schema{"type": "boolean"}
	case reflect.String:
		return schema{"type": []string{"string", "number", "boolean"}} // text is taken as it is written
	}
	properties := schema{}
	for _, f := range fields(t) {
		key := f.Tag.Get("yaml")
		property := schemaOf(cmp.Or(later[key], f.Type))
		property["description"] = f.Tag.Get("about")
		properties[key] = property
	}
	return object(objects[t.Name()].required, properties)
}

func object(required []string, properties schema) schema {
	return schema{"type": "object", "properties": properties, "additionalProperties": false, "required": append([]string{}, required...)}
}
