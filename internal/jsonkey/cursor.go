package jsonkey

import "bytes"

// cursor goes through JSON text from value to value: a value, and a name,
// is read with the cursor on its first byte, and leaves it behind the last.
type cursor struct {
	text []byte
	i    int
}

func (c *cursor) space() {
	for c.i < len(c.text) && c.text[c.i] <= ' ' {
		c.i++
	}
}

// enter goes into the object or list at the cursor.
func (c *cursor) enter() {
	c.i++
	c.space()
}

// more goes to the next member or element, or past the end of the object or
// list when there is none.
func (c *cursor) more() bool {
	c.space()
	switch c.text[c.i] {
	case '}', ']':
		c.i++
		return false
	case ',':
		c.i++
		c.space()
	}
	return true
}

// name reads the name of a member, without its quotes, and goes to its value.
func (c *cursor) name() []byte {
	name := c.str()
	c.space()
	c.i++ // the colon
	c.space()
	return name
}

// str reads a string, without its quotes.
func (c *cursor) str() []byte {
	start := c.i + 1
	for c.i = start; ; c.i++ {
		c.i += bytes.IndexByte(c.text[c.i:], '"')
		slashes := 0
		for c.text[c.i-1-slashes] == '\\' {
			slashes++
		}
		if slashes%2 == 0 {
			c.i++
			return c.text[start : c.i-1]
		}
	}
}

// scalar reads a number, true, false or null.
func (c *cursor) scalar() []byte {
	start := c.i
	for c.i < len(c.text) && c.text[c.i] > ' ' && c.text[c.i] != ',' && c.text[c.i] != '}' && c.text[c.i] != ']' {
		c.i++
	}
	return c.text[start:c.i]
}

// skip goes past one value.
func (c *cursor) skip() {
	switch c.text[c.i] {
	case '"':
		c.str()
	case '{', '[':
		c.skipComposite()
	default:
		c.scalar()
	}
}

func (c *cursor) skipComposite() {
	for depth := 0; ; {
		switch c.text[c.i] {
		case '"':
			c.str()
			continue
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		}
		c.i++
		if depth == 0 {
			return
		}
	}
}
