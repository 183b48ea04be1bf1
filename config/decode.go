package config

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
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

func parse(file string, data []byte) (automutex.Config, unique.Config, error) {
	d := &decoder{file: file}
	root := d.root(data)
	if root == nil {
		return automutex.Config{}, unique.Config{}, d.err()
	}
	d.checkForm(root)
	doc := d.document(root)
	cfg, once := doc.configs()
	d.check(doc, cfg, once)
	if len(d.mistakes) > 0 {
		return automutex.Config{}, unique.Config{}, d.err()
	}
	return cfg, once, nil
}

func (d *decoder) reportf(n *yaml.Node, format string, args ...any) {
	d.reportAtf(n.Line, n.Column, format, args...)
}

func (d *decoder) reportAtf(line, column int, format string, args ...any) {
	d.mistakes = append(d.mistakes, &Error{
		File: d.file, Line: max(line, 1), Column: max(column, 1), Text: fmt.Sprintf(format, args...),
	})
}

// err joins the mistakes in the order of the file, each once: what is wrong in
// defaults is wrong in every rule.
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

// root gives the one document of the file, nil after a mistake that leaves
// nothing to look at.
func (d *decoder) root(data []byte) *yaml.Node {
	if !d.readable(data) {
		return nil
	}
	loader, err := yaml.NewLoader(bytes.NewReader(fromJSON(data)))
	var doc, second yaml.Node
	if err == nil {
		err = loader.Load(&doc)
	}
	switch {
	case errors.Is(err, io.EOF), err == nil && len(doc.Content) == 0:
		d.reportAtf(1, 1, "the file is empty; list the rules under rules:")
		return nil
	case err != nil:
		d.syntax(err)
		return nil
	}
	switch err := loader.Load(&second); {
	case err == nil:
		d.reportf(&second, "a second document begins here; put all rules into one")
		return nil
	case !errors.Is(err, io.EOF):
		d.syntax(err)
		return nil
	}
	return doc.Content[0]
}

// readable tells whether data is UTF-8 without control characters. The YAML
// library checks that too, but does not say where.
func (d *decoder) readable(data []byte) bool {
	line, column := 1, 1
	for i := 0; i < len(data); {
		r, size := utf8.DecodeRune(data[i:])
		switch {
		case r == utf8.RuneError && size <= 1:
			d.reportAtf(line, column, "the byte %#02x is no UTF-8; save the file as UTF-8 text", data[i])
			return false
		case r == '\n':
			line, column = line+1, 0
		case r < ' ' && r != '\t' && r != '\r', r == 0x7F:
			d.reportAtf(line, column, "a control character (%#02x) cannot be in the file; leave it out", r)
			return false
		case r == 0xFEFF && i == 0:
			column = 0 // a byte order mark is no character of the text
		}
		i, column = i+size, column+1
	}
	return true
}

// syntax reports what the YAML library says.
func (d *decoder) syntax(err error) {
	var wrong *yaml.LoadError
	if !errors.As(err, &wrong) {
		d.reportAtf(1, 1, "not YAML: %s", strings.TrimPrefix(err.Error(), "yaml: "))
		return
	}
	message := wrong.Message
	if wrong.ContextMsg != "" {
		message = wrong.ContextMsg + ": " + message
	}
	d.reportAtf(wrong.Mark.Line, wrong.Mark.Column, "not YAML: %s", message)
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

// key is one key of a mapping that becomes a T. help describes it to who edits a
// file with the schema.
type key[T any] struct {
	name string
	help string
	value[T]
}

// fields reads the mapping n into a T. It gives the nodes of the values, and the
// keys that are missing only because of a mistake. hints has keys that are none,
// and why.
func fields[T any](d *decoder, n *yaml.Node, what string, keys []key[T], hints map[string]string, into *T) (places, map[string]bool) {
	at, doubtful, seen := places{}, map[string]bool{}, map[string]*yaml.Node{}
	if n.Kind != yaml.MappingNode {
		if n.Kind != yaml.AliasNode { // which was reported
			d.reportf(n, "%s is %s; want keys with values: %s", what, describe(n), strings.Join(names(keys), ", "))
		}
		for _, k := range keys {
			doubtful[k.name] = true
		}
		return at, doubtful
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		name, value := n.Content[i], n.Content[i+1]
		if name.Kind == yaml.AliasNode || name.Tag == "!!merge" {
			continue // was reported
		}
		if first := seen[name.Value]; first != nil && name.Kind == yaml.ScalarNode {
			d.reportf(name, "%s: is there twice, first in line %d; leave one out", name.Value, first.Line)
			continue
		}
		seen[name.Value] = name
		known := slices.IndexFunc(keys, func(k key[T]) bool { return k.name == name.Value && name.Kind == yaml.ScalarNode })
		if known < 0 {
			d.unknownKey(name, what, names(keys), hints, doubtful)
			continue
		}
		at[name.Value] = value
		before := len(d.mistakes)
		if value.Kind != yaml.AliasNode {
			keys[known].set(d, into, value)
		}
		for _, mistake := range d.mistakes[before:] {
			mistake.Text = name.Value + ": " + mistake.Text
		}
	}
	return at, doubtful
}

func (d *decoder) unknownKey(name *yaml.Node, what string, names []string, hints map[string]string, doubtful map[string]bool) {
	if name.Kind != yaml.ScalarNode {
		d.reportf(name, "a key of %s is %s; it is one of %s", what, describe(name), strings.Join(names, ", "))
		return
	}
	// The Go names of what cannot be here are looked for as well.
	all := slices.Concat(names, keysOf(hints))
	found, alike := nearest.Name(name.Value, all)
	switch {
	case alike && hints[found] != "":
		d.reportf(name, "%s: cannot be in %s: it %s", name.Value, what, hints[found])
	case alike:
		doubtful[found] = true
		d.reportf(name, "unknown key %s in %s; did you mean %s?", quote(name.Value), what, found)
	default:
		d.reportf(name, "unknown key %s in %s, which has %s", quote(name.Value), what, strings.Join(names, ", "))
	}
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

func names[T any](keys []key[T]) []string {
	all := make([]string, len(keys))
	for i, k := range keys {
		all[i] = k.name
	}
	return all
}
