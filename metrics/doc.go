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

All names begin with automutex_. Durations are in seconds:

	acquisitions_total    counter    locks taken
	busy_total            counter    attempts that did not get their lock, by policy and by reason: held, rate, closed, cooldown, behind, archived, paused
	outcomes_total        counter    what the Guard did with tasks that did not get or keep their lock: skipped, retried, parked, replaced, archived, failed, allowed
	controls              gauge      pauses and limits that this process obeys, by kind; see [Metrics.WatchControls]
	wait_seconds          histogram  from asking for a lock to holding it, for tasks that got it
	parked_seconds        histogram  from the first place in line to holding the lock, for tasks that were parked
	hold_seconds          histogram  from taking a lock to releasing it
	held                  gauge      locks held now
	waiting               gauge      tasks that stand in line now
	lost_total            counter    leases that ended while their handlers ran
	overdue_total         counter    handlers that still ran when their task's context had ended
	key_errors_total      counter    tasks from which no key could be made
	backend_errors_total  counter    times that Redis failed, or that a key could not be made for now

The labels are rule and task, which is the task's type. busy_total also has policy and
reason, and outcomes_total outcome. key_errors_total has only task, and controls only kind.
Keys are never labels: they contain payload values, and there is no bound on their number.

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
