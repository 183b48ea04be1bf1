package config

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"go.yaml.in/yaml/v4"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/nearest"
	"github.com/automutex/automutex/unique"
)

// decoder goes through the nodes of a file and gathers what is wrong.
type decoder struct {
	file     string
	mistakes []*Error
	wrong    map[*yaml.Node]bool // those that a mistake was reported at
}

// spot is where a rule stands.
type spot struct {
	node     *yaml.Node
	at       map[string]*yaml.Node // the value of each key
	doubtful bool                  // a mistake that was reported may be why a key is missing
}

func parse(name string, data []byte) (automutex.Config, unique.Config, error) {
	d := &decoder{file: name, wrong: map[*yaml.Node]bool{}}
	if root := d.root(data); root != nil {
		d.checkForm(root)
		if len(d.mistakes) == 0 {
			cfg, once := d.document(root)
			if len(d.mistakes) == 0 {
				return cfg, once, nil
			}
		}
	}
	// In the order of the file, each once: what is wrong in defaults is wrong in every rule.
	slices.SortStableFunc(d.mistakes, func(a, b *Error) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	var errs []error
	for _, mistake := range slices.CompactFunc(d.mistakes, func(a, b *Error) bool { return *a == *b }) {
		errs = append(errs, mistake)
	}
	return automutex.Config{}, unique.Config{}, errors.Join(errs...)
}

func (d *decoder) reportf(n *yaml.Node, format string, args ...any) {
	d.wrong[n] = true
	d.mistakes = append(d.mistakes, &Error{File: d.file, Line: max(n.Line, 1), Column: max(n.Column, 1), Text: fmt.Sprintf(format, args...)})
}

// pair is a character that JSON writes as two escapes, which YAML does not have.
var pair = regexp.MustCompile(`\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}`)

// root gives the one document of the file, nil after a mistake that leaves nothing to look at.
func (d *decoder) root(data []byte) *yaml.Node {
	if json.Valid(data) {
		data = pair.ReplaceAllFunc(data, func(escaped []byte) []byte {
			var s string
			if len(escaped) > 2 && json.Unmarshal([]byte(`"`+string(escaped)+`"`), &s) == nil {
				return []byte(s)
			}
			return escaped
		})
	}
	text := string(data)
	bad := strings.IndexFunc(text, func(r rune) bool {
		return r == utf8.RuneError || r == 0x7F || r < ' ' && !strings.ContainsRune("\t\r\n", r)
	})
	if bad >= 0 { // the YAML library does not say where
		before := strings.TrimPrefix(text[:bad], "\uFEFF")
		at := &yaml.Node{Line: 1 + strings.Count(before, "\n"), Column: 1 + utf8.RuneCountInString(before[strings.LastIndex(before, "\n")+1:])}
		d.reportf(at, "the byte %#02x is no text; save the file as UTF-8, without control characters", text[bad])
		return nil
	}
	var docs []yaml.Node
	err := yaml.Load(data, &docs, yaml.WithAllDocuments())
	switch {
	case err != nil:
		d.syntax(err, strings.Split(text, "\n"))
	case len(docs) == 0 || len(docs[0].Content) == 0:
		d.reportf(&yaml.Node{}, "the file is empty; list the rules under rules:")
	case len(docs) > 1:
		d.reportf(&docs[1], "a second document begins here; put all rules into one")
	default:
		return docs[0].Content[0]
	}
	return nil
}

// endsInColon finds a text that is not quoted and ends in a colon, which YAML takes for a key.
var endsInColon = regexp.MustCompile(`(?:[:,\[{]|^\s*-)\s+([^\s'",\[\]{}#]+:)\s*(?:[,}\]#].*)?$`)

// syntax reports what the YAML library says.
func (d *decoder) syntax(err error, lines []string) {
	message, at := strings.TrimPrefix(err.Error(), "yaml: "), yaml.Node{}
	var wrong *yaml.LoadError
	if errors.As(err, &wrong) {
		message, at.Line, at.Column = strings.TrimPrefix(wrong.ContextMsg+": "+wrong.Message, ": "), wrong.Mark.Line, wrong.Mark.Column
	}
	for _, line := range lines[max(at.Line-2, 0):min(at.Line, len(lines))] {
		if m := endsInColon.FindStringSubmatch(strings.TrimRight(line, "\r")); m != nil {
			message = message + "; put a text that ends in a colon in quotes: " + quote(m[1])
			break
		}
	}
	d.reportf(&at, "not YAML: %s", message)
}

// checkForm reports what YAML has and a configuration does not, anywhere in it.
func (d *decoder) checkForm(n *yaml.Node) {
	what := ""
	switch {
	case n.Kind == yaml.AliasNode:
		what = "alias *" + n.Value
	case n.Anchor != "":
		what = "anchor &" + n.Anchor
	case n.Style&yaml.TaggedStyle != 0:
		what = "tag " + n.Tag
	case n.Tag == "!!merge" && n.Style == 0:
		what = "merge key <<"
	}
	if what != "" {
		d.reportf(n, "the %s: anchors, aliases, merge keys and tags are not read here; write the value out, or use defaults:", what)
	}
	for _, child := range n.Content {
		d.checkForm(child)
	}
}

// document reads the root of the file, and reports what automutex.New and unique.New would refuse at the value that is wrong.
func (d *decoder) document(root *yaml.Node) (automutex.Config, unique.Config) {
	var f file
	top := d.object(root, reflect.ValueOf(&f).Elem())
	if len(d.mistakes) == 0 && top.at["rules"] == nil && top.at["unique"] == nil {
		d.reportf(root, "there are no rules; list them under rules: or unique:")
	}
	var preset spot
	if n := top.at["defaults"]; n != nil {
		preset = d.object(n, reflect.ValueOf(&f.Defaults).Elem())
	}
	var rules, once []spot
	f.Rules, rules = list(d, "rules", top.at["rules"], automutex.Rule(f.Defaults))
	f.Unique, once = list(d, "unique", top.at["unique"], unique.Rule{})
	for i, rule := range f.Rules {
		f.Rules[i].On, f.Rules[i].OnHeaders = slices.Clone(rule.On), slices.Clone(rule.OnHeaders) // no rules share them
	}
	if n := top.at["hash_keys"]; n != nil && f.HashKeys == "" && !d.wrong[n] { // as of a template that was filled with nothing
		d.reportf(n, "hash_keys: the secret is empty; give one, such as openssl rand -hex 32 makes, or leave hash_keys out")
	}
	cfg := automutex.Config{Prefix: f.Prefix, HashKeys: f.HashKeys, History: f.History, Rules: f.Rules}
	uniq := unique.Config{Prefix: f.Prefix, HashKeys: f.HashKeys, Rules: f.Unique}

	silent := cfg
	silent.Logger = slog.New(slog.DiscardHandler)
	_, err := automutex.NewKeyMaker(silent)
	d.refused(err, "rule", top, preset, rules)
	rdb := redis.NewClient(&redis.Options{Addr: "localhost:0"}) // never used: unique.New does no I/O
	_, err = unique.New(asynq.NewClientFromRedisClient(rdb), asynq.NewInspectorFromRedisClient(rdb), rdb, uniq)
	d.refused(errors.Join(err, rdb.Close()), "unique rule", top, spot{}, once)
	return cfg, uniq
}

// refused reports the errors of one New, except those about a value at which a mistake is known.
func (d *decoder) refused(err error, what string, top, preset spot, rules []spot) {
	if joined, ok := err.(interface{ Unwrap() []error }); ok { // a join, not what an error wraps
		for _, err := range joined.Unwrap() {
			d.refused(err, what, top, preset, rules)
		}
		return
	}
	field := &automutex.FieldError{Rule: -1, Err: err}
	errors.As(err, &field)
	key := strings.TrimSuffix(keyOf(field.Field), "_field") // limit stands for LimitField, too
	at, where, fallback := top.at[key], "", top.node
	if field.Rule >= 0 {
		rule := rules[field.Rule]
		at, where, fallback = rule.at[key], what+" "+strconv.Quote(field.RuleName)+": ", rule.node
		if at == nil && preset.at[key] != nil {
			at, where = preset.at[key], "defaults: "
		}
		if at == nil && (rule.doubtful || preset.doubtful) {
			return
		}
		if field.Element >= 0 {
			at = at.Content[field.Element]
		}
	}
	if err != nil && !d.wrong[at] {
		d.reportf(cmp.Or(at, fallback), "%s%s: %s", where, key, linesFor(rules, field.Err.Error()))
	}
}

// otherRule finds the rules that an error names beside its own.
var otherRule = regexp.MustCompile(`Rules\[\d+\]`)

// linesFor names other rules by their lines in the file.
func linesFor(rules []spot, message string) string {
	return otherRule.ReplaceAllStringFunc(message, func(s string) string {
		if i, err := strconv.Atoi(strings.Trim(s, "Rules[]")); err == nil && i < len(rules) {
			return "line " + strconv.Itoa(rules[i].node.Line)
		}
		return s // a text of the user's that looks like it
	})
}

// list reads a list of rules, each of which begins as preset.
func list[R any](d *decoder, name string, n *yaml.Node, preset R) (rules []R, spots []spot) {
	if n == nil {
		return nil, nil
	}
	if n.Kind != yaml.SequenceNode {
		d.reportf(n, "%s: is %s; it is a list, of which each element begins with a dash", name, describe(n))
		return nil, nil
	}
	for _, n := range n.Content {
		rule := preset
		spots = append(spots, d.object(n, reflect.ValueOf(&rule).Elem()))
		rules = append(rules, rule)
	}
	return rules, spots
}

// object reads a mapping into a struct.
func (d *decoder) object(n *yaml.Node, into reflect.Value) spot {
	o := objects[into.Type()]
	keys, fields := o.fields(into.Type())
	what, _, _ := strings.Cut(o.what, ",") // without an example
	return d.pairs(n, what, keys, o.not, func(key string, value *yaml.Node) {
		field := into.FieldByIndex(fields[key].Index)
		if key == "limit" {
			d.limit(field, into.FieldByName("LimitField"), value)
		} else {
			d.set(field, value)
		}
	})
}

// pairs calls set for each known key of a mapping. not has keys that are none, and why.
func (d *decoder) pairs(n *yaml.Node, what string, keys []string, not map[string]string, set func(key string, value *yaml.Node)) spot {
	s := spot{node: n, at: map[string]*yaml.Node{}}
	if n.Kind != yaml.MappingNode {
		s.doubtful = true
		d.reportf(n, "%s is %s; want keys with values: %s", what, describe(n), strings.Join(keys, ", "))
		return s
	}
	lines := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		name, value := n.Content[i], n.Content[i+1]
		key := cmp.Or(name.Value, describe(name))
		first := lines[key]
		lines[key] = cmp.Or(first, name.Line)
		switch {
		case first != 0:
			d.reportf(name, "%s: is there twice, first in line %d; leave one out", key, first)
		case slices.Contains(keys, key):
			s.at[key] = value
			before := len(d.mistakes)
			set(key, value)
			for _, mistake := range d.mistakes[before:] {
				mistake.Text = key + ": " + mistake.Text
			}
		default:
			found, alike := nearest.Name(key, slices.Concat(keys, sorted(not)))
			switch {
			case alike && not[found] != "":
				d.reportf(name, "%s: cannot be in %s: it %s", key, what, not[found])
			case alike:
				s.doubtful = true
				d.reportf(name, "unknown key %s in %s; did you mean %s?", quote(key), what, found)
			default:
				d.reportf(name, "unknown key %s in %s, which has %s", quote(key), what, strings.Join(keys, ", "))
			}
		}
	}
	return s
}

