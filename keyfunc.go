package automutex

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/keys"
)

// KeyFunc returns the parts of a task's key: at least one, each valid UTF-8 and not empty, unescaped, in a fixed order
// and number, and always the same for the same task. Many goroutines call it at once. With [Config].Decode the task has
// the payload that Decode returned. Errors, also wrapped ones:
//
//   - A [*KeyError], such as &KeyError{Task: t.Type(), Field: "...", Err: err}: this task can never have a key, and
//     asynq archives it unrun. Unfit parts have the same effect.
//   - [NoLock]: this task takes no lock of this rule.
//   - asynq.SkipRetry archives the task, and asynq.RevokeTask drops it.
//   - A [RetryAfter] returns the task to asynq for that time, its attempt not spent.
//   - Any other one: the key cannot be made now. The task returns to asynq for 1 to 5 seconds, its attempt not spent.
//     On its last attempt it tries again in its worker, until a second before its deadline.
//
// A panic fails the attempt. Under [Allow] the task runs without the lock, whatever the error.
type KeyFunc func(ctx context.Context, t *asynq.Task) ([]string, error)

// NoLock is what a [KeyFunc] returns for a task that needs no lock of its rule. Package unique enqueues such a task
// each time.
var NoLock = errors.New("automutex: this task needs no lock") //nolint:errname,revive,staticcheck // an answer, as asynq.SkipRetry is

// isNoLock reports whether err is NoLock, maybe with text around it, but not beside another error, or in a KeyError: a
// task whose key cannot be made must not run unguarded.
func isNoLock(err error) bool {
	for ; err != nil; err = errors.Unwrap(err) {
		if err == NoLock { //nolint:errorlint // errors.Is would look into joined errors, too
			return true
		}
		if _, never := err.(*KeyError); never { //nolint:errorlint // as above
			return false
		}
	}
	return false
}

// isAbsent reports whether err says that a field or header is missing, null or empty.
func isAbsent(err error) bool {
	var never *KeyError
	return errors.As(err, &never) && never.absent
}

// Fields returns a KeyFunc that makes the key from fields of a JSON payload, as [Rule].On does. A malformed path, or
// none, is a [*KeyError] for every task.
//
// A path is dotted: "user.id", or "items.0.sku" for the first element of a list. In a name `\.` is a dot, and `\\` a
// backslash. Names are compared exactly. A path of another notation, such as "$.id", "items[0]", "items.*.id", "/id" or
// "a,b", is refused: in a name these characters need a backslash too.
//
// The path "." is the whole payload, with parts as those of objects and lists below. If it is not JSON, or not valid
// UTF-8, the part is 0x and its bytes in hexadecimal.
//
// A path may end in a ?, as "version?" (`\?` in a name): if it is missing, null or empty, its part is `""`,
// which no other value gives.
//
// The part of the key for a value:
//
//   - A string is taken as it is, or as a JSON string with its quotes if it begins with `{`, `[` or `"`.
//   - A number is written out in full: 1, 1.0, 1e0 and the string "1" are "1"; 1.50 is "1.5", and -0 is "0". More than
//     400 digits are an error, and so is more than 1 MiB for a list or object.
//   - true and false are those words, as for the strings.
//   - Objects and lists become compact JSON with members sorted by name and numbers as above; 1 and "1"
//     differ there.
//
// All other different values give different parts. The KeyFunc returns a [*KeyError]
//
//   - if a field is missing, null or an empty string, or the payload is empty, not JSON or not valid UTF-8;
//   - if a value has half a surrogate pair or more than 100 levels;
//   - if an object in the value, or on its path, has a name twice, or one on its path two names that differ in letter
//     case alone: the handler might get the other value.
func Fields(paths ...string) KeyFunc {
	fields, err := keys.Parse(paths)
	if err == nil && len(paths) == 0 {
		err = errors.New("no path; name the payload fields that the key is made from")
	}
	return func(_ context.Context, t *asynq.Task) ([]string, error) {
		if err != nil {
			return nil, &KeyError{Task: t.Type(), reason: "Fields was given", Err: err}
		}
		parts, failed := fields.Parts(t.Payload())
		if failed != nil {
			return nil, fieldError(t, failed, "the paths of its Fields")
		}
		return parts, nil
	}
}

func fieldError(t *asynq.Task, failed *keys.Error, setting string) *KeyError {
	e := &KeyError{Task: t.Type(), Field: failed.Path, reason: failed.Reason,
		advice: "enqueue the task with a value there, or change " + setting, absent: failed.Absent}
	if failed.NotRead {
		e.advice = adviceEncoding
	}
	return e
}

func headersParts(t *asynq.Task, parts, names []string) ([]string, error) {
	for _, name := range names {
		value, has := t.Headers()[name]
		if value != "" && utf8.ValidString(value) {
			parts = append(parts, keys.StringPart(value))
			continue
		}
		e := &KeyError{Task: t.Type(), Field: name, source: "header", reason: "is not valid UTF-8", advice: adviceHeader}
		if value == "" {
			e.reason, e.advice, e.absent = "is missing", adviceHeader+adviceOptional, true
			if has {
				e.reason = "is empty"
			}
		}
		return nil, e
	}
	return parts, nil
}

