package engine

import (
	"embed"

	"github.com/automutex/automutex/internal/redisx"
)

// Each script's head says what it takes and replies; lua/head.lua how to read sections.

//go:embed lua/*.lua
var files embed.FS

// Scripts are all of them.
var Scripts []*redisx.Script

func script(name string) *redisx.Script {
	s := redisx.Load(files, name, name)
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
