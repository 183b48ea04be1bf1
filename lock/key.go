package lock

import (
	"errors"
	"fmt"
	"strings"
	"unicode"

	"github.com/automutex/automutex/internal/keytext"
)

// Key gives the Redis key of the lock that is named by a scope and any number
// of values:
//
//	<prefix>:{<scope>|<value>|<value>}
//
// Scope and parts may hold any bytes. Inside them `%`, `|`, `~`, `{`, `}`,
// spaces, control characters, invisible Unicode characters and bytes that are
// not valid UTF-8 are written as %XX, byte by byte; everything else, `:`
// included, stays readable. Different (scope, parts) never share a key: the
// number of parts counts, so no part and one empty part are different locks.
//
// Values that take more than 200 bytes together are replaced by `~` and the
// hexadecimal SHA-256 of the text they stand for (every escaped value with its
// `|` in front), and so is a scope of more than 200 bytes (the SHA-256 of the
// escaped scope). An empty scope is written as a bare `~`. No escaped text
// has a `~`, so none of these meets an ordinary key.
//
// What is between the braces is never empty, so that all keys of one lock,
// whatever follows the closing brace, are in one Redis Cluster slot. That holds
// for every prefix without braces; Key does not check the prefix.
func Key(prefix, scope string, parts ...string) string {
	return keytext.Make("", prefix, scope, parts)
}

// HashedKey is [Key] for those who want no values in Redis: whatever their
// length, the values are replaced by `~` and the hexadecimal HMAC-SHA256, under
// the secret, of the text that they and the scope stand for. So one value has
// another hash in each scope, and who does not know the secret cannot find a
// value by hashing guesses. The scope stays readable, and a key without values
// is as Key makes it. With an empty secret it is Key.
//
// No text that Key would write, whatever its values, is one of these, nor one
// made under another secret: SHA-256 answers for that.
func HashedKey(secret, prefix, scope string, parts ...string) string {
	return keytext.Make(secret, prefix, scope, parts)
}

// minSecret is the length of the shortest secret that is accepted, in bytes.
const minSecret = 16

// maxSecret is the length of the longest one: it is hashed for each key.
const maxSecret = 1024

// CheckSecret tells whether a secret can hash keys: an empty one means that
// there is none, any other is long enough that nobody guesses it, and has
// nothing in it that one process may have and the other not.
func CheckSecret(secret string) error {
	const like = "such as openssl rand -hex 32 gives"
	n := len(secret)
	switch {
	case n == 0:
		return nil
	case n < minSecret:
		return fmt.Errorf("lock: the secret for hashed keys has %d bytes: at least %d random ones, %s, "+
			"or what it hides can be guessed", n, minSecret, like)
	case n > maxSecret:
		return fmt.Errorf("lock: the secret for hashed keys has %d bytes: at most %d, %s", n, maxSecret, like)
	case strings.ContainsFunc(secret, unicode.IsControl), strings.TrimSpace(secret) != secret:
		return errors.New("lock: the secret for hashed keys has a control character, or space around it, such as the end of " +
			"the line in its file: trim it, or processes that have it and such that have not would make different keys")
	case strings.HasPrefix(secret, "${"):
		return errors.New("lock: the secret for hashed keys begins with ${, as a variable that nobody has expanded: " +
			"take it from the environment in the program")
	case strings.Count(secret, secret[:1]) == n:
		return errors.New("lock: the secret for hashed keys is one character again and again: take a random one, " + like)
	}
	return nil
}
