package jsonkey

import (
	"bytes"
	"io"
	"slices"
	"sort"
	"unicode/utf8"
)

// compositeWriter writes an object or list as compact JSON with sorted members, piece
// by piece, so that the whole text is never in memory.
//
// The members of an object have to be known before the first one is written, and to
// know them means to go past their values. So that a value which is nested deeply is
// not gone past once more for each object around it, the ends of longer ones are
// noted first.
type compositeWriter struct {
	out     io.Writer
	text    []byte // the value
	spans   []span // of the longer objects and lists in text, in order
	pending []byte // written, and not yet in out
	buf     []byte // for unquote
}

// span is where an object or list begins and ends.
type span struct{ from, to int }

const (
	minSpan     = 64      // a shorter one is gone past quickly
	pieceLength = 1 << 10 // of what goes to out, about
)

func writeComposite(out io.Writer, value []byte) error {
	w := &compositeWriter{out: out, text: value}
	if err := w.noteSpans(); err != nil {
		return err
	}
	if err := w.value(&cursor{text: value}); err != nil {
		return err
	}
	return w.flush()
}

// noteSpans also refuses what is nested too deeply, so that the recursion of value is
// bounded.
func (w *compositeWriter) noteSpans() error {
	var open [maxValueDepth]int // of the spans that have not ended, each by its place in w.spans
	depth := 0
	for c := (cursor{text: w.text}); ; {
		switch c.text[c.i] {
		case '"':
			c.str()
			continue
		case '{', '[':
			if depth == maxValueDepth {
				return errValueDeep
			}
			open[depth] = len(w.spans)
			depth++
			if len(w.spans) == cap(w.spans) {
				w.spans = slices.Grow(w.spans, len(w.spans)+1) // twice as many: append takes smaller and smaller steps
			}
			w.spans = append(w.spans, span{from: c.i})
		case '}', ']':
			depth--
			ended := &w.spans[open[depth]] //nolint:gosec // the text is valid JSON: what ends has begun
			if ended.to = c.i + 1; ended.to-ended.from < minSpan {
				w.spans = w.spans[:open[depth]] //nolint:gosec // as above; all that is in it was shorter, and is gone already
			}
			if depth == 0 {
				return nil
			}
		}
		c.i++
	}
}

// skip goes past the value at the cursor.
func (w *compositeWriter) skip(c *cursor) {
	if first := c.text[c.i]; first == '{' || first == '[' {
		at := sort.Search(len(w.spans), func(i int) bool { return w.spans[i].from >= c.i })
		if at < len(w.spans) && w.spans[at].from == c.i {
			c.i = w.spans[at].to
			return
		}
	}
	c.skip()
}

// value writes the value at the cursor.
func (w *compositeWriter) value(c *cursor) (err error) {
	switch c.text[c.i] {
	case '{':
		return w.object(c)
	case '[':
		return w.list(c)
	case '"':
		return w.str(c.str())
	case 't', 'f', 'n':
		w.pending = append(w.pending, c.scalar()...)
	default:
		if w.pending, err = appendNumber(w.pending, c.scalar()); err != nil {
			return err
		}
	}
	return w.flushLong()
}

func (w *compositeWriter) list(c *cursor) error {
	before := byte('[')
	for c.enter(); c.more(); before = ',' {
		w.pending = append(w.pending, before)
		if err := w.value(c); err != nil {
			return err
		}
	}
	w.end(before, '[', ']')
	return nil
}

// end closes an object or list; before is what was to stand before a further element.
func (w *compositeWriter) end(before, left, right byte) {
	if before == left {
		w.pending = append(w.pending, left)
	}
	w.pending = append(w.pending, right)
}

func (w *compositeWriter) object(c *cursor) error {
	begin := *c
	members, sorted := 0, true
	var last []byte
	for c.enter(); c.more(); members++ {
		name, err := unquote(nil, c.name())
		if err != nil {
			return err
		}
		sorted = sorted && (members == 0 || bytes.Compare(last, name) < 0)
		last = name
		w.skip(c)
	}
	if sorted {
		return w.members(&begin)
	}
	return w.sortedMembers(&begin, members)
}

// members writes an object whose members are in order.
func (w *compositeWriter) members(c *cursor) error {
	before := byte('{')
	for c.enter(); c.more(); before = ',' {
		w.pending = append(w.pending, before)
		if err := w.str(c.name()); err != nil {
			return err
		}
		w.pending = append(w.pending, ':')
		if err := w.value(c); err != nil {
			return err
		}
	}
	w.end(before, '{', '}')
	return nil
}

// sortedMembers writes an object of n members in the order of their names.
func (w *compositeWriter) sortedMembers(c *cursor, n int) error {
	type member struct {
		name []byte
		at   int // of the value
	}
	members := make([]member, 0, n)
	for c.enter(); c.more(); {
		name, err := unquote(nil, c.name())
		if err != nil {
			return err
		}
		members = append(members, member{name, c.i})
		w.skip(c)
	}
	slices.SortFunc(members, func(a, b member) int { return bytes.Compare(a.name, b.name) })
	for i := 1; i < n; i++ {
		if bytes.Equal(members[i].name, members[i-1].name) {
			return errValueTwice
		}
	}
	before := byte('{')
	for _, m := range members {
		w.pending = append(w.pending, before)
		if err := w.quoted(m.name); err != nil {
			return err
		}
		w.pending = append(w.pending, ':')
		if err := w.value(&cursor{text: c.text, i: m.at}); err != nil {
			return err
		}
		before = ','
	}
	w.pending = append(w.pending, '}')
	return nil
}

// str writes the string that stands between two quotes.
func (w *compositeWriter) str(raw []byte) error {
	text, err := unquote(w.buf, raw)
	if err != nil {
		return err
	}
	if len(text) != len(raw) { // it had escapes, and so is in buf
		w.buf = text
	}
	return w.quoted(text)
}

// quoted writes text as a JSON string.
func (w *compositeWriter) quoted(text []byte) error {
	w.pending = append(w.pending, '"')
	for len(text) > 0 {
		n := wholeChars(text)
		w.pending = appendInQuotes(w.pending, text[:n])
		text = text[n:]
		if err := w.flushLong(); err != nil {
			return err
		}
	}
	w.pending = append(w.pending, '"')
	return nil
}

func (w *compositeWriter) flushLong() error {
	if len(w.pending) < pieceLength {
		return nil
	}
	return w.flush()
}

func (w *compositeWriter) flush() error {
	_, err := w.out.Write(w.pending)
	w.pending = w.pending[:0]
	return err
}

// wholeChars is the length of the first piece of a valid text: it ends where a
// character ends.
func wholeChars(text []byte) int {
	if len(text) <= pieceLength {
		return len(text)
	}
	n := pieceLength
	for !utf8.RuneStart(text[n]) {
		n--
	}
	return n
}
