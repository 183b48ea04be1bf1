package keytext

import (
	"strings"
	"testing"
)

func TestEscape(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]string{
		"":                      "",
		"web-1:4242":            "web-1:4242",
		"a b|c":                 "a%20b%7Cc",
		"\xff{\u2028}~%":        "%FF%7B%E2%80%A8%7D%7E%25",
		"naïve\u200d\U000E0041": "naïve%E2%80%8D%F3%A0%81%81",
	} {
		if got := Escape(s); got != want {
			t.Errorf("Escape(%q) = %q, want %q", s, got, want)
		}
	}
}

// FuzzWriter: a key made of pieces is the key made of strings.
func FuzzWriter(f *testing.F) {
	f.Add("", "scope", "a", "b", 1, 1)
	f.Add("secret", "s c", "a|", strings.Repeat("猫 \xff\x80\x80\x80\x80\x80~", 300), 2, 7)
	f.Add("", "", strings.Repeat("\x80", 1500), strings.Repeat("x", 1023)+"é", 3, 500)
	f.Add("", strings.Repeat("s", 201), strings.Repeat("x", 100), strings.Repeat("y", 100), 2, 1)
	f.Add("", "many", "", "", 201, 1)
	f.Add("secret", "none", "", "", 0, 1)
	f.Fuzz(func(t *testing.T, secret, scope, a, b string, n, size int) {
		parts := []string{a, b}
		for len(parts) < n && len(parts) < 300 {
			parts = append(parts, a)
		}
		parts = parts[:min(uint(n), uint(len(parts)))]
		w := NewWriter(secret, "p", scope)
		for _, part := range parts {
			w.Part()
			for piece := []byte(part); len(piece) > 0; {
				n := wholeChars(piece, int(uint(size)%2000)+4)
				_, _ = w.Write(piece[:n]) // never an error
				piece = piece[n:]
			}
		}
		if got, want := w.Key(), HashedKey(secret, "p", scope, parts...); got != want {
			t.Errorf("%q, %q: in pieces %q, whole %q", scope, parts, got, want)
		}
		hashed := secret != "" || len(parts) > 200
		for size, rest := 0, parts; len(rest) > 0; rest = rest[1:] {
			if size += escapedLen(rest[0]); size > 200 {
				hashed = true
			}
		}
		if tilde := strings.Contains(HashedKey(secret, "p", "s", parts...), "|~"); tilde != (hashed && len(parts) > 0) {
			t.Errorf("%q: hashed: %v", parts, tilde)
		}
	})
}
