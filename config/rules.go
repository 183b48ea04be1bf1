package config

import (
	"maps"
	"slices"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/unique"
)

// document is a configuration as it stands in its file.
type document struct {
	node   *yaml.Node
	places places
	prefix string
	secret string // hash_keys
	kept   int    // history
	rules  []*entry[automutex.Rule]
	unique []*entry[unique.Rule]

	defaults places
}

// entry is one element of a list of rules.
type entry[T any] struct {
	spot
	value T
}

// spot is where a rule stands.
type spot struct {
	node   *yaml.Node
	places places
	// doubtful has the keys that are missing for a mistake that was reported,
	// such as a misspelt one: what follows from that is no news.
	doubtful map[string]bool
}

// places has the node of each value, by its key. A value that comes from
// defaults stands there.
type places map[string]*yaml.Node

// ruleKeys are the keys of a rule; a test holds them against the fields of
// automutex.Rule.
var ruleKeys = []key[automutex.Rule]{
	{"name", "A label for errors, events and metrics; the task where it is left out.", text(func(r *automutex.Rule) *string { return &r.Name })},
	{"task", "The task type, or its prefix: an exact match first, then the longest prefix.", text(func(r *automutex.Rule) *string { return &r.Task })},
	{"on", "Payload fields that make the key, as dotted paths: user.id, items.0.sku.", texts(func(r *automutex.Rule) *[]string { return &r.On })},
	{"on_headers", "Task headers that make the key.", texts(func(r *automutex.Rule) *[]string { return &r.OnHeaders })},
	{"optional", "Whether a task without one of these fields, or with an empty one, takes no lock of the rule. It is archived where it is left out.", flag(func(r *automutex.Rule) *bool { return &r.Optional })},
	{"scope", "Rules with the same scope share locks; the task's own type where it is left out.", text(func(r *automutex.Rule) *string { return &r.Scope })},
	{"limit", "How many may hold a key at once; 1 where it is left out. unlimited: only the rate or the cooldown bounds them. {field: tenant.max, default: 3, most: 50} reads it from the payload.", limit},
	{"ttl", "How long a key stays taken after its process died; 30s where it is left out.", period(func(r *automutex.Rule) *time.Duration { return &r.TTL })},
	{"wait", "The longest time in line, in the worker, before the policy applies.", period(func(r *automutex.Rule) *time.Duration { return &r.Wait })},
	{"max_hold", "The longest time a handler may hold the key; no bound where it is left out.", period(func(r *automutex.Rule) *time.Duration { return &r.MaxHold })},
	{"cooldown", "After a success nobody starts until this long after the run began.", period(func(r *automutex.Rule) *time.Duration { return &r.Cooldown })},
	{"rate", "How often handlers start for a key: {starts: 100, per: 1m, burst: 10}. burst is how many may start at once after a pause; 1 where it is left out. none: no rate, whatever defaults say.", rate},
	{"in_order", "Whether the tasks of a key run in the order in which they were enqueued, through failures.", flag(func(r *automutex.Rule) *bool { return &r.InOrder })},
	{"on_archive", "What happens to the key of an ordered task that is archived: hold (for an operator) or continue (with the next).", onArchive},
	{"max_queued", "How many tasks of a key may be enqueued and not done, in order; no bound where it is left out.", number(func(r *automutex.Rule) *int { return &r.MaxQueued })},
	{"fence", "Whether handlers get a fence, a number that grows from run to run of a key.", flag(func(r *automutex.Rule) *bool { return &r.Fence })},
	{"busy", "The policy for a task that finds its key taken; park where it is left out.", choice(func(r *automutex.Rule) *automutex.Policy { return &r.Busy }, policies, "retry_in", automutex.RetryIn,
		"retry, skip, archive, fail, park, replace, allow or {retry_in: 5s}",
		map[string]string{"after_failure": notInRule["after_failure"]})},
}

var rateKeys = []key[automutex.Rate]{
	{"starts", "How many handlers start in each period.", number(func(r *automutex.Rate) *int { return &r.Starts })},
	{"per", "The period.", period(func(r *automutex.Rate) *time.Duration { return &r.Per })},
	{"burst", "How many may start at once.", number(func(r *automutex.Rate) *int { return &r.Burst })},
}

var limitKeys = []key[automutex.LimitField]{
	{"field", "The payload field with the limit, as a dotted path.", text(func(l *automutex.LimitField) *string { return &l.Path })},
	{"default", "The limit where the field is missing; without it such a task is archived.", number(func(l *automutex.LimitField) *int { return &l.Default })},
	{"most", "The highest limit that a payload can set; no bound where it is left out.", number(func(l *automutex.LimitField) *int { return &l.Most })},
}

