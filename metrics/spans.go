package metrics

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/automutex/automutex"
)

// Trace adds an event to the OpenTelemetry span of ctx. Use it as Config.Observe; with metrics, join the two with
// [automutex.JoinObservers]. Trace does nothing if no span is recorded.
//
// The span is that of the task's context as the Guard gets it, so the middleware that starts the span comes before the
// Guard: mux.Use(tracing, guard.Middleware).
//
// A span event is named after the kind: automutex.waiting, automutex.waited, automutex.acquired, automutex.busy,
// automutex.released, automutex.key_error and so on. Its attributes are automutex.rule, automutex.policy,
// automutex.holder (the holder's owner label), automutex.waited_seconds, automutex.parked_seconds,
// automutex.held_seconds and automutex.delay_seconds; those that an event does not use are left out. Keys, and errors,
// which name keys, are never attributes: they contain payload values.
func Trace(ctx context.Context, e automutex.Event) {
	span := trace.SpanFromContext(ctx)
	if !span.IsRecording() {
		return
	}
	var attributes []attribute.KeyValue
	if e.Rule != "" {
		attributes = append(attributes, attribute.String("automutex.rule", valid(e.Rule)))
	}
	switch e.Kind {
	case automutex.EventBusy, automutex.EventSkipped, automutex.EventRetried, automutex.EventParked:
		if e.Rule != "" { // without, no policy applied: the Guard was closed
			attributes = append(attributes, attribute.String("automutex.policy", e.Policy.String()))
		}
	}
	if e.Busy != nil && e.Busy.Holder != "" {
		attributes = append(attributes, attribute.String("automutex.holder", valid(e.Busy.Holder)))
	}
	for i, d := range []time.Duration{e.Waited, e.Parked, e.Held, e.Delay} {
		if d > 0 {
			name := []string{"waited", "parked", "held", "delay"}[i]
			attributes = append(attributes, attribute.Float64("automutex."+name+"_seconds", d.Seconds()))
		}
	}
	span.AddEvent("automutex."+string(e.Kind), trace.WithAttributes(attributes...))
}
