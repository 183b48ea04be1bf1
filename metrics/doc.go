/*
Package metrics reports to Prometheus and OpenTelemetry what a Guard does:

	m, err := metrics.New(prometheus.DefaultRegisterer, metrics.Options{})
	if err != nil {
		return err
	}
	guard, err := automutex.New(rdb, automutex.Config{Rules: rules, Observe: m.Observe})
	if err != nil {
		return err
	}
	m.WatchControls(guard.Controls()) // adds the gauge controls

It is a module of its own: programs that do not import it do not download its dependencies.

# Metrics

All names begin with automutex_; docs/operations.md lists them, with their labels. Durations are
in seconds. Keys are never labels: they contain payload values, and there is no bound on their number.

The gauges held and waiting count this process only. A lost lease counts as held until its
handler returns.

# Dashboard and alerts

The folders grafana and prometheus beside this file have a dashboard and alert rules. Parking
is no failure for asynq, so alerts on its failures do not see parked tasks: use parked_seconds
and outcomes_total. A parked task belongs to no process, so no process counts those that are
parked now: automutex list shows them.

# Task types

The number of task types that match a prefix rule ("report:") is not bounded, and each type
would cost a series of every metric until the process ends. So only the first [Options].MaxTypes
types of a rule have a label value of their own. The label of further types, and of types longer
than 128 bytes, is "other".
*/
package metrics
