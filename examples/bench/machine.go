package main

import (
	"context"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/klauspost/cpuid/v2"
)

// machine is what the figures come from. No names and no paths of it.
type machine struct {
	CPU   string
	Cores int
	OS    string
	Redis string
	Go    string
	Date  string
	Peers []string // module and version
}

func thisMachine(ctx context.Context, s *server) machine {
	m := machine{
		CPU: cpuid.CPU.BrandName, Cores: runtime.NumCPU(), OS: runtime.GOOS + "/" + runtime.GOARCH,
		Redis: s.info(ctx, "server")["redis_version"], Go: strings.TrimPrefix(runtime.Version(), "go"), Date: time.Now().Format(time.DateOnly),
	}
	if m.CPU == "" {
		m.CPU = "unknown CPU"
	}
	build, ok := debug.ReadBuildInfo()
	if !ok {
		return m
	}
	shown := []string{
		"github.com/redis/go-redis/v9", "github.com/hibiken/asynq", "github.com/go-redsync/redsync/v4",
		"github.com/bsm/redislock", "github.com/redis/rueidis",
	}
	for _, d := range build.Deps {
		if slices.Contains(shown, d.Path) {
			m.Peers = append(m.Peers, d.Path+" "+d.Version)
		}
	}
	return m
}
