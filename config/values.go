package config

import (
	"cmp"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/automutex/automutex"
)

// limit is a number, unlimited, or a payload field. One takes the place of the other, which may come from defaults.
func (d *decoder) limit(r *automutex.Rule, n *yaml.Node) {
	r.LimitField = nil
	switch {
	case isText(n) && n.Value == unlimited:
		r.Limit = automutex.Unlimited
	case n.Kind == yaml.MappingNode:
		var of automutex.LimitField
		if d.required(n, ofLimit, reflect.ValueOf(&of).Elem()) {
			r.Limit, r.LimitField = 0, &of
		}
	default:
		d.set(reflect.ValueOf(&r.Limit).Elem(), n)
	}
}

// required reads an object some of whose keys must be there, and reports whether there is no mistake.
func (d *decoder) required(n *yaml.Node, o object, into reflect.Value) bool {
	before := len(d.mistakes)
	switch {
	case n.Kind != yaml.MappingNode:
		d.want(n, o.what)
	case len(n.Content) == 0:
		d.reportf(n, "has no %s; want %s, or leave the key out", strings.Join(o.required, " and no "), o.what)
	default:
		what := o.what
		o.what = "it"
		s := d.object(n, o, into)
		for _, key := range o.required {
			if s.at[key] == nil && !s.doubtful {
				d.reportf(n, "%s is missing; want %s", key, what)
			}
		}
		if len(d.mistakes) == before && into.IsZero() {
			d.reportf(n, "is all zero; want %s, or leave the key out", what)
		}
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
			if *into = append(*into, element.Value); !isText(element) && element.Kind != yaml.AliasNode {
				d.want(element, "text")
			}
		}
	case *int:
		var err error
		if n.Kind != yaml.ScalarNode || n.Tag != "!!int" {
			d.want(n, "a whole number, such as 3")
		} else if *into, err = strconv.Atoi(n.Value); err != nil {
			d.want(n, "a whole number in plain digits, such as 3")
		}
	case *bool:
		if *into = strings.EqualFold(n.Value, "true"); n.Tag != "!!bool" {
			d.want(n, "true or false")
		}
	case *time.Duration:
		*into, _ = d.duration(n)
	case *automutex.Rate:
		var rate automutex.Rate
		if isText(n) && n.Value == noRate || d.required(n, ofRate, reflect.ValueOf(&rate).Elem()) {
			*into = rate
		}
	}
}

func (d *decoder) duration(n *yaml.Node) (v time.Duration, ok bool) {
	v, err := time.ParseDuration(n.Value)
	_, notNumber := strconv.ParseFloat(n.Value, 64)
	switch {
	case !isText(n):
		d.want(n, "a duration, such as 30s")
	case err == nil:
		return v, true
	case notNumber == nil:
		d.want(n, fmt.Sprintf("a duration with its unit: %[1]ss, %[1]sms", n.Value))
	case strings.HasSuffix(n.Value, "d"):
		d.want(n, "a duration in hours (a day is no unit here), such as 24h")
	default:
		d.want(n, "a duration such as 500ms, 30s or 1h30m")
	}
	return 0, false
}

func (d *decoder) choose(field reflect.Value, n *yaml.Node, c choice) {
	switch v, ok := c.words[n.Value]; {
	case n.Kind == yaml.MappingNode && len(n.Content) > 0 && c.timed != "":
		d.pairs(n, "it", []string{c.timed}, ofRule.not, func(_ string, value *yaml.Node) {
			if after, ok := d.duration(value); ok {
				field.Set(reflect.ValueOf(c.with(after)))
			}
		})
	case !isText(n):
		d.want(n, c.all)
	case ok:
		field.Set(reflect.ValueOf(v))
	default:
		switch word, reported := d.meant(n, "a file", append(sorted(c.words), c.timed), map[string]string{"after_failure": ofRule.not["after_failure"]}); {
		case word == c.timed && word != "":
			d.reportf(n, "%s goes with its time: {%[1]s: 5s}", word)
		case word != "":
			d.reportf(n, "%s is unknown; did you mean %s? There are %s", quote(n.Value), word, c.all)
		case !reported:
			d.reportf(n, "%s is unknown; there are %s", quote(n.Value), c.all)
		}
	}
}

func isText(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.Tag != "!!null" }

// want reports a value of the wrong kind.
func (d *decoder) want(n *yaml.Node, what string) {
	switch {
	case n.Kind == yaml.ScalarNode && n.Tag == "!!null":
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
