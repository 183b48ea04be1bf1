package metrics

import (
	"context"

	"github.com/automutex/automutex"
)

// Join makes one function for Config.Observe out of several, each of which is told
// of every event, in this order. Those that are nil are left out.
func Join(observers ...func(context.Context, automutex.Event)) func(context.Context, automutex.Event) {
	var told []func(context.Context, automutex.Event)
	for _, observe := range observers {
		if observe != nil {
			told = append(told, observe)
		}
	}
	return func(ctx context.Context, e automutex.Event) {
		for _, observe := range told {
			observe(ctx, e)
		}
	}
}
