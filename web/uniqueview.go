package web

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/automutex/automutex"
	"github.com/automutex/automutex/internal/inspect"
	"github.com/automutex/automutex/internal/printable"
	"github.com/automutex/automutex/unique"
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

	Claims     []claimRow // of all tasks, the oldest first
	MoreClaims bool
	ClaimsAt   time.Time
	ClaimsErr  string
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
	p.keyMaker, ours = automutex.NewKeyMaker(cfg)
	cfg.Rules = nil
	for _, r := range p.o.Unique {
		cfg.Rules = append(cfg.Rules, automutex.Rule{Task: r.Task, On: r.On, OnHeaders: r.OnHeaders, Key: r.Key, Payload: r.Payload, Scope: r.Scope})
	}
	if p.producers, theirs = automutex.NewKeyMaker(cfg); theirs != nil {
		theirs = fmt.Errorf("Unique: %w", theirs)
	}
	return errors.Join(ours, theirs)
}

func newUniqueRow(r unique.Rule) uniqueRow {
	queue := r.Queue
	if queue == "" {
		queue = "default"
	}
	return uniqueRow{Task: r.Task, Queue: queue, Until: printable.Timed(strings.TrimPrefix(r.Until.String(), "until ")), Duplicate: printable.Timed(r.Duplicate.String())}
}

// uniquePage answers with the unique rules, and with what a typed task meets. The payload
// comes in the body of a POST, so that it is in no log of requests; nothing is changed.
func (p *page) uniquePage(w http.ResponseWriter, r *http.Request) {
	v := &uniqueView{frame: p.frame(r, "unique", "Unique"), Done: p.done(r)}
	for _, rule := range p.o.Unique {
		v.Rules = append(v.Rules, newUniqueRow(rule))
	}
	var err error
	if v.Claims, v.MoreClaims, v.ClaimsAt, err = p.claims.get(r.Context(), p); err != nil {
		v.ClaimsErr = printable.Short(err.Error())
	}
	if r.Method == http.MethodPost {
		r.Body = http.MaxBytesReader(w, r.Body, maxForm)
		if err := r.ParseForm(); err != nil {
			p.fail(w, r, http.StatusBadRequest, "The form could not be read.")
			return
		}
		v.Type, v.Payload = r.PostForm.Get("type"), r.PostForm.Get("payload")
		ctx, cancel := context.WithTimeout(r.Context(), lookWithin)
		defer cancel()
		if err = p.meet(ctx, v); err != nil {
			v.Err = printable.Short(err.Error())
		}
	}
	p.render(w, http.StatusOK, "unique", v)
}

// meet finds the keys of the typed task, and the task that has its unique key.
func (p *page) meet(ctx context.Context, v *uniqueView) (err error) {
	t := asynq.NewTask(v.Type, []byte(v.Payload))
	if v.Locks, err = p.keyMaker.Keys(ctx, t); err != nil {
		return err
	}
	keys, err := p.producers.Keys(ctx, t)
	if err != nil {
		return err
	}
	if v.Asked = true; len(keys) == 0 {
		return nil
	}
	guarded := make([]automutex.Rule, 0, len(p.o.Unique))
	for _, r := range p.o.Unique {
		guarded = append(guarded, automutex.Rule{Task: r.Task})
	}
	places := inspect.RulesFor(guarded, v.Type)
	if len(places) == 0 {
		return nil
	}
	rule := p.o.Unique[places[0]]
	row := newUniqueRow(rule)
	row.Key = keys[0]
	v.Rule = &row
	if rule.Until == unique.UntilDone { // the key is the ID of the task
		row.TaskOf = p.taskOf(inspect.TaskName(row.Queue, row.Key, ""))
		row.TaskOf.Queue, row.TaskOf.ID = row.Queue, row.Key
	} else {
		row.Claim = row.Key + ":claim"
		if row.Holder, row.Age, err = p.claim(ctx, row.Claim); err != nil || row.Holder == "" {
			return err
		}
		row.TaskOf = p.taskOf(row.Holder)
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

// claim reads a claim: "since deadline phase holder", the times in milliseconds by Redis'
// clock. Of one without a since, which a plain SET has made, the deadline is the length,
// and a second of the key's own expiry comes after it.
func (p *page) claim(ctx context.Context, key string) (holder string, age time.Duration, err error) {
	pipe := p.rdb.Pipeline()
	get, left := pipe.Get(ctx, key), pipe.PTTL(ctx, key)
	if _, err := pipe.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
		return "", 0, fmt.Errorf("the claim %s: %w", printable.Short(key), err)
	}
	now, err := p.rdb.Time(ctx).Result()
	if err != nil {
		return "", 0, fmt.Errorf("the claim %s: %w", printable.Short(key), err)
	}
	if holder, age, err = parseClaim(get.Val(), left.Val(), now); err != nil {
		return "", 0, fmt.Errorf("the claim %s is not one of unique: %w", printable.Short(key), err)
	}
	return holder, age, nil
}

// parseClaim reads the value of a claim that expires in left. No claim has no holder.
func parseClaim(value string, left time.Duration, now time.Time) (holder string, age time.Duration, err error) {
	f := strings.SplitN(value, " ", 4)
	if len(f) != 4 {
		return "", 0, nil
	}
	since, err1 := strconv.ParseInt(f[0], 10, 64)
	deadline, err2 := strconv.ParseInt(f[1], 10, 64)
	if err := errors.Join(err1, err2); err != nil {
		return "", 0, err
	}
	if since == 0 {
		return f[3], max(0, time.Duration(deadline)*time.Millisecond+time.Second-left), nil
	}
	return f[3], now.Sub(time.UnixMilli(since)), nil
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
