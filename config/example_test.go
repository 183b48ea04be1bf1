package config_test

import (
	"errors"
	"fmt"

	"github.com/automutex/automutex/config"
)

// Rules from a file; each mistake has its line.
func ExampleParse() {
	_, _, err := config.Parse([]byte(`
rules:
  - task: report
    on: [tenant.id]
    limit: -1
`))
	var mistake *config.Error
	if errors.As(err, &mistake) {
		fmt.Println(mistake.Line, mistake)
	}
	cfg, _, err := config.Parse([]byte(`rules: [{task: report, on: [tenant.id], limit: 3, busy: park}]`))
	fmt.Println(cfg.Rules[0].Limit, cfg.Rules[0].Busy, err)
	// Output:
	// 5 config:5:12: rule "report": limit: -1 is negative; use 1 for a mutex, more for a semaphore
	// 3 park <nil>
}
