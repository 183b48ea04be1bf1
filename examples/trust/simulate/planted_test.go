package simulate

import (
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var plantedFlag = flag.Bool("planted", false, "build the library with each planted defect, and find it")

// planted is a defect that the library once had. It is put back by changing text, and
// the simulation has to find it.
type planted struct {
	name  string
	about string
	run   []string // the test that finds it, and its flags
	finds string   // the kind of the violation
	edits []edit
}

// edit is a place, which is there exactly once, and what stands there with the defect.
type edit struct{ file, before, after string }

// readPlanted reads a file of testdata/planted:
//
//	about: what is wrong
//	run: ^TestFaults$/^renewals$ -one-in 1
//	finds: overlap
//	-- file lock/reply.go --
//	-- before --
//	...
//	-- after --
//	...
//	-- end --
//
// with as many of the middle part as there are places.
func readPlanted(t *testing.T, file string) *planted {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	p := &planted{name: strings.TrimSuffix(filepath.Base(file), ".txt")}
	head, rest, _ := strings.Cut(string(b), "-- file ")
	for line := range strings.Lines(head) {
		field, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		switch field {
		case "about":
			p.about = value
		case "run":
			p.run = strings.Fields(value)
		case "finds":
			p.finds = value
		default:
			t.Fatalf("%s: %q is no field: about, run or finds", file, field)
		}
	}
	for _, part := range strings.Split(rest, "-- file ") {
		name, text, ok := strings.Cut(part, " --\n-- before --\n")
		before, after, ok2 := strings.Cut(text, "\n-- after --\n")
		if !ok || !ok2 {
			t.Fatalf("%s: a part is not: -- file NAME --, -- before --, -- after --", file)
		}
		p.edits = append(p.edits, edit{name, before, strings.TrimSuffix(after, "\n-- end --\n")})
	}
	if p.about == "" || len(p.run) == 0 || p.finds == "" {
		t.Fatalf("%s: about, run or finds is missing", file)
	}
	return p
}

// overlay writes the changed files to dir, and gives the file for go's -overlay.
func (p *planted) overlay(t *testing.T, dir string) string {
	t.Helper()
	changed := map[string]string{} // by the place of the source
	for _, e := range p.edits {
		source, err := filepath.Abs(filepath.Join("..", "..", "..", filepath.FromSlash(e.file)))
		if err != nil {
			t.Fatal(err)
		}
		text, seen := changed[source]
		if !seen {
			src, err := os.ReadFile(source)
			if err != nil {
				t.Fatal(err)
			}
			text = string(src)
		}
		if n := strings.Count(text, e.before); n != 1 {
			t.Fatalf("%s cannot be planted: the text is %d times in %s, not once; the code has changed: name the place where it is decided now:\n%s",
				p.name, n, e.file, e.before)
		}
		changed[source] = strings.Replace(text, e.before, e.after, 1)
	}
	replace := map[string]string{}
	for source, text := range changed {
		edited := filepath.Join(dir, strings.Repeat("x", len(replace)+1)+filepath.Base(source))
		if err := os.WriteFile(edited, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		replace[source] = edited
	}
	b, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// found picks out of a test's output how a violation of the kind was found.
func (p *planted) found(output string) string {
	kind := regexp.MustCompile(`(?m)^.*\b` + regexp.QuoteMeta(p.finds) + `: .*$`)
	return strings.TrimSpace(kind.FindString(output))
}

// Each defect that was mended is found when it is put back. Without -planted it is only
// checked that each can be.
func TestPlanted(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(filepath.Join("testdata", "planted", "*.txt"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no planted defects: %v", err)
	}
	for _, file := range files {
		p := readPlanted(t, file)
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			overlay := p.overlay(t, dir)
			if !*plantedFlag {
				return
			}
			goTool, err := exec.LookPath("go")
			if err != nil {
				t.Skipf("the library cannot be built with a defect: %v", err)
			}
			binary := filepath.Join(dir, "simulate.test")
			if out, err := exec.CommandContext(t.Context(), goTool, "test", "-c", "-overlay", overlay, "-o", binary, ".").CombinedOutput(); err != nil {
				t.Fatalf("building with the defect: %v\n%s", err, out)
			}
			args := append([]string{"-test.timeout", "5m", "-test.run"}, p.run...)
			cmd := exec.CommandContext(t.Context(), binary, args...)
			cmd.Env = append(os.Environ(), "TMPDIR="+dir)
			out, err := cmd.CombinedOutput()
			line := p.found(string(out))
			if err == nil || line == "" {
				t.Fatalf("the simulation does not find it: %s (%v)\n%s", p.about, err, out)
			}
			t.Logf("| %s | %s | %s |", p.about, strings.Join(p.run, " "), line)
		})
	}
}
