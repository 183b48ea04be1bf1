package inspect

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

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

// TypedKey is Key for what a person types: the characters that a key escapes may stand in it as they are.
func TypedKey(prefix, text string) string {
	if strings.ContainsAny(text, "{}") || isEscaped(text) || !isShown(text) {
		return Key(prefix, text)
	}
	parts := strings.Split(text, "|")
	return keys.Key(prefix, parts[0], parts[1:]...)
}

// isShown reports whether a text is one that a person types.
func isShown(text string) bool {
	return utf8.ValidString(text) && !strings.ContainsFunc(text, unicode.IsControl)
}

// isEscaped reports whether a text may stand between the braces of a key.
func isEscaped(text string) bool {
	return !slices.ContainsFunc(strings.Split(text, "|"), func(part string) bool {
		raw, err := url.PathUnescape(part)
		return (err != nil || keys.Escape(raw) != part) && !isHash(part)
	})
}

// isHash reports whether a part of a key is a hash, which keys have in place of a text that is too long or secret.
func isHash(part string) bool { return len(part) == 65 && part[0] == '~' }

// maxTarget is the longest text that an order is for, in bytes.
const maxTarget = 1000

// Stored is the target of a control as it is stored: what stands between the braces of a key.
func Stored(target string) string {
	if stored, whole := control.InBraces(target); whole {
		return stored
	}
	return target
}

// readings returns the targets of an order that a text may stand for, in the form in which orders are stored, which is
// what stands between the braces of a key. Braces enclose a target in that form. Another text is what a person types, so
// "a b" is the scope that keys write as a%20b. It may also be copied from a key: so "a%20b" may be that scope as well,
// after the one that is named so. A text that is certainly a slip has no reading.
func readings(prefix, text string) (all []string) {
	if target, whole := strings.CutPrefix(text, prefix+":{"); whole && strings.IndexAny(target, "{}") == len(target)-1 {
		return []string{InBraces(text)}
	}
	parts := strings.Split(text, "|")
	switch {
	case parts[0] == "" || len(text) > maxTarget || strings.TrimSpace(text) != text || !isShown(text) || strings.Contains(text, ":{"):
		return nil
	case slices.ContainsFunc(parts, isHash) && isEscaped(text):
		return []string{text}
	case len(parts) == 1:
		return []string{keys.Scope(text)}
	}
	return []string{InBraces(keys.Key(prefix, parts[0], parts[1:]...))}
}

// fitting returns those readings of a text that a task may have, as far as rules tell. If there is none, why says so, and
// meant is the target that was probably meant. hashed: the values of keys are hashed.
func fitting(rules []fleet.Rule, hashed bool, prefix, text string) (targets []string, why, meant string) {
	all := readings(prefix, text)
	if len(rules) == 0 {
		return all, "", ""
	}
	for _, target := range all {
		switch no, its := unknown(rules, hashed, target); {
		case no == "":
			targets = append(targets, target)
		case why == "":
			why, meant = no, its
		}
	}
	scope := keys.Scope(text) // it may have a |
	if len(all) > 0 && strings.Contains(text, "|") && slices.ContainsFunc(rules, func(r fleet.Rule) bool { its, _ := r.ScopeText(); return its == scope }) {
		targets = append(targets, scope)
	}
	if len(targets) > 0 {
		why, meant = "", ""
	}
	return targets, why, meant
}

// Unknown says why no task has the target that a text stands for, as far as rules tell, and what was probably meant;
// empty if a task may have it. hashed: the values of keys are hashed.
func Unknown(rules []fleet.Rule, hashed bool, prefix, text string) (why, meant string) {
	_, why, meant = fitting(rules, hashed, prefix, text)
	return why, meant
}

// Target returns the target that an operator has typed for an order, as package lock takes it: the text itself or, where
// that has several readings, the whole key of the one that is meant. A target that no rule and no live lock has is an
// error, unless force is true, and so is one of which neither rules nor live locks tell which key it is.
func Target(ctx context.Context, locker *lock.Locker, rdb redis.UniversalClient, rules []fleet.Rule, hashed bool, prefix, text string, force bool) (string, error) {
	targets, why, meant := fitting(rules, hashed, prefix, text)
	if len(targets) == 1 || len(targets) > 1 && !strings.Contains(text, "|") {
		return only(prefix, text, targets[:1])
	}
	if why != "" {
		targets = readings(prefix, text)
	}
	live, err := inUse(ctx, locker, rdb, targets)
	switch {
	case err != nil:
		return "", err
	case len(live) > 0:
		targets = live
	case why != "" && !force:
		if why = strings.TrimSuffix(why, ".") + "; nor is there such a lock now; "; meant != "" {
			why += "did you mean " + meant + "? "
		}
		return "", errors.New(why + "--force does it all the same")
	}
	return only(prefix, text, targets)
}

// Ordered returns the target that an operator has typed to end an order, as package lock takes it: the one that has an
// order now, if there is one.
func Ordered(ctx context.Context, locker *lock.Locker, prefix, text string) (string, error) {
	list, err := locker.Controls().List(ctx)
	if err != nil {
		return "", err
	}
	stored, err := inner.Unreadable(ctx, locker.Controls())
	if err != nil {
		return "", err
	}
	for _, c := range list {
		stored[Stored(c.Target)] = ""
	}
	targets := readings(prefix, text)
	its := slices.Clone(targets)
	if strings.Contains(text, "|") {
		its = append(its, keys.Scope(text)) // it may have a |
	}
	its = slices.DeleteFunc(its, func(target string) bool { _, is := stored[target]; return !is })
	if _, is := stored[text]; is && len(its) == 0 {
		return text, nil // no lock can have it; whatever has put it there, it can be removed
	}
	if len(its) > 0 {
		targets = its
	}
	return only(prefix, text, targets)
}

// only returns the one target, as package lock takes it. Of several keys it does not guess one.
func only(prefix, text string, targets []string) (string, error) {
	switch {
	case len(targets) == 0 || len(targets) == 1 && targets[0] == text && !strings.Contains(text, "%"):
		return text, nil // package lock says what is wrong with it
	case len(targets) > 1 && strings.Contains(text, "|"):
		return "", fmt.Errorf("%s may be %s:{%s} or %s:{%s}: give one of these", printable.Short(text), prefix, targets[0], prefix, targets[1])
	}
	return prefix + ":{" + targets[0] + "}", nil
}

// inUse returns those targets that there is a lock for now. It walks all locks.
func inUse(ctx context.Context, locker *lock.Locker, rdb redis.UniversalClient, targets []string) (used []string, err error) {
	for some, err := range Walk(ctx, locker, rdb) {
		if err != nil {
			return nil, err
		}
		for _, target := range targets {
			if !slices.Contains(used, target) && slices.ContainsFunc(some, func(l Lock) bool { return InBraces(l.Key) == target || ScopeOf(l.Key) == target }) {
				used = append(used, target)
			}
		}
	}
	return used, nil
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
