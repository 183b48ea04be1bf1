package metrics

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/lock"
)

const patience = redistest.Patience

// site is a registry that is scraped over HTTP.
type site struct {
	t   *testing.T
	url string
}

func serve(t *testing.T, reg *prometheus.Registry) *site {
	t.Helper()
	server := httptest.NewServer(promhttp.HandlerFor(reg, promhttp.HandlerOpts{}))
	t.Cleanup(server.Close)
	return &site{t, server.URL}
}

// scrape gives the samples as the text format has them, by name and labels.
func (s *site) scrape() map[string]float64 {
	s.t.Helper()
	response, err := http.Get(s.url)
	if err != nil {
		s.t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		s.t.Fatalf("the scrape ends with %s", response.Status)
	}
	samples := map[string]float64{}
	lines := bufio.NewScanner(response.Body)
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), "#") {
			continue
		}
		at := strings.LastIndex(lines.Text(), " ")
		if samples[lines.Text()[:at]], err = strconv.ParseFloat(lines.Text()[at+1:], 64); err != nil {
			s.t.Fatalf("%q: %v", lines.Text(), err)
		}
	}
	if lines.Err() != nil {
		s.t.Fatal(lines.Err())
	}
	return samples
}

// await scrapes until all these samples have these values.
func (s *site) await(want map[string]float64) {
	s.t.Helper()
	var got map[string]float64
	deadline := time.Now().Add(patience)
	for {
		got = s.scrape()
		maps.DeleteFunc(got, func(name string, _ float64) bool { _, wanted := want[name]; return !wanted })
		if maps.Equal(got, want) {
			return
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("scraped %v, want %v", got, want)
		}
		<-time.After(5 * time.Millisecond)
	}
}

// traffic is an asynq server whose handlers run until the test lets them go.
type traffic struct {
	t         *testing.T
	prefix    string // of the keys
	queue     string
	client    *asynq.Client
	inspector *asynq.Inspector

	mu    sync.Mutex
	gates map[string]chan struct{} // by task type; closed: handlers return
	over  chan struct{}            // closed when the test ends: all return
}

func start(t *testing.T, s *redistest.Server, workers int, locks redis.UniversalClient, cfg automutex.Config) *traffic {
	t.Helper()
	rdb := s.Client(t)
	r := &traffic{
		t: t, prefix: redistest.Name(t), queue: redistest.Name(t), gates: map[string]chan struct{}{}, over: make(chan struct{}),
		client: asynq.NewClientFromRedisClient(rdb), inspector: asynq.NewInspectorFromRedisClient(rdb),
	}
	cfg.Prefix, cfg.Logger = r.prefix, slog.New(slog.DiscardHandler)
	guard, err := automutex.New(locks, cfg)
	redistest.Must(t, err)
	server := asynq.NewServerFromRedisClient(rdb, guard.ServerConfig(asynq.Config{
		Concurrency: workers, Queues: map[string]int{r.queue: 1}, TaskCheckInterval: redistest.CheckEvery,
		DelayedTaskCheckInterval: time.Hour, LogLevel: asynq.FatalLevel,
	}))
	redistest.Must(t, server.Start(guard.Middleware(asynq.HandlerFunc(r.handle))))
	t.Cleanup(func() {
		close(r.over)
		closed := make(chan error, 1)
		go func() { closed <- guard.Close(context.Background()) }()
		server.Shutdown()
		if err := <-closed; err != nil {
			t.Error(err)
		}
	})
	return r
}

// handle ignores the end of its context, as the worst of handlers do.
func (r *traffic) handle(_ context.Context, task *asynq.Task) error {
	select {
	case <-r.gate(task.Type()):
	case <-r.over:
	}
	return nil
}

func (r *traffic) gate(taskType string) chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.gates[taskType] == nil {
		r.gates[taskType] = make(chan struct{})
	}
	return r.gates[taskType]
}

// let has the handlers of a type return, now and from now on.
func (r *traffic) let(taskType string) { close(r.gate(taskType)) }

func (r *traffic) enqueue(n int, taskType, payload string) (id string) {
	r.t.Helper()
	for range n {
		info, err := r.client.Enqueue(asynq.NewTask(taskType, []byte(payload)), asynq.Queue(r.queue))
		if err != nil {
			r.t.Fatal(err)
		}
		id = info.ID
	}
	return id
}

