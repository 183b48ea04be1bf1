package config

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/nearest"
	"github.com/automutex/automutex/unique"
)

// decoder goes through the nodes of a file and gathers what is wrong.
type decoder struct {
	file     string
	mistakes []*Error
}

// spot is where a rule stands.
type spot struct {
	node     *yaml.Node
	at       map[string]*yaml.Node // the value of each key; one that comes from defaults stands there
	doubtful bool                  // a mistake that was reported may be why a key is missing
}

func parse(name string, data []byte) (automutex.Config, unique.Config, error) {
	d := &decoder{file: name}
	if root := d.root(data); root != nil {
		d.checkForm(root)
		f, rules, once, top := d.document(root)
		cfg := automutex.Config{Prefix: f.Prefix, HashKeys: f.HashKeys, History: f.History, Rules: f.Rules}
		uniq := unique.Config{Prefix: f.Prefix, HashKeys: f.HashKeys, Rules: f.Unique}
		d.check(top, rules, once, cfg, uniq)
		if len(d.mistakes) == 0 {
			return cfg, uniq, nil
		}
	}
	return automutex.Config{}, unique.Config{}, d.err()
}

func (d *decoder) reportf(n *yaml.Node, format string, args ...any) {
	d.reportAtf(n.Line, n.Column, format, args...)
}

func (d *decoder) reportAtf(line, column int, format string, args ...any) {
	d.mistakes = append(d.mistakes, &Error{File: d.file, Line: max(line, 1), Column: max(column, 1), Text: fmt.Sprintf(format, args...)})
}

