package automutex

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/hibiken/asynq"
)

// fieldSet reads any number of fields in one pass over a payload. Its paths are
// a tree of nodes: nodes[0] is the payload itself, every other node is one
// field on the way to, or at the end of, a path.
type fieldSet struct {
	paths []fieldPath
	nodes []fieldNode

	decoded bool // the payload is what Config.Decode returned; for errors
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

func newFieldSet(paths []string) (*fieldSet, error) {
	set := &fieldSet{nodes: make([]fieldNode, 1)}
	for _, text := range paths {
		segments, err := parsePath(text)
		if err != nil {
			return nil, fmt.Errorf("%q %w", text, err)
		}
		path := fieldPath{text: text, segments: segments}
		node := 0
		for _, segment := range segments {
			node = set.step(node, segment)
			path.nodes = append(path.nodes, node)
		}
		set.paths = append(set.paths, path)
	}
	return set, nil
}

// step gives the node that a segment leads to, making it where there is none.
func (fs *fieldSet) step(from int, segment string) int {
	for _, edge := range fs.nodes[from].edges {
		if edge.name == segment {
			return edge.node
		}
	}
	to := len(fs.nodes)
	fs.nodes = append(fs.nodes, fieldNode{})
	edge := fieldEdge{name: segment, nameBytes: []byte(segment), index: listIndex(segment), node: to}
	fs.nodes[from].edges = append(fs.nodes[from].edges, edge)
	return to
}

// listIndex reads a segment as the index of a list, -1 when it is none: 0, or
// digits without a leading zero.
func listIndex(segment string) int {
	index, err := strconv.Atoi(segment)
	if err != nil || strconv.Itoa(index) != segment || index < 0 {
		return -1
	}
	return index
}

// find gives the JSON value at every path, in the order of the paths. Every error is
// a *KeyError.
func (fs *fieldSet) find(t *asynq.Task) ([][]byte, error) {
	payload := t.Payload()
	if reason := checkPayload(payload); reason != "" {
		return nil, fs.unreadable(t, reason)
	}

	walk := fieldWalk{set: fs, at: jsonCursor{text: payload}, found: make([]foundField, len(fs.nodes))}
	walk.at.space()
	walk.value(0)

	values := make([][]byte, len(fs.paths))
	for i, path := range fs.paths {
		if walk.twice > 0 {
			if at := slices.Index(path.nodes, walk.twice); at >= 0 {
				return nil, fs.fail(t, i, walk.whyTwice(path.segments[at]))
			}
		}
		values[i] = walk.found[path.nodes[len(path.nodes)-1]].value
		if values[i] == nil {
			return nil, fs.fail(t, i, "is missing: "+walk.whyMissing(path))
		}
	}
	return values, nil
}

// fail is the error for the i-th path.
func (fs *fieldSet) fail(t *asynq.Task, i int, reason string) error {
	return &KeyError{Task: t.Type(), Field: fs.paths[i].text, reason: reason, advice: adviceField}
}

// unreadable is the error for a payload that is not JSON, or not UTF-8, for the
// reason that checkPayload gave.
func (fs *fieldSet) unreadable(t *asynq.Task, reason string) error {
	err := &KeyError{Task: t.Type(), Field: fs.paths[0].text, reason: reason, advice: adviceEncoding}
	if fs.decoded {
		err.reason = strings.Replace(reason, "the payload", "the payload that Config.Decode returned", 1)
		err.advice = adviceDecoded
	}
	return err
}

// read gives the part of every path, in the order of the paths. Every error is
// a *KeyError.
func (fs *fieldSet) read(t *asynq.Task) ([]string, error) {
	values, err := fs.find(t)
	if err != nil {
		return nil, err
	}
	parts := make([]string, len(values))
	for i, value := range values {
		part := partText{most: len(value) + maxWrittenOut}
		if err := writePart(&part, value); err != nil {
			return nil, fs.fail(t, i, err.Error())
		}
		parts[i] = string(part.text)
	}
	return parts, nil
}

// partText is the text of a part, up to most bytes of it.
type partText struct {
	text []byte
	most int
}

func (p *partText) Write(piece []byte) (int, error) {
	if len(p.text)+len(piece) > p.most {
		return 0, errValueLarge
	}
	p.text = append(p.text, piece...)
	return len(piece), nil
}
