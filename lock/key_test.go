package lock_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/automutex/automutex/internal/engine"
	"github.com/automutex/automutex/internal/keys"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

func TestKey(t *testing.T) {
	t.Parallel()
	sum := func(text string) string {
		h := sha256.Sum256([]byte(text))
		return hex.EncodeToString(h[:])
	}
	long := strings.Repeat("x", 200)
	many := make([]string, 201)
	tests := []struct {
		name  string
		scope string
		parts []string
		want  string
	}{
		{"no part", "cache:warm", nil, "p:{cache:warm}"},
		{"one part", "account", []string{"17"}, "p:{account|17}"},
		{"two parts", "account", []string{"17", "EUR"}, "p:{account|17|EUR}"},
		{"colons stay", "a:b", []string{"c:d", ":"}, "p:{a:b|c:d|:}"},
		{"an empty part counts", "account", []string{""}, "p:{account|}"},
		{"two empty parts", "account", []string{"", ""}, "p:{account||}"},
		{"empty scope", "", nil, "p:{~}"},
		{"empty scope and part", "", []string{"~"}, "p:{~|%7E}"},
		{"reserved", "%|~", []string{"{}", " "}, "p:{%25%7C%7E|%7B%7D|%20}"},
		{"what looks escaped", "%7C", []string{"%25"}, "p:{%257C|%2525}"},
		{"controls", "\x00\n", []string{"\x1f\x7f"}, "p:{%00%0A|%1F%7F}"},
		{"readable Unicode", "Überweisung", []string{"東京", "🦊", "\uFFFD"}, "p:{Überweisung|東京|🦊|\uFFFD}"},
		{"invisible Unicode", "a\u00a0b", []string{"\u200b", "\u202e", "\u2028", "\u0085"},
			"p:{a%C2%A0b|%E2%80%8B|%E2%80%AE|%E2%80%A8|%C2%85}"},
		{"invalid UTF-8", "a\xffb", []string{"\xc3", "\xed\xa0\x80"}, "p:{a%FFb|%C3|%ED%A0%80}"},
		{"200 bytes", "s", []string{long[:100], long[:100]}, "p:{s|" + long[:100] + "|" + long[:100] + "}"},
		{"201 bytes", "s", []string{long, "y"}, "p:{s|~" + sum("|"+long+"|y") + "}"},
		{"201 bytes escaped", "s", []string{long[:198], " "}, "p:{s|~" + sum("|"+long[:198]+"|%20") + "}"},
		{"too many parts", "s", many, "p:{s|~" + sum(strings.Repeat("|", 201)) + "}"},
		{"200 bytes of scope", long, nil, "p:{" + long + "}"},
		{"201 bytes of scope", long + "|", []string{"1"}, "p:{~" + sum(long+"%7C") + "|1}"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if got := keys.Key("p", test.scope, test.parts...); got != test.want {
				t.Errorf("Key(%q, %q)\n got %s\nwant %s", test.scope, test.parts, got, test.want)
			}
		})
	}
}

// A secret hides the values and nothing else.
func TestHashedKey(t *testing.T) {
	t.Parallel()
	const secret = "sixteen bytes or more"
	hidden := func(text string) string {
		mac := hmac.New(sha256.New, []byte(secret))
		mac.Write([]byte(text))
		return hex.EncodeToString(mac.Sum(nil))
	}
	long := strings.Repeat("x", 201)
	for _, test := range []struct {
		scope string
		parts []string
		want  string
	}{
		{"cache:warm", nil, "p:{cache:warm}"}, // no values, nothing to hide
		{"account", []string{"17"}, "p:{account|~" + hidden("account|17") + "}"},
		{"mail", []string{"17"}, "p:{mail|~" + hidden("mail|17") + "}"}, // not to be told to be the same
		{"account", []string{"17", "E|R"}, "p:{account|~" + hidden("account|17|E%7CR") + "}"},
		{"account", []string{""}, "p:{account|~" + hidden("account|") + "}"},
		{"account", []string{long}, "p:{account|~" + hidden("account|"+long) + "}"},
		{long, []string{"17"}, "p:{~" + hashText(long) + "|~" + hidden("~"+hashText(long)+"|17") + "}"},
	} {
		if got := keys.HashedKey(secret, "p", test.scope, test.parts...); got != test.want {
			t.Errorf("HashedKey(%.20q, %.20q)\n got %s\nwant %s", test.scope, test.parts, got, test.want)
		}
		if got, want := keys.HashedKey("", "p", test.scope, test.parts...),
			keys.Key("p", test.scope, test.parts...); got != want {
			t.Errorf("without a secret %.40q has the key %s, not %s", test.scope, got, want)
		}
	}
	if a, b := keys.HashedKey(secret, "p", "s", "17"), keys.HashedKey(secret+"!", "p", "s", "17"); a == b {
		t.Error("the secret has no effect")
	}
}

