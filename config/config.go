/*
Package config reads rules from a YAML file, so that they can be reviewed and changed apart
from the program:

	prefix: myapp        # begins every Redis key; left out: automutex
	defaults:            # for every rule that does not set the key itself
	  wait: 10s
	rules:
	  - task: itunes:verify
	    on: [transaction_id]
	  - task: "report:"
	    scope: report
	    on: [tenant.id]
	    limit: 3
	  - task: cache:warm
	    wait: 0s
	    busy: skip
	  - task: import
	    on: [file]
	    busy: {retry_in: 30s}
	unique:              # tasks that are enqueued once
	  - task: reindex
	    on: [document_id]
	    until: start
	    duplicate: join

The keys are the fields of [automutex.Rule] and [unique.Rule] in snake_case; "automutex schema" prints
them with what they mean. All of a rule but name and task may be in defaults, which do not apply to
unique rules. Durations are written as in Go ("30s", "1h30m"). Other forms:

	busy: skip           # or retry, archive, fail, park, replace, allow, {retry_in: 30s}
	on: ["."]            # the whole payload
	limit: 3             # or unlimited, or a payload field: {field: tenant.max, default: 3, most: 50}
	rate: {starts: 100, per: 1m, burst: 10} # burst left out: one; none: not that of defaults
	until: start         # or done, or {for: 10m}
	duplicate: join      # or reject, replace, {postpone: 5s}

hash_keys, next to prefix, is a secret that keeps payload values out of keys. It sets
HashKeys of [automutex.Config] and of [unique.Config]. If the file must not contain a
secret, leave hash_keys out and set both in the program. history, next to prefix too, is
History of [automutex.Config].

The program sets the rest on what [Load] returns, for [automutex.New] in workers and [unique.New] in
producers: code (Key, Payload, AfterFailure, Decode, LimitOf) and what belongs to the process (Owner,
Logger, Observe, ...).

JSON is YAML too. The file is UTF-8 and has one document. Variables are not expanded.
Anchors, aliases, merge keys and tags are refused: use defaults for values that several
rules share. Unknown keys and repeated keys are mistakes.
*/
package config

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/unique"
)

// maxSize is the size of the largest file that is read, in bytes: far above any list of rules that people keep, and far below what
// would hurt.
const maxSize = 4 << 20

// Load reads the file at path. The first result has the rules, the second the unique rules;
// both have the file's prefix and hash_keys. The error joins an [*Error] for each mistake, in
// the order of the file, also for what [automutex.New] and [unique.New] would refuse; or it says
// why the file could not be read. With an error both results are zero values.
func Load(path string) (automutex.Config, unique.Config, error) {
	data, err := read(path)
	if err != nil {
		return automutex.Config{}, unique.Config{}, fmt.Errorf("config: %w", err)
	}
	return parse(path, data)
}

func read(path string) ([]byte, error) {
	f, err := os.Open(path) //nolint:gosec // the file is the caller's to name
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(f, maxSize+1))
	return data, errors.Join(err, f.Close(), tooLarge(data))
}

func tooLarge(data []byte) error {
	if len(data) > maxSize {
		return fmt.Errorf("there are more than %d MiB: that is no list of rules", maxSize>>20)
	}
	return nil
}

// Parse is [Load] for the content of a file. [Error].File is then "config".
func Parse(data []byte) (automutex.Config, unique.Config, error) {
	if err := tooLarge(data); err != nil {
		return automutex.Config{}, unique.Config{}, fmt.Errorf("config: %w", err)
	}
	return parse("config", data)
}

// Error is one mistake in a configuration, and where it is.
type Error struct {
	// File is the path given to Load, or "config".
	File string
	// Line and Column count from 1; Column counts characters.
	Line, Column int
	// Text says what is wrong and what to do.
	Text string
}

// Error returns "file:line:column: text".
func (e *Error) Error() string {
	return fmt.Sprintf("%s:%d:%d: %s", e.File, e.Line, e.Column, e.Text)
}
