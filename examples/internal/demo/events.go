package demo

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
)

// maxLine bounds one input line, and so the memory that one bad line can cost.
const maxLine = 16 << 20

// event is one webhook delivery: the type becomes the asynq task's type, the
// payload is handed on as it came.
type event struct {
	Type    string          `json:"type"`
	Payload json.RawMessage `json:"payload"`
}

// repositories are the entities of the generated traffic, busiest first.
var repositories = []string{
	"octo/hello", "octo/website", "gopher/burrow", "gopher/docs",
	"acme/anvil", "acme/rocket-skates", "solo/dotfiles", "solo/notes",
}

// generate makes n events, the same ones for the same seed. Traffic is skewed
// as it is in life (Zipf: the second repository gets half of what the first
// gets, the third a third, ...), so that the first one is always contended.
func generate(n int, seed uint64) []event {
	rng := rand.New(rand.NewPCG(seed, 0))
	events := make([]event, n)
	for i := range events {
		repo := zipf(rng, len(repositories))
		payload := map[string]any{
			"repository": map[string]any{"id": 1000 + repo, "full_name": repositories[repo]},
			"sender":     map[string]any{"login": "octocat"},
		}
		switch d := rng.IntN(10); {
		case d < 5:
			events[i].Type = "github:push"
			payload["ref"] = "refs/heads/main"
			payload["after"] = fmt.Sprintf("%040x", rng.Uint64())
		case d < 8:
			events[i].Type = "github:pull_request"
			payload["action"] = pick(rng, "opened", "synchronize", "closed")
			payload["number"] = 1 + rng.IntN(500)
		default:
			events[i].Type = "github:issues"
			payload["action"] = pick(rng, "opened", "labeled", "closed")
			payload["issue"] = map[string]any{"number": 1 + rng.IntN(500)}
		}
		raw, err := json.Marshal(payload)
		if err != nil {
			panic(err) // maps of strings and numbers always marshal
		}
		events[i].Payload = raw
	}
	return events
}

// zipf draws 0..n-1, where i is 1/(i+1) times as likely as 0.
func zipf(rng *rand.Rand, n int) int {
	var total float64
	for i := range n {
		total += 1 / float64(i+1)
	}
	at := rng.Float64() * total
	for i := range n {
		if at -= 1 / float64(i+1); at < 0 {
			return i
		}
	}
	return n - 1
}

func pick(rng *rand.Rand, choices ...string) string {
	return choices[rng.IntN(len(choices))]
}

// patterns gives the task patterns that cover every event: the part of each
// type up to its first colon ("github:"), or the whole type where it has none.
// What a shorter pattern covers needs no longer one.
func patterns(events []event) []string {
	all := make([]string, 0, len(events))
	for _, e := range events {
		pattern := e.Type
		if i := strings.IndexByte(pattern, ':'); i >= 0 {
			pattern = pattern[:i+1]
		}
		all = append(all, pattern)
	}
	slices.Sort(all) // a pattern now stands before all that it covers
	var kept []string
	for _, pattern := range all {
		if n := len(kept); n == 0 || !strings.HasPrefix(pattern, kept[n-1]) {
			kept = append(kept, pattern)
		}
	}
	return kept
}

// loadEvents gives the events to enqueue: generated ones, or those of -input.
func loadEvents(opts Flags, stdin io.Reader, stderr io.Writer) ([]event, error) {
	if opts.input == "" {
		return generate(opts.tasks, opts.seed), nil
	}
	name, src := "stdin", stdin
	if opts.input != "-" {
		f, err := os.Open(opts.input)
		if err != nil {
			return nil, fmt.Errorf("-input: %w", err)
		}
		defer f.Close()
		name, src = opts.input, f
	}
	events, err := readEvents(src, func(line int, problem error) {
		fmt.Fprintf(stderr, "worker: %s: line %d: %v; line ignored\n", name, line, problem)
	})
	if err != nil {
		return nil, fmt.Errorf("-input: reading %s: %w", name, err)
	}
	return events, nil
}

// readEvents reads JSON lines {"type": "...", "payload": {...}}. A line that can't be used is
// handed to bad, with its number, and left out. Blank lines are passed over.
func readEvents(r io.Reader, bad func(line int, problem error)) (events []event, err error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxLine)
	for n := 1; lines.Scan(); n++ {
		line := lines.Bytes()
		if n == 1 {
			line = bytes.TrimPrefix(line, []byte("\xef\xbb\xbf")) // a byte order mark
		}
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		var e event
		if err := json.Unmarshal(line, &e); err != nil {
			bad(n, fmt.Errorf("not a JSON object of the form {\"type\": \"...\", \"payload\": {...}}: %w", err))
		} else if strings.TrimSpace(e.Type) == "" {
			bad(n, errors.New(`has no "type"`))
		} else {
			events = append(events, e)
		}
	}
	return events, lines.Err()
}
