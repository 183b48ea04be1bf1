package automutex

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/keys"
)

// KeyFunc returns the parts of a task's key, unescaped, in a fixed order and
// number. It must return the same parts for the same task, so it should use nothing
// but the task. Many goroutines call it at once. With [Config].Decode the task has
// the payload that Decode returned.
//
// Parts must be valid UTF-8 and not empty, and there must be at least one. Errors:
//
//   - A [*KeyError] means that this task can never have a key. asynq archives the task, and
//     its handler does not run. Unfit parts (none, an empty one, invalid UTF-8) have the same
//     effect. Return &KeyError{Task: t.Type(), Field: "...", Err: err}.
//   - [NoLock] means that this task needs no lock of this rule, and takes none.
//   - asynq.SkipRetry archives the task, as it does when a handler returns it.
//   - asynq.RevokeTask drops the task.
//   - A [RetryAfter] returns the task to asynq for that time, its attempt not spent.
//   - Any other error ("db: connection reset") means that the key cannot be made now. The task
//     returns to asynq and runs again after 1 to 30 seconds, its attempt not spent. On its
//     last attempt the task tries again in its worker, until a second before its deadline.
//
// A wrapped error has the same effect.
//
// A panic fails the attempt, as a panic of the handler does. Under [Allow] the task
// runs without the lock, whatever the error.
type KeyFunc func(ctx context.Context, t *asynq.Task) ([]string, error)

// NoLock is what a [KeyFunc] returns for a task that needs no lock of its rule: the task runs
// as if the rule did not exist. A rule of package unique enqueues such a task each time.
var NoLock = errors.New("automutex: this task needs no lock") //nolint:errname,revive,staticcheck // an answer, as asynq.SkipRetry is

// absentIn returns the error that says that a field or header is missing, null or empty; nil if err is another one.
func absentIn(err error) *KeyError {
	if err == nil { // never is allocated for an error only
		return nil
	}
	var never *KeyError
	if errors.As(err, &never) && never.absent {
		return never
	}
	return nil
}

// isNoLock reports whether err is NoLock, maybe with text around it. NoLock beside another error, or in a
// KeyError, does not count: a task whose key cannot be made must not run unguarded.
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

// Fields returns a KeyFunc that makes the key from fields of a JSON payload, as [Rule].On
// does. If a path is malformed, or there is none, the KeyFunc returns a [*KeyError] for every
// task; with On, [New] reports a malformed path.
//
// A path is dotted: "user.id" is the member id of the member user, and "items.0.sku" goes
// through the first element of a list. `\.` stands for a dot in a name and `\\` for a
// backslash. Names are compared exactly, letter case included; lists are not searched. A path
// of another notation, such as "$.id", "items[0]", "items.*.id", "/id" or "a,b", is refused.
// In a name these characters need a backslash too: `\$`, `\[`, `\*`, `\/`, `\,`.
//
// The path "." is the whole payload. Equal JSON gives equal parts, in the form of objects and lists
// below. The part of a payload that is not JSON, or not valid UTF-8, is 0x and its bytes in hexadecimal.
//
// The part of the key for a value:
//
//   - A string is taken as it is. If it begins with `{`, `[` or `"` it is written as a
//     JSON string, quotes included, to tell it from objects and lists.
//   - A number is written out in full, exactly: 1, 1.0 and 1e0 are "1", the same part as for
//     the string "1"; 1.50 is "1.5", and -0 is "0". More than 400 digits are an error. It is
//     also an error if the numbers of a list or object take more than 1 MiB when written out.
//   - true and false are those words, the same as for the strings "true" and "false".
//   - Objects and lists become compact JSON with members sorted by name (in
//     byte order) and numbers as above. Inside them 1 and "1" differ.
//
// All other different values give different parts. The KeyFunc returns a [*KeyError]
//
//   - if a field is missing, null or an empty string, or the payload is empty;
//   - if the payload is not JSON or not valid UTF-8;
//   - if a value has half a surrogate pair, which Go would silently replace;
//   - if a value is nested more than 100 levels deep;
//   - if an object in the value, or on its path, has a name twice: readers of such JSON
//     disagree on which one counts;
//   - if an object on the path has two names that differ in letter case alone:
//     encoding/json would give the handler the value of either.
func Fields(paths ...string) KeyFunc {
	fields, err := keys.Parse(paths)
	if err == nil && len(paths) == 0 {
		err = errors.New("no path; name the payload fields that the key is made from")
	}
	if err != nil {
		return mistaken("Fields", err)
	}
	return func(_ context.Context, t *asynq.Task) ([]string, error) {
		parts, failed := fields.Parts(t.Payload())
		if failed != nil {
			return nil, fieldError(t, failed, "the paths of its Fields", false)
		}
		return parts, nil
	}
}

