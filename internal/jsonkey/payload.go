package jsonkey

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"
)

// CheckPayload returns why a payload cannot be read, or "". The reason quotes nothing
// of the payload.
func CheckPayload(payload []byte) (reason string) {
	switch {
	case len(payload) == 0:
		return "the payload is empty"
	case !json.Valid(payload):
		return "the payload is not JSON" + whyNotJSON(payload)
	case !utf8.Valid(payload):
		return "the payload is not valid UTF-8"
	}
	return ""
}

// whyNotJSON says where a payload stops being JSON. It does not use the text of
// encoding/json's errors, which differs between versions of Go.
func whyNotJSON(payload []byte) string {
	var v json.RawMessage
	err := json.NewDecoder(bytes.NewReader(payload)).Decode(&v)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return ": it ends too early"
	}
	var wrong *json.SyntaxError
	if err = json.Unmarshal(payload, &v); !errors.As(err, &wrong) {
		return ""
	}
	offset := min(max(int(wrong.Offset), 0), len(payload))
	if jsonDepth(payload[:offset]) > deepestJSON {
		return ": it is nested too deeply"
	}
	return fmt.Sprintf(" (byte %d)", offset)
}

// deepestJSON is how many levels encoding/json reads.
const deepestJSON = 10_000

// jsonDepth counts the lists and objects that are open at the end of text, which is
// JSON up to its last byte.
func jsonDepth(text []byte) (depth int) {
	inString := false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '"':
			inString = !inString
		case inString && c == '\\':
			i++
		case inString:
		case c == '[' || c == '{':
			depth++
		case c == ']' || c == '}':
			depth--
		}
	}
	return depth
}
