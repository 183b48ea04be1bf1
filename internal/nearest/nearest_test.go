package nearest

import (
	"slices"
	"strings"
	"testing"
)

func TestName(t *testing.T) {
	t.Parallel()
	keys := []string{"name", "task", "on", "on_headers", "scope", "limit", "ttl", "wait", "max_hold", "cooldown", "busy"}
	for wanted, want := range map[string]string{
		"limt": "limit", "Limit": "limit", "taks": "task", "onHeaders": "on_headers", "maxhold": "max_hold",
		"cool-down": "cooldown", "tll": "ttl", "bussy": "busy", "scop": "scope",
		"x": "", "retries": "", "": "", strings.Repeat("limit", 1000): "",
	} {
		name, ok := Name(wanted, keys)
		if !ok {
			name = ""
		}
		if name != want {
			t.Errorf("%.20q: got %q, want %q", wanted, name, want)
		}
	}
	if name, ok := Name("limit", nil); ok {
		t.Errorf("found %q among none", name)
	}
}

func TestNames(t *testing.T) {
	t.Parallel()
	got := Names("itme", []string{"title", "item", "time", "zebra"})
	if want := []string{"item", "time", "title", "zebra"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestIsMeant(t *testing.T) {
	t.Parallel()
	for pair, want := range map[[2]string]bool{
		{"cron:nigtly", "cron:nightly"}: true, {"Cron:Nightly", "cron:nightly"}: true, {"cron_nightly", "cron-nightly"}: true,
		{"rprt", "report"}: true,
		{"pya", "pay"}:     true, {"crn:", "cron:nightly"}: true, {"emial.", "email:a:b"}: true,
		{"email:wlcome:", "email:welcome:b"}: true,
		{"a", "b"}:                           false, {"mial:", "bill:us"}: false, {"eu", "us"}: false,
		{"cron:nightly", "cron:nightly"}: false,
		{"cron:", "mail:x"}:              false, {"report:x", "report:yearly"}: false,
		{"cron:daily", "cron:nightly"}: false, {"", "a"}: false, {"a", ""}: false,
		{strings.Repeat("x", 300), strings.Repeat("x", 299)}: false,
	} {
		if got := IsMeant(pair[0], pair[1]); got != want {
			t.Errorf("a rule for %.40q, a task of type %.40q: %t", pair[0], pair[1], got)
		}
	}
}
