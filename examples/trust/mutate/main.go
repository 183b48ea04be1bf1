// Command mutate asks what the tests would miss. It changes the library at one place, runs the
// fast suites against the change, and does so for each place: a change that no test notices is
// a survivor. Run it at the root of the repository:
//
//	go run ./examples/trust/mutate -n 40 -seed 7       40 mutants by chance
//	go run ./examples/trust/mutate -match 'ask\.lua'   all mutants of the files that match
//	go run ./examples/trust/mutate -list               what there is to change
//
// The library itself is not touched: a mutant of a Go file is an overlay for go test, and tests for mutants of scripts read
// these from a folder. testdata/accepted.txt
// lists survivors that change nothing, each with the reason.
package main

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"sync"
	"syscall"
	"time"
)

func main() {
	n := flag.Int("n", 0, "how many mutants to draw; 0: all")
	seed := flag.Uint64("seed", uint64(time.Now().UnixNano()), "what draws them")
	match := flag.String("match", "", "a regular expression: only mutants whose file and line match")
	list := flag.Bool("list", false, "print the mutants and run nothing")
	within := flag.Duration("within", 0, "begin no mutant after this time; 0: no bound")
	atOnce := flag.Int("at-once", 1, "how many mutants are tried at a time; tests look at the clock, so a busy machine finds mutants that nothing finds")
	least := flag.Float64("least", 0, "fail when fewer of the mutants are found, in percent")
	accepted := flag.String("accepted", "examples/trust/mutate/testdata/accepted.txt", "the survivors that change nothing")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, plan{n: *n, seed: *seed, match: *match, list: *list, within: *within, atOnce: *atOnce, least: *least, accepted: *accepted}); err != nil {
		fmt.Fprintln(os.Stderr, "mutate:", err)
		os.Exit(1) //nolint:gocritic // the process ends: stop has nothing left to release
	}
}

// plan is what the flags ask for.
type plan struct {
	n        int
	seed     uint64
	match    string
	list     bool
	within   time.Duration
	atOnce   int
	least    float64
	accepted string
}

func run(ctx context.Context, p plan) error {
	pattern, err := regexp.Compile(p.match)
	if err != nil {
		return fmt.Errorf("-match: %w", err)
	}
	all, err := mutants(".")
	if err != nil {
		return err
	}
	harmless, err := readAccepted(p.accepted, all)
	if err != nil {
		return err
	}
	all = slices.DeleteFunc(all, func(m mutant) bool { return !pattern.MatchString(m.place()) || harmless[m.key()] })
	if p.n > 0 && p.n < len(all) {
		random := rand.New(rand.NewPCG(p.seed, 0))
		random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		all = all[:p.n]
	}
	if p.list {
		for _, m := range all {
			fmt.Println(m)
		}
		return nil
	}
	return judge(ctx, p, all)
}

// judge runs the mutants, atOnce of them at a time, and prints a line for each survivor.
func judge(ctx context.Context, p plan, all []mutant) error {
	dir, err := os.MkdirTemp("", "mutate")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	built := &binaries{dir: dir, done: map[string]bool{}}
	began := time.Now()
	var mu sync.Mutex // guards the three below
	var found, invalid int
	var survivors []mutant
	ctx, fail := context.WithCancelCause(ctx) // an error ends the others
	defer fail(nil)
	running, free := sync.WaitGroup{}, make(chan struct{}, max(1, p.atOnce))
	for i, m := range all {
		if p.within > 0 && time.Since(began) > p.within {
			fmt.Printf("%d of %d mutants were begun within %s\n", i, len(all), p.within)
			break
		}
		if free <- struct{}{}; ctx.Err() != nil {
			break
		}
		running.Add(1)
		go func() { // ends with its mutant, or with ctx
			defer func() { <-free; running.Done() }()
			result, err := m.try(ctx, built)
			if err != nil {
				fail(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			switch result {
			case killed:
				found++
			case noProgram:
				invalid++
			case survived:
				survivors = append(survivors, m)
				fmt.Printf("survived: %s\n", m)
			}
		}()
	}
	running.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	judged := found + len(survivors)
	score := 100.0
	if judged > 0 {
		score = 100 * float64(found) / float64(judged)
	}
	fmt.Printf("seed %d: %d mutants, %d found, %d survived, %d do not compile: %.1f%% found, in %s\n",
		p.seed, judged+invalid, found, len(survivors), invalid, score, time.Since(began).Round(time.Second))
	if score < p.least {
		return fmt.Errorf("%.1f%% of the mutants were found, less than %.1f%%: write a test for each survivor above, or list it in %s with the reason why it changes nothing",
			score, p.least, p.accepted)
	}
	return nil
}
