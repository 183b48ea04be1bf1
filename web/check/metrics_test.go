package check

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
	"github.com/automutex/automutex/web"
)

// Prometheus' own parser reads /metrics of the page, whatever a key has in it.
func TestMetrics_parsed(t *testing.T) {
	rdb, prefix := redistest.Real(t).Client(t), redistest.Name(t)
	quiet := slog.New(slog.DiscardHandler)
	locker := lock.New(rdb, lock.Options{Prefix: prefix, Logger: quiet})
	hostile := []string{"quote \" and \\ and \n", "\xff\xfe", "\u202eRTL", "{}", "plain"}
	for _, text := range hostile {
		if _, err := locker.Mutex("report", lock.Parts(text)).TryLock(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	handler, err := web.New(rdb, web.Options{Prefix: prefix, Rules: []automutex.Rule{{Task: "report"}}, MetricsKeys: 10, Logger: quiet})
	redistest.Must(t, err)
	answer := httptest.NewRecorder()
	handler.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if err := handler.(io.Closer).Close(); err != nil {
		t.Error(err)
	}
	if err := locker.Close(); err != nil {
		t.Error(err)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(answer.Body)
	redistest.Must(t, err)
	if got := families["automutex_locks_held"].GetMetric()[1].GetGauge().GetValue(); got != float64(len(hostile)) {
		t.Errorf("automutex_locks_held of the rule is %v, want %d", got, len(hostile))
	}
	if got := len(families["automutex_key_held"].GetMetric()); got != len(hostile) {
		t.Errorf("%d keys are named, want %d", got, len(hostile))
	}
	if families["automutex_parked"] == nil {
		t.Error("there is no automutex_parked")
	}
}
