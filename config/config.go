/*
Package config reads rules from a YAML file, so that they can be reviewed and changed apart
from the program:

	prefix: myapp        # begins every Redis key; left out: automutex
	defaults:            # for every rule that does not set the key itself
	  wait: 10s
	rules:
	  - task: itunes:verify
	    on: [transaction_id]
	  - task: "report:"
	    on: [tenant.id]
	    limit: {field: tenant.max, default: 3, most: 50} # or a number, or unlimited
	    rate: {starts: 100, per: 1m, burst: 10}          # or none: not that of defaults
	    wait: 0s
	  - task: import
	    on: ["."]        # the whole payload
	    busy: {retry_in: 30s} # or skip, retry, archive, fail, park, replace, allow
	unique:              # tasks that are enqueued once
	  - task: reindex
	    on: [document_id]
	    until: start     # or done, or {for: 10m}
	    duplicate: join  # or reject, replace, {postpone: 5s}

The keys are the fields of [automutex.Rule] and [unique.Rule] in snake_case; "automutex schema" prints
them with what they mean. All of a rule but name and task may be in defaults, which do not apply to
unique rules. hash_keys and history stand beside prefix. The program sets the rest on what [Load] returns:
code (Key, Decode, ...), what belongs to the process (Owner, Logger, ...), and a secret that must not be in
a file. JSON is YAML, too. Variables are not expanded. Anchors, aliases, merge keys and tags are refused.
*/
package config

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hibiken/asynq"
	"go.yaml.in/yaml/v4"

	"github.com/automutex/automutex"
	pace "github.com/automutex/automutex/internal/engine/rate"
	"github.com/automutex/automutex/internal/keys"
	"github.com/automutex/automutex/internal/nearest"
	"github.com/automutex/automutex/unique"
)

// Load reads the file at path. The first result has the rules, the second the unique rules; both have the file's prefix
// and hash_keys. The error joins an [*Error] for each mistake found, in file order, also for what [automutex.New]
// and [unique.New] would refuse; or it says why the file could not be read. With an error both results are zero values.
func Load(path string) (automutex.Config, unique.Config, error) {
	data, err := os.ReadFile(path) //nolint:gosec // the file is the caller's to name
	if err != nil {
		return automutex.Config{}, unique.Config{}, fmt.Errorf("config: %w", err)
	}
	return parse(path, data)
}

// Parse is [Load] for the content of a file. [Error].File is then "config".
func Parse(data []byte) (automutex.Config, unique.Config, error) { return parse("config", data) }

// Error is one mistake in a configuration, and where it is.
type Error struct {
	File         string // the path given to Load, or "config"
	Line, Column int    // from 1; Column counts characters
	Text         string // what is wrong, and what to do
}

// Error returns "file:line:column: text".
func (e *Error) Error() string {
	return fmt.Sprintf("%s:%d:%d: %s", e.File, e.Line, e.Column, e.Text)
}

type reader struct {
	file     string
	mistakes []*Error
	trails   map[[2]int]string // the keys that lead to a line and column within their rule, as in "busy: retry_in: "
}

func (r *reader) reportf(line, column int, format string, args ...any) {
	r.mistakes = append(r.mistakes, &Error{File: r.file, Line: max(line, 1), Column: max(column, 1),
		Text: fmt.Sprintf(format, args...)})
}

