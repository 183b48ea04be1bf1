// Package keys makes the Redis key of a lock: path.go takes a path apart, find.go finds the values at all paths in one
// pass over the payload (json.go), part.go writes a value as a part, text.go writes parts as a key. type.go checks a
// path against the Go type of the payload. It knows neither locks nor asynq.
package keys

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Fields finds the values at some paths in one pass over a payload. Make it with [Parse]. It is immutable.
//
// The paths are a tree: nodes[0] is the payload itself, every other node is a field on the way to the end of a path.
type Fields struct {
	paths []fieldPath
	nodes [][]fieldEdge
}

type fieldPath struct {
	text     string
	segments []string // none: the whole payload
	nodes    []int    // the node of each segment
	optional bool     // may be absent
}

func (p fieldPath) isWhole() bool { return len(p.segments) == 0 }

type fieldEdge struct {
	name  []byte // in an object
	index int    // in a list; -1 when name is no index
	node  int
}

// Error says why a payload gives no parts. It quotes no value of the payload.
type Error struct {
	Path    string // the path at fault; the first one when the payload cannot be read
	Reason  string // continues a sentence that begins with the path, such as "is null", or begins with "the payload"
	NotRead bool   // the payload is not JSON, or not UTF-8
	Absent  bool   // the field is missing, null or empty, or the payload is empty; no name is its own but for letter case
}

// Parse makes the Fields of some paths. The error quotes the path at fault.
func Parse(paths []string) (*Fields, error) {
	f := &Fields{nodes: make([][]fieldEdge, 1)}
	for _, text := range paths {
		bare, optional := CutOptional(text)
		segments, err := ParsePath(bare)
		if err != nil {
			return nil, fmt.Errorf("%q %w", text, err)
		}
		path := fieldPath{text: text, segments: segments, optional: optional}
		node := 0
		for _, segment := range segments {
			node = f.step(node, segment)
			path.nodes = append(path.nodes, node)
		}
		f.paths = append(f.paths, path)
	}
	return f, nil
}

// step returns the node that a segment leads to, maybe a new one.
func (f *Fields) step(from int, segment string) int {
	for _, edge := range f.nodes[from] {
		if string(edge.name) == segment {
			return edge.node
		}
	}
	f.nodes = append(f.nodes, nil)
	to := len(f.nodes) - 1
	f.nodes[from] = append(f.nodes[from], fieldEdge{[]byte(segment), listIndex(segment), to})
	return to
}

// listIndex reads a segment as the index of a list: 0, or digits without a leading zero. It returns -1 for others.
func listIndex(segment string) int {
	index, err := strconv.Atoi(segment)
	if err != nil || strconv.Itoa(index) != segment || index < 0 {
		return -1
	}
	return index
}

// Parts returns the part of every path, in the order of the paths.
func (f *Fields) Parts(payload []byte) ([]string, *Error) {
	values, failed := f.find(payload)
	if failed != nil {
		return nil, failed
	}
	parts := make([]string, len(values))
	for i, path := range f.paths {
		var err error
		parts[i], err = part(values[i], path.isWhole())
		isAbsent := err == errNull || err == errEmpty //nolint:errorlint // never wrapped
		if isAbsent && path.optional {
			parts[i] = absent
		} else if err != nil {
			failed := &Error{Path: path.text, Reason: err.Error(), Absent: isAbsent}
			if path.isWhole() {
				failed.Reason = "the payload " + failed.Reason
			}
			return nil, failed
		}
	}
	return parts, nil
}

