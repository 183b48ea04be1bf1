package decide

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"text/tabwriter"

	"github.com/automutex/automutex/internal/redistest"
)

var update = flag.Bool("update", false, "write testdata/decisions.txt and the table of docs/guide.md anew")

// The words of the tables, by value.
var (
	whats = [...]string{"leave it", "run", "done", "archived", "attempt spent", "dropped", "back", "parks",
		"stays", "gives back, stays", "blocks until requeued"}
	whens = [...]string{"", "in 1-5 s", "when the gate opens", "when the pause ends", "after the outage's delay",
		"after its RetryAfter", ""}
	whys = [...]string{"done already", "key never", "key drop", "key later", "no answer", "lease lost",
		"late", "own earlier attempt", "paused", "closed", "cooldown", "rate", "held", "nothing"}
	overs   = [...]string{"goes on", "context ended", "replaced", "Guard closed"}
	saids   = [...]string{"nil", "error", "RetryAfter", "SkipRetry", "RevokeTask", "panic"}
	claims  = [...]string{"none", "fresh", "settled", "confirmed"}
	tasks   = [...]string{"absent", "waits", "active", "ended"}
	untils  = [...]string{"until done", "until start", "for a time"}
	doubles = [...]string{"reject", "join", "replace, postpone"}
	actions = [...]string{"enqueue", "refuse", "join", "supersede", "look again"}
)

func (d Decision) String() string { return strings.TrimSpace(whats[d.What] + " " + whens[d.When]) }

func (a Action) String() string { return actions[a] }

// policies are those of package automutex, as Start sees them: AfterFailure where its function is not asked, or says
// that the key is busy.
var policies = []struct {
	name string
	wish Wish
	park bool
}{
	{"Park", WishBack, true}, {"Retry, RetryIn, Replace", WishBack, false}, {"Skip", WishDone, false},
	{"Archive", WishArchive, false},
	{"Fail", WishSpend, false}, {"AfterFailure", WishBack, false}, {"Allow", WishRun, false},
}

// lates are what Rule.Late may be, as Start sees them: AfterFailure where its function returned the BusyError.
var lates = []struct {
	name string
	wish Wish
}{{"Archive", WishArchive}, {"Skip", WishDone}, {"AfterFailure", WishBack}}

// situation is that of a task with the policy of that index, and Archive as its Late.
func situation(policy int, why Why, last bool) Situation {
	parks := why == Paused || why == Closed || why.ForPolicy()
	if why == Late {
		return Situation{Why: why, Wish: WishArchive, Last: last}
	}
	return Situation{Why: why, Wish: policies[policy].wish, Parked: policies[policy].park && parks && !last, Last: last}
}

