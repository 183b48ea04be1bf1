package config

import (
	"context"
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

// What the errors of automutex.New and unique.New begin with: the rule or
// Config, and the field. Those of the latter have those of the former in them.
var (
	ofRule   = regexp.MustCompile(`^(?:unique: )?(?:automutex: )?rule ("(?:[^"\\]|\\.)*") \(Rules\[(\d+)\]\): ([A-Za-z]+)(?:\[(\d+)\])?: (?s)(.*)$`)
	ofConfig = regexp.MustCompile(`^(?:unique: )?automutex: Config\.([A-Za-z]+): (?s)(.*)$`)

	otherRule = regexp.MustCompile(`\(Rules\[(\d+)\]\)|Rules\[(\d+)\]`)
)

// check reports what automutex.New and unique.New would refuse, at the value
// that it is about.
func (d *decoder) check(doc *document, cfg automutex.Config, once unique.Config) {
	known := map[position]bool{}
	for _, mistake := range d.mistakes {
		known[position{mistake.Line, mistake.Column}] = true
	}
	// The client is never used: neither New does I/O, and nor does Close of a
	// Guard that no task came to.
	rdb := redis.NewClient(&redis.Options{Addr: "localhost:0"})
	cfg.Logger = slog.New(slog.DiscardHandler)
	guard, err := automutex.New(rdb, cfg)
	if err == nil {
		err = guard.Close(context.Background())
	}
	d.place(doc, "rule", spots(doc.rules), err, known)

	_, err = unique.New(asynq.NewClientFromRedisClient(rdb), asynq.NewInspectorFromRedisClient(rdb), rdb, once)
	d.place(doc, "unique rule", spots(doc.unique), errors.Join(err, rdb.Close()), known)
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

// place reports the errors of one New, but for those about a value at which a
// mistake is known.
func (d *decoder) place(doc *document, what string, rules []*spot, err error, known map[position]bool) {
	if err == nil {
		return
	}
	for _, err := range leaves(err) {
		d.placeOne(doc, what, rules, err.Error(), known)
	}
}

func (d *decoder) placeOne(doc *document, what string, rules []*spot, message string, known map[position]bool) {
	if m := ofConfig.FindStringSubmatch(message); m != nil {
		key := snake(m[1])
		d.reportf(doc.places.find(key, doc.node), "%s: %s", key, m[2])
		return
	}
	m := ofRule.FindStringSubmatch(message)
	if m == nil {
		d.reportf(doc.node, "%s", message)
		return
	}
	i, _ := strconv.Atoi(m[2]) // digits of an index of ours
	rule, key := rules[i], snake(m[3])
	if rule.doubtful[key] || rule.doubtful["task"] && (key == "scope" || key == "name") {
		return
	}
	node, where := rule.places.find(key, rule.node), what+" "+m[1]
	if node == doc.defaults[key] {
		where = "defaults"
	}
	if m[4] != "" {
		element, _ := strconv.Atoi(m[4])
		node = node.Content[element]
	}
	if node == rule.node || !known[position{node.Line, node.Column}] {
		d.reportf(node, "%s: %s: %s", where, key, linesFor(rules, m[5]))
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
