package trust

import (
	"cmp"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/automutex/automutex/internal/redistest"
)

const modelDir = "../../docs/model"

type modelRun struct {
	what    string
	file    string // empty: lock.pml
	defines string
	fails   string // the assertion that a mutant breaks; empty: every state is sound
	depth   int    // how deep is looked; 0: as deep as it goes
	big     bool   // so many states that optimizing pays
	minutes int    // stops then; states are remembered by a few bits each; 0: all states, exactly
}

// The numbers of ticks with which the model is smallest, and of trouble with which nothing but waiting is left.
const (
	modelSmall = "-DTTL=2 -DG=1 -DSTAY=2 "
	modelCalm  = "-DPROMPT -DCRASHES=0 -DLOSSES=0 -DDELAYS=0 "
)

// orderRuns are the searches of the order of a key, and of the reserved attempt.
func orderRuns() []modelRun {
	order := func(what, defines string) modelRun {
		return modelRun{what: "order: " + what, file: "order.pml", defines: defines, big: true}
	}
	reserved := func(what, defines, fails string) modelRun {
		return modelRun{what: "reserved attempt: " + what, file: "reserved.pml", defines: defines, fails: fails}
	}
	mutant := func(name, defines, fails string, depth int) modelRun {
		return modelRun{what: "order: mutant " + name, file: "order.pml", defines: "-DPARK_ONLY -DMUT_" + name + " " +
			defines, fails: fails, depth: depth}
	}
	const (
		inOrder = "||ok[i]"
		ends    = "rounds<=8"
		starts  = "-opr)"
		unTold  = "-DRETAIN -DUNTOLD=1 "
		calls   = "-DLIVE -DNOBACK "
	)
	runs := []modelRun{
		order("tasks wait or park", ""),
		order("a failure", "-DFAILS=1 -DPARK_ONLY"),
		order("a failure, and no task comes back by itself", calls+"-DFAILS=1 -DPARK_ONLY"),
		order("all tasks end, after a crash of one that waits too", "-DLIVE -DCRASHES=1 -DWAIT_ONLY"),
		reserved("two crashes, a timeout, an operator", "-DCRASHES=2 -DTOUTS=1 -DOPRUN=1", ""),
		reserved("two crashes, one before the handler", "-DCRASHES=2 -DTOUTS=1 -DEARLY=1", ""),
		reserved("Continue", "-DCONTINUE -DUNNOTED=1 -DCRASHES=2 -DTOUTS=1 -DOPRUN=1", ""),
		reserved("mutant NO_MARK", "-DCONTINUE -DUNNOTED=1 -DMUT_NO_MARK", starts),
		reserved("mutant RUN_ALWAYS", "-DCRASHES=2 -DMUT_RUN_ALWAYS", starts),
		reserved("mutant REFUSE_ALWAYS", "-DCRASHES=2 -DOPRUN=1 -DMUT_REFUSE_ALWAYS", "by_operator==0"),
		mutant("NOT_HEAD", "", inOrder, modelShallow),
		mutant("NO_DONE", "-DCRASHES=1", "t==99)", modelShallow),
		mutant("OLD_LOOK", "", inOrder, 36),
		mutant("LOOK_BY_ID", "-DREUSE -DLIVE -DCRASHES=1", ends, 300),
		mutant("WITHDRAW_BY_ID", "-DREUSE", inOrder, modelShallow),
		mutant("NO_CONFIRM", "", inOrder, modelShallow),
		mutant("CLOCK", "", inOrder, modelShallow),
		mutant("COMPLETED", unTold+"-DLIVE", ends, 300),
		mutant("SILENT", calls, ends, 300),
		mutant("CALL_RETRY", "-DFAILS=1", "st[1]!=3", modelShallow),
	}
	if !*long {
		return runs
	}
	return append(runs,
		order("a crash", "-DCRASHES=1 -DPARK_ONLY"),
		order("a crash of one that waits too", "-DCRASHES=1 -DWAIT_ONLY"),
		order("a crash, and all tasks end", "-DLIVE -DCRASHES=1 -DPARK_ONLY"),
		order("a timeout", "-DTIMEOUTS=1 -DPARK_ONLY"),
		order("a release that does not reach Redis", unTold+"-DPARK_ONLY"),
		order("an operator", "-DOPS=1 -DPARK_ONLY"),
		order("Continue", "-DCONTINUE -DFAILS=1 -DMAXR=0 -DPARK_ONLY"),
	)
}

