package jsonkey

import (
	"fmt"
	"slices"
	"strconv"
)

// Fields finds the values at any number of paths in one pass over a payload. Make it
// with [Parse]. It is immutable and safe for concurrent use.
//
// The paths are a tree of nodes: nodes[0] is the payload itself, every other node is
// one field on the way to, or at the end of, a path.
type Fields struct {
	paths []fieldPath
	nodes []fieldNode
}

type fieldPath struct {
	text     string
	segments []string
	nodes    []int // the node of each segment
}

type fieldNode struct {
	edges []fieldEdge
}

type fieldEdge struct {
	name      string // in an object
	nameBytes []byte // the same
	index     int    // in a list; -1 when name is no index
	node      int
}

// Error says why a payload gives no parts. It quotes no value of the payload.
type Error struct {
	Path    string // the path at fault; the first one when the payload cannot be read
	Reason  string // continues a sentence that begins with the path, such as "is null"
	NotRead bool   // the payload is not JSON, or not UTF-8; Reason begins with "the payload"
	Absent  bool   // the field is missing, null or empty
}

func (e *Error) Error() string { return fmt.Sprintf("field %q: %s", e.Path, e.Reason) }

// Parse makes the Fields of some paths. The error quotes the path at fault.
func Parse(paths []string) (*Fields, error) {
	f := &Fields{nodes: make([]fieldNode, 1)}
	for _, text := range paths {
		segments, err := ParsePath(text)
		if err != nil {
			return nil, fmt.Errorf("%q %w", text, err)
		}
		path := fieldPath{text: text, segments: segments}
		node := 0
		for _, segment := range segments {
			node = f.step(node, segment)
			path.nodes = append(path.nodes, node)
		}
		f.paths = append(f.paths, path)
	}
	return f, nil
}

// step returns the node that a segment leads to. It adds the node where there is none.
func (f *Fields) step(from int, segment string) int {
	for _, edge := range f.nodes[from].edges {
		if edge.name == segment {
			return edge.node
		}
	}
	to := len(f.nodes)
	f.nodes = append(f.nodes, fieldNode{})
	edge := fieldEdge{name: segment, nameBytes: []byte(segment), index: listIndex(segment), node: to}
	f.nodes[from].edges = append(f.nodes[from].edges, edge)
	return to
}

// listIndex reads a segment as the index of a list: 0, or digits without a leading
// zero. It returns -1 for anything else.
func listIndex(segment string) int {
	index, err := strconv.Atoi(segment)
	if err != nil || strconv.Itoa(index) != segment || index < 0 {
		return -1
	}
	return index
}

// Find returns the JSON value at every path, in the order of the paths. [WritePart]
// makes the part of each.
func (f *Fields) Find(payload []byte) ([][]byte, *Error) {
	if reason := CheckPayload(payload); reason != "" {
		return nil, &Error{Path: f.paths[0].text, Reason: reason, NotRead: true}
	}

	walk := fieldWalk{fields: f, at: cursor{text: payload}, found: make([]foundField, len(f.nodes))}
	walk.at.space()
	walk.value(0)

	values := make([][]byte, len(f.paths))
	for i, path := range f.paths {
		if walk.twice > 0 {
			if at := slices.Index(path.nodes, walk.twice); at >= 0 {
				return nil, f.fail(i, walk.whyTwice(path.segments[at]))
			}
		}
		values[i] = walk.found[path.nodes[len(path.nodes)-1]].value
		if values[i] == nil {
			failed := f.fail(i, "is missing: "+walk.whyMissing(path))
			failed.Absent = true
			return nil, failed
		}
	}
	return values, nil
}

// Path returns the text of the i-th path.
func (f *Fields) Path(i int) string { return f.paths[i].text }

func (f *Fields) fail(i int, reason string) *Error {
	return &Error{Path: f.paths[i].text, Reason: reason}
}

// Parts returns the part of every path, in the order of the paths. A part is at most
// [MaxWrittenOut] bytes longer than its JSON.
func (f *Fields) Parts(payload []byte) ([]string, *Error) {
	values, failed := f.Find(payload)
	if failed != nil {
		return nil, failed
	}
	parts := make([]string, len(values))
	for i, value := range values {
		part := partText{limit: len(value) + MaxWrittenOut}
		if err := WritePart(&part, value); err != nil {
			return nil, f.fail(i, err.Error())
		}
		parts[i] = string(part.text)
	}
	return parts, nil
}

// partText is the text of a part, of at most limit bytes.
type partText struct {
	text  []byte
	limit int
}

func (p *partText) Write(piece []byte) (int, error) {
	if len(p.text)+len(piece) > p.limit {
		return 0, errValueLarge
	}
	p.text = append(p.text, piece...)
	return len(piece), nil
}
