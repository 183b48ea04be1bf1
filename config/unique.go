package config

import (
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/automutex/automutex/unique"
)

// uniqueKeys are the keys of a unique rule; a test holds them against the fields
// of unique.Rule.
var uniqueKeys = []key[unique.Rule]{
	{"task", text(func(r *unique.Rule) *string { return &r.Task })},
	{"queue", text(func(r *unique.Rule) *string { return &r.Queue })},
	{"on", texts(func(r *unique.Rule) *[]string { return &r.On })},
	{"on_headers", texts(func(r *unique.Rule) *[]string { return &r.OnHeaders })},
	{"scope", text(func(r *unique.Rule) *string { return &r.Scope })},
	{"until", choice(func(r *unique.Rule) *unique.Until { return &r.Until },
		map[string]unique.Until{"done": unique.UntilDone, "start": unique.UntilStart}, "for", unique.For,
		"done, start or {for: 10m}", nil)},
	{"duplicate", choice(func(r *unique.Rule) *unique.Duplicate { return &r.Duplicate },
		map[string]unique.Duplicate{"reject": unique.Reject, "join": unique.Join, "replace": unique.Replace}, "postpone", unique.Postpone,
		"reject, join, replace or {postpone: 5s}", nil)},
	{"max_postpone", period(func(r *unique.Rule) *time.Duration { return &r.MaxPostpone })},
	{"keep_archived", flag(func(r *unique.Rule) *bool { return &r.KeepArchived })},
}

// notInUnique is what somebody may look for who knows unique.Rule.
var notInUnique = map[string]string{
	"key":     notInRule["key"],
	"payload": notInRule["payload"],
}

// flag sets a boolean.
func flag[T any](field func(*T) *bool) func(*decoder, *T, *yaml.Node) {
	return func(d *decoder, into *T, n *yaml.Node) {
		if n.Kind != yaml.ScalarNode || n.Tag != "!!bool" {
			d.want(n, "true or false")
			return
		}
		*field(into) = n.Value == "true" || n.Value == "True" || n.Value == "TRUE"
	}
}
