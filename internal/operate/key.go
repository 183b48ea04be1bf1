package operate

import (
	"fmt"
	"strings"

	"github.com/automutex/automutex/internal/keys"
)

// ParseKey returns the text between the braces of key, or why key is no lock's under prefix.
func ParseKey(prefix, key string) (string, error) {
	refuse := func(reason string) (string, error) {
		const most = 300 // as long as a key can be, and more
		shown, end := key, ""
		if len(shown) > most {
			shown, end = shown[:most], "..."
		}
		return "", fmt.Errorf("lock: %q%s is no lock's key: %s; List tells the keys there are", shown, end, reason)
	}
	text, ours := strings.CutPrefix(key, prefix+":{")
	if !ours {
		return refuse(fmt.Sprintf("it does not begin with %q", prefix+":{"))
	}
	text, after, closed := strings.Cut(text, "}")
	switch {
	case !closed:
		return refuse("a brace is not closed")
	case after == ":pool":
		return refuse("it is a pool's")
	case after != "":
		return refuse(fmt.Sprintf("%q follows the brace", after))
	case text == "":
		return refuse("there is nothing between the braces")
	case text == keys.Controls:
		return refuse("it is that of the controls")
	}
	for i := 0; i < len(text); {
		size, plain := keys.NextChar(text, i)
		if !plain && !strings.ContainsRune("%|~", rune(text[i])) {
			return refuse("what is between the braces is not escaped")
		}
		i += size
	}
	return text, nil
}
