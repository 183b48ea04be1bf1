package config

import (
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/automutex/automutex/unique"
)

// uniqueKeys are the keys of a unique rule; a test holds them against the fields
// of unique.Rule.
var uniqueKeys = []key[unique.Rule]{
	{"task", "The task type, or its prefix: an exact match first, then the longest prefix.", text(func(r *unique.Rule) *string { return &r.Task })},
	{"queue", "The queue of the tasks; \"default\" where it is left out.", text(func(r *unique.Rule) *string { return &r.Queue })},
	{"on", "Payload fields that make the key, as dotted paths: user.id, items.0.sku.", texts(func(r *unique.Rule) *[]string { return &r.On })},
	{"on_headers", "Task headers that make the key.", texts(func(r *unique.Rule) *[]string { return &r.OnHeaders })},
	{"optional", "Whether a task without one of these fields, or with an empty one, is enqueued each time. It is refused where it is left out.", flag(func(r *unique.Rule) *bool { return &r.Optional })},
	{"scope", "Rules with the same scope share keys; the task's own type where it is left out.", text(func(r *unique.Rule) *string { return &r.Scope })},
	{"until", "How long a task stands in the way of the next one for its key.", choice(func(r *unique.Rule) *unique.Until { return &r.Until },
		map[string]unique.Until{"done": unique.UntilDone, "start": unique.UntilStart}, "for", unique.For,
		"done, start or {for: 10m}", nil)},
	{"duplicate", "What happens to a task that finds another one in its way.", choice(func(r *unique.Rule) *unique.Duplicate { return &r.Duplicate },
		map[string]unique.Duplicate{"reject": unique.Reject, "join": unique.Join, "replace": unique.Replace}, "postpone", unique.Postpone,
		"reject, join, replace or {postpone: 5s}", nil)},
	{"max_postpone", "The longest time after the first call that postpone may put a task off.", period(func(r *unique.Rule) *time.Duration { return &r.MaxPostpone })},
	{"keep_archived", "Whether archived and completed tasks stay in the way.", flag(func(r *unique.Rule) *bool { return &r.KeepArchived })},
}

// notInUnique is what somebody may look for who knows unique.Rule.
var notInUnique = map[string]string{
	"key":     notInRule["key"],
	"payload": notInRule["payload"],
}

// flag sets a boolean.
func flag[T any](field func(*T) *bool) value[T] {
	return value[T]{flagSchema, func(d *decoder, into *T, n *yaml.Node) {
		if n.Kind != yaml.ScalarNode || n.Tag != "!!bool" {
			d.want(n, "true or false")
			return
		}
		*field(into) = n.Value == "true" || n.Value == "True" || n.Value == "TRUE"
	}}
}