// What can be decided is the golden file: read its changes.
func TestDecisions(t *testing.T) {
	b := strings.Builder{}
	b.WriteString("The decisions of automutex, written by go test ./internal/decide -update. Read each change of this " +
		"file.\n\"in 1-5 s\": under RetryIn, after its delay.\nA task \"stays\" in its worker, and \"gives back\" the " +
		"locks that it has before.\n\"in its Wait\": the lock is not the task's first, and its gate opens while its Wait " +
		"lasts.\n")
	table := func(title string, rows ...[]string) {
		fmt.Fprintf(&b, "\n== %s\n\n%s", title, aligned(rows))
	}
	head := []string{"why"}
	for _, p := range policies {
		head = append(head, p.name)
	}
	for _, last := range []bool{false, true} {
		title := "Start: the handler has not started"
		if last {
			title = "Start on the last attempt, with time left. Without time, what stays is archived"
		}
		rows := [][]string{head}
		for why, word := range whys {
			row := []string{word}
			for policy := range policies {
				s := situation(policy, Why(why), last)
				row = append(row, Start(s).String())
				late := s
				stays := Start(s).What == Stay || Start(s).What == GiveBack
				if late.TimeUp = last; last && stays && Start(late).What != Archive || !stays && Start(late) != Start(s) {
					t.Errorf("%+v: without time left: %s", s, Start(late))
				}
			}
			rows = append(rows, row)
		}
		for why := Closed; why <= Rate; why++ {
			row := []string{whys[why] + ", in its Wait"}
			for policy := range policies {
				s := situation(policy, why, last)
				s.Parked, s.Waits = false, true
				row = append(row, Start(s).String())
			}
			rows = append(rows, row)
		}
		table(title, rows...)
	}
	late := [][]string{{"Late", "", "on the last attempt", "and no time", "its Guard closed", "so, on the last attempt"}}
	for _, l := range lates {
		row := []string{l.name}
		for _, s := range []Situation{{}, {Last: true}, {Last: true, TimeUp: true}, {Over: GuardClosed},
			{Over: GuardClosed, Last: true}} {
			s.Why, s.Wish = Late, l.wish
			row = append(row, Start(s).String())
			if s.Parked = true; Start(s).String() != row[len(row)-1] { // its place in line changes nothing
				t.Errorf("%+v: %s", s, Start(s))
			}
		}
		late = append(late, row)
	}
	table("Start: late, by Rule.Late, whatever the policy", late...)
	ended := [][]string{{"over", "key never, not Allow", "any other reason", "on the last attempt", "parked"}}
	for over := ContextEnded; over <= GuardClosed; over++ {
		ended = append(ended, []string{overs[over], Start(Situation{Over: over, Why: KeyNever}).String(),
			Start(Situation{Over: over, Why: Held}).String(), Start(Situation{Over: over, Why: Held, Last: true}).String(),
			Start(Situation{Over: over, Why: Held, Parked: true}).String()})
		for why := Finished; why <= Nothing; why++ {
			for policy := range policies {
				for _, last := range []bool{false, true} {
					s := situation(policy, why, last)
					s.Over = over
					if want := Start(Situation{Over: over, Why: Held, Last: last, Parked: s.Parked}); Start(s) != want &&
						(why != KeyNever || s.Wish == WishRun) {
						t.Errorf("%+v: %s, want %s", s, Start(s), want)
					}
				}
			}
		}
	}
	table("Start: the delivery is over", ended...)

	results := [][]string{{"handler said", "over", "", "on the last attempt", "and no time", "on its caller's"}}
	for said, word := range saids {
		for over, ends := range overs {
			r := Result{Over: Over(over), Said: Said(said)}
			last, late, spent := r, r, r
			last.Last, late.Last, late.TimeUp, spent.Spent = true, true, Said(said) == SaidLater, true
			results = append(results, []string{word, ends, End(r).String(), End(last).String(), End(late).String(),
				End(spent).String()})
		}
	}
	table("End: the handler has returned", results...)

	for until, word := range untils {
		rows := [][]string{{"claim", "task", "begun"}}
		for _, keep := range []string{"", ", keep archived"} {
			for _, double := range doubles {
				rows[0] = append(rows[0], double+keep)
			}
		}
		for claim := range claims {
			for task := range tasks {
				for _, begun := range []bool{false, true} {
					if Claim(claim) == NoClaim && Task(task) != Absent || begun &&
						(Task(task) == Absent || Claim(claim) != Confirmed) {
						continue // cannot be
					}
					row := []string{claims[claim], tasks[task], yesNo(begun)}
					for _, keep := range []bool{false, true} {
						for _, double := range []Duplicate{Reject, Join, Replace} {
							e := Existing{Until(until), double, keep, Claim(claim), Task(task), begun}
							row = append(row, Admit(e).String())
							if e.Duplicate = Postpone; double == Replace && Admit(e).String() != row[len(row)-1] {
								t.Errorf("%+v: %s", e, Admit(e))
							}
						}
					}
					rows = append(rows, row)
				}
			}
		}
		table("Admit, "+word+": a producer wants to enqueue a task for a key", rows...)
	}
	redistest.Golden(t, *update, filepath.Join("testdata", "decisions.txt"), b.String())
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func aligned(rows [][]string) string {
	var text, b strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		_, _ = fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	_ = w.Flush()
	for line := range strings.Lines(text.String()) {
		b.WriteString(strings.TrimRight(line, " \n") + "\n")
	}
	return b.String()
}

// reasons are the words of docs/guide.md for each reason.
var reasons = [...]string{
	Finished:  "the task was done already (ordered keys)",
	KeyNever:  "no key can be made, ever",
	KeyDrop:   "its `Key`, `LimitOf`, `RateOf`, `Cost` or `Config.Decode` returned `asynq.RevokeTask`",
	KeyLater:  "its key cannot be made now",
	NoAnswer:  "Redis does not answer, or too few replicas do",
	LeaseLost: "a lease was lost before the handler began",
	Late:      "[its time to start](#in-time-or-not-at-all) has passed",
	Own:       "the task's own earlier attempt still holds the key",
	Paused:    "an operator has paused the key",
	Closed:    "`CloseGate` has closed the key",
	Cooldown:  "cooldown",
	Rate:      "the rate is used up",
	Held:      "the key is busy",
}

// TestGuide holds "What happens when" in docs/guide.md against Start. Read its changes: they are changes of
// what users read.
func TestGuide(t *testing.T) {
	when := [...]string{Unsaid: "", Soon: "in 1 to 5 s, or `RetryIn`'s d", AtGate: "when the gate opens",
		AtResume: "when the pause ends, or to look after 30 to 90 s", AtOutage: "in 1 to 30 s", AsAsked: "", AtTurn: ""}
	what := [...]string{Run: "runs", Done: "done", Archive: "archived", Spend: "attempt spent", Drop: "dropped",
		Back: "back", ToLine: "parks"}
	var b strings.Builder
	b.WriteString("|why the task cannot start |comes back |Park |Retry, RetryIn, Replace |Skip |Archive |Fail |" +
		"AfterFailure |Allow |\n|---|---|---|---|---|---|---|---|---|\n")
	for why, words := range reasons {
		cells, comes := "", Unsaid
		for policy, p := range policies {
			d := Start(situation(policy, Why(why), false))
			cell := what[d.What]
			switch {
			case Why(why) == Late:
				cell = "as `Late` says"
			case p.name == "AfterFailure" && Why(why).ForPolicy():
				cell = "your function decides"
			case d.What == Back:
				comes = d.When
			}
			cells += cell + " |"
		}
		fmt.Fprintf(&b, "|%s |%s |%s\n", words, when[comes], cells)
	}
	b.WriteString(`
On its last attempt a task that would go back or park waits in its worker, until a second before its deadline; then it
is archived. All else is the same.
`)
	goldenPart(t, filepath.Join("..", "..", "docs", "guide.md"), b.String())
}

// goldenPart holds what stands between the two marks of a page.
func goldenPart(t *testing.T, path, want string) {
	t.Helper()
	const from, to = "<!-- written by go test ./internal/decide -update -->\n", "<!-- end -->\n"
	page, err := os.ReadFile(path)
	redistest.Must(t, err)
	before, rest, opened := strings.Cut(string(page), from)
	is, after, closed := strings.Cut(rest, to)
	if !opened || !closed {
		t.Fatalf("%s has no part between %q and %q", path, from, to)
	}
	if is != want {
		redistest.Golden(t, *update, path, before+from+want+to+after)
	}
}