// modelShallow is how deep mutants are looked for: each fails within so many steps.
const modelShallow = 60

func modelRuns() []modelRun {
	runs := []modelRun{
		{what: "two clients", defines: modelSmall, big: true},
		{what: "two clients, three fences: one loss, one delay", defines: modelSmall + "-DPROMPT -DCRASHES=0 -DFENCE=4"},
		{what: "two clients, waits of at most 11 ticks: one crash, one loss, one delay", defines: "-DPROMPT -DWAIT=11",
			big: true},
		{what: "two clients, waits of at most 4 ticks without trouble", defines: modelCalm + "-DWAIT=4"},
		{what: "two clients, waits of at most 4 ticks without trouble and refreshes", defines: modelCalm +
			"-DNO_REFRESH -DWAIT=4"},
		{what: "three clients, waits of at most 8 ticks without trouble and refreshes", defines: modelCalm +
			"-DNO_REFRESH -DCLIENTS=3 -DWAIT=8"},
	}
	if *long {
		three := modelSmall + "-DPROMPT -DCLIENTS=3 -DWAIT=40 "
		runs = append(runs, []modelRun{
			{what: "two clients, longer leases", defines: "-DTTL=3", big: true},
			{what: "two clients, four fences", defines: modelSmall + "-DFENCE=5", big: true},
			{what: "two clients, waits: one crash, two losses, two delays", defines: "-DPROMPT -DLOSSES=2 -DDELAYS=2 -DWAIT=40",
				big: true},
			{what: "three clients, waits without trouble", defines: modelCalm + "-DCLIENTS=3 -DWAIT=8", big: true},
			{what: "three clients, two slots, waits without trouble", defines: modelCalm + "-DCLIENTS=3 -DN=2 -DWAIT=8",
				big: true},
			{what: "three clients, waits: one loss", defines: three + "-DCRASHES=0 -DDELAYS=0", big: true},
			{what: "three clients, waits: one crash", defines: three + "-DLOSSES=0 -DDELAYS=0", big: true},
			{what: "three clients, waits: one delay", defines: three + "-DCRASHES=0 -DLOSSES=0", big: true},
			{what: "three clients, for ten minutes", defines: modelSmall + "-DCLIENTS=3", minutes: 10},
			{what: "three clients, two slots, for ten minutes", defines: modelSmall + "-DCLIENTS=3 -DN=2", minutes: 10},
		}...)
	}
	const beliefs = "believers<=1"
	mutant := func(name, defines, fails string) modelRun {
		return modelRun{what: "mutant " + name, defines: defines + " -DMUTANT_" + name, fails: fails, depth: modelShallow}
	}
	return append(runs,
		mutant("RELEASE_ANYBODY", modelSmall, beliefs),
		mutant("RENEW_RETAKES", modelSmall+"-DBELIEFS_ONLY", beliefs),
		mutant("COUNT_FROM_MESSAGE", modelSmall, beliefs),
		mutant("COUNT_FROM_REPLY", modelSmall, beliefs),
		mutant("OLD_MESSAGE", modelSmall, beliefs),
		mutant("NO_REARM", modelSmall, beliefs),
		mutant("GRANT_TO_THE_DEAD", modelSmall, "dead_for[id]<=2"),
		mutant("ASK_TWICE", modelSmall, "holder[c]==0"),
		mutant("RELEASE_WITHOUT_GRANT", modelCalm+"-DNO_REFRESH -DWAIT=4", "waited[i]<=4"),
		mutant("FENCE_STANDS", modelSmall+"-DFENCE=4", "_fence[c]>worked"),
		mutant("FENCE_BEFORE_SET", modelSmall+"-DFENCE=4", "_fence[c]>worked"),
		mutant("SET_OVERWRITES", modelSmall, beliefs),
		mutant("INFLATE_FORGETS", modelSmall, beliefs),
		mutant("DROP_OF_ANYBODY", modelSmall, beliefs),
		mutant("DEFLATE_HELD", modelSmall, beliefs),
		mutant("DEFLATE_WANTED", modelCalm+"-DNO_REFRESH -DWAIT=4", "waited[i]<=4"),
		mutant("FENCE_BY_CLOCK", modelSmall+"-DFENCE=4", "_fence[c]>worked"),
		modelRun{what: "mutant of a wait: one tick less", defines: modelCalm + "-DWAIT=3", fails: "waited[i]<=3"},
	)
}

