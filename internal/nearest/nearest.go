// Package nearest finds the name that a misspelt one was probably meant to be.
package nearest

import (
	"cmp"
	"slices"
	"strings"
)

// Names gives names by how much they look like wanted, the most alike first;
// those that are equally alike stay in the order given.
func Names(wanted string, names []string) []string {
	sorted := slices.Clone(names)
	slices.SortStableFunc(sorted, func(a, b string) int {
		return cmp.Compare(distance(a, wanted), distance(b, wanted))
	})
	return sorted
}

// Name gives the name that looks most like wanted, and none when nothing does:
// when more than a third of it would have to change.
func Name(wanted string, names []string) (name string, ok bool) {
	if len(wanted) > maxWanted || len(names) == 0 {
		return "", false
	}
	name = Names(wanted, names)[0]
	return name, distance(name, wanted) <= max(1, len([]rune(name))/3)
}

// maxWanted bounds the work that a text which is no name can cause.
const maxWanted = 100

// distance is how many characters to add, drop or change to make a into b,
// letter case and underscores aside. Two that changed places count as one.
func distance(a, b string) int {
	plain := func(s string) []rune {
		return []rune(strings.ToLower(strings.NewReplacer("_", "", "-", "").Replace(s)))
	}
	from, to := plain(a), plain(b)
	var before, last []int // the rows above
	row := make([]int, len(to)+1)
	for j := range row {
		row[j] = j
	}
	for i, r := range from {
		before, last, row = last, row, make([]int, len(to)+1)
		row[0] = i + 1
		for j, s := range to {
			cost := 1
			if r == s {
				cost = 0
			}
			row[j+1] = min(last[j]+cost, last[j+1]+1, row[j]+1)
			if i > 0 && j > 0 && r == to[j-1] && from[i-1] == s {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
	}
	return row[len(to)]
}

// IsMeant reports whether a rule's Task was probably meant for a task type, which it is not for: it is the type with at
// most two slips of the keys, or, if it ends in a separator, so the beginning of the type. Of a short one less may
// change.
func IsMeant(task, taskType string) bool {
	if len(task) == 0 || len(task)+len(taskType) > 2*maxWanted {
		return false
	}
	if isSlip(task, taskType) {
		return true
	}
	const separators = ":./-_ "
	if strings.Contains(separators, task[len(task)-1:]) {
		for end := range taskType {
			if strings.Contains(separators, taskType[end:end+1]) && isSlip(task, taskType[:end+1]) {
				return true
			}
		}
	}
	return false
}

func isSlip(a, b string) bool {
	return a != b && distance(a, b) <= min(2, max(len(a), len(b))/3)
}
