package jsonkey

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// fieldWalk is one pass over a payload that json.Valid has accepted. Its recursion is
// no deeper than the longest path, and it reads every byte about once.
type fieldWalk struct {
	fields *Fields
	at     cursor
	found  []foundField // by node
	twice  int          // the first node that was met twice; 0 when none was
	buf    []byte       // for names with escapes
}

// foundField is the value that the walk found for a node.
type foundField struct {
	value []byte // nil when no member has the name
	alike string // a member's name that differs from the node's in letter case; empty: none
}

// value takes the value at the cursor for that of a node.
func (w *fieldWalk) value(node int) {
	if found := w.found[node]; (found.value != nil || found.alike != "") && w.twice == 0 {
		w.twice = node
	}
	start := w.at.i
	edges := w.fields.nodes[node].edges
	switch c := w.at.text[start]; {
	case c == '{' && len(edges) > 0:
		w.object(edges)
	case c == '[' && len(edges) > 0:
		w.list(edges)
	default:
		w.at.skip()
	}
	w.found[node].value = w.at.text[start:w.at.i]
}

func (w *fieldWalk) object(edges []fieldEdge) {
	for w.at.enter(); w.at.more(); {
		raw := w.at.name()
		name, half := unquoteLossy(w.buf, raw) // as encoding/json reads it
		if len(name) != len(raw) {             // it had escapes, and so is in buf
			w.buf = name
		}
		if node := w.member(edges, name, !half); node > 0 {
			w.value(node)
		} else {
			w.at.skip()
		}
	}
}

// member gives the node of a member, 0 when it has none.
//
// A name that differs from a node's name in letter case alone is not the node's, but
// encoding/json takes it for that: the handler gets whichever comes last in the
// payload. member notes such a name, unless it is itself the name of a path. exact is
// false when half a surrogate pair in the name was replaced; such a name is no node's.
func (w *fieldWalk) member(edges []fieldEdge, name []byte, exact bool) (node int) {
	for i := range edges {
		if exact && edges[i].name == string(name) {
			return edges[i].node
		}
	}
	for i := range edges {
		if !bytes.EqualFold(edges[i].nameBytes, name) {
			continue
		}
		found := &w.found[edges[i].node]
		if found.value != nil && w.twice == 0 {
			w.twice = edges[i].node
		}
		if found.alike == "" {
			found.alike = string(name)
		}
	}
	return 0
}

func (w *fieldWalk) list(edges []fieldEdge) {
	w.at.enter()
	for index := 0; w.at.more(); index++ {
		if i := slices.IndexFunc(edges, func(e fieldEdge) bool { return e.index == index }); i >= 0 {
			w.value(edges[i].node)
		} else {
			w.at.skip()
		}
	}
}

// whyTwice says what is there twice for the segment of the node w.twice.
func (w *fieldWalk) whyTwice(segment string) string {
	if alike := w.found[w.twice].alike; alike != "" {
		return fmt.Sprintf("has two values: one object has the names %q and %q, and encoding/json, which ignores letter case, "+
			"gives the handler the later one; send one of them", segment, alike)
	}
	return fmt.Sprintf("has two values: the name %q is there twice in one object", segment)
}

// whyMissing says where a path leaves the payload.
func (w *fieldWalk) whyMissing(path fieldPath) string {
	at, value := "the payload", w.found[0].value
	for i, segment := range path.segments {
		next := w.found[path.nodes[i]]
		if next.value != nil {
			at, value = strconv.Quote(strings.Join(path.segments[:i+1], ".")), next.value
			continue
		}
		switch value[0] {
		case '{':
			if next.alike != "" {
				return fmt.Sprintf("%s has no %q, but %q: letter case counts", at, segment, next.alike)
			}
			return fmt.Sprintf("%s has no %q", at, segment)
		case '[':
			return fmt.Sprintf("%s is a list without an element %q", at, segment)
		case '"':
			return at + " is a string"
		case 't', 'f':
			return at + " is a boolean"
		case 'n':
			return at + " is null"
		}
		return at + " is a number"
	}
	return "" // not reached: the last node of a missing path was not met
}