// automutex.New and unique.New do not see rules with mistakes.
func parse(name string, data []byte) (automutex.Config, unique.Config, error) {
	r := &reader{file: name, trails: map[[2]int]string{}}
	var document yaml.Node
	if err := yaml.Load(data, &document); err != nil {
		r.syntax(err)
	} else if cfg, once := r.read(document.Content[0]); len(r.mistakes) == 0 {
		return cfg, once, nil
	}
	// What is wrong in defaults is wrong in every rule.
	slices.SortStableFunc(r.mistakes, func(a, b *Error) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	var errs []error
	for _, mistake := range slices.CompactFunc(r.mistakes, func(a, b *Error) bool { return *a == *b }) {
		errs = append(errs, mistake)
	}
	return automutex.Config{}, unique.Config{}, errors.Join(errs...)
}

const quoteColon = "; a text with a colon at its end needs quotes"

func (r *reader) syntax(err error) {
	wrong := &yaml.LoadError{Message: err.Error()}
	errors.As(err, &wrong)
	text := strings.TrimPrefix(wrong.ContextMsg+": "+strings.TrimPrefix(wrong.Message, "yaml: "), ": ")
	if wrong.Mark.Line > 0 {
		text += quoteColon
	}
	r.reportf(wrong.Mark.Line, wrong.Mark.Column, "not YAML: %s", text)
}

// walk reports what a configuration has not, and keeps the trail of each place.
func (r *reader) walk(n *yaml.Node, trail string) {
	r.trails[[2]int{n.Line, n.Column}] = trail
	switch {
	case n.Kind == yaml.AliasNode, n.Anchor != "", n.Style&yaml.TaggedStyle != 0, n.Tag == "!!merge":
		r.reportf(n.Line, n.Column, "%sanchors, aliases, merge keys and tags are not read here; write the value out, or "+
			"use defaults:", trail)
	case n.Tag == "!!null":
		r.reportf(n.Line, n.Column, "%sthere is no value; give one, or leave the key out%s", trail, quoteColon)
	}
	for i, child := range n.Content {
		switch {
		case trail == "rules: " || trail == "unique: ":
			r.walk(child, "")
		case n.Kind == yaml.MappingNode && i%2 == 1:
			r.walk(child, trail+n.Content[i-1].Value+": ")
		default:
			r.walk(child, trail)
		}
	}
}

func (r *reader) read(root *yaml.Node) (automutex.Config, unique.Config) {
	r.walk(root, "")
	var f file
	all := &yaml.LoadErrors{}
	if err := root.Load(&f, yaml.WithKnownFields()); err != nil && !errors.As(err, &all) {
		r.reportf(root.Line, root.Column, "%v", err)
	}
	for _, e := range all.Errors {
		r.reportf(e.Mark.Line, e.Mark.Column, "%s%s", r.trails[[2]int{e.Mark.Line, e.Mark.Column}], explain(e.Message))
	}
	cfg := automutex.Config{Prefix: f.Prefix, HashKeys: f.HashKeys, History: f.History,
		Logger: slog.New(slog.DiscardHandler)}
	once := unique.Config{Prefix: f.Prefix, HashKeys: f.HashKeys}
	var rules, onceRules []*yaml.Node
	cfg.Rules, rules = fitting[automutex.Rule](get(root, "rules"), rule{defaults: f.Defaults})
	once.Rules, onceRules = fitting[unique.Rule](get(root, "unique"), uniqueRule{})
	switch n := get(root, "hash_keys"); {
	case len(r.mistakes) == 0 && len(rules)+len(onceRules) == 0:
		r.reportf(root.Line, root.Column, "there are no rules; list them under rules: or unique:")
	case n != nil && n.Kind == yaml.ScalarNode && f.HashKeys == "": // as of a template that was filled with nothing
		r.reportf(n.Line, n.Column, "hash_keys: the secret is empty; give one, such as openssl rand -hex 32 makes, or "+
			"leave hash_keys out")
	}

	_, err := automutex.NewKeyMaker(cfg)
	r.refused(err, "rule", root, get(root, "defaults"), rules)
	_, err = unique.New(nil, nil, nil, once) // which also says that these are nil: of no field
	r.refused(err, "unique rule", root, nil, onceRules)
	cfg.Logger = nil
	return cfg, once
}

// preset has what the rules may leave out; nil: none do.
func (r *reader) refused(err error, what string, root, preset *yaml.Node, rules []*yaml.Node) {
	if joined, ok := err.(interface{ Unwrap() []error }); ok { // a join, not what an error wraps
		for _, err := range joined.Unwrap() {
			r.refused(err, what, root, preset, rules)
		}
		return
	}
	field := (*automutex.FieldError)(nil)
	if !errors.As(err, &field) {
		return
	}
	// limit stands for LimitField, too, and rate for RateOf
	key := strings.TrimSuffix(strings.TrimSuffix(keyOf(field.Field), "_field"), "_of")
	at, where := cmp.Or(get(root, key), root), key+": "
	if field.Rule >= 0 {
		rule := rules[field.Rule]
		at, where = cmp.Or(get(rule, key), get(preset, key), rule), fmt.Sprintf("%s %q: %s: ", what, field.RuleName, key)
		if trail := r.trails[[2]int{at.Line, at.Column}]; strings.HasPrefix(trail, "defaults: ") {
			where = trail
		}
		if field.Element >= 0 {
			at = at.Content[field.Element]
		}
	}
	r.reportf(at.Line, at.Column, "%s%s", where, inFile(field.Err.Error(), rules))
}

// goName finds what errors call by its name in Go. Texts in quotes are the user's.
var goName = regexp.MustCompile(`"(?:[^"\\]|\\.)*"|Rules\[\d+\]|\b(?:automutex\.|unique\.)?(?:Name|Task|On|OnHeaders|Optional|Scope|Limit|TTL|Wait|MaxHold|Cooldown|Rate|Cost|` +
	`Starts|Per|Burst|InOrder|OnArchive|MaxQueued|LeaveIdle|Fence|Default|Most|Busy|StartWithin|Late|Queue|Until|Duplicate|MaxPostpone|KeepArchived|Unlimited|Retry|RetryIn|For|Postpone|Reject|Join)\b`)

func inFile(text string, rules []*yaml.Node) string {
	return goName.ReplaceAllStringFunc(text, func(s string) string {
		// else a user's text without quotes
		if i, err := strconv.Atoi(strings.Trim(s, "Rules[]")); err == nil && i < len(rules) {
			return fmt.Sprint("line ", rules[i].Line)
		} else if s[0] == '"' {
			return s
		}
		return keyOf(s[strings.IndexByte(s, '.')+1:])
	})
}

// fitting reads the elements that have no mistakes, filled in from preset, and tells where each is.
func fitting[R any, T interface{ rule() R }](list *yaml.Node, preset T) (rules []R, nodes []*yaml.Node) {
	for i := 0; list != nil && i < len(list.Content); i++ {
		if of := preset; list.Content[i].Kind == yaml.MappingNode &&
			list.Content[i].Load(&of, yaml.WithKnownFields()) == nil {
			rules, nodes = append(rules, of.rule()), append(nodes, list.Content[i])
		}
	}
	return rules, nodes
}

func get(n *yaml.Node, key string) *yaml.Node {
	for i := 1; n != nil && i < len(n.Content) && n.Kind == yaml.MappingNode; i += 2 {
		if n.Content[i-1].Value == key {
			return n.Content[i]
		}
	}
	return nil
}

// The tags say what the keys are about, for who edits a file with the schema.
type file struct {
	Prefix   string       `yaml:"prefix" about:"Begins every key in Redis; automutex where it is left out."`
	HashKeys string       `yaml:"hash_keys" about:"A secret that keeps payload values out of keys; at least 16 bytes."`
	History  int          `yaml:"history" about:"How many of the last runs of each key are kept for its page; none where it is left out."`
	Defaults defaults     `yaml:"defaults" about:"Keys of every rule in rules that does not have them itself."`
	Rules    []rule       `yaml:"rules" about:"What workers guard."`
	Unique   []uniqueRule `yaml:"unique" about:"What producers enqueue once."`
}

type rule struct {
	Name     string `yaml:"name" about:"A label for errors, events and metrics; the task where it is left out."`
	Task     string `yaml:"task" about:"The task type, or its prefix: an exact match first, then the longest prefix." needed:"yes"`
	defaults `yaml:",inline"`
}

type defaults struct {
	parts     `yaml:",inline"`
	Limit     limit                       `yaml:"limit" about:"How many may hold a key at once; 1 where it is left out. unlimited: only the rate or the cooldown bounds them. {field: tenant.max, default: 3, most: 50} reads it from the payload."`
	TTL       time.Duration               `yaml:"ttl" about:"How long a key stays taken after its process died; 30s where it is left out."`
	Wait      time.Duration               `yaml:"wait" about:"The longest time in line, in the worker, before the policy applies."`
	MaxHold   time.Duration               `yaml:"max_hold" about:"The longest time a handler may hold the key; no bound where it is left out."`
	Cooldown  time.Duration               `yaml:"cooldown" about:"After a success nobody starts until this long after the run began."`
	Rate      rate                        `yaml:"rate" about:"How often handlers start for a key: {starts: 100, per: 1m, burst: 10}. burst is how many may start at once after a pause; 1 where it is left out. Or {field: tenant.rate, default: 10/1s}, or none."`
	Cost      cost                        `yaml:"cost" about:"For how many starts of the rate a task counts: {field: tokens, default: 1, most: 50}; 1 where it is left out, or none."`
	InOrder   bool                        `yaml:"in_order" about:"Whether the tasks of a key run in the order in which they were enqueued, through failures."`
	OnArchive choice[automutex.OnArchive] `yaml:"on_archive" about:"What happens to the key of an ordered task that is archived: hold (for an operator) or continue (with the next)."`
	MaxQueued int                         `yaml:"max_queued" about:"How many tasks of a key may be enqueued and not done, in order; no bound where it is left out."`
	LeaveIdle int                         `yaml:"leave_idle" about:"A task starts above the limit while so many workers of its server stay idle; none does where it is left out."`
	Fence     bool                        `yaml:"fence" about:"Whether handlers get a fence, a number that grows from run to run of a key."`
	Busy      choice[automutex.Policy]    `yaml:"busy" about:"The policy for a task that finds its key taken; park where it is left out."`

	StartWithin time.Duration `yaml:"start_within" about:"How long after it was due a task may start, if producers enqueue it through a Client; no bound where it is left out."`
	Late        choice[late]  `yaml:"late" about:"What happens to a task that did not start in time: archive (where it is left out) or skip."`
}

type late automutex.Policy

// parts are what a rule, or a unique rule, makes keys of.
type parts struct {
	On        []string `yaml:"on" about:"Payload fields that make the key, as dotted paths: user.id, items.0.sku; version? may be missing. A dot alone is the whole payload."`
	OnHeaders []string `yaml:"on_headers" about:"Task headers that make the key."`
	Optional  bool     `yaml:"optional" about:"Whether a task without one of these fields, or with an empty one, takes no lock of the rule, or is enqueued each time. Where it is left out the task is archived, or refused."`
	Scope     string   `yaml:"scope" about:"Rules with the same scope share locks, or keys; the task's own type where it is left out."`
}

func (r rule) rule() automutex.Rule {
	return automutex.Rule{
		Name: r.Name, Task: r.Task, Scope: r.Scope,
		On: slices.Clone(r.On), OnHeaders: slices.Clone(r.OnHeaders), Optional: r.Optional,
		Limit: r.Limit.number, LimitField: (*automutex.LimitField)(r.Limit.field), LeaveIdle: r.LeaveIdle,
		TTL: r.TTL, Wait: r.Wait, MaxHold: r.MaxHold, Cooldown: r.Cooldown,
		Rate: automutex.Rate(r.Rate.starts), RateOf: r.Rate.of, Cost: r.Cost.of,
		InOrder: r.InOrder, OnArchive: r.OnArchive.value, MaxQueued: r.MaxQueued, Fence: r.Fence,
		Busy: r.Busy.value, StartWithin: r.StartWithin, Late: automutex.Policy(r.Late.value),
	}
}

type uniqueRule struct {
	Task         string `yaml:"task" about:"The task type, or its prefix: an exact match first, then the longest prefix." needed:"yes"`
	Queue        string `yaml:"queue" about:"The queue of the tasks; \"default\" where it is left out."`
	parts        `yaml:",inline"`
	Until        choice[unique.Until]     `yaml:"until" about:"How long a task stands in the way of the next one for its key."`
	Duplicate    choice[unique.Duplicate] `yaml:"duplicate" about:"What happens to a task that finds another one in its way."`
	MaxPostpone  time.Duration            `yaml:"max_postpone" about:"The longest time after the first call that postpone may put a task off."`
	KeepArchived bool                     `yaml:"keep_archived" about:"Whether archived and completed tasks stay in the way."`
}

func (u uniqueRule) rule() unique.Rule {
	return unique.Rule{
		Task: u.Task, Queue: u.Queue, On: u.On, OnHeaders: u.OnHeaders, Optional: u.Optional, Scope: u.Scope,
		Until: u.Until.value, Duplicate: u.Duplicate.value, MaxPostpone: u.MaxPostpone, KeepArchived: u.KeepArchived,
	}
}

var objects = map[string]reflect.Type{
	"file": reflect.TypeFor[file](), "defaults": reflect.TypeFor[defaults](), "rule": reflect.TypeFor[rule](),
	"uniqueRule": reflect.TypeFor[uniqueRule](), "starts": reflect.TypeFor[starts](),
	"limitField": reflect.TypeFor[limitField](), "rateField": reflect.TypeFor[rateField](),
}

// Texts of package yaml; one of another form is shown as it is.
var (
	notFound = regexp.MustCompile(`^field (.*) not found in type config\.(\w+)$`)
	unfit    = regexp.MustCompile(`^cannot construct (.*) into (?:config\.)?(\[\]\w+|[\w.]+)`)
	wants    = map[string]string{"int": "a whole number, such as 3", "bool": "true or false", "string": "text",
		"time.Duration": "a duration with its unit, such as 500ms, 30s or 24h",
		"[]string":      "a list, such as [a, b]", "[]config": "a list of rules"}
	tags = strings.NewReplacer("!!str", "text", "!!int", "number", "!!float", "number", "!!bool", "flag", "!!seq",
		"a list", "!!map", "a mapping")
)

func explain(text string) string {
	if m := unfit.FindStringSubmatch(text); m != nil {
		return fmt.Sprintf("want %s, not %s", cmp.Or(wants[m[2]], "keys with values"), tags.Replace(m[1]))
	}
	if m := notFound.FindStringSubmatch(text); m != nil {
		var keys []string
		for _, f := range fields(objects[m[2]]) {
			keys = append(keys, f.Tag.Get("yaml"))
		}
		return fmt.Sprintf("unknown key %.60q; %s", m[1], meant(m[1], keys))
	}
	return text
}

// meant says which of the forms a word was meant to be, such as {retry_in: 5s}, or else which there are.
func meant(word string, forms []string) string {
	names := make([]string, len(forms))
	for i, form := range forms {
		names[i], _, _ = strings.Cut(strings.TrimPrefix(form, "{"), ":")
	}
	if name, ok := nearest.Name(word, names); ok {
		return "did you mean " + forms[slices.Index(names, name)] + "?"
	}
	return "there are " + strings.Join(forms, ", ")
}

// fields are the fields of a struct that are keys of a file.
func fields(t reflect.Type) []reflect.StructField {
	return slices.DeleteFunc(reflect.VisibleFields(t), func(f reflect.StructField) bool { return f.Anonymous })
}

var inWord = regexp.MustCompile("([a-z])([A-Z])")

// keyOf is the key of a Go field: TTL is ttl, MaxHold max_hold.
func keyOf(field string) string { return strings.ToLower(inWord.ReplaceAllString(field, "${1}_$2")) }

type limit struct {
	number int
	field  *limitField
}

type limitField struct {
	Path    string `yaml:"field" about:"The payload field with the number." needed:"yes"`
	Default int    `yaml:"default" about:"The number where the field is missing; without it such a task is archived."`
	Most    int    `yaml:"most" about:"The highest number that a payload can set; no bound where it is left out."`
}

const unlimited, noRate = "unlimited", "none"

func (l *limit) UnmarshalYAML(n *yaml.Node) error {
	switch *l = (limit{}); { // not that of defaults
	case n.Value == unlimited:
		l.number = automutex.Unlimited
		return nil
	case n.Kind == yaml.MappingNode:
		l.field = &limitField{}
		return n.Load(l.field, yaml.WithKnownFields())
	}
	return n.Load(&l.number)
}

type rate struct {
	starts
	of func(context.Context, *asynq.Task) (automutex.Rate, error)
}

type starts struct {
	Starts int           `yaml:"starts" about:"How many handlers start in each period." needed:"yes"`
	Per    time.Duration `yaml:"per" about:"The period." needed:"yes"`
	Burst  int           `yaml:"burst" about:"How many may start at once."`
}

func (r *rate) UnmarshalYAML(n *yaml.Node) error {
	if *r = (rate{}); n.Value == noRate {
		return nil
	} else if get(n, "field") == nil {
		err := n.Load(&r.starts, yaml.WithKnownFields())
		if err == nil && r.starts == (starts{}) {
			err = errors.New("is empty; give starts and per, or write none")
		}
		return err
	}
	var f rateField
	err := n.Load(&f, yaml.WithKnownFields())
	if err == nil {
		r.of, err = ofField(f.Path, f.Default, parseRate)
	}
	return err
}

type rateField struct {
	Path    string `yaml:"field" about:"The payload field with the rate: 100/1m, or 100/1m burst 10, or none." needed:"yes"`
	Default string `yaml:"default" about:"The rate where the field is missing; without it such a task is archived."`
}

func parseRate(text string) (r automutex.Rate, err error) {
	if text == noRate {
		return r, nil
	}
	parsed, err := pace.Parse(text)
	if err != nil { // whose text shows what it read
		err = errors.New("want a rate within its bounds, such as 100/1m or 100/1m burst 10")
	}
	return automutex.Rate(parsed), err
}

type cost struct {
	of func(context.Context, *asynq.Task) (int, error)
}

func (c *cost) UnmarshalYAML(n *yaml.Node) error {
	if *c = (cost{}); n.Value == noRate {
		return nil
	}
	var f limitField
	err := n.Load(&f, yaml.WithKnownFields())
	if err == nil {
		preset := ""
		if get(n, "default") != nil {
			preset = strconv.Itoa(f.Default)
		}
		c.of, err = ofField(f.Path, preset, func(text string) (int, error) {
			n, err := strconv.Atoi(text)
			if err != nil || n < 0 {
				err = errors.New("want a whole number, at least 0")
			}
			return min(n, cmp.Or(f.Most, n)), err
		})
		if f.Most < 0 {
			err = cmp.Or(err, errors.New("most: it is negative"))
		}
	}
	return err
}

// ofField reads a payload field. preset is what a missing one has; empty: it is an error.
func ofField[V any](
	path, preset string, parse func(text string) (V, error),
) (func(context.Context, *asynq.Task) (V, error), error) {
	of, err := keys.Parse([]string{path})
	if _, wrong := keys.ParsePath(path); err == nil && wrong != nil { // a ?
		err = fmt.Errorf("%q %w", path, wrong)
	}
	if err == nil && preset != "" {
		_, err = parse(preset)
	}
	return func(_ context.Context, t *asynq.Task) (v V, err error) {
		parts, failed := of.Parts(t.Payload())
		switch {
		case failed == nil:
			v, err = parse(parts[0])
		case failed.Absent && preset != "":
			return parse(preset)
		default:
			err = errors.New(failed.Reason)
		}
		if err != nil {
			err = &automutex.KeyError{Task: t.Type(), Field: path, Err: err}
		}
		return v, err
	}, err
}

// choice is a value that a word names, or a word with a duration: retry, or {retry_in: 5s}.
type choice[V any] struct{ value V }

func (choice[V]) forms() map[string]any { return choices[reflect.TypeFor[V]()] }

// choices are the forms of each type: the word of a value, or that of a function which makes one of a duration.
var choices = map[reflect.Type]map[string]any{
	reflect.TypeFor[automutex.Policy](): {
		"retry": automutex.Retry, "skip": automutex.Skip, "archive": automutex.Archive, "fail": automutex.Fail,
		"park": automutex.Park, "replace": automutex.Replace, "allow": automutex.Allow,
		"{retry_in: 5s}": automutex.RetryIn,
	},
	reflect.TypeFor[late]():                {"archive": late(automutex.Archive), "skip": late(automutex.Skip)},
	reflect.TypeFor[automutex.OnArchive](): {"hold": automutex.HoldKey, "continue": automutex.Continue},
	reflect.TypeFor[unique.Until](): {"done": unique.UntilDone, "start": unique.UntilStart,
		"{for: 5s}": unique.For},
	reflect.TypeFor[unique.Duplicate](): {"reject": unique.Reject, "join": unique.Join, "replace": unique.Replace,
		"{postpone: 5s}": unique.Postpone},
}

func (c *choice[V]) UnmarshalYAML(n *yaml.Node) error {
	word := n.Value
	if n.Kind == yaml.MappingNode && len(n.Content) == 2 {
		word = n.Content[0].Value
		if its, timed := c.forms()["{"+word+": 5s}"].(func(time.Duration) V); timed {
			var d time.Duration
			err := n.Content[1].Load(&d)
			c.value = its(d)
			return err
		}
	} else if its, alone := c.forms()[word].(V); alone {
		c.value = its
		return nil
	}
	// a brace comes after the letters
	return fmt.Errorf("%.60q is unknown; %s", word, meant(word, slices.Sorted(maps.Keys(c.forms()))))
}

type schema map[string]any

// Schema returns the JSON Schema (draft 2020-12) of a configuration file, for editors that complete and check YAML.
// It is made from what the decoder reads, so it knows the same keys. It is looser than [Load]: a file that fits the
// schema can still have mistakes that only Load finds.
func Schema() []byte {
	s := schemaOf(reflect.TypeFor[file]())
	s["$schema"], s["title"] = "https://json-schema.org/draft/2020-12/schema", "automutex"
	s["anyOf"] = []schema{{"required": []string{"rules"}}, {"required": []string{"unique"}}}
	text, _ := json.MarshalIndent(s, "", "  ") //nolint:errchkjson // of texts and lists alone
	return append(text, '\n')
}

func schemaOf(t reflect.Type) schema {
	switch t {
	case reflect.TypeFor[time.Duration]():
		return either(schema{"type": "string", "pattern": `^\+?([0-9.]+(ns|us|µs|μs|ms|s|m|h))+$|^0$`}, schema{"const": 0})
	case reflect.TypeFor[limit]():
		return either(schemaOf(reflect.TypeFor[int]()), schema{"const": unlimited}, schemaOf(reflect.TypeFor[limitField]()))
	case reflect.TypeFor[rate]():
		return either(schemaOf(reflect.TypeFor[starts]()), schema{"const": noRate}, schemaOf(reflect.TypeFor[rateField]()))
	case reflect.TypeFor[cost]():
		return either(schema{"const": noRate}, schemaOf(reflect.TypeFor[limitField]()))
	}
	if c, ok := reflect.Zero(t).Interface().(interface{ forms() map[string]any }); ok {
		var some []schema
		for _, form := range slices.Sorted(maps.Keys(c.forms())) {
			if word, _, timed := strings.Cut(strings.TrimPrefix(form, "{"), ":"); timed {
				some = append(some, object([]string{word}, schema{word: schemaOf(reflect.TypeFor[time.Duration]())}))
			} else {
				some = append(some, schema{"const": word})
			}
		}
		return either(some...)
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
	properties, needed := schema{}, []string{}
	for _, f := range fields(t) {
		key := f.Tag.Get("yaml")
		property := schemaOf(f.Type)
		property["description"] = f.Tag.Get("about")
		properties[key] = property
		if f.Tag.Get("needed") != "" {
			needed = append(needed, key)
		}
	}
	return object(needed, properties)
}

func either(some ...schema) schema { return schema{"anyOf": some} }

func object(required []string, properties schema) schema {
	return schema{"type": "object", "properties": properties, "additionalProperties": false, "required": required}
}
