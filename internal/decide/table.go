// Package decide is the law: what happens to a task, as pure and total functions from a few facts
// to a decision. Nothing in here sleeps, asks Redis, logs or observes; callers carry a decision out.
//
//	Start  a task is in a worker, and its handler has not started
//	End    its handler has returned
//	Admit  a producer of package unique wants to enqueue a task whose key may be taken
//
// Each function is an ordered list of rows: the first row that fits decides. The rows are the
// code. testdata/decisions.txt shows them with all that follows from them, and a change of behaviour
// is a change of that file.
package decide

// maxFacts is how many facts a table can have.
const maxFacts = 8

// values are the values of a table's facts, in its order.
type values [maxFacts]uint8

// fact is one thing that a table decides by.
type fact[T ~uint8] struct {
	column int // in values
	name   string
	words  []string // for the values of T
}

// is returns the condition that the fact has one of the given values.
func (f fact[T]) is(given ...T) condition {
	c := condition{column: f.column}
	for _, v := range given {
		c.oneOf |= 1 << v
	}
	return c
}

// isNot returns the condition that the fact has none of the given values.
func (f fact[T]) isNot(given ...T) condition {
	c := f.is(given...)
	c.oneOf ^= 1<<len(f.words) - 1
	return c
}

func (f fact[T]) heading() heading { return heading{f.name, f.words} }

// heading is what a table shows of a fact.
type heading struct {
	name  string
	words []string
}

// yesNo is the type of a fact that is true or false.
type yesNo uint8

const (
	no yesNo = iota
	yes
)

func yesNoOf(b bool) yesNo {
	if b {
		return yes
	}
	return no
}

func newFlag(column int, name string) fact[yesNo] {
	return fact[yesNo]{column, name, []string{"no", "yes"}}
}

// condition is what a row asks of one fact.
type condition struct {
	column int
	oneOf  uint32 // a bit for each value that fits
}

// row decides for the situations that fit all of its conditions.
type row[D any] struct {
	when []condition
	then D
}

// when returns the conditions of a row; without any, the row fits every situation.
func when(conditions ...condition) []condition { return conditions }

// firstFit returns the decision of the first row that fits, and its index. The last row of each
// table fits every situation.
func firstFit[D any](rows []row[D], v values) (then D, index int) {
next:
	for i, r := range rows {
		for _, c := range r.when {
			if c.oneOf&(1<<v[c.column]) == 0 {
				continue next
			}
		}
		return r.then, i
	}
	panic("decide: the last row of a table has a condition")
}
