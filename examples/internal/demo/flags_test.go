package demo

import (
	"bytes"
	"errors"
	"flag"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/automutex/automutex"
)

func TestParseFlags_defaults(t *testing.T) {
	o, err := parseFlags(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(o.On, []string{"repository.full_name"}) || o.busy != "retry" || o.Limit != 1 || o.Unguarded || o.Workers != 10 {
		t.Errorf("defaults are %+v", o)
	}
}

func TestParseFlags_values(t *testing.T) {
	o, err := parseFlags(strings.Fields("-on a.b,c -busy park -limit 3 -rate 20/s -wait 0s -ttl 2s -workers 4 -work 1ms -tasks 9 -seed 7 -redis redis://h -unguarded"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(o.On, []string{"a.b", "c"}) || o.busy != "park" || o.Limit != 3 || o.Rate != (automutex.Rate{Starts: 20, Per: time.Second, Burst: 1}) || o.Wait != 0 || o.TTL != 2*time.Second ||
		o.Workers != 4 || o.work != time.Millisecond || o.tasks != 9 || o.seed != 7 || o.redis != "redis://h" || !o.Unguarded {
		t.Errorf("options are %+v", o)
	}
	if o, err = parseFlags([]string{"-on", ""}, nil); err != nil || len(o.On) != 0 {
		t.Errorf("-on with nothing: %q, %v; want no fields", o.On, err)
	}
}

func TestParseFlags_errors(t *testing.T) {
	// What is wrong must be named.
	for args, want := range map[string]string{
		"-limit 0":                     "-limit",
		"-limit x":                     "-limit",
		"-workers 0":                   "-workers",
		"-rate 20":                     "-rate",
		"-rate 0/s":                    "-rate",
		"-rate 5/d":                    "-rate",
		"-rate -5/s":                   "-rate",
		"-tasks 0":                     "-tasks",
		"-work -1s":                    "-work",
		"-wait -1s":                    "-wait",
		"-ttl -1s":                     "-ttl",
		"-ttl 5":                       "-ttl",
		"-retry-in -1s":                "-retry-in",
		"-busy skip -retry-in 1s":      "-retry-in",
		"-busy never":                  `"never"`,
		"-busy never -unguarded":       `"never"`,
		"-on a,,b":                     "-on",
		"-on ,":                        "-on",
		"-input f -tasks 3":            "-tasks",
		"-input f -seed 3":             "-seed",
		"-web 8081":                    "host:port",
		"-web 0.0.0.0:8081":            "127.0.0.1",
		"-web example.com:8081":        "127.0.0.1",
		"-web :0 -unguarded":           "-unguarded",
		"-nonsense":                    "-nonsense",
		"stray":                        `"stray"`,
		"-tasks 5 redis://localhost:1": `"redis://localhost:1"`,
	} {
		if _, err := parseFlags(strings.Fields(args), nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error is %v, want one that names %s", args, err, want)
		}
	}
}

func TestParseFlags_help(t *testing.T) {
	var stderr bytes.Buffer
	_, err := parseFlags([]string{"-h"}, &stderr)
	if !errors.Is(err, flag.ErrHelp) {
		t.Errorf("error is %v, want flag.ErrHelp", err)
	}
	for _, name := range []string{"redis", "input", "unguarded", "on", "busy", "limit", "wait", "ttl", "retry-in", "workers", "work", "tasks", "seed", "web"} {
		if !strings.Contains(stderr.String(), "-"+name) {
			t.Errorf("-%s is not described", name)
		}
	}
}
