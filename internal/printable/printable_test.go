package printable

import (
	"strings"
	"testing"
	"time"
)

func TestText(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"":                      "",
		"default/4f":            "default/4f",
		"größe 猫":               "größe 猫",
		"a\x1b[31m\nb":          `a\u001b[31m\u000ab`,
		"\x00\u202e":            `\u0000\u202e`,
		"half \xff of \xe7\x8c": `half \xff of \xe7\x8c`,
		"\uFFFD":                `\ufffd`,
	} {
		if got := Text(in); got != want {
			t.Errorf("Text(%q) is %q, want %q", in, got, want)
		}
	}
}

func TestShort(t *testing.T) {
	t.Parallel()
	if s := strings.Repeat("a", longest); Short(s) != s || Short("b\n") != `b\u000a` {
		t.Error("a short text is cut")
	}
	// Not within a character.
	for pad := range 4 {
		s := strings.Repeat("x", pad) + strings.Repeat("猫", 1<<20)
		got := Short(s)
		shown, size, ok := strings.Cut(got, "... (")
		if !ok || !strings.HasPrefix(s, shown) || len(shown) > longest || len(shown) < longest-3 ||
			!strings.HasSuffix(size, " bytes)") {
			t.Errorf("Short of %d bytes is %q", len(s), got)
		}
	}
}

func TestCount(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]string{0: "0 queues", 1: "1 queue", 2: "2 queues"} {
		if got := Count(n, "queue"); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestDuration(t *testing.T) {
	for want, d := range map[string]time.Duration{
		"0s": -time.Second, "15ms": 15 * time.Millisecond, "1.5s": 1500 * time.Millisecond, "5m": 5 * time.Minute,
		"10m":   10 * time.Minute,
		"1m10s": 70 * time.Second, "1h": time.Hour, "1h1m": time.Hour + 40*time.Second, "2d": 48 * time.Hour,
		"3d4h": 76 * time.Hour,
		"1s":   999600 * time.Microsecond, "1m": 59990 * time.Millisecond, "47h": 47*time.Hour + 20*time.Second,
	} {
		if got := Duration(d); got != want {
			t.Errorf("Duration(%v) is %q, want %q", d, got, want)
		}
	}
}

// A duration is written without the units that are zero at its end, reads back as it was, and
// is found at the end of a text.
func TestExact(t *testing.T) {
	t.Parallel()
	for want, d := range map[string]time.Duration{
		"0s": 0, "30s": 30 * time.Second, "5m": 5 * time.Minute, "1m30s": 90 * time.Second, "1h": time.Hour,
		"10h":    10 * time.Hour,
		"1h0m5s": time.Hour + 5*time.Second, "1h10m": 70 * time.Minute, "1.5s": 1500 * time.Millisecond,
		"100ms": 100 * time.Millisecond, "-1h": -time.Hour,
	} {
		got := Exact(d)
		if back, err := time.ParseDuration(got); got != want || err != nil || back != d {
			t.Errorf("Exact(%v) is %q, want %q; it reads as %v, %v", d, got, want, back, err)
		}
		if got := Timed("retry in " + d.String()); got != "retry in "+want {
			t.Errorf("Timed of %v is %q", d, got)
		}
	}
	for _, text := range []string{"", "park", "after failure", "100 per 1m0s, burst 10"} {
		if got := Timed(text); got != text {
			t.Errorf("Timed(%q) is %q", text, got)
		}
	}
}
