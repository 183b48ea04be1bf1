package metrics

import (
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/automutex/automutex/internal/control"
	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/lock"
)

// controls counts what operators have ordered, when it is asked.
type controls struct {
	desc *prometheus.Desc

	mu      sync.Mutex // guards watched; held for moments
	watched []*lock.Controls
}

func newControls(labels prometheus.Labels) *controls {
	return &controls{desc: prometheus.NewDesc("automutex_controls", "Orders of operators that this process obeys now.",
		[]string{"kind"}, labels)}
}

// WatchControls adds the gauge controls, which counts the orders of operators, by their kinds, that a Guard or Locker
// obeys: m.WatchControls(guard.Controls()). It does no I/O. Guards with the same Prefix obey the same controls: watch
// one of them.
func (m *Metrics) WatchControls(c *lock.Controls) {
	if m == nil || c == nil {
		return
	}
	m.controls.mu.Lock()
	defer m.controls.mu.Unlock()
	m.controls.watched = append(m.controls.watched, c)
}

// Describe is for the registry.
func (c *controls) Describe(to chan<- *prometheus.Desc) { to <- c.desc }

// Collect is for the registry. Without a Guard that is watched there is no figure.
func (c *controls) Collect(to chan<- prometheus.Metric) {
	c.mu.Lock()
	watched := slices.Clone(c.watched)
	c.mu.Unlock()
	if len(watched) == 0 {
		return
	}
	count := map[*control.Kind]int{}
	for _, w := range watched {
		state := (*inside.At(w)).Latest()
		if state == nil {
			continue
		}
		for _, order := range state.Orders() {
			count[order.Kind]++
		}
	}
	for _, kind := range control.Kinds {
		to <- prometheus.MustNewConstMetric(c.desc, prometheus.GaugeValue, float64(count[kind]), kind.Name)
	}
}
