package config

import (
	"context"
	"errors"
	"log/slog"
	"regexp"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
	"go.yaml.in/yaml/v4"

	"github.com/automutex/automutex"
)

// What the errors of automutex.New begin with: the rule or Config, and the
// field.
var (
	ofRule   = regexp.MustCompile(`^automutex: (rule "(?:[^"\\]|\\.)*") \(Rules\[(\d+)\]\): ([A-Za-z]+)(?:\[(\d+)\])?: (?s)(.*)$`)
	ofConfig = regexp.MustCompile(`^automutex: Config\.([A-Za-z]+): (?s)(.*)$`)

	otherRule = regexp.MustCompile(`\(Rules\[(\d+)\]\)|Rules\[(\d+)\]`)
)

// checkRules reports what automutex.New would refuse, at the value that it is
// about.
func (d *decoder) checkRules(doc *document, cfg automutex.Config) {
	// The client is never used: New does no I/O, and nor does Close of a Guard
	// that no task came to.
	rdb := redis.NewClient(&redis.Options{Addr: "localhost:0"})
	cfg.Logger = slog.New(slog.DiscardHandler)
	guard, err := automutex.New(rdb, cfg)
	if err == nil {
		err = guard.Close(context.Background())
	}
	if err = errors.Join(err, rdb.Close()); err == nil {
		return
	}
	known := map[position]bool{}
	for _, mistake := range d.mistakes {
		known[position{mistake.Line, mistake.Column}] = true
	}
	for _, err := range leaves(err) {
		d.place(doc, err.Error(), known)
	}
}

type position struct{ line, column int }

// leaves takes joined errors apart.
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

// place reports one error of New, unless it is about a value at which a mistake
// is known.
func (d *decoder) place(doc *document, message string, known map[position]bool) {
	if m := ofConfig.FindStringSubmatch(message); m != nil {
		key := snake(m[1])
		d.reportf(doc.places.find(key, doc.node), "%s: %s", key, m[2])
		return
	}
	m := ofRule.FindStringSubmatch(message)
	if m == nil {
		d.reportf(doc.node, "%s", strings.TrimPrefix(message, "automutex: "))
		return
	}
	i, _ := strconv.Atoi(m[2]) // digits of an index of ours
	rule, key := doc.rules[i], snake(m[3])
	if rule.doubtful[key] || rule.doubtful["task"] && (key == "scope" || key == "name") {
		return
	}
	node, where := rule.places.find(key, rule.node), m[1]
	if node == doc.defaults[key] {
		where = "defaults"
	}
	if m[4] != "" {
		element, _ := strconv.Atoi(m[4])
		node = node.Content[element]
	}
	if node == rule.node || !known[position{node.Line, node.Column}] {
		d.reportf(node, "%s: %s: %s", where, key, doc.linesFor(m[5]))
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
func (doc *document) linesFor(message string) string {
	return otherRule.ReplaceAllStringFunc(message, func(s string) string {
		m := otherRule.FindStringSubmatch(s)
		i, err := strconv.Atoi(m[1] + m[2])
		switch {
		case err != nil || i >= len(doc.rules):
			return s // a text of the user's that looks like it
		case m[1] != "":
			return "(line " + strconv.Itoa(doc.rules[i].node.Line) + ")"
		}
		return "the rule in line " + strconv.Itoa(doc.rules[i].node.Line)
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
