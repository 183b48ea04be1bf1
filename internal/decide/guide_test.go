package decide

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// reasons are the words of docs/guide.md for each reason.
var reasons = [...]string{
	Finished:  "the task was done already (ordered keys)",
	KeyNever:  "no key can be made, ever",
	KeyDrop:   "its `Key`, `LimitOf` or `Config.Decode` returned `asynq.RevokeTask`",
	KeyLater:  "its key cannot be made now",
	NoAnswer:  "Redis does not answer, or too few replicas do",
	LeaseLost: "a lease was lost before the handler began",
	Paused:    "an operator has paused the key",
	Closed:    "`CloseGate` has closed the key",
	Own:       "the task's own earlier attempt still holds the key; or others do, and its handler has returned `RetryAfter` (then Park parks)",
	OwnRate:   "the rate is used up, and an attempt of this task was spent, or its handler has returned `RetryAfter`",
	Cooldown:  "cooldown",
	Rate:      "the rate is used up",
	Crowded:   "the task would wait for the busy key, but `MaxWaiting` workers wait already",
	Held:      "the key is busy",
	Nothing:   "",
}

var guideWhen = [...]string{Unsaid: "", Soon: "in 1 to 5 s, or `RetryIn`'s d", AtGate: "when the gate opens", AtResume: "when the pause ends, or to look after 30 to 90 s", AtOutage: "in 1 to 30 s", AsAsked: "", AtTurn: ""}

var guideWhat = [...]string{
	Leave: "", Run: "runs", Done: "done", Archive: "archived", Spend: "attempt spent", Drop: "dropped",
	Back: "back", ToLine: "parks", Stay: "waits in its worker", Block: "",
}

// TestGuide holds "What happens when" in docs/guide.md against Start. Read its changes, as those
// of testdata/decisions.txt: they are changes of what users read.
func TestGuide(t *testing.T) {
	var b strings.Builder
	head := "| why the task cannot start | comes back |"
	for _, p := range policies {
		if p.wish == WishRun {
			head += " AfterFailure |"
		}
		head += " " + p.name + " |"
	}
	fmt.Fprintf(&b, "%s\n%s\n", head, strings.Repeat("|---", len(policies)+3)+"|")
	last := map[What]What{} // what a decision becomes on the last attempt
	for w := range reasons[:Nothing] {
		why := Why(w)
		when, cells := Unsaid, ""
		for _, p := range policies {
			if p.wish == WishRun {
				cells += " " + afterFailure(why) + " |"
			}
			s := Situation{Why: why, Wish: p.wish, Parked: p.park}.possible()
			d := Start(s)
			if d.What == Back {
				if when != Unsaid && when != d.When {
					t.Fatalf("%s: two times in one row", reasons[w])
				}
				when = d.When
			}
			cells += " " + guideWhat[d.What] + " |"
			s.Parked, s.Last = false, true
			if was, known := last[d.What]; known && was != Start(s).What {
				t.Fatalf("%s: on the last attempt, what is %q elsewhere differs", reasons[w], guideWhat[d.What])
			}
			last[d.What] = Start(s).What
			if s.TimeUp = true; Start(s).What != last[d.What] && Start(s).What != Archive {
				t.Fatalf("%s: neither archived nor the same when its time is up", reasons[w])
			}
		}
		fmt.Fprintf(&b, "| %s | %s |%s\n", reasons[w], guideWhen[when], cells)
		if why == KeyNever { // of no rule, so no policy counts
			spent := " " + guideWhat[Start(Situation{Why: KeyNever}).What] + " |"
			fmt.Fprintf(&b, "| its attempts are spent (`NewClient`) | |%s\n", strings.Repeat(spent, len(policies)+1))
		}
	}
	b.WriteString("\n")
	for what, then := range last {
		if (what == Back || what == ToLine) != (then == Stay) || then != Stay && then != what {
			t.Errorf("on the last attempt %q becomes %q: say so", guideWhat[what], guideWhat[then])
		}
	}
	b.WriteString("On its last attempt a task that would go back or park waits in its worker and looks again: what it meets then decides. It is archived if its time runs out first. All else is the same.\n")
	goldenPart(t, filepath.Join("..", "..", "docs", "guide.md"), b.String())
}

// afterFailure says what the policy does for a reason: its function is asked for some of them.
func afterFailure(w Why) string {
	if w.MayEnd() {
		return "your function decides"
	}
	return guideWhat[Start(Situation{Why: w}.possible()).What]
}

// goldenPart holds what stands between the two marks of a page.
func goldenPart(t *testing.T, path, want string) {
	t.Helper()
	const from, to = "<!-- written by go test ./internal/decide -update -->\n", "<!-- end -->\n"
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, opened := strings.Cut(string(page), from)
	is, after, closed := strings.Cut(rest, to)
	if !opened || !closed {
		t.Fatalf("%s has no part between %q and %q", path, from, to)
	}
	if is == want {
		return
	}
	if !*update {
		t.Fatalf("%s is out of date: run go test ./internal/decide -update, and read the difference", path)
	}
	if err := os.WriteFile(path, []byte(before+from+want+to+after), 0o600); err != nil {
		t.Fatal(err)
	}
}