// find returns the value at every path, in the order of the paths: JSON, and for the path of the whole payload whatever
// the payload is.
func (f *Fields) find(payload []byte) ([][]byte, *Error) {
	trimmed := bytes.Trim(payload, spaces)
	if len(trimmed) == 0 {
		return nil, &Error{Path: f.paths[0].text, Reason: CheckPayload(payload), Absent: true}
	}
	values := make([][]byte, len(f.paths))
	walk := fieldWalk{fields: f}
	for i, path := range f.paths {
		if path.isWhole() {
			values[i] = payload
			continue
		}
		if walk.found == nil {
			if reason := CheckPayload(payload); reason != "" {
				return nil, &Error{Path: path.text, Reason: reason, NotRead: true}
			}
			walk.found = make([]foundField, len(f.nodes))
			walk.value(0, trimmed)
		}
		if at := slices.Index(path.nodes, walk.twice); at >= 0 {
			return nil, &Error{Path: path.text, Reason: walk.whyTwice(path.segments[at])}
		}
		if values[i] = walk.found[path.nodes[len(path.nodes)-1]].value; values[i] == nil {
			hasAlike := slices.ContainsFunc(path.nodes, func(n int) bool { return walk.found[n].alike != "" })
			if path.optional && !hasAlike {
				continue
			}
			return nil, &Error{Path: path.text, Reason: "is missing: " + walk.whyMissing(path), Absent: !hasAlike}
		}
	}
	return values, nil
}

// fieldWalk is one pass over a payload. Its recursion is no deeper than the longest path.
type fieldWalk struct {
	fields *Fields
	found  []foundField // by node
	twice  int          // the first node that was met twice; 0 when none was
}

type foundField struct {
	value []byte // nil when no member has the name
	alike string // a member's name that differs from the node's in letter case; empty: none
}

func (w *fieldWalk) value(node int, value []byte) {
	found := &w.found[node]
	if found.value != nil || found.alike != "" {
		w.twice = cmp.Or(w.twice, node)
	}
	found.value = value
	edges := w.fields.nodes[node]
	if len(edges) == 0 || value[0] != '{' && value[0] != '[' {
		return
	}
	index := 0
	for name, item := range items(value) {
		if name != nil {
			w.member(edges, name, item)
			continue
		}
		if i := slices.IndexFunc(edges, func(e fieldEdge) bool { return e.index == index }); i >= 0 {
			w.value(edges[i].node, item)
		}
		index++
	}
}

// member takes a member of an object for the node that has its name.
//
// A name that differs from a node's in letter case alone is not the node's, but encoding/json takes it for that: the
// handler gets the last one in the payload. member keeps such a name if no path has it. A name with half a surrogate
// pair is no node's.
func (w *fieldWalk) member(edges []fieldEdge, quoted, value []byte) {
	name, half := unquote(quoted)
	for _, edge := range edges {
		if !half && bytes.Equal(edge.name, name) {
			w.value(edge.node, value)
			return
		}
	}
	for _, edge := range edges {
		if found := &w.found[edge.node]; bytes.EqualFold(edge.name, name) {
			if found.value != nil {
				w.twice = cmp.Or(w.twice, edge.node)
			}
			found.alike = cmp.Or(found.alike, string(name))
		}
	}
}

// whyTwice says what is there twice for the segment of the node w.twice.
func (w *fieldWalk) whyTwice(segment string) string {
	if alike := w.found[w.twice].alike; alike != "" {
		return fmt.Sprintf("has two values: one object has the names %q and %q, and encoding/json, which "+
			"ignores letter case, gives the handler the later one; send one of them", segment, alike)
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
		switch kind := map[byte]string{'"': "a string", 't': "a boolean", 'f': "a boolean", 'n': "null"}[value[0]]; {
		case value[0] == '{' && next.alike != "":
			return fmt.Sprintf("%s has no %q, but %q: letter case counts", at, segment, next.alike)
		case value[0] == '{':
			return fmt.Sprintf("%s has no %q", at, segment)
		case value[0] == '[':
			return fmt.Sprintf("%s is a list without an element %q", at, segment)
		default:
			return at + " is " + cmp.Or(kind, "a number")
		}
	}
	return "" // not reached: the last node of a missing path was not met
}
