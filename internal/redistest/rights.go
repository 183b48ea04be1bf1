package redistest

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// DocumentedRights are what a page of the documentation gives to a user: the words that follow "ACL SETUSER <user> on
// >password" in it.
func DocumentedRights(t testing.TB, page, user string) []string {
	t.Helper()
	text, err := os.ReadFile(page)
	Must(t, err)
	m := regexp.MustCompile(`(?m)^    ACL SETUSER ` + regexp.QuoteMeta(user) + ` on >password (.*)$`).FindSubmatch(text)
	if m == nil {
		t.Fatalf("%s has no ACL SETUSER line for %s", page, user)
	}
	return strings.Fields(string(m[1]))
}

// AllRights are those for a user who is both asynq's and the guard's, under the prefixes that [Name] makes.
func AllRights(t testing.TB, page string) (rights []string) {
	t.Helper()
	for _, right := range DocumentedRights(t, page, "automutex") {
		if right[1:] == "automutex:*" { // a pattern of keys, or of channels
			right = right[:1] + "Test*:*"
		}
		rights = append(rights, right)
	}
	for _, right := range DocumentedRights(t, page, "asynq") {
		if right != "resetkeys" && right != "resetchannels" {
			rights = append(rights, right)
		}
	}
	return rights
}

// AsUser runs tests of this binary again, in a process whose clients are a user with these rights and no others, on a
// redis-server and, with [AllEnv], a Redis Cluster. The tests are named without Test, use [Each], and look at Redis
// with no more rights.
func AsUser(t *testing.T, rights, tests []string) {
	t.Helper()
	rdb := Real(t).Client(t)
	for _, name := range []string{"delex", "delifeq"} { // native releases
		if known, err := rdb.Do(t.Context(), "COMMAND", "INFO", name).Slice(); err == nil && len(known) == 1 &&
			known[0] != nil {
			rights = append(rights, "+"+name)
		}
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.v", "-test.timeout=10m",
		"-test.run", "^Test("+strings.Join(tests, "|")+")$/^(redis|cluster)$")
	cmd.Env = append(os.Environ(), RightsEnv+"="+strings.Join(rights, " "))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("with the documented rights: %v\n%s", err, out)
	}
	kinds := []string{KindReal}
	if All() {
		kinds = append(kinds, KindCluster)
	}
	for _, name := range tests {
		for _, kind := range kinds {
			if !strings.Contains(string(out), fmt.Sprintf("--- PASS: Test%s/%s ", name, kind)) {
				t.Errorf("Test%s/%s did not run", name, kind)
			}
		}
	}
}