// limit is a number, unlimited, or a payload field. One takes the place of the other, which may come from defaults.
func (d *decoder) limit(limit, field reflect.Value, n *yaml.Node) {
	field.SetZero()
	switch of := (automutex.LimitField{}); {
	case n.Value == unlimited:
		limit.SetInt(automutex.Unlimited)
	case n.Kind != yaml.MappingNode:
		d.set(limit, n)
	case d.required(n, reflect.ValueOf(&of).Elem()):
		limit.SetZero()
		field.Set(reflect.ValueOf(&of))
	}
}

// required reads an object some of whose keys must be there, and reports whether there is no mistake.
func (d *decoder) required(n *yaml.Node, into reflect.Value) bool {
	before, o := len(d.mistakes), objects[into.Type()]
	if n.Kind != yaml.MappingNode {
		d.want(n, o.what)
		return false
	}
	s := d.object(n, into)
	missing := slices.DeleteFunc(slices.Clone(o.required), func(key string) bool { return s.at[key] != nil })
	switch {
	case len(d.mistakes) > before:
		return false
	case len(missing) > 0:
		d.reportf(n, "has no %s; want %s, or leave the key out", strings.Join(missing, " and no "), o.what)
	case into.IsZero():
		d.reportf(n, "is all zero; want %s, or leave the key out", o.what)
	}
	return len(d.mistakes) == before
}

