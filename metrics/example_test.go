package metrics_test

import (
	"context"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/metrics"
)

// What the README's snippet speaks of.
var (
	rdb   *redis.Client
	rules []automutex.Rule
)

func mine(context.Context, automutex.Event) {}

func watching() error {
	m, err := metrics.New(prometheus.DefaultRegisterer, metrics.Options{})
	if err != nil {
		return err
	}
	guard, err := automutex.New(rdb, automutex.Config{
		Rules:   rules,
		Observe: automutex.JoinObservers(m.Observe, metrics.Trace, mine), // or one of them alone
	})
	if err != nil {
		return err
	}
	m.WatchControls(guard.Controls()) // for the gauge controls; it asks Redis for nothing
	http.Handle("/metrics", promhttp.Handler())
	return guard.Close(context.Background())
}

var _ = watching

// Events as Prometheus metrics and as events of OpenTelemetry spans.
func Example() {
	m, err := metrics.New(prometheus.NewRegistry(), metrics.Options{})
	if err != nil {
		panic(err)
	}
	rdb := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	guard, err := automutex.New(rdb, automutex.Config{
		Rules:   []automutex.Rule{{Task: "report", On: []string{"tenant.id"}}},
		Observe: automutex.JoinObservers(m.Observe, metrics.Trace),
	})
	if err != nil {
		panic(err)
	}
	defer guard.Close(context.Background())
}