// KeyOf returns a KeyFunc that decodes the payload into a T with encoding/json; fn returns the parts of the key. Parts
// are taken as they are. A field that the payload does not have is the zero value in T, for which fn should return no
// parts, or an empty part: that is a [*KeyError]. So is a payload that cannot be decoded, is null, or is not valid
// UTF-8.
//
// Many goroutines call fn at once.
func KeyOf[T any](fn func(T) []string) KeyFunc {
	return func(_ context.Context, t *asynq.Task) ([]string, error) {
		payload := t.Payload()
		if reason := keys.CheckPayload(payload); reason != "" {
			return nil, noKey(t, reason, adviceKeyOf)
		}
		if string(bytes.TrimSpace(payload)) == "null" {
			return nil, noKey(t, "the payload is null", advicePayload)
		}
		var v T
		if err := json.Unmarshal(payload, &v); err != nil {
			e := noKey(t, "the payload does not fit the type that KeyOf decodes it into", advicePayload)
			e.Err, e.quiet = err, true // its text may quote a value, and its Field a key of a map
			return nil, e
		}
		parts := fn(v)
		for _, part := range parts {
			// else different values have one key
			if strings.ContainsRune(part, utf8.RuneError) && keys.HasLoneSurrogate(payload) {
				return nil, noKey(t, "the payload has half a surrogate pair where the key is made from it", advicePayload)
			}
		}
		return parts, nil
	}
}

// KeyWith is [KeyOf] for another encoding: decode reads the payload, and fn returns the parts of the key. Most
// encodings give the zero value for a missing field.
//
// Every error of decode is a [*KeyError], which does not show its text, since that may quote the payload; errors.Unwrap
// returns it. decode gets the bytes as they are, an empty payload included, and must not change or keep them. Many
// goroutines call decode and fn at once.
func KeyWith[T any](decode func(payload []byte) (T, error), fn func(T) []string) KeyFunc {
	return func(_ context.Context, t *asynq.Task) ([]string, error) {
		v, err := decode(t.Payload())
		if err != nil {
			e := noKey(t, fmt.Sprintf("the payload cannot be decoded (a %T)", err),
				"enqueue the task with a payload that the rule's KeyWith decodes, or change the rule")
			e.Err, e.quiet = err, true
			return nil, e
		}
		return fn(v), nil
	}
}

func callKey(ctx context.Context, fn KeyFunc, t *asynq.Task) ([]string, error) {
	parts, err := fn(ctx, t)
	if err != nil {
		return nil, err
	}
	if len(parts) == 0 {
		return nil, unfitBound(t, "Key", "no part")
	}
	for i, part := range parts {
		var wrong string
		switch {
		case part == "":
			wrong = "empty"
		case !utf8.ValidString(part):
			wrong = "not valid UTF-8"
		default:
			continue
		}
		return nil, noKey(t, fmt.Sprintf("part %d that the rule's Key gave is %s", i, wrong), "see the rule's Key")
	}
	return parts, nil
}

func noKey(t *asynq.Task, reason, advice string) *KeyError {
	return &KeyError{Task: t.Type(), reason: reason, advice: advice}
}

const (
	adviceHeader   = "enqueue the task with that header, or change the rule's OnHeaders"
	adviceOptional = ", or set its Optional"
	advicePayload  = "enqueue the task with a JSON payload, or change the rule"
	adviceEncoding = "set Rule.Key or Rule.OnHeaders for other encodings, or Config.Decode for JSON in an envelope"
	adviceKeyOf    = "KeyOf reads JSON: use KeyWith or Rule.OnHeaders for other encodings, or Config.Decode for JSON " +
		"in an envelope"
)

// KeyMaker makes the keys of tasks as a [Guard] with the same [Config] does, but without Redis. Safe for concurrent
// use.
type KeyMaker struct {
	described
	rules  *ruleSet
	prefix string
}

// NewKeyMaker reads Rules, Prefix, HashKeys, Decode and Logger of cfg. The error joins a [*FieldError] for each
// mistake.
func NewKeyMaker(cfg Config) (*KeyMaker, error) {
	rules, err := compile(cfg)
	if err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	rules.warn(cfg.Logger)
	return &KeyMaker{described: inside.Make(describe(rules)), rules: rules, prefix: cfg.Prefix}, nil
}

// Keys returns the Redis keys of the locks that a task needs; see [Guard.Keys].
func (k *KeyMaker) Keys(ctx context.Context, t *asynq.Task) ([]string, error) {
	if t == nil {
		return nil, errors.New("automutex: Keys: the task is nil")
	}
	targets, err := k.rules.targets(ctx, t, k.prefix)
	if err != nil || len(targets) == 0 {
		return nil, err
	}
	keys := make([]string, len(targets))
	for i, target := range targets {
		keys[i] = target.key
	}
	return keys, nil
}
