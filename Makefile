# What people and CI jobs type. What is longer than a few lines is a script in
# .ci/, or a command of relapse.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# sudo's PATH lacks the usual place of Go, and su's the sbin folders.
export PATH := $(PATH):/usr/local/go/bin:/usr/local/sbin:/usr/sbin:/sbin
# No program of ours needs C; only the race detector does.
export CGO_ENABLED := 0
# The version stamp asks git, which refuses a checkout that belongs to another
# user than root; nothing reads the stamp. Without its folder in it, a package is
# compiled once for all checkouts, and for the programs in the images. Those have no
# debugging information either (images/compile.go); stack traces need none.
export GOFLAGS := $(strip $(GOFLAGS) -buildvcs=false -trimpath -gcflags=all=-dwarf=false)

# Compilers soon end, and their garbage need not be collected: client-go's
# applyconfigurations/core/v1 with what it imports takes a fifth less CPU time.
# The limit is for machines with 4 GiB.
compile := GOGC=off GOMEMLIMIT=1GiB

relapse := bin/relapse
part := .ci/part

.PHONY: help
help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

.PHONY: scenario
scenario: build ## set up, run scenarios, tear down: NAME=node-drain [ARGS='--variant cilium-1.11.6']
	@if [ -z '$(NAME)' ]; then \
	  printf 'make scenario needs the name of a scenario, as in make scenario NAME=node-drain. There are:\n\n' >&2; \
	  $(relapse) list >&2; \
	  exit 2; \
	fi
# A wrong name or flag ends here, before anything on the machine changes.
	@$(relapse) run --dry-run $(NAME) $(ARGS) >/dev/null
	$(relapse) setup
	@trap '.ci/owner reports' EXIT; echo '$(relapse) run $(NAME) $(ARGS)'; $(relapse) run $(NAME) $(ARGS)

.PHONY: scenarios
scenarios: build ## list the scenarios and their variants
	@$(relapse) list

.PHONY: down
down: build ## remove every lab, whatever state it is in
	$(relapse) down

.PHONY: build
build: ## build the CLI, bin/relapse
	@command -v go >/dev/null || { echo 'relapse needs Go 1.26 or newer, in PATH or in /usr/local/go' >&2; exit 3; }
	@$(compile) go build -o $(relapse) ./cmd/relapse
	@.ci/owner bin

.PHONY: setup
setup: build ## make this machine able to run labs; UNDO=1 takes it back
	$(relapse) setup $(if $(UNDO),--undo)

.PHONY: images
images: setup ## build every image that is not in the cache
	$(relapse) images build

# What needs neither root nor Docker nor a network namespace. The linters'
# versions are pinned in a go.mod of their own.
.PHONY: check
check: ## format, lines of code, tidy go.mod, vet, lint, workflows, unit tests
	@$(part) 'format' bash -ec 'unformatted=$$(gofmt -l .); [ -z "$$unformatted" ] || { echo "not formatted (gofmt -w mends it):"; echo "$$unformatted"; exit 1; }'
	@$(part) 'lines' .ci/lines
	@$(part) 'go.mod files are tidy' .ci/tidy
	@$(compile) $(part) 'vet' go vet -tags lab,night ./...
	@$(part) 'linters are built' go -C .ci/tools build -o ../../bin/ honnef.co/go/tools/cmd/staticcheck github.com/rhysd/actionlint/cmd/actionlint
	@$(part) 'lint' bin/staticcheck -tags lab,night ./...
# Without other linters that may be on the machine or not.
	@$(part) 'workflows of GitHub' bin/actionlint -shellcheck= -pyflakes=
	@$(part) 'unit tests' go test -vet=off ./...

# A part of its own: everything is compiled once more for it, which from an empty
# build cache takes as long as all of check.
.PHONY: race
race: ## unit tests with the race detector, which needs a C compiler
	@$(part) 'C compiler, for the race detector' .ci/packages gcc libc6-dev
	@CGO_ENABLED=1 $(part) 'unit tests with the race detector' go test -race -vet=off ./...

.PHONY: test
test: check build ## what a change must pass: check, node-drain, the core of the tests in labs and those that the change touches
	@.ci/test

.PHONY: test-all
test-all: check build ## the night's: all tests in labs, all scenarios, kubectl-relapse for other systems, and race
	@$(part) 'kubectl-relapse for macOS' env GOOS=darwin go vet ./cmd/kubectl-relapse
	@$(part) 'kubectl-relapse for Windows' env GOOS=windows go vet ./cmd/kubectl-relapse
	@.ci/test night

# A sample of it is in test-all.
.PHONY: test-kill
test-kill: images ## the week's: a run killed at each of its steps, and what down leaves; RELAPSE_KILL_POINTS=20 for some
	@$(part) 'Debian packages' .ci/packages iproute2 nftables
	@$(part) 'kills' env RELAPSE_KILL_POINTS=$${RELAPSE_KILL_POINTS:-all} RELAPSE_REPORTS=$(CURDIR)/reports \
	  go test -tags lab,night -count=1 -timeout 4h -v -run '^TestKillAtEachStep$$' ./cmd/relapse
	@$(part) 'nothing is left' .ci/left

.PHONY: dist
dist: ## what is published of this commit, in dist/: program with its source, Debian package, image, SBOM, checksums
	@.ci/dist

.PHONY: bench
bench: setup ## run all scenarios, compare their times with their budgets, and renew the figures of framework/figures
	@$(part) 'probes: 50 pairs at 10 ms' go test -run '^$$' -bench FiftyPairs ./framework/probe
	@$(part) 'detectors: a cluster of 5,000 nodes' go test -run '^$$' -bench '^BenchmarkLargeCluster$$/^5000-nodes$$' -benchtime 3x ./framework/audit
	@bin/relapse run --all
	@go run ./cmd/readme bench reports
