package trust

import (
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"
)

// The books find what they are there for: each case is one task, or some of one
// key, and what must be found wrong with it.
func TestSoak_booksFindTrouble(t *testing.T) {
	t.Parallel()
	const busy = `automutex: rule "x": key "p:{x|a}" is busy: held by task red/1 on worker-0.1`
	is := func(what ...string) map[string]map[int]bool {
		noted := map[string]map[int]bool{}
		for n, w := range what {
			if w != "" {
				noted[w] = map[int]bool{n: true}
			}
		}
		return noted
	}
	for name, c := range map[string]struct {
		kind, do string
		noted    map[string]map[int]bool
		archived string // last error
		queued   asynq.TaskState
		tasks    int    // 0: 1
		refused  bool   // nothing was enqueued
		rejected bool   // for another one
		deed     string // the operator's
		fate     string
		problem  string
	}{
		"done":                           {kind: "turn:wait", noted: is(done), fate: "done"},
		"nobody knows":                   {kind: "turn:wait", fate: "lost", problem: "is lost"},
		"skipped":                        {kind: "turn:skip", noted: is(skipped), fate: "skipped"},
		"skipped by another policy":      {kind: "turn:wait", noted: is(skipped), fate: "skipped", problem: "not for"},
		"replaced, and nobody else":      {kind: "turn:newest", noted: is(replaced), fate: "replaced", problem: "all others"},
		"replaced for another one":       {kind: "turn:newest", noted: is(replaced, done), tasks: 2, fate: "replaced"},
		"archived as busy":               {kind: "turn:archive", archived: busy, fate: "archived as busy"},
		"archived as busy, by Retry":     {kind: "turn:retry", archived: busy, fate: "archived as busy", problem: "not for"},
		"archived, nobody knows why":     {kind: "turn:retry", archived: "what?", fate: "archived", problem: "nobody knows why"},
		"archived by asynq":              {kind: "turn:retry", archived: "asynq: task lease expired", problem: "not for", fate: "archived by asynq's recoverer"},
		"bad, and done":                  {kind: "turn:retry", do: "bad", noted: is(done), fate: "done", problem: "not for"},
		"still queued, as planned":       {kind: "turn:retry", do: "later", queued: asynq.TaskStateScheduled, fate: "still queued"},
		"still queued":                   {kind: "turn:retry", queued: asynq.TaskStateRetry, fate: "still queued", problem: "not for"},
		"attempts spent by nobody":       {kind: "turn:retry", noted: map[string]map[int]bool{done: {0: true}, robbed: {0: true}}, fate: "done", problem: "an attempt was spent"},
		"refused, and done":              {kind: "once:done", noted: is(done), refused: true, fate: "done", problem: "was not enqueued"},
		"rejected for another one":       {kind: "once:done", noted: is(done), tasks: 2, rejected: true, fate: "done"},
		"rejected for nobody":            {kind: "once:done", rejected: true, problem: "nobody has enqueued"},
		"refused":                        {kind: "once:done", refused: true},
		"superseded by a newer one":      {kind: "once:newest", noted: is("", done), tasks: 2, fate: "superseded"},
		"superseded by an older one":     {kind: "once:newest", noted: is(done, ""), tasks: 2, fate: "lost", problem: "is lost"},
		"superseded by nobody":           {kind: "once:newest", tasks: 2, fate: "lost", problem: "is lost"},
		"gone without being superseded":  {kind: "once:done", noted: is("", done), tasks: 2, fate: "lost", problem: "is lost"},
		"archived by hand, and gone":     {kind: "turn:wait", deed: "archived", fate: "lost", problem: "the operator [archived]"},
		"run by hand, and gone":          {kind: "once:done", deed: "run", fate: "lost", problem: "is lost"},
		"archived, and gone for another": {kind: "once:done", do: "skip", noted: is(final), fate: "archived, and gone for a newer one"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var steps []soakStep
			for n := range max(1, c.tasks) {
				steps = append(steps, soakStep{soakTask: soakTask{N: n, ID: "a", Do: c.do}, Kind: c.kind})
			}
			b := newSoakBooks(steps)
			e := soakEvidence{noted: c.noted, archived: map[int]string{}, queued: map[int]asynq.TaskState{}}
			for n := range steps {
				if !c.refused {
					at := time.Unix(int64(10*n), 0)
					b.accepted[n] = soakStay{at, at.Add(time.Second)}
				}
			}
			if c.archived != "" {
				e.archived[0] = c.archived
			}
			if c.queued != 0 {
				e.queued[0] = c.queued
			}
			if c.rejected {
				b.rejected[len(steps)-1] = time.Unix(5, 0)
				delete(b.accepted, len(steps)-1)
			}
			if c.deed != "" {
				b.operated(0, c.deed)
			}
			result := b.balance(e)
			all := strings.Join(result.problems, "\n")
			if c.fate != "" && result.fates[c.fate] == 0 || c.fate == "" && len(result.fates) > 0 {
				t.Errorf("fates are %v, want %q", result.fates, c.fate)
			}
			if c.problem == "" && all != "" || !strings.Contains(all, c.problem) {
				t.Errorf("problems are %q, want %q", all, c.problem)
			}
		})
	}
}