// fieldError is the KeyError for a field that setting names. decoded: the payload is what
// Config.Decode returned.
func fieldError(t *asynq.Task, failed *keys.Error, setting string, decoded bool) error {
	e := &KeyError{Task: t.Type(), Field: failed.Path, reason: failed.Reason, advice: "enqueue the task with a value there, or change " + setting, absent: failed.Absent}
	text, whole := strings.CutPrefix(failed.Reason, "the payload")
	if whole && decoded {
		e.reason = "the payload that Config.Decode returned" + text
	}
	switch {
	case (failed.NotRead || whole) && decoded:
		e.advice = adviceDecoded
	case failed.NotRead:
		e.advice = adviceEncoding
	}
	return e
}

// Headers returns a KeyFunc that makes the key from headers of the task, as [Rule].OnHeaders
// does. Names are compared exactly. A value gives the same part as a payload string under
// [Fields]. A header that is missing, empty or not valid UTF-8 is a [*KeyError]. If there is
// no name, or an empty one, every task gets a KeyError; with OnHeaders, [New] reports an empty
// name.
func Headers(names ...string) KeyFunc {
	if len(names) == 0 {
		return mistaken("Headers", errors.New("no name; name the headers that the key is made from"))
	}
	for _, name := range names {
		if name == "" {
			return mistaken("Headers", errors.New("an empty name; name a header, or leave it out"))
		}
	}
	names = append([]string(nil), names...)
	return func(_ context.Context, t *asynq.Task) ([]string, error) {
		return headersParts(t, nil, names)
	}
}

// headersParts adds the parts of the named headers.
func headersParts(t *asynq.Task, parts, names []string) ([]string, error) {
	for _, name := range names {
		part, err := headerPart(t, name)
		if err != nil {
			return nil, err
		}
		parts = append(parts, part)
	}
	return parts, nil
}

func headerPart(t *asynq.Task, name string) (string, error) {
	value, ok := t.Headers()[name]
	reason := ""
	switch {
	case !ok:
		reason = "is missing"
	case value == "":
		reason = "is empty"
	case !utf8.ValidString(value):
		reason = "is not valid UTF-8"
	}
	if reason != "" {
		return "", &KeyError{
			Task: t.Type(), Field: name, source: "header", reason: reason,
			advice: "enqueue the task with that header, or change the rule's OnHeaders", absent: value == "",
		}
	}
	return keys.StringPart(value), nil
}

// KeyOf returns a KeyFunc that decodes the payload into a T with encoding/json; fn returns the
// parts of the key. Parts are taken as they are: 1 and "1" are the same part. A field that the
// payload does not have is the zero value in T. For a missing field fn should return no parts,
// or an empty part, which is a [*KeyError]. A payload that cannot be decoded, is null, or is
// not valid UTF-8 is a KeyError too. So is a part in which half a surrogate pair was replaced.
//
// Many goroutines call fn at once. With a nil fn every task gets a KeyError. For encodings
// other than JSON, see [KeyWith].
func KeyOf[T any](fn func(T) []string) KeyFunc {
	if fn == nil {
		return mistaken("KeyOf", errors.New("no function; give one that makes the parts of the key"))
	}
	return func(_ context.Context, t *asynq.Task) ([]string, error) {
		fail := func(reason string, cause error) ([]string, error) {
			return nil, &KeyError{Task: t.Type(), reason: reason, Err: cause, advice: advicePayload}
		}
		payload := t.Payload()
		if reason := keys.CheckPayload(payload); reason != "" {
			return nil, &KeyError{Task: t.Type(), reason: reason, advice: adviceKeyOf}
		}
		if string(bytes.TrimSpace(payload)) == "null" {
			return fail("the payload is null", nil)
		}
		var v T
		if err := json.Unmarshal(payload, &v); err != nil {
			return nil, &KeyError{
				Task: t.Type(), reason: "the payload does not fit the type that KeyOf decodes it into" + misfit(err),
				Err: err, quiet: true, advice: advicePayload,
			}
		}
		parts := fn(v)
		for _, part := range parts {
			if strings.ContainsRune(part, utf8.RuneError) && keys.HasLoneSurrogate(payload) {
				return fail("the payload has half a surrogate pair where the key is made from it", nil)
			}
		}
		return parts, nil
	}
}

// misfit returns what encoding/json says is wrong, without the value that it quotes, since
// the text is logged.
func misfit(err error) string {
	var wrong *json.UnmarshalTypeError
	if !errors.As(err, &wrong) {
		return fmt.Sprintf(" (a %T)", err) // of a type that decodes itself
	}
	where := "it"
	if wrong.Field != "" {
		where = strconv.Quote(wrong.Field)
	}
	kind, _, _ := strings.Cut(wrong.Value, " ")
	return fmt.Sprintf(": %s is a %s, not a %s", where, kind, wrong.Type)
}

