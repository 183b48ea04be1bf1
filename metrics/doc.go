/*
Package metrics tells Prometheus and OpenTelemetry what a Guard does:

	m, err := metrics.New(prometheus.DefaultRegisterer, metrics.Options{})
	if err != nil {
		return err
	}
	guard, err := automutex.New(rdb, automutex.Config{Rules: rules, Observe: m.Observe})
	if err != nil {
		return err
	}
	m.WatchControls(guard.Controls()) // pauses and limits; without it the gauge controls is missing

It is a module of its own: programs that do not import it do not download what it
requires.

# Metrics

All begin with automutex_, durations are in seconds:

	acquisitions_total    counter    locks taken
	busy_total            counter    attempts that found their lock taken, by policy
	gated_total           counter    attempts that found the gate of their key closed, by reason: rate, hold, cooldown
	outcomes_total        counter    what became of such attempts: skipped, retried, parked, replaced, archived, failed, allowed
	paused_total          counter    attempts that found their key paused by an operator
	controls              gauge      pauses and limits that this process obeys, by kind; see [Metrics.WatchControls]
	wait_seconds          histogram  from asking for a lock to holding it, of those that got it
	parked_seconds        histogram  from the first place in line to holding it, of those that were parked
	hold_seconds          histogram  from holding a lock to giving it back
	held                  gauge      locks held now
	waiting               gauge      tasks that stand in line now
	lost_total            counter    leases that ended while their handlers ran
	overdue_total         counter    handlers that ran past their task's end
	key_errors_total      counter    tasks that no key could be made from
	backend_errors_total  counter    times that Redis could not be asked for a lock

Labels are rule and task, the task's type; busy_total has policy besides, outcomes_total outcome, and
key_errors_total has no rule, since none was reached. Keys are never labels: they
are made of payload values, and there is no end of them.

Held and waiting count what this process has in hand. A lease that was lost is
held until its handler returns, for so long is the handler at work.

# Dashboard and alerts

The folders grafana and prometheus beside this file have a dashboard and alert rules. Alerts
on asynq's own retries do not see parked tasks: Park is no failure, and IsFailure is false for
it; see parked_seconds and outcomes_total. A parked task is in no process: the page of package
web counts those of all processes, as automutex_parked.

# Task types

The rule of a task type's beginning ("report:") meets whatever types there are, and
whoever may enqueue may invent some. Each would cost a series of every metric for
as long as the process lives. So there are at most [Options].MaxTypes types for a
rule, first come, first served; further ones, and types longer than 128 bytes, are
counted under the task "other".
*/
package metrics