// set reads the value of a field. A scalar of any kind will do for text, and is taken as it is written: a task may
// well be called 404, or on.
func (d *decoder) set(field reflect.Value, n *yaml.Node) {
	if c, ok := choices[field.Type()]; ok {
		d.choose(field, n, c)
		return
	}
	switch into := field.Addr().Interface().(type) {
	case *string:
		if *into = n.Value; !isText(n) {
			d.want(n, "text")
		}
	case *[]string:
		if n.Kind != yaml.SequenceNode {
			d.want(n, "a list, such as ["+cmp.Or(n.Value, "a, b")+"]")
			return
		}
		*into = []string{} // an empty list takes the place of a default, too
		for _, element := range n.Content {
			*into = append(*into, "")
			d.set(field.Index(len(*into)-1), element)
		}
	case *int:
		var err error
		if *into, err = strconv.Atoi(n.Value); err != nil || n.Tag != "!!int" {
			d.want(n, "a whole number in plain digits, such as 3")
		}
	case *bool:
		if *into = strings.EqualFold(n.Value, "true"); n.Tag != "!!bool" {
			d.want(n, "true or false")
		}
	case *time.Duration:
		*into = d.duration(n)
	case *automutex.Rate:
		var rate automutex.Rate
		if n.Value == noRate || d.required(n, reflect.ValueOf(&rate).Elem()) {
			*into = rate
		}
	}
}

