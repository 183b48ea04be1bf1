package demo

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

func TestReadEvents(t *testing.T) {
	input := "\xef\xbb\xbf" + strings.Join([]string{
		`{"type":"github:push","payload":{"n":1}}`, // 1
		`{"type":"github:push","payload":{"n":`,    // 2: cut off
		``,                                         // 3
		"{\"type\":\"github:issues\",\"payload\":{\"n\":12345678901234567890}}\r", // 4
		`{"payload":{}}`,                     // 5: no type
		`{"type":"  ","payload":{}}`,         // 6: blank type
		`[1,2]`,                              // 7: no object
		`{"type":7,"payload":{}}`,            // 8: type is a number
		`{"type":"a","payload":{}} trailing`, // 9
		`   `,                                // 10
		`{"type":"nopayload"}`,               // 11
		`{"type":"last","payload":null}`,     // 12, without a newline
	}, "\n")
	var bad []int
	events, err := readEvents(strings.NewReader(input), func(line int, problem error) {
		bad = append(bad, line)
		if strings.Contains(problem.Error(), "\n") {
			t.Errorf("line %d: the problem is not one line of text: %v", line, problem)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if want := []int{2, 5, 6, 7, 8, 9}; !slices.Equal(bad, want) {
		t.Errorf("bad lines are %v, want %v", bad, want)
	}
	var types []string
	for _, e := range events {
		types = append(types, e.Type)
	}
	if want := []string{"github:push", "github:issues", "nopayload", "last"}; !slices.Equal(types, want) {
		t.Fatalf("types are %q, want %q", types, want)
	}
	if got := string(events[1].Payload); got != `{"n":12345678901234567890}` {
		t.Errorf("the payload was changed to %s", got)
	}
}

func TestReadEvents_readerFails(t *testing.T) {
	broken := errors.New("the disk is gone")
	_, err := readEvents(io.MultiReader(strings.NewReader("{}\n"), iotest.ErrReader(broken)), func(int, error) {})
	if !errors.Is(err, broken) {
		t.Errorf("error is %v, want the reader's", err)
	}
	if _, err := readEvents(strings.NewReader(strings.Repeat("x", maxLine+1)), nil); !errors.Is(err, bufio.ErrTooLong) {
		t.Errorf("a line beyond 16 MiB: %v, want that it is too long", err)
	}
}

func TestLoadEvents_sources(t *testing.T) {
	line := `{"type":"a","payload":{}}` + "\noops\n"
	file := filepath.Join(t.TempDir(), "in.jsonl")
	if err := os.WriteFile(file, []byte(line), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, input := range []string{"-", file} {
		var stderr bytes.Buffer
		events, err := loadEvents(Flags{input: input}, strings.NewReader(line), &stderr)
		if err != nil || len(events) != 1 {
			t.Errorf("%s: %d events, %v", input, len(events), err)
		}
		if got := stderr.String(); !strings.Contains(got, "line 2: ") || strings.Count(got, "\n") != 1 {
			t.Errorf("%s: stderr is %q, want a line that names line 2", input, got)
		}
	}
	for _, input := range []string{file + "x", t.TempDir()} {
		if _, err := loadEvents(Flags{input: input}, nil, io.Discard); err == nil || !strings.Contains(err.Error(), input) {
			t.Errorf("%s: error is %v, want one that names it", input, err)
		}
	}
}

func TestGenerate(t *testing.T) {
	a, b, other := generate(300, 1), generate(300, 1), generate(300, 2)
	if fmt.Sprint(a) != fmt.Sprint(b) {
		t.Error("the same seed gave different events")
	}
	if fmt.Sprint(a) == fmt.Sprint(other) {
		t.Error("another seed gave the same events")
	}
	counts := make(map[string]int)
	for _, e := range a {
		var p struct {
			Repository struct {
				Name string `json:"full_name"`
			} `json:"repository"`
		}
		if err := json.Unmarshal(e.Payload, &p); err != nil {
			t.Fatal(err)
		}
		counts[p.Repository.Name]++
	}
	if len(counts) != len(repositories) || counts[repositories[0]] < 300/4 {
		t.Errorf("traffic is %v, want all repositories, the first with more than a quarter", counts)
	}
	if got := patterns(a); !slices.Equal(got, []string{"github:"}) {
		t.Errorf("patterns are %q, want github:", got)
	}
}

func TestPatterns(t *testing.T) {
	var events []event
	for _, kind := range []string{"mail:send", "git", "github:push", "github:issues", "gitlab:push", "a", "mail", ":odd", "x:y:z", "a"} {
		events = append(events, event{Type: kind})
	}
	// "git" covers "github:" and "gitlab:", "mail" covers "mail:".
	if got, want := patterns(events), []string{":", "a", "git", "mail", "x:"}; !slices.Equal(got, want) {
		t.Errorf("patterns are %q, want %q", got, want)
	}
	if got := patterns(nil); len(got) != 0 {
		t.Errorf("patterns of nothing are %q", got)
	}
}
