package config

import (
	"bytes"
	"encoding/json"
	"strconv"
	"unicode/utf16"
)

// fromJSON makes YAML of JSON: YAML has all of it but characters that are
// written as two escapes (\ud83d\ude00 for U+1F600). Where such a pair stands,
// columns behind it in the same line are less by its length. What is no JSON is
// given back as it is.
func fromJSON(data []byte) []byte {
	if !bytes.Contains(data, []byte(`\u`)) || !json.Valid(data) {
		return data
	}
	var out bytes.Buffer
	for i := 0; i < len(data); i++ {
		if data[i] != '\\' {
			out.WriteByte(data[i])
			continue
		}
		if r := utf16.DecodeRune(escaped(data[i:]), escaped(data[min(i+6, len(data)):])); r != '\uFFFD' {
			out.WriteRune(r)
			i += 11
			continue
		}
		out.Write(data[i : i+2]) // in JSON something follows a backslash
		i++
	}
	return out.Bytes()
}

// escaped is the character of a \uXXXX that data begins with.
func escaped(data []byte) rune {
	if len(data) < 6 || data[0] != '\\' || data[1] != 'u' {
		return -1
	}
	v, err := strconv.ParseUint(string(data[2:6]), 16, 16)
	if err != nil {
		return -1
	}
	return rune(v)
}
