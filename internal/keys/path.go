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
	if err := checkNotation(path); err != nil {
		return nil, err
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
			if i++; i == len(path) || strings.IndexByte(`.\$[],*/`, path[i]) < 0 {
				return nil, errors.New(`has a lone backslash; write \\ for a backslash, and \. for a dot in a name`)
			}
		}
		segment = append(segment, path[i])
	}
	return segments, nil
}

var (
	escaped = regexp.MustCompile(`(?s)\\.`) // a character with a backslash before it

	// Other notations: an index or a name in brackets.
	bracketIndex = regexp.MustCompile(`\[(\d+|\*)\]`)
	bracketName  = regexp.MustCompile(`\[(?:'([^']*)'|"([^"]*)")\]`)
)

// checkNotation refuses what other notations mean by a path and this one does not, and says how it is written here:
// JSONPath's "$.x", "x[0]" and "items.*.id", and "x,y". With a backslash before it, each such character is part of a
// name.
func checkNotation(path string) error {
	bare := escaped.ReplaceAllString(path, "__") // as long as path
	switch {
	case bare == "$" || bare == "$.":
		return errors.New(`is JSONPath for the whole payload; write ".", or "\$" for a field of that name`)
	case strings.HasPrefix(bare, "$.") || strings.HasPrefix(bare, "$["):
		return fmt.Errorf(`begins as JSONPath does; write %q (a path begins at the payload), and \$ for a dollar sign as a name`, plainPath(path))
	case strings.Contains(bare, ","):
		return fmt.Errorf(`has a comma; write "%s", one path each, and \, for a comma in a name`,
			strings.NewReplacer(" ", "", ",", `", "`).Replace(plainPath(path)))
	case strings.HasPrefix(bare, "/"):
		return fmt.Errorf(`begins as a JSON pointer does; write %q, and \/ for a slash that begins a name`, strings.ReplaceAll(path[1:], "/", "."))
	case bracketIndex.MatchString(bare) || bracketName.MatchString(path):
		return fmt.Errorf(`has a bracket; write %q, and \[ for a bracket in a name`, plainPath(path))
	case strings.Contains(bare, "["), strings.Contains(bare, "]") && !strings.Contains(path, `\[`):
		return errors.New(`has a bracket; write "items.0.id" for an element of a list, and \[ for a bracket in a name`)
	case strings.Contains("."+bare+".", ".*."):
		return fmt.Errorf(`has a *, and lists are not searched; name one element, as in %q, set Rule.Key, or write \* for a field of that name`, plainPath(path))
	}
	return nil
}

// plainPath writes a path of another notation as a path here, as far as can be told.
func plainPath(path string) string {
	path = bracketName.ReplaceAllStringFunc(path, func(s string) string {
		return "." + strings.NewReplacer(`\`, `\\`, ".", `\.`, "[", `\[`, ",", `\,`).Replace(s[2:len(s)-2])
	})
	path = bracketIndex.ReplaceAllString(path, ".$1")
	return strings.ReplaceAll(strings.TrimPrefix(strings.TrimPrefix(path, "$"), "."), "*", "0")
}