// err joins the mistakes in the order of the file, each once: what is wrong in defaults is wrong in every rule.
func (d *decoder) err() error {
	slices.SortStableFunc(d.mistakes, func(a, b *Error) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	d.mistakes = slices.CompactFunc(d.mistakes, func(a, b *Error) bool { return *a == *b })
	errs := make([]error, len(d.mistakes))
	for i, mistake := range d.mistakes {
		errs[i] = mistake
	}
	return errors.Join(errs...)
}

// pair is a character that JSON writes as two escapes, which YAML does not have.
var pair = regexp.MustCompile(`\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}`)

// root gives the one document of the file, nil after a mistake that leaves nothing to look at.
func (d *decoder) root(data []byte) *yaml.Node {
	if !d.isReadable(string(data)) {
		return nil
	}
	if json.Valid(data) {
		data = pair.ReplaceAllFunc(data, func(escaped []byte) []byte {
			var s string
			if len(escaped) == 2 || json.Unmarshal([]byte(`"`+string(escaped)+`"`), &s) != nil {
				return escaped
			}
			return []byte(s)
		})
	}
	loader, err := yaml.NewLoader(bytes.NewReader(data))
	var doc, second yaml.Node
	if err == nil {
		err = loader.Load(&doc)
	}
	if errors.Is(err, io.EOF) || err == nil && len(doc.Content) == 0 {
		d.reportAtf(1, 1, "the file is empty; list the rules under rules:")
		return nil
	}
	if err == nil {
		if err = loader.Load(&second); err == nil {
			d.reportf(&second, "a second document begins here; put all rules into one")
			return nil
		}
	}
	if !errors.Is(err, io.EOF) {
		d.syntax(err, strings.Split(string(data), "\n"))
		return nil
	}
	return doc.Content[0]
}

// isReadable tells whether the text is UTF-8 without control characters. The YAML library checks that too, but does
// not say where.
func (d *decoder) isReadable(text string) bool {
	for i, r := range text {
		var what string
		switch {
		case r == utf8.RuneError && !strings.HasPrefix(text[i:], "\uFFFD"):
			what = fmt.Sprintf("the byte %#02x is no UTF-8; save the file as UTF-8 text", text[i])
		case r < ' ' && !strings.ContainsRune("\t\r\n", r), r == 0x7F:
			what = fmt.Sprintf("a control character (%#02x) cannot be in the file; leave it out", r)
		default:
			continue
		}
		before := strings.TrimPrefix(text[:i], "\uFEFF")
		d.reportAtf(1+strings.Count(before, "\n"), 1+utf8.RuneCountInString(before[strings.LastIndex(before, "\n")+1:]), "%s", what)
		return false
	}
	return true
}

// endsInColon finds a text that is not quoted and ends in a colon, which YAML takes for a key.
var endsInColon = regexp.MustCompile(`(?:[:,\[{]|^\s*-)\s+([^\s'",\[\]{}#]+:)\s*(?:[,}\]#].*)?$`)

// syntax reports what the YAML library says.
func (d *decoder) syntax(err error, lines []string) {
	var wrong *yaml.LoadError
	if !errors.As(err, &wrong) {
		d.reportAtf(1, 1, "not YAML: %s", strings.TrimPrefix(err.Error(), "yaml: "))
		return
	}
	message := wrong.Message
	if wrong.ContextMsg != "" {
		message = wrong.ContextMsg + ": " + message
	}
	colon := ""
	for i := max(wrong.Mark.Line-2, 0); i < min(wrong.Mark.Line, len(lines)); i++ {
		if m := endsInColon.FindStringSubmatch(strings.TrimRight(lines[i], "\r")); m != nil {
			colon = "; put a text that ends in a colon in quotes: " + quote(m[1])
			break
		}
	}
	d.reportAtf(wrong.Mark.Line, wrong.Mark.Column, "not YAML: %s%s", message, colon)
}

// checkForm reports what YAML has and a configuration does not, anywhere in it.
func (d *decoder) checkForm(n *yaml.Node) {
	const instead = "write the value out, or use defaults:"
	switch {
	case n.Kind == yaml.AliasNode:
		d.reportf(n, "the alias *%s: aliases are not read here; %s", n.Value, instead)
		return // what it stands for is looked at where it is
	case n.Anchor != "":
		d.reportf(n, "the anchor &%s: anchors are not read here; %s", n.Anchor, instead)
	case n.Style&yaml.TaggedStyle != 0:
		d.reportf(n, "the tag %s: tags are not read here; leave it out", n.Tag)
	case n.Tag == "!!merge" && n.Style == 0:
		d.reportf(n, "the merge key <<: merge keys are not read here; %s", instead)
	}
	for _, child := range n.Content {
		d.checkForm(child)
	}
}

// document reads the root of the file.
func (d *decoder) document(root *yaml.Node) (f file, rules, once []spot, top spot) {
	top = d.object(root, ofFile, reflect.ValueOf(&f).Elem())
	if !top.doubtful && top.at["rules"] == nil && top.at["unique"] == nil && len(d.mistakes) == 0 {
		d.reportf(root, "there are no rules; list them under rules: or unique:")
	}
	defaults := spot{}
	if n := top.at["defaults"]; n != nil {
		defaults = d.object(n, ofDefaults, reflect.ValueOf(&f.Defaults).Elem())
	}
	for _, n := range d.list(top.at["rules"], "rules") {
		rule := f.Defaults
		rule.On, rule.OnHeaders = slices.Clone(rule.On), slices.Clone(rule.OnHeaders) // no rules share them
		s := d.object(n, ofRule, reflect.ValueOf(&rule).Elem())
		for key, value := range defaults.at {
			s.at[key] = cmp.Or(s.at[key], value)
		}
		s.doubtful = s.doubtful || defaults.doubtful
		f.Rules, rules = append(f.Rules, rule), append(rules, s)
	}
	for _, n := range d.list(top.at["unique"], "unique") {
		var rule unique.Rule
		s := d.object(n, ofUnique, reflect.ValueOf(&rule).Elem())
		f.Unique, once = append(f.Unique, rule), append(once, s)
	}
	if n := top.at["hash_keys"]; n != nil && isText(n) && n.Value == "" { // as of a template that was filled with nothing
		d.reportf(n, "hash_keys: the secret is empty; give one, such as openssl rand -hex 32 makes, or leave hash_keys out")
	}
	return f, rules, once, top
}

// list gives the elements of a list; none when n is nil or no list.
func (d *decoder) list(n *yaml.Node, name string) []*yaml.Node {
	switch {
	case n == nil || n.Kind == yaml.AliasNode:
		return nil
	case n.Kind != yaml.SequenceNode:
		d.reportf(n, "%s: is %s; it is a list, of which each element begins with a dash", name, describe(n))
		return nil
	}
	return n.Content
}

// object reads a mapping into a struct.
func (d *decoder) object(n *yaml.Node, o object, into reflect.Value) spot {
	return d.pairs(n, o.what, o.keys(into.Type()), o.not, func(key string, value *yaml.Node) {
		if rule, ok := into.Addr().Interface().(*automutex.Rule); ok && key == "limit" {
			d.limit(rule, value)
			return
		}
		d.set(into.FieldByNameFunc(func(name string) bool { return keyOf(name) == key }), value)
	})
}

// pairs calls set for each known key of a mapping. not has keys that are none, and why.
func (d *decoder) pairs(n *yaml.Node, what string, keys []string, not map[string]string, set func(key string, value *yaml.Node)) spot {
	s := spot{node: n, at: map[string]*yaml.Node{}}
	if n.Kind != yaml.MappingNode {
		if s.doubtful = true; n.Kind != yaml.AliasNode { // which was reported
			d.reportf(n, "%s is %s; want keys with values: %s", what, describe(n), strings.Join(keys, ", "))
		}
		return s
	}
	seen := map[string]*yaml.Node{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		name, value := n.Content[i], n.Content[i+1]
		switch first := seen[name.Value]; {
		case name.Kind == yaml.AliasNode || name.Tag == "!!merge": // was reported
			continue
		case name.Kind != yaml.ScalarNode:
			d.reportf(name, "a key of %s is %s; it is one of %s", what, describe(name), strings.Join(keys, ", "))
			continue
		case first != nil:
			d.reportf(name, "%s: is there twice, first in line %d; leave one out", name.Value, first.Line)
			continue
		}
		seen[name.Value] = name
		if !slices.Contains(keys, name.Value) {
			switch word, reported := d.meant(name, what, keys, not); {
			case word != "":
				s.doubtful = true
				d.reportf(name, "unknown key %s in %s; did you mean %s?", quote(name.Value), what, word)
			case !reported:
				d.reportf(name, "unknown key %s in %s, which has %s", quote(name.Value), what, strings.Join(keys, ", "))
			}
			continue
		}
		s.at[name.Value] = value
		before := len(d.mistakes)
		if value.Kind != yaml.AliasNode {
			set(name.Value, value)
		}
		for _, mistake := range d.mistakes[before:] {
			mistake.Text = name.Value + ": " + mistake.Text
		}
	}
	return s
}

// meant returns which of words somebody may mean who wrote another one, "" if none. The Go names of what cannot be
// here are looked for as well: such a word is reported.
func (d *decoder) meant(n *yaml.Node, what string, words []string, not map[string]string) (word string, reported bool) {
	found, alike := nearest.Name(n.Value, slices.Concat(words, sorted(not)))
	if alike && not[found] != "" {
		d.reportf(n, "%s: cannot be in %s: it %s", n.Value, what, not[found])
		return "", true
	}
	if !alike {
		return "", false
	}
	return found, false
}