// unlimited is the limit of a rule whose tasks only a rate or a cooldown bounds.
const unlimited = "unlimited"

// limit is a number, unlimited, or what LimitField says. One takes the place of the other, which
// may come from defaults.
var limit = func() value[automutex.Rule] {
	const what = "a limit, such as {field: tenant.max, default: 3, most: 50}"
	fixed := number(func(r *automutex.Rule) *int { return &r.Limit })
	return value[automutex.Rule]{
		schema{"anyOf": []schema{fixed.schema, {"const": unlimited}, objectSchema(limitKeys, "field")}},
		func(d *decoder, r *automutex.Rule, n *yaml.Node) {
			if isText(n) && n.Value == unlimited {
				r.Limit, r.LimitField = automutex.Unlimited, nil
				return
			}
			if n.Kind != yaml.MappingNode {
				r.LimitField = nil
				fixed.set(d, r, n)
				return
			}
			before, of := len(d.mistakes), automutex.LimitField{}
			mapping(func(of *automutex.LimitField) *automutex.LimitField { return of }, limitKeys, what, "field").set(d, &of, n)
			if len(d.mistakes) > before {
				return
			}
			r.Limit, r.LimitField = 0, &of
		},
	}
}()

// noRate is the rate of a rule that has none, although defaults has one.
const noRate = "none"

var rate = func() value[automutex.Rule] {
	given := mapping(func(r *automutex.Rule) *automutex.Rate { return &r.Rate }, rateKeys, "a rate, such as {starts: 100, per: 1m, burst: 10}", "starts", "per")
	return value[automutex.Rule]{schema{"anyOf": []schema{given.schema, {"const": noRate}}}, func(d *decoder, r *automutex.Rule, n *yaml.Node) {
		if isText(n) && n.Value == noRate {
			r.Rate = automutex.Rate{}
			return
		}
		given.set(d, r, n)
	}}
}()

// onArchive is what happens to the key of an ordered task that is archived.
var onArchive = func() value[automutex.Rule] {
	words := map[string]automutex.OnArchive{}
	for _, o := range []automutex.OnArchive{automutex.HoldKey, automutex.Continue} {
		words[o.String()] = o
	}
	return value[automutex.Rule]{schema{"enum": keysOf(words)}, func(d *decoder, r *automutex.Rule, n *yaml.Node) {
		o, ok := words[n.Value]
		if !ok || !isText(n) {
			d.want(n, "hold or continue")
			return
		}
		r.OnArchive = o
	}}
}()

// What somebody may look for who knows the Go type, and does not find here.
var (
	notInRule = map[string]string{
		"limit_field":   "is written as limit: {field: tenant.max, default: 3}",
		"limit_of":      "is a Go function: set Rule.LimitOf in the program, or name a payload field in limit: {field: tenant.max, default: 3}",
		"key":           "is a Go function: set Rule.Key in the program, or name the payload fields in on",
		"payload":       "is a value of a Go type: set Rule.Payload in the program",
		"after_failure": "is a Go function: set Rule.Busy to AfterFailure(...) in the program",
	}
	notInDefaults = map[string]string{
		"name": "names one rule, and so has no default",
		"task": "is what each rule is for, and so has no default",
	}
	notInFile = map[string]string{
		"decode":        "is a Go function: set Config.Decode of automutex and of unique in the program",
		"owner":         "belongs to the process: set Config.Owner in the program",
		"max_waiting":   "belongs to the process: set Config.MaxWaiting in the program",
		"min_replicas":  "belongs to how Redis is set up: set Config.MinReplicas in the program",
		"private":       "belongs to the process: set Config.Private in the program",
		"wake_at_front": "leans on the layout of asynq: set Config.WakeAtFront in the program",
		"wait":          "belongs to the process that enqueues: set Config.Wait of unique in the program",
		"inspector":     "is a Go value: set Config.Inspector in the program",
		"logger":        "is a Go value: set Config.Logger in the program",
		"observe":       "is a Go function: set Config.Observe in the program",
	}
)

// secret sets what hashes keys. Nothing is no secret: a template that was filled
// with nothing would leave the values readable.
func secret(d *decoder, doc *document, n *yaml.Node) {
	text(func(doc *document) *string { return &doc.secret }).set(d, doc, n)
	if isText(n) && n.Value == "" {
		d.reportf(n, "the secret is empty; give one, such as openssl rand -hex 32 makes, or leave hash_keys out")
	}
}

