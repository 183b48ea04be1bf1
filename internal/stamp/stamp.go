// Package stamp is the header that automutex.Client gives to tasks: how often the caller lets a task be retried, and
// the place of an ordered task. It reads the header, and enqueues tasks with it.
package stamp

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/hibiken/asynq"
)

// Header is the name of the header.
const Header = "automutex"

// version is the first field of the header's text. A text of a later version is no stamp here.
const version = "1"

// Stamp is what the header says.
type Stamp struct {
	Most int // how often the caller lets the task be retried
	// Key is the Redis key of the lock that the task has a place for: Nonce and Ticket; zero: it was parked, in no order.
	Nonce  string
	Ticket int64
	Key    string
	// Due is when the task was due, and By by when it is to start, by the producer's clock (ms); 0: the task has no such
	// time.
	Due, By int64

	of string // names the task, so that a copy of the header in another task is no stamp
}

// New makes the stamp of the task with that note.
func New(note string, most int) Stamp { return Stamp{Most: most, of: short(note)} }

// Told is what asynq is told instead of Most: one more, which is reserved.
func (s Stamp) Told() int { return min(s.Most, math.MaxInt32-1) + 1 }

// Text is the header's text in that task.
func (s Stamp) Text(t *asynq.Task) string {
	text := version + " " + s.of + " " + content(t) + " " + strconv.Itoa(s.Most)
	if s.Due != 0 || s.By != 0 {
		text = fmt.Sprintf("%s,%d,%d", text, s.Due, s.By)
	}
	if s.Key != "" {
		text += " " + s.Nonce + " " + strconv.FormatInt(s.Ticket, 10) + " " + s.Key
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
	if s.Most, s.Due, s.By, err = parseNumbers(f[3]); err != nil {
		return Stamp{}, false
	}
	if len(f) == 7 {
		s.Nonce, s.Key = f[4], f[6]
		s.Ticket, err = strconv.ParseInt(f[5], 10, 64)
		if err != nil || s.Ticket < 0 || s.Ticket > 0 != isNonce(s.Nonce) || s.Ticket == 0 && s.Nonce != "" {
			return Stamp{}, false
		}
	}
	return s, true
}

// split returns four or seven fields, or nil.
func split(text string) []string {
	f := strings.SplitN(text, " ", 7)
	if len(f) != 4 && len(f) != 7 || f[0] != version {
		return nil
	}
	return f
}

// StartBy returns the earlier one of By and, if within is not 0, of Due and that much; the zero time without them.
func (s Stamp) StartBy(within time.Duration) (by time.Time) {
	if s.By > 0 {
		by = time.UnixMilli(s.By)
	}
	if at := time.UnixMilli(s.Due).Add(within); s.Due > 0 && within > 0 && (by.IsZero() || at.Before(by)) {
		by = at
	}
	return by
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

// IsLast reports whether the task has a stamp, and its caller allows no attempt more after that with retried attempts
// spent before it.
func IsLast(t *asynq.Task, retried int) bool {
	f := in(t)
	if f == nil {
		return false
	}
	most, _, _, err := parseNumbers(f[3])
	return err == nil && retried >= most
}

// parseNumbers reads Most, and after commas Due and By.
func parseNumbers(text string) (most int, due, by int64, err error) {
	first, times, timed := strings.Cut(text, ",")
	most, err = strconv.Atoi(first)
	if timed {
		second, third, _ := strings.Cut(times, ",")
		var wrong [2]error
		due, wrong[0] = strconv.ParseInt(second, 10, 64)
		by, wrong[1] = strconv.ParseInt(third, 10, 64)
		err = errors.Join(err, wrong[0], wrong[1])
	}
	if err == nil && (most < 0 || due < 0 || by < 0) {
		err = strconv.ErrRange
	}
	return most, due, by, err
}

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

func content(t *asynq.Task) string { return short(t.Type() + "\x00" + string(t.Payload())) }

func short(note string) string {
	sum := sha256.Sum256([]byte(note))
	return base64.RawURLEncoding.EncodeToString(sum[:nonceBytes])
}
