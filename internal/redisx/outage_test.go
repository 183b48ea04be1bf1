package redisx

import (
	"strings"
	"testing"

	"github.com/automutex/automutex/internal/redistest"
)

// What fails for one task alone begins an outage each time that it is tried, which is logged once a minute.
func TestOutage(t *testing.T) {
	t.Parallel()
	text := &redistest.Log{}
	log := text.Logger()
	o := &Outage{}
	for want := 1; want <= 2; want++ {
		for range 50 {
			o.Failed(log, "cannot be asked", "key", "poisoned")
			o.Answered(log)
		}
		if text := text.String(); strings.Count(text, "cannot be asked") != want ||
			strings.Count(text, "answers again") != want || !strings.Contains(text, "poisoned") {
			t.Errorf("log: %s", text)
		}
		o.logged = o.logged.Add(-outageLogEvery)
	}
}
