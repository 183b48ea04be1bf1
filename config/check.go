package config

import (
	"cmp"
	"errors"
	"log/slog"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/unique"
)

// check reports what automutex.New and unique.New would refuse, at the value that is wrong.
func (d *decoder) check(top spot, rules, once []spot, cfg automutex.Config, uniq unique.Config) {
	known := map[[2]int]bool{}
	for _, mistake := range d.mistakes {
		known[[2]int{mistake.Line, mistake.Column}] = true
	}
	cfg.Logger = slog.New(slog.DiscardHandler)
	_, err := automutex.NewKeyMaker(cfg)
	d.place(top, "rule", rules, err, known)

	rdb := redis.NewClient(&redis.Options{Addr: "localhost:0"}) // never used: unique.New does no I/O
	_, err = unique.New(asynq.NewClientFromRedisClient(rdb), asynq.NewInspectorFromRedisClient(rdb), rdb, uniq)
	d.place(top, "unique rule", once, errors.Join(err, rdb.Close()), known)
}

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

// place reports the errors of one New, except those about a value at which a mistake is known.
func (d *decoder) place(top spot, what string, rules []spot, err error, known map[[2]int]bool) {
	if err == nil {
		return
	}
	for _, err := range leaves(err) {
		var field *automutex.FieldError
		if !errors.As(err, &field) {
			d.reportf(top.node, "%v", err)
			continue
		}
		key := strings.TrimSuffix(keyOf(field.Field), "_field") // limit stands for LimitField, too
		if field.Rule < 0 {
			d.reportf(cmp.Or(top.at[key], top.node), "%s: %v", key, field.Err)
			continue
		}
		rule, where := rules[field.Rule], what+" "+strconv.Quote(field.RuleName)
		node := rule.at[key]
		if node == nil && rule.doubtful {
			continue
		}
		if defaults := top.at["defaults"]; node != nil && defaults != nil && slices.Contains(defaults.Content, node) {
			where = "defaults"
		}
		if field.Element >= 0 {
			node = node.Content[field.Element]
		}
		if node == nil || !known[[2]int{node.Line, node.Column}] {
			d.reportf(cmp.Or(node, rule.node), "%s: %s: %s", where, key, linesFor(rules, field.Err.Error()))
		}
	}
}

// otherRule finds the rules that an error names beside its own.
var otherRule = regexp.MustCompile(`\(Rules\[(\d+)\]\)|Rules\[(\d+)\]`)

// linesFor names other rules by their lines in the file.
func linesFor(rules []spot, message string) string {
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
