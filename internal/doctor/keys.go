package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/inspect"
	"github.com/automutex/automutex/internal/keys"
	"github.com/automutex/automutex/internal/nearest"
	"github.com/automutex/automutex/internal/printable"
)

// keyTrials makes the keys of the tasks that there are, as the workers would.
type keyTrials struct {
	cfg    automutex.Config
	makers []*automutex.KeyMaker // one for each rule
	tried  map[trialOf]int
	failed map[failedTrial]*failures
}

// trialOf is one rule, and the tasks of one type.
type trialOf struct {
	rule     int
	taskType string
}

// failedTrial is one way in which no key can be made.
type failedTrial struct {
	trialOf
	reason string
}

// failures are the tasks with one failedTrial.
type failures struct {
	tasks    int
	runnable int    // of those: neither archived nor completed
	hint     string // of the first task that has one
}

func newKeyTrials(cfg automutex.Config) (*keyTrials, error) {
	trials := &keyTrials{cfg: cfg, tried: map[trialOf]int{}, failed: map[failedTrial]*failures{}}
	for i := range cfg.Rules {
		one := cfg
		one.Rules = cfg.Rules[i : i+1]
		one.Logger = slog.New(slog.DiscardHandler)
		maker, err := automutex.NewKeyMaker(one)
		if err != nil {
			return nil, err
		}
		trials.makers = append(trials.makers, maker)
	}
	return trials, nil
}

// try makes the keys of one task.
func (k *keyTrials) try(ctx context.Context, t *asynq.TaskInfo) {
	task := asynq.NewTaskWithHeaders(t.Type, t.Payload, t.Headers)
	for _, i := range inspect.RulesFor(k.cfg.Rules, t.Type) {
		of := trialOf{i, t.Type}
		k.tried[of]++
		_, err := k.makers[i].Keys(ctx, task)
		if err == nil {
			continue
		}
		f := failedTrial{of, keyProblem(err, t.Type)}
		if k.failed[f] == nil {
			k.failed[f] = &failures{}
		}
		k.failed[f].tasks++
		if t.State != asynq.TaskStateArchived && t.State != asynq.TaskStateCompleted {
			k.failed[f].runnable++
		}
		var wrong *automutex.KeyError
		if k.failed[f].hint == "" && errors.As(err, &wrong) {
			k.failed[f].hint = k.hint(i, wrong.Field, t)
		}
	}
}

// keyProblem is the text of an error without the task's type and the advice, which the
// finding gives in its own words.
func keyProblem(err error, taskType string) string {
	text := strings.TrimPrefix(err.Error(), fmt.Sprintf("automutex: no key for task %q: ", taskType))
	text, _, _ = strings.Cut(text, "; enqueue the task")
	return printable.OneLine(text)
}

// hint is what the field may be called instead; "" when nothing looks like it.
func (k *keyTrials) hint(rule int, field string, t *asynq.TaskInfo) string {
	if slices.Contains(k.cfg.Rules[rule].OnHeaders, field) {
		names := make([]string, 0, len(t.Headers))
		for name := range t.Headers {
			names = append(names, name)
		}
		return similar(field, names)
	}
	return fieldHint(t.Payload, field)
}

// fieldHint looks for what a path that a payload does not have may be called instead.
func fieldHint(payload []byte, path string) string {
	var at any
	segments, err := keys.ParsePath(path)
	if err != nil || json.Unmarshal(payload, &at) != nil {
		return "" // the finding says that the payload is not JSON
	}
	for i, segment := range segments {
		object, ok := at.(map[string]any)
		if !ok {
			list, ok := at.([]any)
			if n, err := strconv.Atoi(segment); ok && err == nil && n >= 0 && n < len(list) {
				at = list[n]
				continue
			}
			return ""
		}
		if at, ok = object[segment]; ok {
			continue
		}
		names := make([]string, 0, len(object))
		for name := range object {
			names = append(names, joinPath(append(slices.Clone(segments[:i]), name)))
		}
		return similar(joinPath(segments[:i+1]), names)
	}
	return ""
}

// similar says which of the names may be meant.
func similar(wanted string, names []string) string {
	slices.Sort(names) // of equally similar ones always the same
	for _, name := range names {
		if strings.EqualFold(name, wanted) {
			return fmt.Sprintf("there is a %q: letter case counts", name)
		}
	}
	if name, ok := nearest.Name(wanted, names); ok {
		return fmt.Sprintf("did you mean %q?", name)
	}
	return ""
}

// joinPath writes a path of a rule's On.
func joinPath(segments []string) string {
	escaped := make([]string, len(segments))
	for i, segment := range segments {
		escaped[i] = strings.NewReplacer(`\`, `\\`, `.`, `\.`).Replace(segment)
	}
	return strings.Join(escaped, ".")
}

// keys reports the tasks that no key can be made from.
func (d *doctor) keys(trials *keyTrials) {
	const most = 3 // reasons told for each rule and type
	byTrial := map[trialOf][]string{}
	for f := range trials.failed {
		byTrial[f.trialOf] = append(byTrial[f.trialOf], f.reason)
	}
	all := 0
	for i := range trials.cfg.Rules {
		var types []string
		for of, tasks := range trials.tried {
			if of.rule == i {
				types, all = append(types, of.taskType), all+tasks
			}
		}
		slices.Sort(types)
		for _, taskType := range types {
			of := trialOf{i, taskType}
			reasons := byTrial[of]
			slices.SortFunc(reasons, func(a, b string) int {
				if n := trials.failed[failedTrial{of, b}].tasks - trials.failed[failedTrial{of, a}].tasks; n != 0 {
					return n
				}
				return strings.Compare(a, b)
			})
			for _, why := range reasons[:min(most, len(reasons))] {
				d.keyless(inspect.RuleName(trials.cfg.Rules, i), of, trials.tried[of], why, trials.failed[failedTrial{of, why}])
			}
			if more := len(reasons) - most; more > 0 {
				d.foundf(Note, "keys", "rule %q: and %s why tasks of type %q have no key", inspect.RuleName(trials.cfg.Rules, i), printable.Count(more, "more reason"), taskType)
			}
		}
	}
	if all > 0 && len(trials.failed) == 0 {
		d.foundf(Fine, "keys", "every rule makes a key for each task seen")
	}
}

// keyless is the finding about tasks that one rule makes no key for.
func (d *doctor) keyless(rule string, of trialOf, tried int, why string, f *failures) {
	level, then := Bad, "a worker archives such a task unrun"
	if f.runnable == 0 {
		level, then = Note, "all of these have ended already"
	}
	if f.runnable > 0 && strings.Contains(why, "Config.Decode") {
		then += ", unless its program sets one of these" // a file cannot
	}
	hint := ""
	if f.hint != "" && !strings.Contains(why, "letter case counts") { // the KeyError may say so itself
		hint = " (" + f.hint + ")"
	}
	d.foundf(level, "keys", "rule %q: no key for %d of %s seen of type %q: %s%s; %s",
		rule, f.tasks, printable.Count(tried, "task"), of.taskType, why, hint, then)
}
