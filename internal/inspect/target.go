package inspect

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/control"
	"github.com/automutex/automutex/internal/fleet"
	"github.com/automutex/automutex/internal/keys"
	"github.com/automutex/automutex/internal/nearest"
	"github.com/automutex/automutex/internal/printable"
	"github.com/automutex/automutex/lock"
)

// Key returns the Redis key that an operator means: a whole key, or what stands between its braces.
func Key(prefix, text string) string {
	if strings.ContainsAny(text, "{}") {
		return text
	}
	return prefix + ":{" + text + "}"
}

// TypedKey returns the Redis key of the lock that a person types: a whole key, or a scope and its parts, which are escaped here.
func TypedKey(prefix, text string) string {
	if stored, err := control.Stored(prefix, "", nil, text); err == nil && !strings.ContainsAny(text, "{}") {
		return prefix + ":{" + stored + "}"
	}
	return Key(prefix, text) // package lock says what is wrong with it
}

// Stored is the target of a control as it is stored: what stands between the braces of a key.
func Stored(target string) string {
	if stored, whole := control.InBraces(target); whole {
		return stored
	}
	return target
}

// IsScope reports whether a rule has a scope of that very name, which then is the target of an order although it has a |.
func IsScope(rules []fleet.Rule, text string) bool {
	scope := keys.Scope(text)
	return slices.ContainsFunc(rules, func(r fleet.Rule) bool { its, _ := r.ScopeText(); return its == scope })
}

// Unknown says why no task has the target that a text stands for, as far as rules tell, and what was probably meant;
// empty if a task may have it. hashed: the values of keys are hashed.
func Unknown(rules []fleet.Rule, hashed bool, prefix, text string) (why, meant string) {
	stored, err := control.Stored(prefix, "", func(text string) bool { return IsScope(rules, text) }, text)
	if err != nil || len(rules) == 0 {
		return "", "" // package lock says what is wrong with it
	}
	return unknown(rules, hashed, stored)
}

// Target returns the whole key of the target that an operator has typed for an order; empty if it is none, which package lock then
// refuses. A target that no rule and no live lock has is an error, unless force is true. To see that may take a walk of all locks.
func Target(ctx context.Context, locker *lock.Locker, rdb redis.UniversalClient, rules []fleet.Rule, hashed bool, prefix, text string, force bool) (string, error) {
	stored, err := control.Stored(prefix, "", func(text string) bool { return IsScope(rules, text) }, text)
	if err != nil {
		return "", nil //nolint:nilerr // so
	}
	if why, meant := Unknown(rules, hashed, prefix, text); why != "" && !force {
		is := func(l Lock) bool { return Stored(l.Key) == stored || ScopeOf(l.Key) == stored }
		used := false
		for some, err := range Walk(ctx, locker, rdb) {
			if err != nil {
				return "", err
			}
			if used = slices.ContainsFunc(some, is); used {
				break
			}
		}
		if meant != "" {
			meant = "did you mean " + meant + "? "
		}
		if !used {
			return "", errors.New(strings.TrimSuffix(why, ".") + "; nor is there such a lock now; " + meant + "--force does it all the same")
		}
	}
	return prefix + ":{" + stored + "}", nil
}

// unknown says why no task has a target, as far as rules tell; empty if a task may have it.
func unknown(rules []fleet.Rule, hashed bool, target string) (why, meant string) {
	scope, values, valued := strings.Cut(target, "|")
	var its []fleet.Rule
	for _, r := range rules {
		if r.Has(scope) || !valued && r.IsFor(scope) {
			its = append(its, r)
		}
	}
	if len(its) == 0 {
		return fmt.Sprintf("No rule has the scope of %s.", printable.Short(target)), meantBy(rules, scope, values)
	}
	beginning := func(r fleet.Rule) bool {
		its, byType := r.ScopeText()
		return byType && its == scope && strings.HasSuffix(scope, ":")
	}
	parts := strings.Split(values, "|")
	isHash := len(parts) == 1 && strings.HasPrefix(values, "~")
	fits := func(r fleet.Rule) bool { return r.Computed || len(r.On)+len(r.OnHeaders) == len(parts) }
	switch {
	case !valued:
	case slices.ContainsFunc(its, beginning):
		return fmt.Sprintf("The rule for %s has no scope, so each task type has one of its own: %[1]s alone is none of them. Name a whole type in the key.", printable.Short(scope)), ""
	case isHash:
	case hashed:
		return fmt.Sprintf("The keys of these rules are hashed, so no task has the key %s. Take the key that automutex key prints.", printable.Short(target)), ""
	case !slices.ContainsFunc(its, fits):
		return fmt.Sprintf("No task has the key %s: it has %s, and the keys of rule %s have %d.",
			printable.Short(target), printable.Count(len(parts), "value"), printable.Short(its[0].Name), len(its[0].On)+len(its[0].OnHeaders)), ""
	}
	return "", ""
}

// meantBy finds the target that a scope was probably meant to be: that of a rule with such a scope, task or name.
func meantBy(rules []fleet.Rule, scope, values string) string {
	scopes := map[string]string{} // what may have been typed to the scope
	var names []string
	for _, r := range rules {
		its, byType := r.ScopeText()
		if byType && strings.HasSuffix(its, ":") && values != "" {
			continue // the beginning of scopes, and no key has it
		}
		for _, name := range []string{its, r.Name, r.Task, r.Task[strings.LastIndexByte(r.Task, ':')+1:]} {
			if _, known := scopes[name]; !known && name != "" {
				scopes[name], names = its, append(names, name)
			}
		}
	}
	name, ok := nearest.Name(scope, names)
	switch {
	case !ok:
		return ""
	case values != "":
		return scopes[name] + "|" + values
	}
	return scopes[name]
}
