package automutex

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// What a user builds into a program has nothing in it that only tests need, neither
// directly nor through another package.
func TestImports_shippedPackagesNeedNothingOfTests(t *testing.T) {
	t.Parallel()
	unwanted := []string{"testing", "github.com/alicebob/miniredis/v2", "go.uber.org/goleak"}
	out, err := exec.Command("go", "list", "-deps", "-f", "{{.ImportPath}}", ".", "./lock", "./unique", "./config").CombinedOutput()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, out)
	}
	packages := strings.Fields(string(out))
	if !slices.Contains(packages, "github.com/automutex/automutex/lock") {
		t.Fatalf("package lock is not in the list:\n%s", out)
	}
	for _, p := range packages {
		if slices.Contains(unwanted, p) {
			t.Errorf("a shipped package imports %s, or one that it imports does", p)
		}
	}
}