// Lockers with one secret share their locks; those with another one, or none, do not.
func TestHashedKeys_ofALocker(t *testing.T) {
	t.Parallel()
	const secret, value = "sixteen bytes or more", "mona@example.com"
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		rdb, name := s.Client(t), redistest.Name(t)
		locker := func(secret string) *lock.Locker {
			return newLocker(t, rdb, func(o *lock.Options) { o.HashKeys = secret })
		}
		with := func(secret string) *lock.Lock { return locker(secret).Mutex(name, lock.Parts(value)) }
		first, second := with(secret), with(secret)
		le := mustTry(t, first)
		busy := mustBeBusy(t, second)
		if strings.Contains(busy.Error()+first.Key()+dump(first), value) || !strings.Contains(first.Key(), name) {
			t.Errorf("the value is told, or the scope is not: %v, %s", busy, dump(first))
		}
		if seen, err := insider.ByKey(locker(secret), first.Key()).Holders(t.Context()); err != nil || len(seen) != 1 {
			t.Errorf("by its key the lock has the holders %v, %v", seen, err)
		}
		for _, other := range []string{"", "another sixteen bytes"} {
			takesAndUnlocks(t, with(other))
		}
		mustUnlock(t, le)
	})
	for _, secret := range []string{
		"true", strings.Repeat("a", 64), strings.Repeat("猫", 64)[:15], "sixteen bytes or more\n", " sixteen bytes or more",
		"sixteen\x00bytes or more",
		"${AUTOMUTEX_HASH_KEYS}", strings.Repeat("ab", 1024),
	} {
		if err := insider.LockErr(lock.New(redistest.Mini(t).Client(t),
			lock.Options{HashKeys: secret}).Mutex("any")); err == nil || strings.Contains(err.Error(), "sixteen") {
			t.Errorf("the secret %q: %v", secret, err)
		}
	}
	for _, secret := range []string{"", "sixteen bytes or more", strings.Repeat("ab", 1024/2), strings.Repeat("猫é", 8)} {
		if err := engine.CheckSecret(secret); err != nil {
			t.Errorf("CheckSecret(%q): %v", secret, err)
		}
	}
}

// FuzzKey holds two names against each other: their keys are equal only if they are, and each key is one Cluster slot
// and harmless text. The same with values hidden by a secret, and between the two.
func FuzzKey(f *testing.F) {
	long := strings.Repeat("x", 200)
	f.Add("s", "a", "b:c", "", 1, "a:b", "c", "", 1)
	f.Add("", "a", "", "", 0, "a", "", "", 1)
	f.Add("\x00", "a|b", "", "", 0, "a", "b", "", 1)
	f.Add("s", "", "~", "", 1, "~", "", "", 0)
	f.Add("s", "a", "%7C", "|", 2, "a", "|", "%7C", 2)
	f.Add("s", "s", long+"|", "", 1, "s", long, "", 2)
	f.Add("s", "s", "~"+hashText("|"+long+"y"), "", 1, "s", long+"y", "", 1)
	f.Add("s", long+"y", "", "", 0, "~"+hashText(long+"y"), "", "", 0)
	f.Add("\xff", "\xff", "\xc3\x28", "{}", 2, "\uFFFD", "\u2028", "}", 2)
	f.Fuzz(func(t *testing.T, secret, scope1, a1, b1 string, n1 int, scope2, a2, b2 string, n2 int) {
		parts1, parts2 := fuzzParts(a1, b1, n1), fuzzParts(a2, b2, n2)
		key1, key2 := keys.Key("p", scope1, parts1...), keys.Key("p", scope2, parts2...)
		hidden1, hidden2 := keys.HashedKey(secret, "p", scope1, parts1...), keys.HashedKey(secret, "p", scope2, parts2...)

		same := scope1 == scope2 && slices.Equal(parts1, parts2)
		if same != (key1 == key2) || same != (hidden1 == hidden2) {
			t.Errorf("%q and %q: keys %q and %q, hidden %q and %q",
				append([]string{scope1}, parts1...), append([]string{scope2}, parts2...), key1, key2, hidden1, hidden2)
		}
		hides := secret != "" && len(parts1) > 0
		if (hidden1 == key1) == hides || hides && hidden1 == key2 {
			t.Errorf("with the secret %q the key of %q is %q, without %q; that of %q is %q", secret, parts1, hidden1, key1,
				parts2, key2)
		}
		if hides {
			if other := keys.HashedKey(secret, "p", scope1, append(parts1, "x")...); len(other) != len(hidden1) {
				t.Errorf("the length of %q tells something", hidden1)
			}
		}
		for _, key := range []string{key1, key2, hidden1, hidden2} {
			if err := checkKey(key); err != nil {
				t.Errorf("%q: %v", key, err)
			}
		}
		if got, ok := readKey(t, key1); ok && !slices.Equal(got, append([]string{scope1}, parts1...)) {
			t.Errorf("%q reads as %q, was made from %q and %q", key1, got, scope1, parts1)
		}
	})
}

func hashText(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

func fuzzParts(a, b string, n int) []string {
	return []string{a, b}[:uint(n)%3]
}

func checkKey(key string) error {
	body, ok := strings.CutPrefix(key, "p:{")
	if !ok || strings.IndexByte(body, '}') != len(body)-1 || strings.ContainsRune(body, '{') {
		return fmt.Errorf("the braces are not one pair around all but the prefix")
	}
	if body == "}" {
		return fmt.Errorf("an empty hash tag")
	}
	if len(key) > len("p:{|}")+2*200+1 {
		return fmt.Errorf("%d bytes long", len(key))
	}
	if !utf8.ValidString(key) {
		return fmt.Errorf("not valid UTF-8")
	}
	for i, r := range key {
		if _, plain := keys.NextChar(key, i); !plain && !strings.ContainsRune("{|}%~", r) {
			return fmt.Errorf("the character %q at %d is not escaped", r, i)
		}
	}
	return nil
}

// readKey takes a key without hashes apart again.
func readKey(t *testing.T, key string) (scopeAndParts []string, ok bool) {
	body := key[len("p:{") : len(key)-1]
	if body == "~" || strings.HasPrefix(body, "~|") {
		body = body[1:]
	}
	if strings.Contains(body, "~") {
		return nil, false
	}
	for _, text := range strings.Split(body, "|") {
		part, err := url.PathUnescape(text)
		if err != nil {
			t.Fatalf("%q is not escaped rightly: %v", text, err)
		}
		scopeAndParts = append(scopeAndParts, part)
	}
	return scopeAndParts, true
}
