# Shortcuts. Everything that a change has to pass is .ci/run.

FUZZTIME ?= 30s
LINTER := $(CURDIR)/.ci/bin/golangci-lint

.DEFAULT_GOAL := help
.PHONY: help test race lint bench demo fuzz ci

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-6s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

test: ## the quick loop, 20 s once compiled: the locks and all that stands alone, on miniredis; PKG=./internal/e2e for what a user sees of a Guard
	AUTOMUTEX_TEST_REDIS=none go test $(or $(PKG),. ./lock/... ./config ./automutextest $$(go list ./internal/... | grep -v /e2e))

race: ## the tests of the workspace, long ones too, on real Redis, with the race detector (half an hour)
	AUTOMUTEX_TEST_REDIS=require AUTOMUTEX_TEST_ALL=1 go test -race -shuffle=on -timeout 60m work

lint: ## the pinned linter on every module
	GOWORK=off go -C .ci/tools build -o $(LINTER) github.com/golangci/golangci-lint/v2/cmd/golangci-lint
	$(LINTER) run --config .ci/tools/golangci.yml ./... ./cmd/automutex/... ./examples/... ./metrics/... ./web/...

bench: ## this library beside its peers, a short pass (two minutes); go doc ./examples/bench has more
	go run ./bench -benchtime 200x

demo: ## tasks taking turns, with and without the guard
	go run ./examples/worker
	go run ./examples/worker -unguarded

fuzz: ## each fuzz target for FUZZTIME (30s)
	@for file in $$(grep -lE '^func Fuzz' *_test.go internal/*/*_test.go lock/*_test.go unique/*_test.go config/*_test.go); do \
		for target in $$(sed -nE 's/^func (Fuzz[A-Za-z0-9_]*).*/\1/p' $$file); do \
			echo "$$target in $$(dirname $$file)"; \
			go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 20x ./$$(dirname $$file) || exit 1; \
		done; \
	done

ci: ## everything that a change has to pass
	bash .ci/run
