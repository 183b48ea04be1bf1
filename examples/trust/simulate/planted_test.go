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

	"github.com/automutex/automutex/internal/redistest"
)

var plantedFlag = flag.Bool("planted", false, "build the library with each planted defect, and find it")

// planted is a defect that the library once had, in a file of testdata/planted. It is put back by changing text, and the simulation
// has to find it:
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
// with as many of the last part as there are places, each of which is there exactly once. What is found is the kind of a violation.
type planted struct {
	name, about, finds string
	run                []string   // the test that finds it, and its flags
	edits              [][]string // file, before and after
}

func readPlanted(t *testing.T, file string) *planted {
	t.Helper()
	b, err := os.ReadFile(file)
	redistest.Must(t, err)
	p := &planted{name: strings.TrimSuffix(filepath.Base(file), ".txt")}
	head := regexp.MustCompile(`^about: (.+)\nrun: (.+)\nfinds: (.+)\n-- file `).FindStringSubmatch(string(b))
	edits := regexp.MustCompile(`(?s)-- file (\S+) --\n-- before --\n(.*?)\n-- after --\n(.*?)\n-- end --\n`).FindAllStringSubmatch(string(b), -1)
	if head == nil || len(edits) != strings.Count(string(b), "-- file ") {
		t.Fatalf("%s is not: about, run and finds, and parts with -- file NAME --, -- before --, -- after -- and -- end --", file)
	}
	p.about, p.run, p.finds = head[1], strings.Fields(head[2]), head[3]
	for _, e := range edits {
		p.edits = append(p.edits, e[1:])
	}
	return p
}

// overlay writes the changed files to dir, and gives the file for go's -overlay.
func (p *planted) overlay(t *testing.T, dir string) string {
	t.Helper()
	changed := map[string]string{} // by the place of the source
	for _, e := range p.edits {
		file, before, after := e[0], e[1], e[2]
		source, err := filepath.Abs(filepath.Join("..", "..", "..", filepath.FromSlash(file)))
		redistest.Must(t, err)
		text, seen := changed[source]
		if !seen {
			src, err := os.ReadFile(source)
			redistest.Must(t, err)
			text = string(src)
		}
		if n := strings.Count(text, before); n != 1 {
			t.Fatalf("%s cannot be planted: the text is %d times in %s, not once; the code has changed: name the place where it is decided now:\n%s",
				p.name, n, file, before)
		}
		changed[source] = strings.Replace(text, before, after, 1)
	}
	replace := map[string]string{}
	for source, text := range changed {
		edited := filepath.Join(dir, strings.Repeat("x", len(replace)+1)+filepath.Base(source))
		redistest.Must(t, os.WriteFile(edited, []byte(text), 0o600))
		replace[source] = edited
	}
	b, err := json.Marshal(map[string]any{"Replace": replace})
	redistest.Must(t, err)
	file := filepath.Join(dir, "overlay.json")
	redistest.Must(t, os.WriteFile(file, b, 0o600))
	return file
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
			line := strings.TrimSpace(regexp.MustCompile(`(?m)^.*\b` + regexp.QuoteMeta(p.finds) + `: .*$`).FindString(string(out)))
			if err == nil || line == "" {
				t.Fatalf("the simulation does not find it: %s (%v)\n%s", p.about, err, out)
			}
			t.Logf("| %s | %s | %s |", p.about, strings.Join(p.run, " "), line)
		})
	}
}
