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

	of string // names the task, so that a copy of the header in another task is no stamp
}

// New makes the stamp of the task with that note.
func New(note string, most int) Stamp { return Stamp{Most: most, of: short(note)} }

// String is the header's text.
func (s Stamp) String() string {
	text := version + " " + s.of + " " + strconv.Itoa(s.Most)
	if s.Nonce != "" {
		text = fmt.Sprintf("%s %s %d %s", text, s.Nonce, s.Ticket, s.Key)
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
	f := strings.SplitN(text, " ", 6)
	if len(f) != 3 && len(f) != 6 || f[0] != version || f[1] != short(note) {
		return Stamp{}, false
	}
	s.of = f[1]
	var err error
	if s.Most, err = strconv.Atoi(f[2]); err != nil || s.Most < 0 {
		return Stamp{}, false
	}
	if len(f) == 6 {
		s.Nonce, s.Key = f[3], f[5]
		if s.Ticket, err = strconv.ParseInt(f[4], 10, 64); err != nil || s.Ticket <= 0 || !isNonce(s.Nonce) {
			return Stamp{}, false
		}
	}
	return s, true
}

// Ordered reports whether the headers hold the stamp of an ordered task, of whatever task.
func Ordered(headers map[string]string) bool {
	return strings.Count(headers[Header], " ") == 5
}

// IsLast reports whether the headers hold a stamp, of whatever task, and whether its caller allows no attempt more
// after that with retried attempts spent before it.
func IsLast(headers map[string]string, retried int) bool {
	f := strings.SplitN(headers[Header], " ", 4)
	if len(f) < 3 || f[0] != version {
		return false
	}
	most, err := strconv.Atoi(f[2])
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

func short(note string) string {
	sum := sha256.Sum256([]byte(note))
	return base64.RawURLEncoding.EncodeToString(sum[:nonceBytes])
}
