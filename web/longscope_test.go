package web

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

// Keys have the hash of a scope of more than 200 bytes. The page knows the rule of such a key, and shows its pause, for a
// Scope and for a task type.
func TestRules_longScope(t *testing.T) {
	t.Parallel()
	s := redistest.Mini(t)
	long := strings.Repeat("s", 300)
	v := serve(t, s, Options{Access: func(*http.Request) Access { return AccessOperate }, Rules: []automutex.Rule{
		{Name: "by scope", Task: "report", Scope: long, On: []string{"id"}},
		{Name: "by type", Task: "t" + long, On: []string{"id"}},
	}})
	for name, scope := range map[string]string{"by scope": long, "by type": "t" + long} {
		m := v.locker.Mutex(scope, lock.Parts("7"))
		v.hold(m)
		v.get(keyPath(m.Key())).want(200, "rule <bdi>"+name+"</bdi>")
		v.get("/do?action=pause&target=" + url.QueryEscape(scope)).want(200).without("anyway")
		redistest.Must(t, v.locker.Controls().Pause(t.Context(), scope, time.Time{}, ""))
		v.find("/rules", `<bdi>`+name+`</bdi></a> <span class="tag order">paused</span>`)
	}
}
