package engine

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// A test of code that is a function of what comes and of the time plays stories out of a data file: what comes, event
// by event, and what each leads to.
//
// A story begins with "## " and its title. Each of its lines that has an arrow is an event:
//
//	<when, since the beginning> <name> [<word> ...] [<key>=<value> ...] -> <what it leads to>
//
// Other lines are for the reader.

// event is one line of a story. A test takes out of it what it knows; what is left is a mistake in the file.
type event struct {
	At      time.Duration
	Name    string
	words   []string
	details map[string]string
	err     error
}

func parseEvent(line string) *event {
	f := strings.Fields(line)
	if len(f) < 2 {
		return &event{err: fmt.Errorf("%q is no event: write <when> <name> [<word> ...] [<key>=<value> ...] ->", line)}
	}
	e := &event{Name: f[1], details: map[string]string{}}
	e.At, e.err = time.ParseDuration(f[0])
	for _, word := range f[2:] {
		if key, value, isDetail := strings.Cut(word, "="); isDetail {
			e.details[key] = value
		} else {
			e.words = append(e.words, word)
		}
	}
	return e
}

// Words takes the words.
func (e *event) Words() []string {
	words := e.words
	e.words = nil
	return words
}

// Has takes a word, and reports whether it was there.
func (e *event) Has(word string) bool {
	i := slices.Index(e.words, word)
	if i >= 0 {
		e.words = slices.Delete(e.words, i, i+1)
	}
	return i >= 0
}

// Duration takes the detail key, or returns otherwise.
func (e *event) Duration(key string, otherwise time.Duration) time.Duration {
	return detail(e, key, otherwise, time.ParseDuration)
}

// Number takes the detail key, or returns otherwise.
func (e *event) Number(key string, otherwise int) int { return detail(e, key, otherwise, strconv.Atoi) }

func detail[T any](e *event, key string, otherwise T, parse func(string) (T, error)) T {
	text, has := e.details[key]
	if !has {
		return otherwise
	}
	delete(e.details, key)
	v, err := parse(text)
	if err != nil && e.err == nil {
		e.err = fmt.Errorf("%s: %w", key, err)
	}
	return v
}

// unread returns an error for what no test has taken.
func (e *event) unread() error {
	if e.err == nil && len(e.words)+len(e.details) > 0 {
		return fmt.Errorf("nothing reads %v %v of the event %q", e.words, slices.Sorted(maps.Keys(e.details)), e.Name)
	}
	return e.err
}

// play plays the stories of file: begin makes what each story is about, and the function that it returns plays one
// event and says what that leads to. With -update it writes the file anew.
func play(t *testing.T, file string, begin func() func(*event) (string, error)) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")
	title, play, events, last := "", begin(), 0, time.Duration(0)
	for i, line := range lines {
		if found, isTitle := strings.CutPrefix(line, "## "); isTitle {
			title, play, last = found, begin(), 0
		}
		text, want, isEvent := strings.Cut(line, "->")
		if !isEvent || strings.HasPrefix(line, "#") {
			continue
		}
		text, want = strings.TrimSpace(text), strings.TrimSpace(want)
		e, got := parseEvent(text), ""
		switch {
		case e.err == nil && title == "":
			e.err = errors.New("it stands before the first story")
		case e.err == nil && e.At < last:
			e.err = fmt.Errorf("it is before the event above it, at %s", last)
		}
		last = e.At
		if e.err == nil {
			got, err = play(e)
			if unread := e.unread(); err == nil {
				err = unread
			}
		} else {
			err = e.err
		}
		switch events++; {
		case err != nil:
			t.Fatalf("%s:%d: %s\n%s: %v", file, i+1, title, text, err)
		case *update:
			lines[i] = fmt.Sprintf("%-64s -> %s", text, got)
		case got != want:
			t.Errorf("%s:%d: %s\n%s\nleads to %q, want %q", file, i+1, title, text, got, want)
		}
	}
	if events == 0 {
		t.Fatalf("%s has no event", file)
	}
	if *update {
		if err := os.WriteFile(file, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
