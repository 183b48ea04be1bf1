// Package stamp is the header that automutex.Client gives to tasks: how often the caller lets a task be retried, and
// the place of an ordered task. It reads the header, and enqueues tasks with it.
package stamp

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"

	"github.com/hibiken/asynq"
)

// Header is the name of the header.
const Header = "automutex"

// version is the first field of the header's text. A text of a later version is no stamp here.
const version = "1"

// Stamp is what the header says.
type Stamp struct {
	// Most is how often the caller lets the task be retried. asynq is told one more: the reserved attempt.
	Most int
	// Nonce, Ticket and Key are those of an ordered task, else zero. Key is the lock's Redis key.
	Nonce  string
	Ticket int64
	Key    string
	// Parked is the Redis key of the lock for which the task was parked when it was enqueued; empty: it was not.
	Parked string

	of string // names the task, so that a copy of the header in another task is no stamp
}

// New makes the stamp of the task with that note.
func New(note string, most int) Stamp { return Stamp{Most: most, of: short(note)} }

// Text is the header's text in that task.
func (s Stamp) Text(t *asynq.Task) string {
	text := version + " " + s.of + " " + content(t) + " " + strconv.Itoa(s.Most)
	if s.Nonce != "" {
		text = fmt.Sprintf("%s %s %d %s", text, s.Nonce, s.Ticket, s.Key)
	} else if s.Parked != "" {
		text += parked + s.Parked
	}
	return text
}

// Of reads the stamp of the task with these headers and that note. ok is false if there is none, or if it is that of
// another task, whose headers were copied. It allocates nothing without one.
func Of(headers map[string]string, note string) (s Stamp, ok bool) {
	text, found := headers[Header]
	if !found {
		return Stamp{}, false
	}
	f := split(text)
	if f == nil || f[1] != short(note) {
		return Stamp{}, false
	}
	s.of = f[1]
	var err error
	if s.Most, err = strconv.Atoi(f[3]); err != nil || s.Most < 0 {
		return Stamp{}, false
	}
	switch {
	case isParked(f):
		s.Parked = f[6]
	case len(f) == 7:
		s.Nonce, s.Key = f[4], f[6]
		if s.Ticket, err = strconv.ParseInt(f[5], 10, 64); err != nil || s.Ticket <= 0 || !isNonce(s.Nonce) {
			return Stamp{}, false
		}
	}
	return s, true
}

// parked stands where an ordered task's nonce and ticket do.
const parked = " - 0 "

func isParked(f []string) bool { return len(f) == 7 && f[4] == "-" && f[5] == "0" }

// split returns the four or seven fields of a header's text, or nil.
func split(text string) []string {
	f := strings.SplitN(text, " ", 7)
	if len(f) != 4 && len(f) != 7 || f[0] != version {
		return nil
	}
	return f
}

// in is split of the task's header. asynq's RetryDelayFunc does not say of which task t is; a header that was passed on
// to a task of another type or payload is none here.
func in(t *asynq.Task) []string {
	if t == nil || t.Headers()[Header] == "" {
		return nil
	}
	f := split(t.Headers()[Header])
	if f == nil || f[2] != content(t) {
		return nil
	}
	return f
}

// Ordered reports whether the task has the stamp of an ordered task.
func Ordered(t *asynq.Task) bool {
	f := in(t)
	return len(f) == 7 && !isParked(f)
}

// IsLast reports whether the task has a stamp, and its caller allows no attempt more after that with retried attempts
// spent before it.
func IsLast(t *asynq.Task, retried int) bool {
	f := in(t)
	if f == nil {
		return false
	}
	most, err := strconv.Atoi(f[3])
	return err == nil && retried >= most
}

// nonceBytes make a nonce of 12 characters.
const nonceBytes = 9

// NewNonce makes the nonce of a stamp.
func NewNonce() string {
	random := make([]byte, nonceBytes)
	_, _ = rand.Read(random) // crypto/rand.Read never fails since Go 1.24
	return base64.RawURLEncoding.EncodeToString(random)
}

// Unstamped is the nonce of a task without a stamp. It is no stamp's.
func Unstamped(note string) string { return "~" + short(note) }

// isNonce keeps a forged header from being anything but a name in Redis.
func isNonce(text string) bool {
	random, err := base64.RawURLEncoding.DecodeString(text)
	return err == nil && len(random) == nonceBytes
}

// content names what is in a task.
func content(t *asynq.Task) string { return short(t.Type() + "\x00" + string(t.Payload())) }

func short(note string) string {
	sum := sha256.Sum256([]byte(note))
	return base64.RawURLEncoding.EncodeToString(sum[:nonceBytes])
}
