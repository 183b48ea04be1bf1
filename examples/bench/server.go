package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex/internal/redistest"
)

// server is the redis-server of one run of the program.
type server struct {
	process *redistest.Process
	addr    string
	rdb     *redis.Client
}

// startServer starts a redis-server without persistence on a free port of the
// loopback interface.
func startServer(binary string) (*server, error) {
	p, err := redistest.StartProcess(binary, "--maxclients", "5000")
	if err != nil {
		return nil, fmt.Errorf("bench: %s does not start: %w; it has to be installed, 7.0 or newer", binary, err)
	}
	rdb := redis.NewClient(&redis.Options{Addr: p.Addr(), ReadTimeout: time.Minute}) // FLUSHALL of much takes a while
	return &server{p, p.Addr(), rdb}, nil
}

// stop ends the server and removes its files.
func (s *server) stop() error { return errors.Join(s.rdb.Close(), s.process.Stop()) }

// clear empties the server and its statistics, so that a cell finds what the
// one before it found. Scripts go as well.
func (s *server) clear(ctx context.Context) {
	get(s.rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		p.FlushAll(ctx)
		p.ScriptFlush(ctx)
		p.ConfigResetStat(ctx)
		return nil
	}))
}

// info is a section of INFO, by name.
func (s *server) info(ctx context.Context, section string) map[string]string {
	values := map[string]string{}
	for line := range strings.Lines(get(s.rdb.Info(ctx, section).Result())) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			values[name] = value
		}
	}
	return values
}

// usage is what commands have cost so far: how many clients sent, and Redis' own
// time for them.
type usage struct {
	calls float64
	busy  time.Duration
	cpu   time.Duration // of the server's main thread, reading and writing included
}

// used sums up the commands named. What runs inside a script is part of that
// script's time; its calls are not counted as long as it is not among them.
func (s *server) used(ctx context.Context, commands []string) usage {
	var sum usage
	for _, part := range []string{"used_cpu_user_main_thread", "used_cpu_sys_main_thread"} {
		sum.cpu += time.Duration(get(strconv.ParseFloat(s.info(ctx, "cpu")[part], 64)) * float64(time.Second))
	}
	info := s.info(ctx, "commandstats")
	for _, command := range commands {
		line, ok := info["cmdstat_"+command]
		if !ok {
			continue // never sent
		}
		var calls, usec float64
		get(fmt.Sscanf(line, "calls=%f,usec=%f", &calls, &usec))
		sum.calls += calls
		sum.busy += time.Duration(usec) * time.Microsecond
	}
	return sum
}

// since is what commands have cost since an earlier look.
func (s *server) since(ctx context.Context, before usage, commands []string) usage {
	now := s.used(ctx, commands)
	return usage{now.calls - before.calls, now.busy - before.busy, now.cpu - before.cpu}
}

// has reports whether the server has a command; it has the empty one.
func (s *server) has(ctx context.Context, command string) bool {
	if command == "" {
		return true
	}
	found := get(s.rdb.Do(ctx, "COMMAND", "INFO", command).Slice())
	return len(found) == 1 && found[0] != nil
}

func (s *server) memory(ctx context.Context) float64 {
	return get(strconv.ParseFloat(s.info(ctx, "memory")["used_memory"], 64))
}
