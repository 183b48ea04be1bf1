package automutex

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/hibiken/asynq"
)

// fieldSet reads any number of fields in one pass over a payload. Its paths are
// a tree of nodes: nodes[0] is the payload itself, every other node is one
// field on the way to, or at the end of, a path.
type fieldSet struct {
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
	name  string // in an object
	index int    // in a list; -1 when name is no index
	node  int
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
	edge := fieldEdge{name: segment, index: listIndex(segment), node: to}
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

// parsePath takes a path apart at its dots. The error goes on where the path
// was named.
func parsePath(path string) (segments []string, err error) {
	if path == "" {
		return nil, errors.New("is empty; name a payload field, or leave it out")
	}
	if !utf8.ValidString(path) {
		return nil, errors.New("is not valid UTF-8, and so no field of a JSON payload")
	}
	var segment strings.Builder
	end := func() error {
		if segment.Len() == 0 {
			return errors.New(`has an empty segment; write one name between two dots, and \. for a dot in a name`)
		}
		segments = append(segments, segment.String())
		segment.Reset()
		return nil
	}
	for i := 0; i < len(path); i++ {
		switch c := path[i]; c {
		case '.':
			if err := end(); err != nil {
				return nil, err
			}
		case '\\':
			i++
			if i == len(path) || path[i] != '.' && path[i] != '\\' {
				return nil, errors.New(`has a lone backslash; write \\ for a backslash, and \. for a dot in a name`)
			}
			segment.WriteByte(path[i])
		default:
			segment.WriteByte(c)
		}
	}
	if err := end(); err != nil {
		return nil, err
	}
	return segments, nil
}

// read gives the part of every path, in the order of the paths. Every error is
// a *KeyError.
func (fs *fieldSet) read(t *asynq.Task) ([]string, error) {
	payload := t.Payload()
	if reason, cause := checkPayload(payload); reason != "" {
		return nil, &KeyError{
			Task: t.Type(), Field: fs.paths[0].text, reason: reason, cause: cause, advice: advicePayload,
		}
	}

	walk := fieldWalk{set: fs, at: jsonCursor{text: payload}, found: make([][]byte, len(fs.nodes))}
	walk.at.space()
	walk.value(0)

	parts := make([]string, len(fs.paths))
	for i, path := range fs.paths {
		fail := func(reason string) ([]string, error) {
			return nil, &KeyError{Task: t.Type(), Field: path.text, reason: reason, advice: adviceField}
		}
		if walk.twice > 0 {
			if at := slices.Index(path.nodes, walk.twice); at >= 0 {
				return fail(fmt.Sprintf("has two values: the name %q is there twice in one object", path.segments[at]))
			}
		}
		value := walk.found[path.nodes[len(path.nodes)-1]]
		if value == nil {
			return fail("is missing: " + walk.whyMissing(path))
		}
		part, err := valuePart(value)
		if err != nil {
			return fail(err.Error())
		}
		parts[i] = part
	}
	return parts, nil
}

// notJSON says where a payload ceases to be JSON, and nothing of what stands there.
func notJSON(payload []byte) error {
	var v json.RawMessage
	err := json.Unmarshal(payload, &v)
	wrong, ok := errors.AsType[*json.SyntaxError](err)
	switch {
	case !ok:
		return err
	case strings.Contains(err.Error(), "unexpected end"):
		return errors.New("it ends too early")
	case strings.Contains(err.Error(), "max depth"):
		return errors.New("it is nested too deeply")
	}
	return fmt.Errorf("byte %d of it is wrong", wrong.Offset)
}

// checkPayload says what keeps a payload from being read, "" when nothing does.
func checkPayload(payload []byte) (reason string, cause error) {
	if len(payload) == 0 {
		return "the payload is empty", nil
	}
	if !json.Valid(payload) {
		return "the payload is not JSON", notJSON(payload)
	}
	if !utf8.Valid(payload) {
		return "the payload is not valid UTF-8", nil
	}
	return "", nil
}

// fieldWalk is one pass over a payload that json.Valid has passed. It recurses
// no deeper than the longest path, and looks at every byte about once.
type fieldWalk struct {
	set   *fieldSet
	at    jsonCursor
	found [][]byte // the value of each node; nil when it was not met
	twice int      // the first node that was met twice; 0 when none was
}

// value takes the value at the cursor for that of a node.
func (w *fieldWalk) value(node int) {
	if w.found[node] != nil && w.twice == 0 {
		w.twice = node
	}
	start := w.at.i
	edges := w.set.nodes[node].edges
	switch c := w.at.text[start]; {
	case c == '{' && len(edges) > 0:
		w.object(edges)
	case c == '[' && len(edges) > 0:
		w.list(edges)
	default:
		w.at.skip()
	}
	w.found[node] = w.at.text[start:w.at.i]
}

func (w *fieldWalk) object(edges []fieldEdge) {
	for w.at.enter(); w.at.more(); {
		if node := edgeNamed(edges, w.at.name()); node > 0 {
			w.value(node)
		} else {
			w.at.skip()
		}
	}
}

func edgeNamed(edges []fieldEdge, raw []byte) (node int) {
	if bytes.IndexByte(raw, '\\') >= 0 {
		name, err := unquote(raw)
		if err != nil {
			return 0
		}
		raw = []byte(name)
	}
	for i := range edges {
		if edges[i].name == string(raw) {
			return edges[i].node
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

// whyMissing says where a path leaves the payload.
func (w *fieldWalk) whyMissing(path fieldPath) string {
	at, value := "the payload", w.found[0]
	for i, segment := range path.segments {
		next := w.found[path.nodes[i]]
		if next != nil {
			at, value = strconv.Quote(strings.Join(path.segments[:i+1], ".")), next
			continue
		}
		switch value[0] {
		case '{':
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
