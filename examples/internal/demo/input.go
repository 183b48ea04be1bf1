package demo

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// maxLine bounds one input line, and so the memory that one bad line can cost.
const maxLine = 16 << 20

// errTooLong is readLine's answer to a line beyond its limit; the rest of that
// line has been read and dropped.
var errTooLong = errors.New("line too long")

// loadEvents gives the events to enqueue: generated ones, or those of -input.
// Reading ends early, with what there is so far dropped, when ctx does.
func loadEvents(ctx context.Context, opts Flags, stdin io.Reader, stderr io.Writer) ([]event, error) {
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

	type answer struct {
		events []event
		err    error
	}
	// A read from a terminal or pipe can't be interrupted, so it gets its own
	// goroutine, which ends at the end of the input, or with the program. The
	// channel's buffer lets it end when nobody listens any more.
	ch := make(chan answer, 1)
	go func() {
		events, err := readEvents(src, func(line int, problem string) {
			fmt.Fprintf(stderr, "worker: %s: line %d: %s; line ignored\n", name, line, problem)
		})
		ch <- answer{events, err}
	}()
	select {
	case <-ctx.Done():
		return nil, nil
	case a := <-ch:
		if a.err != nil {
			return nil, fmt.Errorf("-input: reading %s: %w", name, a.err)
		}
		return a.events, nil
	}
}

// readEvents reads JSON lines {"type": "...", "payload": {...}}. A line that
// can't be used is handed to bad, with its number, and left out. Blank lines
// are passed over. The error is that of the reader.
func readEvents(r io.Reader, bad func(line int, problem string)) ([]event, error) {
	var events []event
	br := bufio.NewReaderSize(r, 64<<10)
	for n := 1; ; n++ {
		line, err := readLine(br, maxLine)
		switch {
		case errors.Is(err, errTooLong):
			bad(n, fmt.Sprintf("longer than %d MiB", maxLine>>20))
			continue
		case err != nil && !errors.Is(err, io.EOF):
			return nil, err
		}
		if n == 1 {
			line = bytes.TrimPrefix(line, []byte("\xef\xbb\xbf")) // a byte order mark
		}
		if len(bytes.TrimSpace(line)) > 0 {
			if e, perr := parseEvent(line); perr != nil {
				bad(n, perr.Error())
			} else {
				events = append(events, e)
			}
		}
		if errors.Is(err, io.EOF) {
			return events, nil
		}
	}
}

func parseEvent(line []byte) (event, error) {
	var e event
	if err := json.Unmarshal(line, &e); err != nil {
		return event{}, fmt.Errorf("not a JSON object of the form {\"type\": \"...\", \"payload\": {...}}: %w", err)
	}
	if strings.TrimSpace(e.Type) == "" {
		return event{}, errors.New(`has no "type"`)
	}
	return e, nil
}

// readLine reads up to and including the next newline. The last line, with or
// without one, comes with io.EOF.
func readLine(br *bufio.Reader, limit int) ([]byte, error) {
	var line []byte
	tooLong := false
	for {
		part, err := br.ReadSlice('\n')
		if tooLong = tooLong || len(line)+len(part) > limit; tooLong {
			line = nil
		} else {
			line = append(line, part...)
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case tooLong && (err == nil || errors.Is(err, io.EOF)):
			return nil, errTooLong // at the end, the next call answers io.EOF
		default:
			return line, err
		}
	}
}
