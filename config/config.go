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
	    scope: report
	    on: [tenant.id]
	    limit: 3
	  - task: cache:warm
	    wait: 0s
	    busy: skip
	  - task: import
	    on: [file]
	    busy: {retry_in: 30s}
	unique:              # tasks that are enqueued once
	  - task: reindex
	    on: [document_id]
	    until: start
	    duplicate: join

The keys are the fields of [automutex.Rule] and [unique.Rule] in snake_case; "automutex schema" prints
them with what they mean. All of a rule but name and task may be in defaults, which do not apply to
unique rules. Durations are written as in Go ("30s", "1h30m"). Other forms:

	busy: skip           # or retry, archive, fail, park, replace, allow, {retry_in: 30s}
	on: ["."]            # the whole payload
	limit: 3             # or unlimited, or a payload field: {field: tenant.max, default: 3, most: 50}
	rate: {starts: 100, per: 1m, burst: 10} # burst left out: one; none: not that of defaults
	until: start         # or done, or {for: 10m}
	duplicate: join      # or reject, replace, {postpone: 5s}

hash_keys, next to prefix, is a secret that keeps payload values out of keys. It sets
HashKeys of [automutex.Config] and of [unique.Config]. If the file must not contain a
secret, leave hash_keys out and set both in the program. history, next to prefix too, is
History of [automutex.Config].

The program sets the rest on what [Load] returns, for [automutex.New] in workers and [unique.New] in
producers: code (Key, Payload, AfterFailure, Decode, LimitOf) and what belongs to the process (Owner,
Logger, Observe, ...).

JSON is YAML too, but for a character that is written as two \\u escapes. The file has one document. Variables
are not expanded. Anchors, aliases, merge keys and tags are refused: use defaults for values that several rules
share. Unknown keys, repeated keys and keys without a value are mistakes.
*/
package config

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"go.yaml.in/yaml/v4"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/unique"
)

// maxSize is the size of the largest file that is read, in bytes: far above any list of rules that people keep, and far below what
// would hurt.
const maxSize = 4 << 20

// Load reads the file at path. The first result has the rules, the second the unique rules;
// both have the file's prefix and hash_keys. The error joins an [*Error] for each mistake, in
// the order of the file, also for what [automutex.New] and [unique.New] would refuse; or it says
// why the file could not be read. With an error both results are zero values.
func Load(path string) (automutex.Config, unique.Config, error) {
	f, err := os.Open(path) //nolint:gosec // the file is the caller's to name
	if err != nil {
		return automutex.Config{}, unique.Config{}, fmt.Errorf("config: %w", err)
	}
	data, err := io.ReadAll(io.LimitReader(f, maxSize+1))
	if err := errors.Join(err, f.Close()); err != nil {
		return automutex.Config{}, unique.Config{}, fmt.Errorf("config: %w", err)
	}
	return parse(path, data)
}

// Parse is [Load] for the content of a file. [Error].File is then "config".
func Parse(data []byte) (automutex.Config, unique.Config, error) { return parse("config", data) }

// Error is one mistake in a configuration, and where it is.
type Error struct {
	// File is the path given to Load, or "config".
	File string
	// Line and Column count from 1; Column counts characters.
	Line, Column int
	// Text says what is wrong and what to do.
	Text string
}

// Error returns "file:line:column: text".
func (e *Error) Error() string {
	return fmt.Sprintf("%s:%d:%d: %s", e.File, e.Line, e.Column, e.Text)
}

// reader gathers what is wrong in a file.
type reader struct {
	file     string
	mistakes []*Error
	trails   map[[2]int]string // the keys that lead to a line and column within their rule, as in "busy: retry_in: "
}

func (r *reader) reportf(line, column int, format string, args ...any) {
	r.mistakes = append(r.mistakes, &Error{File: r.file, Line: max(line, 1), Column: max(column, 1), Text: fmt.Sprintf(format, args...)})
}