// TestModel goes through the states of the model of the protocol: none of the true
// one breaks an assertion, and each mutant breaks the one that it should.
func TestModel(t *testing.T) {
	redistest.Long(t)
	t.Parallel()
	for _, tool := range []string{"spin", "cc"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("no %s in PATH: the model of the protocol is not checked (Debian has it in the packages spin and gcc)", tool)
		}
	}
	for _, run := range append(modelRuns(), orderRuns()...) {
		run.file = cmp.Or(run.file, "lock.pml")
		source, err := filepath.Abs(filepath.Join(modelDir, run.file))
		redistest.Must(t, err)
		t.Run(run.what, func(t *testing.T) {
			t.Parallel()
			states, failed := run.search(t, source)
			t.Log("states", states)
			switch {
			case run.fails == "" && failed != "":
				t.Errorf("assertion (%s) is violated; to see how: spin -t -p -g %s %s", failed, run.defines, run.file)
			case run.fails != "" && !strings.HasSuffix(failed, run.fails):
				t.Errorf("it broke the assertion (%s), and should have broken (%s)", failed, run.fails)
			}
		})
	}
}

var (
	modelStates   = regexp.MustCompile(`(?m)^ *(\d+(?:\.\d+e\+\d+)?) states, stored`)
	modelErrors   = regexp.MustCompile(`errors: (\d+)`)
	modelViolated = regexp.MustCompile(`assertion violated \((.*)\) \(at depth`)
)

func (m modelRun) search(t *testing.T, source string) (states, failed string) {
	t.Helper()
	dir := t.TempDir()
	command := func(name string, args ...string) string {
		t.Helper()
		c := exec.CommandContext(t.Context(), name, args...)
		c.Dir = dir
		out, err := c.CombinedOutput()
		if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) || err != nil && name != "./pan" {
			t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	command("spin", append(append([]string{"-a"}, strings.Fields(m.defines)...), source)...)
	// Everything is shared by all, so there is no order of steps to reduce.
	compile := []string{"-w", "-DSAFETY", "-DNOREDUCE", "-o", "pan", "pan.c"}
	search := []string{fmt.Sprintf("-m%d", size(500_000, 10_000_000))}
	switch {
	case m.depth > 0:
		search = []string{fmt.Sprintf("-m%d", m.depth)}
	case m.minutes > 0:
		compile = append([]string{"-O2", "-DBITSTATE"}, compile...)
		search = append(search, "-w33", "-k3", fmt.Sprintf("-Q%d", m.minutes))
	case m.big:
		compile = append([]string{size("-O1", "-O2")}, compile...)
	}
	command("cc", compile...)
	out := command("./pan", search...)
	count, wrong := modelStates.FindStringSubmatch(out), modelErrors.FindStringSubmatch(out)
	if count == nil || wrong == nil {
		t.Fatalf("the search did not come to its end:\n%s", out)
	}
	if m.fails == "" && m.minutes == 0 && strings.Contains(out, "max search depth too small") {
		t.Fatalf("the search did not go as deep as the model is:\n%s", out)
	}
	if v := modelViolated.FindStringSubmatch(out); v != nil {
		return count[1], v[1]
	}
	if wrong[1] != "0" {
		t.Fatalf("an error that is no assertion:\n%s", out)
	}
	return count[1], ""
}
