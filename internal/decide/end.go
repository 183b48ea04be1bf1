package decide

// Said is what the handler returned. In an error that wraps several of these, the last one of this
// list counts.
type Said uint8

// The results of a handler.
const (
	SaidDone  Said = iota // nil
	SaidError             // another error
	SaidLater             // RetryAfter
	SaidNever             // asynq.SkipRetry
	SaidDrop              // asynq.RevokeTask
	Panicked
)

// Result is all that End looks at.
type Result struct {
	Over   Over
	Said   Said
	Last   bool // asynq would archive the task for any error but RevokeTask
	TimeUp bool // Last: its RetryAfter ends after a second before its deadline
	First  bool // under Park, the handler has closed its gate for at least the time of its RetryAfter
}

var (
	said  = fact[Said]{1, "handler said", []string{"nil", "error", "RetryAfter", "SkipRetry", "RevokeTask", "panic"}}
	eLast = newFlag(2, "last")
	late  = newFlag(3, "time up")
	first = newFlag(4, "gate closed")
)

func (r Result) values() values {
	return values{uint8(r.Over), uint8(r.Said), uint8(yesNoOf(r.Last)), uint8(yesNoOf(r.TimeUp)), uint8(yesNoOf(r.First))}
}

var endRows = []row[Decision]{
	{when(over.is(ContextEnded)), Decision{What: Leave}},
	{when(said.is(Panicked)), Decision{What: Spend}},
	{when(said.is(SaidDone)), Decision{What: Done}},
	{when(over.is(Replaced)), Decision{What: Drop}},
	{when(said.is(SaidDrop)), Decision{What: Drop}},
	{when(said.is(SaidNever)), Decision{What: Archive}},
	{when(said.is(SaidError)), Decision{What: Spend}},
	// A RetryAfter.
	{when(over.is(GuardClosed), eLast.is(yes)), Decision{What: Block}},
	{when(eLast.is(yes), late.is(yes)), Decision{What: Archive}},
	{when(eLast.is(yes)), Decision{Stay, AsAsked}},
	{when(over.is(Goes), first.is(yes)), Decision{ToLine, AtTurn}},
	{nil, Decision{Back, AsAsked}},
}

// End decides about a task whose handler has returned. Of [ToLine] and [Back] the task has the same
// right to its place: the caller falls back to Back if Redis does not park it.
func End(r Result) Decision {
	d, _ := firstFit(endRows, r.values())
	return d
}

// possible returns the result that is meant by one that cannot be.
func (r Result) possible() Result {
	r.TimeUp = r.TimeUp && r.Last && r.Said == SaidLater
	r.First = r.First && r.Said == SaidLater && !r.Last
	return r
}
