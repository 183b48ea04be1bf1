package lock

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
)

// minSecret is the length of the shortest secret that is accepted, in bytes.
const minSecret = 16

// maxSecret is the length of the longest one: it is hashed for each key.
const maxSecret = 1024

// checkSecret returns why a secret cannot hash keys, or nil. An empty secret means that keys
// are not hashed. Any other must be too long to guess, and must not contain what differs
// between processes by accident, such as a line end.
func checkSecret(secret string) error {
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