// documentKeys are the keys of the file itself. The nodes of its parts go to where
// the arguments point; the parts are read when all of them are known.
func documentKeys(defaults, rules, once **yaml.Node) []key[document] {
	part := func(into **yaml.Node, s schema) value[document] {
		return value[document]{s, func(_ *decoder, _ *document, n *yaml.Node) { *into = n }}
	}
	return []key[document]{
		{"prefix", "Begins every key in Redis; automutex where it is left out.", text(func(doc *document) *string { return &doc.prefix })},
		{"hash_keys", "A secret that keeps payload values out of keys; at least 16 bytes.", value[document]{textSchema, secret}},
		{"history", "How many of the last runs of each key are kept for its page; none where it is left out.", number(func(doc *document) *int { return &doc.kept })},
		{"defaults", "Keys of every rule in rules that does not have them itself.", part(defaults, objectSchema(defaultKeys()))},
		{"rules", "What workers guard.", part(rules, listSchema(objectSchema(ruleKeys, "task")))},
		{"unique", "What producers enqueue once.", part(once, listSchema(objectSchema(uniqueKeys, "task")))},
	}
}

// defaultKeys are the keys of a rule that may stand in defaults.
func defaultKeys() []key[automutex.Rule] {
	return slices.DeleteFunc(slices.Clone(ruleKeys), func(k key[automutex.Rule]) bool { return notInDefaults[k.name] != "" })
}

// document reads the root of the file.
func (d *decoder) document(root *yaml.Node) *document {
	doc := &document{node: root}
	defaults := &entry[automutex.Rule]{spot: spot{places: places{}}}
	var defaultsNode, rulesNode, uniqueNode *yaml.Node
	keys := documentKeys(&defaultsNode, &rulesNode, &uniqueNode)
	doc.places, _ = fields(d, root, "the file", keys, notInFile, doc)
	if root.Kind == yaml.MappingNode && rulesNode == nil && uniqueNode == nil && len(d.mistakes) == 0 {
		d.reportf(root, "there are no rules; list them under rules: or unique:")
	}
	if defaultsNode != nil {
		hints := maps.Clone(notInRule)
		maps.Copy(hints, notInDefaults)
		defaults.places, defaults.doubtful = fields(d, defaultsNode, "defaults", defaultKeys(), hints, &defaults.value)
	}
	doc.defaults = defaults.places
	doc.rules = entries(d, rulesNode, "rules", "a rule", ruleKeys, notInRule, defaults)
	doc.unique = entries(d, uniqueNode, "unique", "a unique rule", uniqueKeys, notInUnique, &entry[unique.Rule]{spot: spot{places: places{}}})
	return doc
}

// entries reads a list of rules, each of which begins as the defaults.
func entries[T any](d *decoder, list *yaml.Node, name, what string, keys []key[T], hints map[string]string, defaults *entry[T]) []*entry[T] {
	nodes := d.list(list, name)
	all := make([]*entry[T], 0, len(nodes))
	for _, n := range nodes {
		e := &entry[T]{spot{n, maps.Clone(defaults.places), map[string]bool{}}, defaults.value}
		maps.Copy(e.doubtful, defaults.doubtful)
		own, doubtful := fields(d, n, what, keys, hints, &e.value)
		maps.Copy(e.places, own)
		maps.Copy(e.doubtful, doubtful)
		all = append(all, e)
	}
	return all
}

// spots are where the rules of a list stand.
func spots[T any](all []*entry[T]) []*spot {
	list := make([]*spot, len(all))
	for i, e := range all {
		list[i] = &e.spot
	}
	return list
}

// configs are the document as automutex.New and unique.New take it.
func (doc *document) configs() (automutex.Config, unique.Config) {
	cfg, once := automutex.Config{Prefix: doc.prefix, HashKeys: doc.secret, History: doc.kept}, unique.Config{Prefix: doc.prefix, HashKeys: doc.secret}
	for _, e := range doc.rules {
		rule := e.value
		rule.On, rule.OnHeaders = slices.Clone(rule.On), slices.Clone(rule.OnHeaders) // of defaults, shared by rules
		cfg.Rules = append(cfg.Rules, rule)
	}
	for _, e := range doc.unique {
		once.Rules = append(once.Rules, e.value)
	}
	return cfg, once
}
