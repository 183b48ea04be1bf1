package engine

import (
	"embed"
	"strings"

	"github.com/automutex/automutex/internal/redisx"
)

// Each script's head says what it takes and replies; lua/head.lua how to read sections.

//go:embed lua/*.lua
var files embed.FS

func source(name string) string {
	file, err := files.ReadFile("lua/" + name + ".lua")
	if err != nil {
		panic(err) // a name that no file has: every test finds it
	}
	var text strings.Builder
	for line := range strings.Lines(string(file)) {
		if section, ok := strings.CutPrefix(strings.TrimSpace(line), "--@include "); ok {
			line = source(section)
		}
		text.WriteString(line)
	}
	return text.String()
}

// Scripts are all of them.
var Scripts []*redisx.Script

func script(name string) *redisx.Script {
	s := redisx.NewScript(name, source(name))
	Scripts = append(Scripts, s)
	return s
}

var (
	takeScript    = script("take")
	dropScript    = script("drop")
	askScript     = script("ask")
	releaseScript = script("release")
	checkScript   = script("check")
	renewScript   = script("renew")
	closeScript   = script("close")
	breakScript   = script("break")
	inspectScript = script("inspect")
	gatesScript   = script("gates")
	lineScript    = script("line")
	enlistScript  = script("enlist")
	sweepScript   = script("sweep")
	putScript     = script("put")

	stopScript   = script("stop")
	arriveScript = script("arrive")
	forgetScript = script("forget")

	orderStampScript   = script("order_stamp")
	orderAskScript     = script("order_ask")
	orderReleaseScript = script("order_release")
	orderActScript     = script("order_act")
)
