package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/unique"
)

// FuzzParse: whatever the file, there is a configuration that New takes, or mistakes that have a place in the file.
func FuzzParse(f *testing.F) {
	files, err := filepath.Glob("testdata/*.*")
	if err != nil || len(files) == 0 {
		f.Fatalf("no files to begin with: %v", err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte(`{"rules": [{"task": "\ud83d\ude00\\"}]}`))
	f.Add([]byte("rules: [{task: a, busy: {retry_in: 5s}}, *a, {<<: !!x &b 1}]"))
	f.Add([]byte("unique: [{task: a, until: {for: 1s}, duplicate: {postpone: 1s}, keep_archived: yes}, {task: a}]"))
	f.Add([]byte("? {a: [b]}\n: |\n  c\n--- !x\n%YAML"))
	rdb := redis.NewClient(&redis.Options{Addr: "localhost:0"}) // never dials
	f.Cleanup(func() { _ = rdb.Close() })
	f.Fuzz(func(t *testing.T, data []byte) {
		cfg, once, err := Parse(data)
		if err == nil {
			if _, err := unique.New(asynq.NewClientFromRedisClient(rdb), asynq.NewInspectorFromRedisClient(rdb), rdb,
				once); err != nil {
				t.Fatalf("accepted, and refused by unique.New: %v", err)
			}
			guard, err := automutex.New(rdb, cfg)
			if err != nil {
				t.Fatalf("accepted, and refused by New: %v", err)
			}
			if err := guard.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			return
		}
		lines := strings.Count(string(data), "\n") + strings.Count(string(data), "\r") +
			strings.Count(string(data), "\u0085") + strings.Count(string(data), "\u2028") +
			strings.Count(string(data), "\u2029") + 2
		for _, err := range err.(interface{ Unwrap() []error }).Unwrap() {
			mistake, ok := err.(*Error)
			if !ok {
				t.Fatalf("%T: %v", err, err)
			}
			if mistake.Line < 1 || mistake.Line > lines || mistake.Column < 1 || mistake.Column > len(data)+2 ||
				mistake.Text == "" {
				t.Errorf("%v has no place in a file of %d bytes and %d lines", mistake, len(data), lines)
			}
		}
	})
}
