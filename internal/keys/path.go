package keys

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"
)

// Whole is the path of the whole payload. It has no segments.
const Whole = "."

// CutOptional takes the ? from a path.
func CutOptional(path string) (bare string, optional bool) {
	bare, optional = strings.CutSuffix(path, "?")
	if (len(bare)-len(strings.TrimRight(bare, `\`)))%2 == 1 { // \?
		return path, false
	}
	return bare, optional
}

// ParsePath splits a path at its dots. The error's text continues a sentence that begins with the path.
func ParsePath(path string) (segments []string, err error) {
	switch {
	case path == Whole:
		return nil, nil
	case path == "":
		return nil, errors.New("is empty; name a payload field, or leave it out")
	case !utf8.ValidString(path):
		return nil, errors.New("is not valid UTF-8, and so no field of a JSON payload")
	}
	if found := foreign(path); found != "" {
		return nil, fmt.Errorf(`has a "%s", as other notations have; write names and indexes with a dot between, as in `+
			`"items.0.id", one path for each field, and \%s for one in a name`, found, found)
	}
	var segment []byte
	for i := 0; i <= len(path); i++ {
		switch {
		case i == len(path) || path[i] == '.':
			if len(segment) == 0 {
				return nil, errors.New(`has an empty segment; write one name between two dots, and \. for a dot in a name`)
			}
			segments, segment = append(segments, string(segment)), nil
			continue
		case path[i] == '\\':
			// These may have a backslash, in a name that has them.
			if i++; i == len(path) || strings.IndexByte(`.\$[],*/?`, path[i]) < 0 {
				return nil, errors.New(`has a lone backslash; write \\ for a backslash, and \. for a dot in a name`)
			}
		}
		segment = append(segment, path[i])
	}
	return segments, nil
}

var (
	escaped = regexp.MustCompile(`(?s)\\.`) // a character with a backslash before it
	// notations finds JSONPath's "$", "$.x", "x[0]" and "items.*.id", a JSON pointer's "/a/b", "x,y" and "x?".
	notations = regexp.MustCompile(`^\$(?:[.[]|$)|[\[,]|^/|(?:^|\.)\*(?:\.|$)|\?(?:\.|$)`)
)

// foreign returns the character by which other notations would mean something else than this one.
func foreign(path string) string {
	bare := escaped.ReplaceAllString(path, "__")
	if found := strings.TrimPrefix(notations.FindString(bare), "."); found != "" {
		return found[:1]
	}
	if strings.Contains(bare, "]") && !strings.Contains(path, `\[`) {
		return "]"
	}
	return ""
}
