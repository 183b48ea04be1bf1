package tasktype

import (
	"maps"
	"slices"
	"sync"

	"github.com/hibiken/asynq"
)

// Served is the task types that a Guard is known to have a handler for: those of tasks that came, and patterns of its
// mux. Safe for concurrent use; the zero value is empty.
type Served struct {
	mu    sync.Mutex // guards types; held for moments
	types map[string]bool
}

// mostServed bounds Served: who enqueues chooses the types of tasks.
const mostServed = 100

// Add adds a type, and reports whether it is new. One too many is not.
func (s *Served) Add(taskType string) (isNew bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if isNew = !s.types[taskType] && len(s.types) < mostServed; isNew {
		if s.types == nil {
			s.types = map[string]bool{}
		}
		s.types[taskType] = true
	}
	return isNew
}

// List returns them in order.
func (s *Served) List() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.types))
}

// AskMux adds the patterns of the handler, an asynq.ServeMux or what embeds one, that serve the Tasks of rules. A mux
// lists no others.
func (s *Served) AskMux(handler asynq.Handler, rules []string) {
	if mux, ok := handler.(interface {
		Handler(t *asynq.Task) (asynq.Handler, string)
	}); ok {
		for _, task := range rules {
			if _, pattern := mux.Handler(asynq.NewTask(task, nil)); pattern != "" {
				s.Add(pattern)
			}
		}
	}
}
