package decide

import "slices"

// Why is the reason why a task cannot start now.
type Why uint8

// The strongest reason comes first: what is wrong with the task, then what says nothing about its
// key ("not now"), then what a policy may end it for. A task takes its locks in the order of the rules,
// and the first that it does not get counts; while all slots of a key are held, its cooldown and rate
// do not. Before a policy ends the task, its other locks are looked at too: then the strongest
// reason counts, with the policy of that rule.
const (
	Finished  Why = iota // the task was done already, and is delivered again
	KeyNever             // no key can be made: a *KeyError, or an error that wraps SkipRetry; or the attempts are spent
	KeyDrop              // the function that makes the key said RevokeTask
	KeyLater             // that function cannot make the key now
	NoAnswer             // Redis does not answer, too few replicas do, or the claim cannot be ended
	LeaseLost            // a lease ended before the handler began
	Paused               // an operator has paused the key
	Closed               // a handler has closed the gate (CloseGate)
	Own                  // an earlier attempt of this task holds the key, or its handler has asked to come back (RetryAfter)
	OwnRate              // the rate is used up, maybe by this task's own start: an attempt was spent, or its handler has asked to come back
	Cooldown             // the last successful run is too recent
	Rate                 // the rate allows no start now
	Crowded              // the task would wait for the busy key, but MaxWaiting workers wait already
	Held                 // others hold the key, or stand in line before the task
	Nothing              // it holds all of its locks, or needs none
)

// Strongest returns the reason that counts.
func Strongest(reasons ...Why) Why {
	if len(reasons) == 0 {
		return Nothing
	}
	return slices.Min(reasons)
}

// Wish is what the rule's policy asks for.
type Wish uint8

// The wishes of a policy.
const (
	WishBack    Wish = iota // Retry, RetryIn, Park, Replace; AfterFailure that returned busy, or was not asked
	WishRun                 // Allow
	WishDone                // Skip; AfterFailure that returned nil
	WishArchive             // Archive; AfterFailure that returned SkipRetry
	WishSpend               // Fail; AfterFailure that returned another error
	WishDrop                // AfterFailure that returned RevokeTask
	WishLater               // AfterFailure, or the function that makes the key, returned RetryAfter
)

// Situation is all that Start looks at.
type Situation struct {
	Over   Over
	Why    Why
	Wish   Wish
	Parked bool // Redis keeps the task's place in line, and has it called
	Last   bool // asynq would archive the task for any error but RevokeTask
	TimeUp bool // Last: it may wait no longer, or its RetryAfter ends after a second before its deadline
}

var (
	over   = fact[Over]{0, "over", overWords}
	why    = fact[Why]{1, "why", []string{"done already", "key never", "key drop", "key later", "no answer", "lease lost", "paused", "closed", "own", "own rate", "cooldown", "rate", "crowded", "held", "nothing"}}
	wish   = fact[Wish]{2, "policy", []string{"back", "run", "done", "archive", "spend", "drop", "RetryAfter"}}
	parked = newFlag(3, "parked")
	last   = newFlag(4, "last")
	timeUp = newFlag(5, "time up")
)

func (s Situation) values() values {
	return values{uint8(s.Over), uint8(s.Why), uint8(s.Wish), uint8(yesNoOf(s.Parked)), uint8(yesNoOf(s.Last)), uint8(yesNoOf(s.TimeUp))}
}

// MayEnd reports whether a policy may end a task for the reason: it says something about the key and
// its tasks, and not only "not now". AfterFailure is asked for these reasons alone.
func (w Why) MayEnd() bool { return contention.oneOf&(1<<w) != 0 }

// MayRun reports whether Allow runs a task that meets the reason.
func (w Why) MayRun() bool { return runnable.oneOf&(1<<w) != 0 }

var contention = why.is(Cooldown, Rate, Held)
var runnable = why.isNot(NoAnswer, LeaseLost, Paused)

var startRows = []row[Decision]{
	// 1. What has ended the delivery.
	{when(over.is(ContextEnded)), Decision{What: Leave}},
	{when(over.is(Replaced)), Decision{What: Drop}},
	// Also while the Guard is closed: a refusal of a task whose attempts are spent stands for this delivery alone, and asynq would
	// requeue the task at the same count.
	{when(why.is(KeyNever), wish.isNot(WishRun)), Decision{What: Archive}},
	{when(over.is(GuardClosed), last.is(yes)), Decision{What: Block}},
	{when(over.is(GuardClosed)), Decision{Back, Soon}},
	// 2. It starts, or ends without a start.
	{when(why.is(Nothing)), Decision{What: Run}},
	{when(why.is(Finished)), Decision{What: Done}},
	{when(runnable, wish.is(WishRun)), Decision{What: Run}},
	{when(why.is(KeyDrop)), Decision{What: Drop}},
	{when(contention, wish.is(WishDone)), Decision{What: Done}},
	{when(contention, wish.is(WishArchive)), Decision{What: Archive}},
	{when(contention, wish.is(WishSpend)), Decision{What: Spend}},
	{when(contention, wish.is(WishDrop)), Decision{What: Drop}},
	// 3. It comes back: how.
	{when(parked.is(yes)), Decision{ToLine, AtTurn}},
	{when(last.is(yes), timeUp.is(yes)), Decision{What: Archive}},
	{when(last.is(yes), wish.is(WishLater)), Decision{Stay, AsAsked}},
	{when(last.is(yes)), Decision{What: Stay}},
	// 4. It comes back: when.
	{when(wish.is(WishLater)), Decision{Back, AsAsked}},
	{when(why.is(KeyLater, NoAnswer)), Decision{Back, AtOutage}},
	{when(why.is(Paused)), Decision{Back, AtResume}},
	{when(why.is(Closed, OwnRate, Cooldown, Rate)), Decision{Back, AtGate}},
	{nil, Decision{Back, Soon}},
}

// Start decides about a task in a worker whose handler has not started.
func Start(s Situation) Decision {
	d, _ := firstFit(startRows, s.values())
	return d
}

// possible returns the situation that is meant by one that cannot be.
func (s Situation) possible() Situation {
	switch {
	case s.Wish == WishLater && s.Why != KeyLater && !s.Why.MayEnd(), s.Wish == WishDrop && !s.Why.MayEnd():
		s.Wish = WishBack // AfterFailure is not asked
	case s.Why == Nothing:
		s.Wish = WishBack
	}
	s.Parked = s.Parked && s.Wish == WishBack && s.Why >= Paused && s.Why != Own && s.Why != Nothing && !s.Last
	s.TimeUp = s.TimeUp && s.Last
	return s
}
