package decide

// Said is what the handler returned, or in its place the function of AfterFailure, or one that makes keys with a
// RetryAfter. Of several in an error, the last one of this list counts.
type Said uint8

// The results of a handler.
const (
	SaidDone  Said = iota // nil
	SaidError             // another error
	SaidLater             // RetryAfter
	SaidNever             // asynq.SkipRetry
	SaidDrop              // asynq.RevokeTask
	Panicked              // a panic, or runtime.Goexit
)

// Result is all that End looks at.
type Result struct {
	Over   Over
	Said   Said
	Last   bool // asynq would archive the task for any error but RevokeTask
	TimeUp bool // Last: its RetryAfter ends after a second before its deadline
	Spent  bool // its caller allows no attempt more, though asynq does
}

// End decides about a task whose handler has returned.
func End(r Result) Decision {
	if r.Over == ContextEnded {
		return Decision{What: Leave}
	}
	switch r.Said {
	case Panicked:
		return Decision{What: Spend}
	case SaidDone:
		return Decision{What: Done}
	}
	switch {
	case r.Over == Replaced || r.Said == SaidDrop:
		return Decision{What: Drop}
	case r.Said == SaidNever, r.Said == SaidError && r.Spent:
		return Decision{What: Archive}
	case r.Said == SaidError:
		return Decision{What: Spend}
	case r.Over == GuardClosed && r.Last: // from here on a RetryAfter
		return Decision{What: Block}
	case r.Last && r.TimeUp:
		return Decision{What: Archive}
	case r.Last:
		return Decision{GiveBack, AsAsked}
	}
	return Decision{Back, AsAsked}
}
