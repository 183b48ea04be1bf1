package redisx

import (
	"crypto/sha1" //nolint:gosec // Redis names scripts by their SHA-1; no secret hangs on it.
	"encoding/hex"
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
