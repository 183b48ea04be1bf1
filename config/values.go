package config

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/nearest"
)

// value is what the value of a key may be, and how it gets into a T.
type value[T any] struct {
	schema schema
	set    func(d *decoder, into *T, n *yaml.Node)
}

// text sets a string. A scalar of any kind will do, and is taken as it is
// written: a task may well be called 404, or on.
func text[T any](field func(*T) *string) value[T] {
	return value[T]{textSchema, func(d *decoder, into *T, n *yaml.Node) {
		if isText(n) {
			*field(into) = n.Value
			return
		}
		d.want(n, "text")
	}}
}

// texts sets a list of strings. An empty list is one, too: it takes the place of
// a default.
func texts[T any](field func(*T) *[]string) value[T] {
	return value[T]{textsSchema, func(d *decoder, into *T, n *yaml.Node) {
		if n.Kind != yaml.SequenceNode {
			hint := "[a, b]"
			if isText(n) {
				hint = "[" + n.Value + "]"
			}
			d.want(n, "a list, such as "+hint)
			return
		}
		all := make([]string, 0, len(n.Content))
		for _, element := range n.Content {
			all = append(all, element.Value) // so that each keeps its place
			if !isText(element) && element.Kind != yaml.AliasNode {
				d.want(element, "text")
			}
		}
		*field(into) = all
	}}
}

// number sets a whole number, in decimal digits.
func number[T any](field func(*T) *int) value[T] {
	return value[T]{numberSchema, func(d *decoder, into *T, n *yaml.Node) {
		if n.Kind != yaml.ScalarNode || n.Tag != "!!int" {
			d.want(n, "a whole number, such as 3")
			return
		}
		i, err := strconv.Atoi(n.Value)
		if err != nil {
			d.want(n, "a whole number in plain digits, such as 3")
			return
		}
		*field(into) = i
	}}
}

// period sets a duration.
func period[T any](field func(*T) *time.Duration) value[T] {
	return value[T]{periodSchema, func(d *decoder, into *T, n *yaml.Node) {
		if v, ok := d.duration(n); ok {
			*field(into) = v
		}
	}}
}

func (d *decoder) duration(n *yaml.Node) (time.Duration, bool) {
	if !isText(n) {
		d.want(n, "a duration, such as 30s")
		return 0, false
	}
	v, err := time.ParseDuration(n.Value)
	if err == nil {
		return v, true
	}
	hint := "such as 500ms, 30s or 1h30m"
	if _, err := strconv.ParseFloat(n.Value, 64); err == nil {
		hint = fmt.Sprintf("with its unit: %[1]ss, %[1]sms", n.Value)
	} else if strings.HasSuffix(n.Value, "d") {
		hint = "in hours (a day is no unit here), such as 24h"
	}
	d.want(n, "a duration "+hint)
	return 0, false
}

// policies are the policies that a word names.
var policies = func() map[string]automutex.Policy {
	all := map[string]automutex.Policy{}
	for _, p := range []automutex.Policy{
		automutex.Retry, automutex.Skip, automutex.Archive, automutex.Fail,
		automutex.Park, automutex.Replace, automutex.Allow,
	} {
		all[p.String()] = p
	}
	return all
}()

// choice sets a value that a word names, or a word with a duration: retry, or
// {retry_in: 5s}. hints has words that name none, and why.
func choice[T, V any](field func(*T) *V, words map[string]V, timed string, with func(time.Duration) V, all string, hints map[string]string) value[T] {
	return value[T]{choiceSchema(keysOf(words), timed), func(d *decoder, into *T, n *yaml.Node) {
		if n.Kind == yaml.MappingNode {
			if len(n.Content) == 0 {
				d.want(n, all)
				return
			}
			fields(d, n, "it", []key[T]{{name: timed, value: value[T]{periodSchema, func(d *decoder, into *T, n *yaml.Node) {
				if v, ok := d.duration(n); ok {
					*field(into) = with(v)
				}
			}}}}, hints, into)
			return
		}
		if !isText(n) {
			d.want(n, all)
			return
		}
		if v, ok := words[n.Value]; ok {
			*field(into) = v
			return
		}
		found, alike := nearest.Name(n.Value, append(append(keysOf(words), timed), keysOf(hints)...))
		switch {
		case alike && found == timed:
			d.reportf(n, "%s goes with its time: {%[1]s: 5s}", timed)
		case alike && hints[found] != "":
			d.reportf(n, "%s: cannot be in a file: it %s", n.Value, hints[found])
		case alike:
			d.reportf(n, "%s is unknown; did you mean %s? There are %s", quote(n.Value), found, all)
		default:
			d.reportf(n, "%s is unknown; there are %s", quote(n.Value), all)
		}
	}}
}

// mapping sets a value that has keys of its own, of which at least one is required. A mistake
// in one of them leaves the value as it was.
func mapping[T any, V comparable](field func(*T) *V, keys []key[V], what string, required ...string) value[T] {
	return value[T]{objectSchema(keys, required...), func(d *decoder, into *T, n *yaml.Node) {
		if n.Kind != yaml.MappingNode {
			d.want(n, what)
			return
		}
		if len(n.Content) == 0 {
			d.reportf(n, "has no %s; want %s, or leave the key out", strings.Join(required, " and no "), what)
			return
		}
		var v V
		before := len(d.mistakes)
		at, doubtful := fields(d, n, "it", keys, nil, &v)
		for _, name := range required {
			if at[name] == nil && !doubtful[name] {
				d.reportf(n, "%s is missing; want %s", name, what)
			}
		}
		var zero V
		if len(d.mistakes) == before && v == zero {
			d.reportf(n, "is all zero; want %s, or leave the key out", what)
		}
		if len(d.mistakes) == before {
			*field(into) = v
		}
	}}
}

func isText(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.Tag != "!!null" }

// want reports a value of the wrong kind.
func (d *decoder) want(n *yaml.Node, what string) {
	if n.Kind == yaml.ScalarNode && n.Tag == "!!null" {
		d.reportf(n, "there is no value; want %s, or leave the key out", what)
		return
	}
	d.reportf(n, "want %s, not %s", what, describe(n))
}

// describe says what a node is that should be something else.
func describe(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.MappingNode:
		return "a mapping"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case n.Kind == yaml.AliasNode:
		return "the alias *" + n.Value
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

func keysOf[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
