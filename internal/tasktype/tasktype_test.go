package tasktype

import (
	"slices"
	"strconv"
	"testing"

	"github.com/hibiken/asynq"
)

func TestMap(t *testing.T) {
	t.Parallel()
	var m Map[int]
	if _, ok := m.Find("a"); ok {
		t.Error("an empty Map has a value")
	}
	for pattern, v := range map[string]int{"report:": 1, "report:daily": 2, "mail": 3} {
		m.Add(pattern, v)
	}
	for taskType, want := range map[string]int{
		"report:daily": 2, "report:daily:eu": 2, "report:": 1, "report:weekly": 1, "report": 0, "mail": 3, "mailing": 3,
		"": 0,
	} {
		if got, ok := m.Find(taskType); got != want || ok != (want > 0) {
			t.Errorf("%q finds %d, %v, want %d", taskType, got, ok, want)
		}
	}
	if _, ok := m.At("report:weekly"); ok {
		t.Error("a type is taken for a pattern")
	}
	m.Add("mail", 4)
	if got, _ := m.Find("mail"); got != 4 {
		t.Errorf("the pattern added again has %d", got)
	}
}

// A Guard knows the types of tasks that came, up to a bound, and the patterns of its mux that are for its rules.
func TestServed(t *testing.T) {
	t.Parallel()
	var s Served
	mux := asynq.NewServeMux()
	mux.Handle("cron:nightly", asynq.NotFoundHandler())
	mux.Handle("mail:", asynq.NotFoundHandler())
	s.AskMux(mux, []string{"cron:nigtly", "mail:welcome"})
	if got := s.List(); !slices.Equal(got, []string{"mail:"}) {
		t.Errorf("of the mux: %q", got)
	}
	for i := range mostServed + 9 {
		s.Add(strconv.Itoa(i))
	}
	if n := len(s.List()); n != mostServed {
		t.Errorf("%d types, want %d", n, mostServed)
	}
}
