// Package rate is how often a lock may be taken: as people write it, and as the scripts count it.
package rate

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/automutex/automutex/internal/inside"
	"github.com/automutex/automutex/internal/printable"
)

// Rate is how often a lock may be taken: Starts times in each Per, evenly spread, and after a pause Burst times at
// once; a Burst of 0 means 1. The zero value is none.
type Rate struct {
	Starts int
	Per    time.Duration
	Burst  int
}

// Parse reads what String writes.
func Parse(text string) (r Rate, err error) {
	var wrong [3]error
	often, burst, hasBurst := strings.Cut(text, " burst ")
	starts, per, _ := strings.Cut(often, "/")
	r.Starts, wrong[0] = strconv.Atoi(starts)
	r.Per, wrong[1] = time.ParseDuration(per)
	if hasBurst {
		r.Burst, wrong[2] = strconv.Atoi(burst)
	}
	if errors.Join(wrong[:]...) != nil {
		return Rate{}, fmt.Errorf("%q is no rate: write 100/1m, or 100/1m burst 10", printable.Short(text))
	}
	_, _, err = r.Bucket()
	return r, err
}

// String is 100/1m, or 100/1m burst 10.
func (r Rate) String() string {
	text := strconv.Itoa(r.Starts) + "/" + printable.Exact(r.Per)
	if r.Burst > 0 {
		text += " burst " + strconv.Itoa(r.Burst)
	}
	return text
}

// MarshalText writes the rate as JSON has it.
func (r Rate) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText reads it.
func (r *Rate) UnmarshalText(text []byte) (err error) {
	*r, err = Parse(string(text))
	return err
}

// Bucket returns the time from one start to the next, in whole microseconds, and how much of that can be saved up; or
// why the rate is out of bounds.
func (r Rate) Bucket() (every, spare time.Duration, err error) {
	starts, per, burst := r.Starts, r.Per, r.Burst
	const longest = 365 * 24 * time.Hour
	switch {
	case starts < 1:
		err = fmt.Errorf("a rate of %d starts: at least 1; leave the rate out for no bound", starts)
	case per <= 0:
		err = fmt.Errorf("a rate per %s: give a period above 0, such as a second", per)
	case per > longest:
		err = fmt.Errorf("a rate per %s: at most %s", per, longest)
	case int64(starts) > per.Microseconds():
		err = fmt.Errorf("a rate of %d starts per %s: at most one a microsecond%s", starts, per, printable.MeantUnit(per))
	case burst < 0:
		err = fmt.Errorf("a rate with a burst of %d: at least 1, which means that no two come at once", burst)
	}
	if err != nil {
		return 0, 0, err
	}
	burst = max(burst, 1)
	unit := int64(starts) * int64(time.Microsecond) // no overflow: starts is at most a year's microseconds
	every = time.Duration((int64(per)+unit-1)/unit) * time.Microsecond
	if int64(burst) > int64(inside.MaxTTL/every) {
		return 0, 0, fmt.Errorf("a rate of %d starts per %s with a burst of %d: that many take longer than %s; give a "+
			"smaller burst", starts, per, burst, inside.MaxTTL)
	}
	return every, every * time.Duration(burst-1), nil
}