// parse reads the YAML, then the values, and then asks automutex.New and unique.New, which do not see rules with mistakes.
func parse(name string, data []byte) (automutex.Config, unique.Config, error) {
	if len(data) > maxSize {
		return automutex.Config{}, unique.Config{}, fmt.Errorf("config: there are more than %d MiB: that is no list of rules", maxSize>>20)
	}
	r := &reader{file: name, trails: map[[2]int]string{}}
	var document yaml.Node
	if err := yaml.Load(data, &document); err != nil {
		r.syntax(err)
	} else if cfg, once := r.read(document.Content[0]); len(r.mistakes) == 0 {
		return cfg, once, nil
	}
	// In the order of the file, each once: what is wrong in defaults is wrong in every rule.
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

// syntax reports why a file is not YAML.
func (r *reader) syntax(err error) {
	wrong := &yaml.LoadError{Message: err.Error()}
	errors.As(err, &wrong)
	text := strings.TrimPrefix(wrong.ContextMsg+": "+strings.TrimPrefix(wrong.Message, "yaml: "), ": ")
	if wrong.Mark.Line > 0 {
		text += quoteColon
	}
	r.reportf(wrong.Mark.Line, wrong.Mark.Column, "not YAML: %s", text)
}

// walk reports what YAML has and a configuration does not, and notes the trail of each place.
func (r *reader) walk(n *yaml.Node, trail string) {
	r.trails[[2]int{n.Line, n.Column}] = trail
	switch {
	case n.Kind == yaml.AliasNode, n.Anchor != "", n.Style&yaml.TaggedStyle != 0, n.Tag == "!!merge":
		r.reportf(n.Line, n.Column, "%sanchors, aliases, merge keys and tags are not read here; write the value out, or use defaults:", trail)
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

// load reads a value of the file, and reports whether it has no mistake.
func (r *reader) load(n *yaml.Node, trail string, into any) bool {
	before := len(r.mistakes)
	r.walk(n, trail)
	err := n.Load(into, yaml.WithKnownFields(), yaml.WithUniqueKeys())
	var all *yaml.LoadErrors
	var one *yaml.LoadError
	if !errors.As(err, &all) && errors.As(err, &one) {
		all = &yaml.LoadErrors{Errors: []*yaml.LoadError{one}}
	}
	if err != nil {
		for _, e := range all.Errors {
			at := [2]int{e.Mark.Line, e.Mark.Column}
			r.reportf(at[0], at[1], "%s%s", r.trails[at], explain(e.Message))
		}
	}
	return len(r.mistakes) == before
}

// read reads the values of a file, and reports what automutex.New and unique.New would refuse at the value that is wrong.
func (r *reader) read(root *yaml.Node) (automutex.Config, unique.Config) {
	var f file
	r.load(root, "", &f)
	preset, fit := rule{}, true
	if n := get(root, "defaults"); n != nil {
		fit = r.load(n, "defaults: ", &preset.defaults)
	}
	cfg := automutex.Config{Prefix: f.Prefix, HashKeys: f.HashKeys, History: f.History, Logger: slog.New(slog.DiscardHandler)}
	once := unique.Config{Prefix: f.Prefix, HashKeys: f.HashKeys}
	var rules, onceRules []*yaml.Node
	for i := range f.Rules {
		if one := preset; r.load(&f.Rules[i], "", &one) && fit {
			cfg.Rules, rules = append(cfg.Rules, one.rule()), append(rules, &f.Rules[i])
		}
	}
	for i := range f.Unique {
		if one := (uniqueRule{}); r.load(&f.Unique[i], "", &one) {
			once.Rules, onceRules = append(once.Rules, one.rule()), append(onceRules, &f.Unique[i])
		}
	}
	switch n := get(root, "hash_keys"); {
	case len(r.mistakes) == 0 && get(root, "rules") == nil && get(root, "unique") == nil:
		r.reportf(root.Line, root.Column, "there are no rules; list them under rules: or unique:")
	case n != nil && n.Kind == yaml.ScalarNode && f.HashKeys == "": // as of a template that was filled with nothing
		r.reportf(n.Line, n.Column, "hash_keys: the secret is empty; give one, such as openssl rand -hex 32 makes, or leave hash_keys out")
	}

	_, err := automutex.NewKeyMaker(cfg)
	r.refused(err, "rule", root, get(root, "defaults"), rules)
	rdb := redis.NewClient(&redis.Options{Addr: "localhost:0"}) // never used: unique.New does no I/O
	_, err = unique.New(asynq.NewClientFromRedisClient(rdb), asynq.NewInspectorFromRedisClient(rdb), rdb, once)
	r.refused(errors.Join(err, rdb.Close()), "unique rule", root, nil, onceRules)
	cfg.Logger = nil
	return cfg, once
}

// refused reports the errors of one New at the values that they are about.
func (r *reader) refused(err error, what string, root, preset *yaml.Node, rules []*yaml.Node) {
	if joined, ok := err.(interface{ Unwrap() []error }); ok { // a join, not what an error wraps
		for _, err := range joined.Unwrap() {
			r.refused(err, what, root, preset, rules)
		}
		return
	}
	if err == nil {
		return
	}
	field := &automutex.FieldError{Rule: -1, Err: err}
	errors.As(err, &field)
	key := strings.TrimSuffix(keyOf(field.Field), "_field") // limit stands for LimitField, too
	at, where := cmp.Or(get(root, key), root), ""
	if field.Rule >= 0 {
		rule := rules[field.Rule]
		own, inherited := get(rule, key), get(preset, key)
		at, where = cmp.Or(own, inherited, rule), what+" "+strconv.Quote(field.RuleName)+": "
		if own == nil && inherited != nil {
			where = "defaults: "
		}
		if field.Element >= 0 {
			at = at.Content[field.Element]
		}
	}
	r.reportf(at.Line, at.Column, "%s%s: %s", where, key, linesFor(rules, field.Err.Error()))
}

// otherRule finds the rules that an error names beside its own.
var otherRule = regexp.MustCompile(`Rules\[\d+\]`)

// linesFor names other rules by their lines in the file.
func linesFor(rules []*yaml.Node, message string) string {
	return otherRule.ReplaceAllStringFunc(message, func(s string) string {
		if i, err := strconv.Atoi(strings.Trim(s, "Rules[]")); err == nil && i < len(rules) {
			return "line " + strconv.Itoa(rules[i].Line)
		}
		return s // a text of the user's that looks like it
	})
}

// get returns the value of a key; nil: there is none.
func get(n *yaml.Node, key string) *yaml.Node {
	if n != nil && n.Kind == yaml.MappingNode {
		for pair := range slices.Chunk(n.Content, 2) {
			if pair[0].Value == key {
				return pair[1]
			}
		}
	}
	return nil
}
