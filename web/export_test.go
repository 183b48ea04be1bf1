package web

import (
	"context"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/config"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/unique"
)

// The page hands out its rules as a file that reads back, without the secret; what a file
// cannot say it names.
func TestRulesFile(t *testing.T) {
	t.Parallel()
	const secret = "sixteen bytes and more"
	rules := []automutex.Rule{{Name: "r", Task: "report", On: []string{"tenant"}, Wait: time.Minute, Busy: automutex.Park}}
	v := serve(t, redistest.Mini(t), Options{RootPath: "/locks", HashKeys: secret, Rules: rules, Unique: []unique.Rule{{Task: "mail", On: []string{"id"}}}})
	v.get("/locks/rules").want(200, `href="/locks/rules.yaml"`)
	a := v.get("/locks/rules.yaml").want(200, "AUTOMUTEX_HASH_KEYS").without(secret)
	cfg, once, err := config.Parse([]byte(a.body))
	if err != nil || cfg.Prefix != v.prefix || len(cfg.Rules) != 1 || cfg.Rules[0].Wait != time.Minute || len(once.Rules) != 1 {
		t.Errorf("%v, %+v, %+v of\n%s", err, cfg, once, a.body)
	}
	keyed := []automutex.Rule{{Name: "r", Task: "report", Key: func(context.Context, *asynq.Task) ([]string, error) { return nil, nil }}}
	serve(t, redistest.Mini(t), Options{Rules: keyed}).get("/rules.yaml").want(422, `rule "r" (Rules[0]): Key: cannot be in a file: it is a Go function`)
	serve(t, redistest.Mini(t), Options{}).get("/rules.yaml").want(422, "no rules")
}