// duration reads a duration; 0 after a mistake.
func (d *decoder) duration(n *yaml.Node) time.Duration {
	v, err := time.ParseDuration(n.Value)
	_, notNumber := strconv.ParseFloat(n.Value, 64)
	switch {
	case isText(n) && err == nil:
		return v
	case isText(n) && notNumber == nil:
		d.want(n, fmt.Sprintf("a duration with its unit: %[1]ss, %[1]sms", n.Value))
	case strings.HasSuffix(n.Value, "d"):
		d.want(n, "a duration in hours (a day is no unit here), such as 24h")
	default:
		d.want(n, "a duration such as 500ms, 30s or 1h30m")
	}
	return 0
}

func (d *decoder) choose(field reflect.Value, n *yaml.Node, c choice) {
	if n.Kind == yaml.MappingNode && len(n.Content) > 0 && c.timed != "" {
		d.pairs(n, "it", []string{c.timed}, nil, func(_ string, value *yaml.Node) {
			if after := d.duration(value); !d.wrong[value] {
				field.Set(reflect.ValueOf(c.with(after)))
			}
		})
		return
	}
	word, alike := nearest.Name(n.Value, append(sorted(c.words), c.timed))
	switch v := c.words[n.Value]; {
	case !isText(n):
		d.want(n, c.all)
	case v != nil:
		field.Set(reflect.ValueOf(v))
	case alike && word == c.timed:
		d.reportf(n, "%s goes with its time: {%[1]s: 5s}", word)
	case alike:
		d.reportf(n, "%s is unknown; did you mean %s? There are %s", quote(n.Value), word, c.all)
	default:
		d.reportf(n, "%s is unknown; there are %s", quote(n.Value), c.all)
	}
}

func isText(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.Tag != "!!null" }

// want reports a value of the wrong kind.
func (d *decoder) want(n *yaml.Node, what string) {
	switch {
	case n.Tag == "!!null":
		d.reportf(n, "there is no value; want %s, or leave the key out", what)
	case n.Kind == yaml.MappingNode && len(n.Content) == 2 && n.Content[1].Tag == "!!null":
		d.reportf(n, "want %s, not a mapping; put a text that ends in a colon in quotes: %s", what, quote(n.Content[0].Value+":"))
	default:
		d.reportf(n, "want %s, not %s", what, describe(n))
	}
}

// describe says what a node is that should be something else.
func describe(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.MappingNode:
		return "a mapping"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case n.Tag == "!!null":
		return "nothing"
	case n.Tag == "!!str" && n.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle) != 0:
		return "the text " + quote(n.Value)
	}
	return quote(n.Value)
}

// quote shows a value, of a long one the beginning.
func quote(s string) string {
	const most = 60
	if r := []rune(s); len(r) > most {
		return strconv.Quote(string(r[:most])) + "..."
	}
	return strconv.Quote(s)
}
