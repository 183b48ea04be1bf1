package config

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/unique"
)

// Export writes the rules of a Go program as a file that [Parse] reads: cfg as given to
// automutex.New, once as given to unique.New. Either may be the zero value. With that file the
// commands automutex check, key, doctor and web work for a program whose rules are in Go:
//
//	text, err := config.Export(cfg, unique.Config{})
//
// The file has every field that a file can have, [automutex.Config].HashKeys included: set it
// to "" if the file must not contain the secret. What belongs to the process (Owner,
// MaxWaiting, MinReplicas, WakeAtFront, Inspector, Logger, Observe) and Rule.Payload are left
// out, since no key depends on them.
//
// Export refuses what a file cannot have: Config.Decode, and in a rule Key, AfterFailure, and
// a LimitOf that [automutex.LimitField] did not make. It also refuses what New refuses. The
// error joins an [*automutex.FieldError] for each such field.
func Export(cfg automutex.Config, once unique.Config) ([]byte, error) {
	if err := errors.Join(refusedByNew(cfg), inUnique(refusedByUnique(once))); err != nil {
		return nil, err
	}
	if len(cfg.Rules)+len(once.Rules) == 0 {
		return nil, errors.New("config: there are no rules to export")
	}
	doc, err := shared(cfg, once)
	rules, unsayable := writeRules("rules", cfg.Rules, ruleKeys, notInRule, func(r *automutex.Rule) string { return cmp.Or(r.Name, r.Task) })
	uniqueRules, unsayableUnique := writeRules("unique", once.Rules, uniqueKeys, notInUnique, func(r *unique.Rule) string { return r.Task })
	if err := errors.Join(err, unsayable, inUnique(unsayableUnique)); err != nil {
		return nil, err
	}
	var b strings.Builder
	for _, k := range documentKeys(nil, nil, nil) {
		switch {
		case k.write != nil:
			text, err := k.write(doc)
			if err != nil {
				return nil, fmt.Errorf("config: %s: %w", k.name, err)
			}
			if text != "" {
				fmt.Fprintf(&b, "%s: %s\n", k.name, text)
			}
		case k.name == "rules":
			b.WriteString(rules)
		case k.name == "unique":
			b.WriteString(uniqueRules)
		}
	}
	// Nothing is handed out that does not read back.
	if _, _, err := Parse([]byte(b.String())); err != nil {
		return nil, fmt.Errorf("config: the rules cannot be written as a file: %w", err)
	}
	return []byte(b.String()), nil
}

// inUnique tells the errors about unique.Config from those about automutex.Config.
func inUnique(err error) error {
	if err == nil {
		return nil
	}
	all := leaves(err)
	for i, leaf := range all {
		all[i] = fmt.Errorf("unique: %w", leaf)
	}
	return errors.Join(all...)
}

// shared is what both halves of a file have in common.
func shared(cfg automutex.Config, once unique.Config) (*document, error) {
	refuse := func(field, text string) error {
		return &automutex.FieldError{Rule: -1, Field: field, Element: -1, Err: errors.New(text)}
	}
	var problems []error
	if cfg.Decode != nil || once.Decode != nil {
		problems = append(problems, refuse("Decode", "cannot be in a file: it "+notInFile["decode"]))
	}
	doc := &document{prefix: cfg.Prefix, secret: cfg.HashKeys}
	if len(cfg.Rules) == 0 && len(once.Rules) > 0 {
		doc.prefix, doc.secret = once.Prefix, once.HashKeys
	}
	if len(cfg.Rules) > 0 && len(once.Rules) > 0 {
		if cfg.Prefix != once.Prefix {
			problems = append(problems, refuse("Prefix", fmt.Sprintf("is %q here and %q in unique.Config, and a file has one: make them the same", cfg.Prefix, once.Prefix)))
		}
		if cfg.HashKeys != once.HashKeys {
			problems = append(problems, refuse("HashKeys", "differs from that of unique.Config, and a file has one: make them the same"))
		}
	}
	return doc, errors.Join(problems...)
}

// writeRules writes a list of rules. notIn has the fields that a file does not know.
func writeRules[T any](list string, all []T, keys []key[T], notIn map[string]string, name func(*T) string) (string, error) {
	if len(all) == 0 {
		return "", nil
	}
	var problems []error
	var b strings.Builder
	b.WriteString(list + ":\n")
	for i := range all {
		rule, begin := &all[i], "  - "
		refuse := func(field string, err error) {
			problems = append(problems, &automutex.FieldError{Rule: i, RuleName: name(rule), Field: field, Element: -1, Err: fmt.Errorf("cannot be in a file: %w", err)})
		}
		for _, k := range keys {
			text, err := k.write(rule)
			if err != nil {
				refuse(goName(rule, k.name), err)
			}
			if text != "" {
				b.WriteString(begin + k.name + ": " + text + "\n")
				begin = "    "
			}
		}
		for _, field := range reflect.VisibleFields(reflect.TypeFor[T]()) {
			why := notIn[snake(field.Name)]
			// Payload only checks On, and limit has written LimitOf.
			if why != "" && field.Name != "Payload" && field.Name != "LimitOf" && !reflect.ValueOf(rule).Elem().FieldByIndex(field.Index).IsZero() {
				refuse(field.Name, errors.New("it "+why))
			}
		}
	}
	return b.String(), errors.Join(problems...)
}

// goName is the Go field for a key of a file. limit stands for two of them.
func goName[T any](rule *T, key string) string {
	for _, field := range reflect.VisibleFields(reflect.TypeFor[T]()) {
		if snake(field.Name) == key {
			if of := reflect.ValueOf(rule).Elem().FieldByName(field.Name + "Of"); of.IsValid() && !of.IsZero() {
				return field.Name + "Of"
			}
			return field.Name
		}
	}
	return key
}
