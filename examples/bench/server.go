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
func (s *server) clear(ctx context.Context) error {
	p := s.rdb.Pipeline()
	p.FlushAll(ctx)
	p.ScriptFlush(ctx)
	p.ConfigResetStat(ctx)
	_, err := p.Exec(ctx)
	return err
}

// info is a section of INFO, by name.
func (s *server) info(ctx context.Context, section string) (map[string]string, error) {
	text, err := s.rdb.Info(ctx, section).Result()
	if err != nil {
		return nil, err
	}
	values := map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			values[name] = value
		}
	}
	return values, nil
}

// usage is what commands have cost so far: how many clients sent, and Redis' own
// time for them.
type usage struct {
	calls float64
	busy  time.Duration
	cpu   time.Duration // of the server's main thread
}

func (u usage) minus(before usage) usage {
	return usage{u.calls - before.calls, u.busy - before.busy, u.cpu - before.cpu}
}

// used sums up the commands named. What runs inside a script is part of that
// script's time; its calls are not counted as long as it is not among them.
func (s *server) used(ctx context.Context, commands []string) (usage, error) {
	info, err := s.info(ctx, "commandstats")
	if err != nil {
		return usage{}, err
	}
	var sum usage
	if sum.cpu, err = s.cpu(ctx); err != nil {
		return usage{}, err
	}
	for _, command := range commands {
		line, ok := info["cmdstat_"+command]
		if !ok {
			continue // never sent
		}
		var calls, usec float64
		if _, err := fmt.Sscanf(line, "calls=%f,usec=%f", &calls, &usec); err != nil {
			return usage{}, fmt.Errorf("bench: INFO commandstats says %q of %s: %w", line, command, err)
		}
		sum.calls += calls
		sum.busy += time.Duration(usec) * time.Microsecond
	}
	return sum, nil
}

// has reports whether the server has a command; it has the empty one.
func (s *server) has(ctx context.Context, command string) (bool, error) {
	if command == "" {
		return true, nil
	}
	found, err := s.rdb.Do(ctx, "COMMAND", "INFO", command).Slice()
	return err == nil && len(found) == 1 && found[0] != nil, err
}

// cpu is what the thread that runs commands has used so far, reading and writing included.
func (s *server) cpu(ctx context.Context) (time.Duration, error) {
	info, err := s.info(ctx, "cpu")
	if err != nil {
		return 0, err
	}
	var sum float64
	for _, part := range []string{"used_cpu_user_main_thread", "used_cpu_sys_main_thread"} {
		seconds, err := strconv.ParseFloat(info[part], 64)
		if err != nil {
			return 0, fmt.Errorf("bench: INFO cpu has no %s: %w", part, err)
		}
		sum += seconds
	}
	return time.Duration(sum * float64(time.Second)), nil
}

func (s *server) memory(ctx context.Context) (float64, error) {
	info, err := s.info(ctx, "memory")
	if err != nil {
		return 0, err
	}
	return strconv.ParseFloat(info["used_memory"], 64)
}
