package config

import (
	"errors"
	"log/slog"
	"regexp"
	"strconv"
	"strings"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"go.yaml.in/yaml/v4"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/unique"
)

// otherRule finds the rules that an error names beside its own.
var otherRule = regexp.MustCompile(`\(Rules\[(\d+)\]\)|Rules\[(\d+)\]`)

// check reports what automutex.New and unique.New would refuse, at the value that is
// wrong.
func (d *decoder) check(doc *document, cfg automutex.Config, once unique.Config) {
	known := map[position]bool{}
	for _, mistake := range d.mistakes {
		known[position{mistake.Line, mistake.Column}] = true
	}
	d.place(doc, "rule", spots(doc.rules), refusedByNew(cfg), known)
	d.place(doc, "unique rule", spots(doc.unique), refusedByUnique(once), known)
}

// refusedByNew is the error of automutex.New.
func refusedByNew(cfg automutex.Config) error {
	cfg.Logger = slog.New(slog.DiscardHandler)
	_, err := automutex.NewKeyMaker(cfg)
	return err
}

// refusedByUnique is the error of unique.New. The client is never used: unique.New does
// no I/O.
func refusedByUnique(once unique.Config) error {
	rdb := redis.NewClient(&redis.Options{Addr: "localhost:0"})
	_, err := unique.New(asynq.NewClientFromRedisClient(rdb), asynq.NewInspectorFromRedisClient(rdb), rdb, once)
	return errors.Join(err, rdb.Close())
}

type position struct{ line, column int }

// leaves returns the errors that a join has in it.
func leaves(err error) []error {
	joined, ok := err.(interface{ Unwrap() []error }) // a join, not what a leaf wraps
	if !ok {
		return []error{err}
	}
	var all []error
	for _, err := range joined.Unwrap() {
		all = append(all, leaves(err)...)
	}
	return all
}

// place reports the errors of one New, except those about a value at which a mistake is
// known already.
func (d *decoder) place(doc *document, what string, rules []*spot, err error, known map[position]bool) {
	if err == nil {
		return
	}
	for _, err := range leaves(err) {
		var field *automutex.FieldError
		switch {
		case !errors.As(err, &field):
			d.reportf(doc.node, "%v", err)
		case field.Rule < 0:
			key := snake(field.Field)
			d.reportf(doc.places.find(key, doc.node), "%s: %v", key, field.Err)
		default:
			d.placeInRule(doc, what, rules, field, known)
		}
	}
}

func (d *decoder) placeInRule(doc *document, what string, rules []*spot, field *automutex.FieldError, known map[position]bool) {
	rule, key := rules[field.Rule], strings.TrimSuffix(snake(field.Field), "_field") // limit stands for LimitField, too
	if rule.doubtful[key] || rule.doubtful["task"] && (key == "scope" || key == "name") {
		return
	}
	node, where := rule.places.find(key, rule.node), what+" "+strconv.Quote(field.RuleName)
	if node == doc.defaults[key] {
		where = "defaults"
	}
	if field.Element >= 0 {
		node = node.Content[field.Element]
	}
	if node == rule.node || !known[position{node.Line, node.Column}] {
		d.reportf(node, "%s: %s: %s", where, key, linesFor(rules, field.Err.Error()))
	}
}

// find is the node of a value, or what it should have been in.
func (at places) find(key string, within *yaml.Node) *yaml.Node {
	if n := at[key]; n != nil {
		return n
	}
	return within
}

// linesFor names other rules by their lines in the file.
func linesFor(rules []*spot, message string) string {
	return otherRule.ReplaceAllStringFunc(message, func(s string) string {
		m := otherRule.FindStringSubmatch(s)
		i, err := strconv.Atoi(m[1] + m[2])
		switch {
		case err != nil || i >= len(rules):
			return s // a text of the user's that looks like it
		case m[1] != "":
			return "(line " + strconv.Itoa(rules[i].node.Line) + ")"
		}
		return "the rule in line " + strconv.Itoa(rules[i].node.Line)
	})
}

// snake is a Go name as it is written in a file: TTL is ttl, MaxHold max_hold.
func snake(name string) string {
	var b strings.Builder
	for i, r := range name {
		upper := r >= 'A' && r <= 'Z'
		if upper && i > 0 && name[i-1] >= 'a' && name[i-1] <= 'z' {
			b.WriteByte('_')
		}
		b.WriteString(strings.ToLower(string(r)))
	}
	return b.String()
}