// Real traffic, scraped over HTTP: each metric has the value that the traffic
// gives, and none names a payload value.
func TestScrape(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		reg := prometheus.NewPedanticRegistry()
		m, err := New(reg, Options{MaxTypes: 3})
		redistest.Must(t, err)
		site := serve(t, reg)
		locks := s.Client(t)
		var proxy *redistest.Proxy
		if s.Kind() != redistest.KindCluster { // a proxy hides one node only
			proxy = redistest.NewProxy(t, s.Addr())
			locks = proxy.Client(t, func(o *redis.UniversalOptions) {
				o.MaxRetries = -1
				redistest.DialOnce(o)
			})
		}
		r := start(t, s, 10, locks, automutex.Config{Observe: m.Observe, Rules: []automutex.Rule{
			{Task: "turn", Name: "turns", On: []string{"id"}, Busy: automutex.Retry, Wait: time.Minute},
			{Task: "skip", Busy: automutex.Skip},
			{Task: "report:", Scope: "report", Limit: 10},
			{Task: "late", MaxHold: 300 * time.Millisecond},
		}})
		const payload = `{"id": "secret-42"}`

		// One holds, two stand in line.
		began := time.Now()
		r.enqueue(3, "turn", payload)
		turns := `{rule="turns",task="turn"}`
		site.await(map[string]float64{
			"automutex_held" + turns: 1, "automutex_waiting" + turns: 2, "automutex_acquisitions_total" + turns: 1,
			"automutex_lost_total" + turns: 0, "automutex_overdue_total" + turns: 0, "automutex_backend_errors_total" + turns: 0,
			"automutex_wait_seconds_count" + turns: 1,
		})
		r.let("turn")
		site.await(map[string]float64{
			"automutex_held" + turns: 0, "automutex_waiting" + turns: 0, "automutex_acquisitions_total" + turns: 3,
			"automutex_wait_seconds_count" + turns: 3, "automutex_hold_seconds_count" + turns: 3,
		})
		if sum := site.scrape()["automutex_wait_seconds_sum"+turns]; sum <= 0 || sum > 3*time.Since(began).Seconds() {
			t.Errorf("waited %v s in all", sum)
		}

		// One holds, two are skipped.
		r.enqueue(1, "skip", payload)
		skip := `{rule="skip",task="skip"}`
		site.await(map[string]float64{"automutex_held" + skip: 1})
		r.enqueue(2, "skip", payload)
		site.await(map[string]float64{`automutex_busy_total{policy="skip",reason="held",rule="skip",task="skip"}`: 2, "automutex_held" + skip: 1})
		r.let("skip")

		// More types than MaxTypes.
		want := map[string]float64{
			`automutex_acquisitions_total{rule="report:",task="other"}`: 2, `automutex_held{rule="report:",task="other"}`: 2,
		}
		for i := range 5 {
			taskType := fmt.Sprintf("report:%d", i)
			r.enqueue(1, taskType, payload)
			if i < 3 {
				want[fmt.Sprintf(`automutex_held{rule="report:",task="%s"}`, taskType)] = 1
				site.await(map[string]float64{fmt.Sprintf(`automutex_held{rule="report:",task="%s"}`, taskType): 1})
			}
		}
		site.await(want)
		for i := range 5 {
			r.let(fmt.Sprintf("report:%d", i))
		}
		site.await(map[string]float64{
			`automutex_held{rule="report:",task="report:0"}`: 0, `automutex_held{rule="report:",task="other"}`: 0,
			`automutex_hold_seconds_count{rule="report:",task="other"}`: 2,
		})

		// A handler that outlives its lease and its task.
		id := r.enqueue(1, "late", payload)
		late := `{rule="late",task="late"}`
		site.await(map[string]float64{"automutex_lost_total" + late: 1, "automutex_held" + late: 1, "automutex_overdue_total" + late: 0})
		redistest.Must(t, r.inspector.CancelProcessing(id))
		site.await(map[string]float64{"automutex_overdue_total" + late: 1, "automutex_held" + late: 1})
		r.let("late")
		site.await(map[string]float64{"automutex_held" + late: 0})
		if sum := site.scrape()["automutex_hold_seconds_sum"+late]; sum < 0.3 {
			t.Errorf("held for %v s", sum)
		}

		r.enqueue(2, "turn", `{}`)
		site.await(map[string]float64{`automutex_key_errors_total{task="turn"}`: 2})

		if proxy != nil {
			proxy.Refuse(true)
			proxy.Cut()
			r.enqueue(1, "turn", payload)
			site.await(map[string]float64{"automutex_backend_errors_total" + turns: 1, "automutex_held" + turns: 0})
			proxy.Heal()
		}

		for sample := range site.scrape() {
			if strings.Contains(sample, "secret") {
				t.Errorf("a payload value is in %s", sample)
			}
		}
	})
}

// A task that is parked is no waiter and holds nothing; how long that took is told
// when it has its lock.
func TestScrape_parked(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, s *redistest.Server) {
		reg := prometheus.NewPedanticRegistry()
		m, err := New(reg, Options{})
		redistest.Must(t, err)
		site := serve(t, reg)
		// The only worker is never free, so whoever finds the key taken parks.
		r := start(t, s, 1, s.Client(t), automutex.Config{Observe: m.Observe, Rules: []automutex.Rule{{Task: "park", Busy: automutex.Park}}})
		others := lock.New(s.Client(t), lock.Options{Prefix: r.prefix})
		t.Cleanup(func() { _ = others.Close() })
		lease, err := others.Mutex("park").TryLock(t.Context())
		redistest.Must(t, err)
		began := time.Now()
		r.let("park")
		r.enqueue(1, "park", "")
		labels := `{rule="park",task="park"}`
		site.await(map[string]float64{
			`automutex_busy_total{policy="park",reason="held",rule="park",task="park"}`: 1,
			"automutex_held" + labels: 0, "automutex_waiting" + labels: 0, "automutex_acquisitions_total" + labels: 0,
		})
		redistest.Must(t, lease.Unlock(t.Context()))
		site.await(map[string]float64{
			"automutex_acquisitions_total" + labels: 1, "automutex_parked_seconds_count" + labels: 1, "automutex_held" + labels: 0,
		})
		if sum := site.scrape()["automutex_parked_seconds_sum"+labels]; sum <= 0 || sum > time.Since(began).Seconds() {
			t.Errorf("parked for %v s", sum)
		}
	})
}
