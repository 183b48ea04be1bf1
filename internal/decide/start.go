package decide

// Why is the reason why a task cannot start now.
type Why uint8

// A task takes its locks in the order of the rules, and the first that it does not get counts. Of rules
// for which no key can be made, the first reason of this list counts.
const (
	Finished Why = iota // the task was done already, and is delivered again
	// KeyNever: no key can be made: a *KeyError, or an error that wraps SkipRetry; or the attempts of an ordered task
	// are spent.
	KeyNever
	KeyDrop   // the function that makes the key said RevokeTask
	KeyLater  // that function cannot make the key now
	NoAnswer  // Redis does not answer, too few replicas do, or the claim cannot be written
	LeaseLost // a lease ended before the handler began
	Late      // the time by which it was to start has passed
	Own       // an earlier attempt of this task holds the key
	Paused    // an operator has paused the key
	Closed    // a handler has closed the gate (CloseGate)
	Cooldown  // the last successful run is too recent
	Rate      // the rate allows no start now
	Held      // others hold the key, or stand in line before the task
	Nothing   // it holds all of its locks, or needs none
)

// Wish is what the rule's policy asks for; where Why is Late, Rule.Late.
type Wish uint8

// The wishes of a policy.
const (
	WishBack    Wish = iota // Park, Retry, RetryIn, Replace; AfterFailure that returned busy, or was not asked
	WishRun                 // Allow
	WishDone                // Skip
	WishArchive             // Archive
	WishSpend               // Fail
)

// Situation is all that Start looks at.
type Situation struct {
	Over   Over
	Why    Why
	Wish   Wish
	Parked bool // Redis keeps the task's place in line, and has it called
	Last   bool // asynq would archive the task for any error but RevokeTask
	TimeUp bool // Last: it may wait no longer
	// Waits: the rule has the task wait for the gate, which opens in time, and the task cannot stand in line for it: the
	// lock is not the first that it needs.
	Waits bool
}

// ForPolicy reports whether the rule's policy decides: the key is busy, and neither by the task's own
// earlier attempt nor because an operator or a handler said "not now".
func (w Why) ForPolicy() bool { return w == Cooldown || w == Rate || w == Held }

// IsGate reports whether the task waits for a time.
func (w Why) IsGate() bool { return w == Closed || w == Cooldown || w == Rate }

// Start decides about a task in a worker whose handler has not started.
func Start(s Situation) Decision {
	switch {
	case s.Over == ContextEnded:
		return Decision{What: Leave}
	case s.Over == Replaced:
		return Decision{What: Drop}
	case s.Why == KeyNever && s.Wish != WishRun: // for its own reason, also while the Guard closes
		return Decision{What: Archive}
	case s.Over == GuardClosed && s.Last:
		return Decision{What: Block}
	case s.Over == GuardClosed && s.Parked && s.Why > Late:
		return Decision{ToLine, AtTurn}
	case s.Over == GuardClosed:
		return Decision{Back, Soon}
	}
	if s.Waits {
		return Decision{What: GiveBack}
	}
	switch s.Why {
	case KeyNever, KeyDrop, KeyLater, Closed:
		if s.Wish == WishRun {
			return Decision{What: Run}
		}
	}
	switch s.Why {
	case Nothing:
		return Decision{What: Run}
	case Finished:
		return Decision{What: Done}
	case KeyDrop:
		return Decision{What: Drop}
	case Closed:
		return s.comeBack(AtGate)
	case NoAnswer:
		return s.comeBack(AtOutage)
	case KeyLater, LeaseLost, Own:
		return s.comeBack(Soon)
	case Late:
		return s.late()
	case Paused:
		return s.comeBack(AtResume)
	case Cooldown, Rate:
		return s.policy(AtGate)
	}
	return s.policy(Soon) // Held
}

// late is what Rule.Late makes of a task that did not start in time: WishDone is Skip, all else Archive.
func (s Situation) late() Decision {
	if s.Wish == WishDone {
		return Decision{What: Done}
	}
	return Decision{What: Archive}
}

var wished = map[Wish]What{WishRun: Run, WishDone: Done, WishArchive: Archive, WishSpend: Spend}

// policy is what the rule's policy makes of a busy key. when: it comes back then.
func (s Situation) policy(when When) Decision {
	if what, ends := wished[s.Wish]; ends {
		return Decision{What: what}
	}
	return s.comeBack(when)
}

// comeBack has the task come back. On its last attempt it waits in its worker while there is time: with its locks for a
// holder of the next one, without them for anything else.
func (s Situation) comeBack(when When) Decision {
	switch {
	case s.Parked:
		return Decision{ToLine, AtTurn}
	case s.Last && s.TimeUp:
		return Decision{What: Archive}
	case s.Last && (s.Why == Held || s.Why == Own):
		return Decision{What: Stay}
	case s.Last:
		return Decision{What: GiveBack}
	}
	return Decision{Back, when}
}
