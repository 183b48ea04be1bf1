package demo

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// entityOf reads the fields that -on names out of a payload, by the demo's own
// means: what the handlers did is judged without asking the guard. It is false
// when a field is missing, null or empty, or the payload is not JSON.
func entityOf(payload []byte, on []string) (string, bool) {
	if len(on) == 0 {
		return "(all)", true // no fields: one lock for everything
	}
	dec := json.NewDecoder(bytes.NewReader(payload))
	dec.UseNumber() // float64 would make large numeric IDs equal
	var root any
	if dec.Decode(&root) != nil {
		return "", false
	}
	values := make([]string, len(on))
	for i, path := range on {
		v, ok := textOf(lookup(root, splitPath(path)))
		if !ok {
			return "", false
		}
		values[i] = v
	}
	return strings.Join(values, " | "), true
}

// splitPath splits "a.0.b" at its dots; `\.` stands for a dot in a name.
func splitPath(path string) []string {
	const escaped = "\x00"
	parts := strings.Split(strings.ReplaceAll(path, `\.`, escaped), ".")
	for i := range parts {
		parts[i] = strings.ReplaceAll(parts[i], escaped, ".")
	}
	return parts
}

// lookup follows names through objects and indexes through arrays; nil when
// the way ends.
func lookup(v any, path []string) any {
	for _, name := range path {
		switch node := v.(type) {
		case map[string]any:
			v = node[name]
		case []any:
			i, err := strconv.Atoi(name)
			if err != nil || i < 0 || i >= len(node) {
				return nil
			}
			v = node[i]
		default:
			return nil
		}
	}
	return v
}

// textOf gives a value as text; 7, "7" and 7.0 are the same entity.
func textOf(v any) (string, bool) {
	switch v := v.(type) {
	case nil:
		return "", false
	case string:
		return v, v != ""
	case json.Number:
		if f, err := v.Float64(); err == nil && f == math.Trunc(f) && math.Abs(f) < 1<<53 {
			return strconv.FormatInt(int64(f), 10), true
		}
		return v.String(), true
	case bool:
		return strconv.FormatBool(v), true
	default:
		text, err := json.Marshal(v) // objects with their keys sorted
		if err != nil {
			return fmt.Sprint(v), true
		}
		return string(text), true
	}
}
