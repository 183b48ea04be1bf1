package check

import (
	"encoding/json"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/redistest"
	"github.com/automutex/automutex/metrics"
)

// known gives the labels of every sample that the metrics of a process write, by its name.
func known(t *testing.T) map[string][]string {
	t.Helper()
	reg := prometheus.NewRegistry()
	m, err := metrics.New(reg, metrics.Options{})
	redistest.Must(t, err)
	for _, kind := range []automutex.EventKind{
		automutex.EventWaiting, automutex.EventAcquired, automutex.EventReleased, automutex.EventBusy, automutex.EventSkipped,
		automutex.EventLost, automutex.EventOverdue, automutex.EventBackendError, automutex.EventKeyError,
		automutex.EventBlocked, automutex.EventHeadSkipped,
	} {
		m.Observe(t.Context(), automutex.Event{Kind: kind, Rule: "r", Task: "t", Parked: 1,
			Busy: &automutex.BusyError{Reason: "rate"}})
	}
	families, err := reg.Gather()
	redistest.Must(t, err)
	names := map[string][]string{"automutex_controls": {"kind"}}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			var its []string
			for _, label := range metric.GetLabel() {
				its = append(its, label.GetName())
			}
			if metric.GetHistogram() == nil {
				names[family.GetName()] = its
				continue
			}
			names[family.GetName()+"_bucket"] = append(slices.Clone(its), "le")
			names[family.GetName()+"_sum"], names[family.GetName()+"_count"] = its, its
		}
	}
	return names
}

// holdExpression parses an expression, and holds every metric and label in it against those that there are.
func holdExpression(t *testing.T, names map[string][]string, expression string) {
	t.Helper()
	parsed, err := parser.ParseExpr(expression)
	if err != nil {
		t.Errorf("%s: %v", expression, err)
		return
	}
	var used []string // labels that the metrics of the expression have
	parser.Inspect(parsed, func(node parser.Node, _ []parser.Node) error {
		selector, ok := node.(*parser.VectorSelector)
		if !ok {
			return nil
		}
		its, ok := names[selector.Name]
		if !ok {
			t.Errorf("%s: there is no metric %s", expression, selector.Name)
		}
		used = append(used, its...)
		for _, matcher := range selector.LabelMatchers {
			if matcher.Name != model.MetricNameLabel && !slices.Contains(its, matcher.Name) {
				t.Errorf("%s: %s has no label %s", expression, selector.Name, matcher.Name)
			}
		}
		return nil
	})
	parser.Inspect(parsed, func(node parser.Node, _ []parser.Node) error {
		if by, ok := node.(*parser.AggregateExpr); ok {
			for _, label := range by.Grouping {
				if !slices.Contains(used, label) {
					t.Errorf("%s: by %s, which none of its metrics has", expression, label)
				}
			}
		}
		return nil
	})
}

// Every panel of the dashboard asks for metrics and labels that there are.
func TestDashboard(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../metrics/grafana/automutex.json")
	redistest.Must(t, err)
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr, LegendFormat string }
		}
	}
	redistest.Must(t, json.Unmarshal(text, &dashboard))
	names, asked, shown := known(t), 0, ""
	for _, panel := range dashboard.Panels {
		for _, target := range panel.Targets {
			asked++
			shown += target.Expr + "\n"
			holdExpression(t, names, strings.NewReplacer("$__rate_interval", "5m", "$rule", ".*").Replace(target.Expr))
		}
	}
	if len(dashboard.Panels) < 10 || asked < 10 {
		t.Errorf("%d panels ask %d questions", len(dashboard.Panels), asked)
	}
	for name := range names {
		isPart := strings.HasSuffix(name, "_seconds_sum") || strings.HasSuffix(name, "_seconds_count")
		if !isPart && !strings.Contains(shown, name+"{") && !strings.Contains(shown, name+"[") &&
			!strings.Contains(shown, name+")") {
			t.Errorf("no panel shows %s", name)
		}
	}
}

// Every alert is one that Prometheus takes, about metrics and labels that there are.
func TestAlerts(t *testing.T) {
	t.Parallel()
	groups, errs := rulefmt.ParseFile("../../metrics/prometheus/alerts.yaml", false, model.UTF8Validation)
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	names, alerts := known(t), 0
	for _, group := range groups.Groups {
		for _, rule := range group.Rules {
			alerts++
			holdExpression(t, names, rule.Expr)
		}
	}
	if alerts != 11 {
		t.Errorf("%d alerts, want 11", alerts)
	}
}

// The alerts fire when they should, and only then, as Prometheus itself sees it.
func TestAlerts_promtool(t *testing.T) {
	t.Parallel()
	path, err := exec.LookPath("promtool")
	if err != nil {
		if os.Getenv("AUTOMUTEX_TEST_REDIS") == "require" {
			t.Fatal("there is no promtool here: apt-get install prometheus")
		}
		t.Skip("there is no promtool here: apt-get install prometheus")
	}
	if out,
		err := exec.Command(path, "test", "rules", "../../metrics/prometheus/alerts_test.yaml").CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