// KeyWith returns a KeyFunc for a payload in an encoding other than JSON, such as protobuf or
// msgpack: decode reads the payload, and fn returns the parts of the key. Parts are taken as
// they are: 1 and "1" are the same part. Most encodings give the zero value for a missing
// field. For a zero value fn should return no parts, or an empty part, which is a [*KeyError].
//
// Every error of decode is a [*KeyError] too, because the same bytes fail again on a
// retry. The KeyError does not show the text of decode's error, which may quote the
// payload; errors.Unwrap returns it. decode gets the bytes as they are, an
// empty payload included, and must not change or keep them.
//
// Many goroutines call decode and fn at once. If one of them is nil, every task gets a
// KeyError. For JSON, see [KeyOf].
func KeyWith[T any](decode func(payload []byte) (T, error), fn func(T) []string) KeyFunc {
	if decode == nil || fn == nil {
		return mistaken("KeyWith", errors.New("a nil function; give one that decodes the payload, and one that makes the parts of the key"))
	}
	return func(_ context.Context, t *asynq.Task) ([]string, error) {
		v, err := decode(t.Payload())
		if err != nil {
			return nil, &KeyError{
				Task: t.Type(), reason: fmt.Sprintf("the payload cannot be decoded (a %T)", err),
				Err: err, quiet: true, advice: "enqueue the task with a payload that the rule's KeyWith decodes, or change the rule",
			}
		}
		return fn(v), nil
	}
}

// mistaken returns the KeyFunc for wrong arguments of the function where: every task is a
// KeyError, so that none runs without its lock.
func mistaken(where string, err error) KeyFunc {
	return func(_ context.Context, t *asynq.Task) ([]string, error) {
		return nil, &KeyError{Task: t.Type(), reason: where + " was given", Err: err}
	}
}

// callKey calls the Key of a rule and checks the parts. Its error is that of the Key, or a
// *KeyError.
func callKey(ctx context.Context, fn KeyFunc, t *asynq.Task) ([]string, error) {
	fail := func(reason string, cause error) ([]string, error) {
		return nil, &KeyError{Task: t.Type(), reason: reason, Err: cause, advice: "see the rule's Key"}
	}
	parts, err := fn(ctx, t)
	if err != nil {
		return nil, err
	}
	if len(parts) == 0 {
		return fail("the rule's Key gave no part", nil)
	}
	for i, part := range parts {
		if part == "" {
			return fail(fmt.Sprintf("part %d that the rule's Key gave is empty", i), nil)
		}
		if !utf8.ValidString(part) {
			return fail(fmt.Sprintf("part %d that the rule's Key gave is not valid UTF-8", i), nil)
		}
	}
	return parts, nil
}

const (
	advicePayload = "enqueue the task with a JSON payload, or change the rule"

	adviceEncoding = "set Rule.Key or Rule.OnHeaders for other encodings, or Config.Decode for JSON in an envelope"
	adviceDecoded  = "have Config.Decode return JSON, or set Rule.Key or Rule.OnHeaders for other encodings"
	adviceKeyOf    = "KeyOf reads JSON: use KeyWith or Rule.OnHeaders for other encodings, or Config.Decode for JSON in an envelope"
)

// KeyMaker makes the keys of tasks as a [Guard] with the same [Config] does, but without
// Redis. It is for programs that enqueue or inspect tasks, and to check a Config. Safe
// for concurrent use. There is nothing to close.
type KeyMaker struct {
	described
	rules  *ruleSet
	prefix string
}

// NewKeyMaker makes a KeyMaker from the fields Rules, Prefix, HashKeys and Decode of cfg.
// cfg.Logger gets the same warnings about rules as with [New]. The error joins a
// [*FieldError] for each mistake in cfg.
func NewKeyMaker(cfg Config) (*KeyMaker, error) {
	rules, notices, err := compile(cfg)
	if err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	for _, notice := range notices {
		cfg.Logger.Warn(notice)
	}
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

// joinFieldErrors joins all into one error; nil if there are none.
func joinFieldErrors(all []*FieldError) error {
	problems := make([]error, len(all))
	for i, e := range all {
		problems[i] = fmt.Errorf("automutex: %w", e)
	}
	return errors.Join(problems...)
}

// configError is the error of one mistake in a field of Config.
func configError(field, format string, args ...any) error {
	var mistakes fieldErrors
	mistakes.addf(field, format, args...)
	return joinFieldErrors(mistakes.all)
}
