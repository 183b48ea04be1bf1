package web

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/hibiken/asynq"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/fleet"
	"github.com/automutex/automutex/internal/inspect"
	"github.com/automutex/automutex/internal/printable"
)

// uniqueView answers: which keys does a task make, and what stands in its way?
type uniqueView struct {
	frame
	Type, Payload string // as typed
	Asked         bool   // the keys of what was typed are known
	Err           string
	Locks         []string // keys of the locks that the task needs
	Rule          *uniqueRow
	Rules         []uniqueRow
	Done          *Action

	foundClaims // of all tasks
	ClaimsErr   string
}

type uniqueRow struct {
	Task, Queue, Until, Duplicate string
	Key                           string // of the typed task
	Claim                         string // Redis key of the claim; empty under UntilDone
	Holder                        string // of the claim
	Age                           time.Duration
	State                         string // of the task that has the key; empty when there is none
	TaskOf                        task
}

// makeKeys makes what makes keys, and so checks the rules.
func (p *page) makeKeys() (err error) {
	cfg := automutex.Config{Rules: p.o.Rules, Prefix: p.o.Prefix, HashKeys: p.o.HashKeys, Decode: p.o.Decode, Logger: p.o.Logger}
	var ours, theirs error
	k := &known{rules: ruleInfos(inspect.Describe(p.o.Rules))}
	k.keyMaker, ours = automutex.NewKeyMaker(cfg)
	k.unique, cfg.Rules = inspect.UniqueRules(p.o.Unique)
	if k.producers, theirs = automutex.NewKeyMaker(cfg); theirs != nil {
		theirs = fmt.Errorf("Unique: %w", theirs)
	}
	p.known.Store(k)
	return errors.Join(ours, theirs)
}

func newUniqueRow(r fleet.Rule) uniqueRow {
	return uniqueRow{Task: r.Task, Queue: r.Queue, Until: r.UntilShown(), Duplicate: printable.Timed(r.Duplicate)}
}

// uniquePage answers with the unique rules, and with what a typed task meets. The payload
// comes in the body of a POST, so that it is in no log of requests; nothing is changed.
func (p *page) uniquePage(w http.ResponseWriter, r *http.Request) {
	v := &uniqueView{frame: p.frame(r, "unique", "Unique"), Done: p.done(r)}
	v.Here = "unique"
	ctx, cancel := context.WithTimeout(r.Context(), lookWithin)
	defer cancel()
	_, _ = p.fleetNow(ctx) // Processes says what is wrong with it
	for _, rule := range p.known.Load().unique {
		v.Rules = append(v.Rules, newUniqueRow(rule))
	}
	var err error
	if v.foundClaims, err = p.claims.get(r.Context(), claimsFresh, p.findClaims); err != nil {
		v.ClaimsErr = trouble(err, reload)
	}
	if r.Method == http.MethodPost {
		r.Body = http.MaxBytesReader(w, r.Body, maxForm)
		if err := r.ParseForm(); err != nil {
			p.fail(w, r, http.StatusBadRequest, "The form could not be read.")
			return
		}
		v.Type, v.Payload = r.PostForm.Get("type"), r.PostForm.Get("payload")
		if err = p.meet(ctx, v); err != nil {
			v.Err = trouble(err, reload)
		}
	}
	p.render(w, http.StatusOK, "unique", v)
}

// meet finds the keys of the typed task, and the task that has its unique key.
func (p *page) meet(ctx context.Context, v *uniqueView) (err error) {
	t, k := asynq.NewTask(v.Type, []byte(v.Payload)), p.known.Load()
	if k.hashed {
		return errors.New("the processes hash their keys, and the page does not have the secret: set Options.HashKeys, or AUTOMUTEX_HASH_KEYS for the command")
	}
	if v.Locks, err = k.keyMaker.Keys(ctx, t); err != nil {
		return err
	}
	found, err := inspect.UniqueOf(ctx, k.producers, k.unique, t)
	if err != nil {
		return err
	}
	if v.Asked = true; found == nil {
		return nil
	}
	row := newUniqueRow(found.Rule)
	row.Key, row.Claim = found.Key, found.Claim
	v.Rule = &row
	if row.Claim == "" {
		row.TaskOf = p.taskOf(inspect.TaskName(row.Queue, found.TaskID, ""))
		row.TaskOf.Queue, row.TaskOf.ID = row.Queue, found.TaskID
	} else {
		claims, err := p.readClaims(ctx, []string{row.Claim})
		if err != nil || len(claims) == 0 {
			return err
		}
		row.Holder, row.Age, row.TaskOf = claims[0].Holder, claims[0].Age, claims[0].TaskOf
	}
	state := stateOf(row.TaskOf, p.states.ask(ctx, []task{row.TaskOf}))
	switch {
	case row.Holder == "" && state == stateUnknown:
		return errors.New("asynq does not say whether it has this task; try again")
	case row.Holder != "" || state != "not in asynq":
		row.State = state
	}
	return nil
}

// dropClaim drops one task's claim.
func (p *page) dropClaim(ctx context.Context, key, holder string) (string, error) {
	of, isClaim := strings.CutSuffix(key, ":claim")
	if err := inner.LockErr(inner.ByKey(p.locker, of)); err != nil || !isClaim || holder == "" {
		return "", fmt.Errorf("%w: %q is no claim of a task", errGone, printable.Short(key))
	}
	dropped, err := inner.Claim(p.locker, of).Drop(ctx, holder)
	p.claims.forget()
	if err == nil && !dropped {
		err = fmt.Errorf("%w: the claim is not this task's any more", errGone)
	}
	return "The claim of " + printable.Short(holder) + " was dropped.", err
}
