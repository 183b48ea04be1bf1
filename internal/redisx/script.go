package redisx

import (
	"crypto/sha1" //nolint:gosec // Redis names scripts by their SHA-1; no secret hangs on it.
	"embed"
	"encoding/hex"
	"strings"
)

// Script is one Lua script. It never changes.
type Script struct {
	Name   string
	Source string
	SHA    string // the hash of Source, for EVALSHA

	shaArg any // SHA, boxed once
}

// NewScript makes the script of that name.
func NewScript(name, source string) *Script {
	sum := sha1.Sum([]byte(source)) //nolint:gosec // see the import
	sha := hex.EncodeToString(sum[:])
	return &Script{Name: name, Source: source, SHA: sha, shaArg: sha}
}

// Load makes a script of each lua/<part>.lua; a line --@include <part> stands for one more.
func Load(files embed.FS, name string, parts ...string) *Script {
	var text strings.Builder
	for _, part := range parts {
		file, err := files.ReadFile("lua/" + part + ".lua")
		if err != nil {
			panic(err) // a name that no file has: every test finds it
		}
		for line := range strings.Lines(string(file)) {
			if included, ok := strings.CutPrefix(strings.TrimSpace(line), "--@include "); ok {
				line = Load(files, "", included).Source
			}
			text.WriteString(line)
		}
	}
	return NewScript(name, text.String())
}
