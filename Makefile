# Needs Go, make, git and a POSIX shell; `make race` needs a C compiler too.

GO ?= go
SHELL := /bin/sh

# The same result whatever the environment and `go env -w` say.
export CGO_ENABLED := 0
export GOFLAGS := -mod=readonly -buildvcs=false
export GOWORK := off
export GO111MODULE := on

# Modules with packages. tools/ has none, it pins the linter.
MODULES := . test/controlplane tools/images

# On busy cores the tests of a package that runs clusters may take more than the ten
# minutes that go test allows by default.
GOTEST := $(GO) test -timeout 20m

# Flags for every go test, such as TESTFLAGS=-v.
TESTFLAGS ?=
BENCH ?= .
BENCHTIME ?= 1000x
RUNS ?= 20
IDLE ?= 5m
WRITES ?= 20000
SEED ?= 1
ROUNDS ?= 3
# Of a large cluster.
NODES ?= 5000
# What arms in admission in the demo: policy or webhook.
MUTATION ?= policy
# Which end-to-end tests.
E2E ?= .
# ASSETS_FLAGS=--kubelet builds the kubelet too.
ASSETS_FLAGS ?=
# The version of images, which is also their tag, and where else they go to.
VERSION ?= dev
PUSH ?=

# Tests that start nodegate's programs: the race detector would see nothing of these.
SEPARATE := /test/(lifecycle|profiles|rights)$$

ASSETS := $(GO) -C test/controlplane run ./cmd/assets $(ASSETS_FLAGS)
LINT := $(GO) tool -modfile="$(CURDIR)/tools/go.mod" golangci-lint
GOFMT := "$$($(GO) env GOROOT)/bin/gofmt"

# each runs a command in every module of a list and fails if one failed.
each = failed=0; for module in $(1); do (cd $$module && $(2)) || failed=1; done; exit $$failed

.PHONY: help
help: ## Show this help (the default)
	@echo 'Usage: make TARGET'
	@echo
	@sed -n 's/^\([a-z][a-z-]*\):.*## \(.*\)/  \1	\2/p' $(MAKEFILE_LIST) | expand -t 20

##  Build and test

.PHONY: assets
assets: require-go ## Build the control plane for tests if missing, print its folder
	@$(ASSETS)

.PHONY: test
test: require-go ## Run all tests against a real API server and etcd
	@assets=$$($(ASSETS)) || exit 1; export KUBEBUILDER_ASSETS="$$assets"; \
	$(call each,$(MODULES),$(GOTEST) $(TESTFLAGS) ./...)

.PHONY: race
race: export CGO_ENABLED := 1
race: require-go require-cc ## Run tests with the race detector (needs a C compiler)
	@assets=$$($(ASSETS)) || exit 1; export KUBEBUILDER_ASSETS="$$assets"; \
	$(call each,$(MODULES),$(GOTEST) -race $(TESTFLAGS) $$($(GO) list ./... | grep -Ev '$(SEPARATE)'))

.PHONY: demo
demo: require-go ## Play what happens to a gated node (MUTATION=webhook for the other form)
	@work=$$(mktemp -d) || exit 1; trap 'rm -rf "$$work"' EXIT; trap 'exit 130' HUP INT TERM; \
	GOTMPDIR="$$work" $(GO) build -o bin/demo ./test/demo || exit 1; \
	rm -rf "$$work"; exec bin/demo --mutation=$(MUTATION)

.PHONY: e2e
e2e: require-go ## Play what happens to real nodes (root on Debian; E2E=pattern for some)
	@$(GO) build -o bin/e2e ./test/e2e/cmd/e2e && exec bin/e2e -test.v -test.run='$(E2E)'

.PHONY: e2e-soak
e2e-soak: ROUNDS = 100
e2e-soak: require-go ## Reboot real nodes again and again (root on Debian; ROUNDS=100, SEED=1)
	@$(GO) build -o bin/e2e ./test/e2e/cmd/e2e && exec bin/e2e -test.v -test.run=AgainAndAgain -soak-rounds=$(ROUNDS) -soak-seed=$(SEED)

.PHONY: images
images: require-go ## Build the images as OCI archives in out/ (VERSION=dev, PUSH=registry/path)
	@$(GO) -C tools/images run . -root "$(CURDIR)" -out "$(CURDIR)/out" -version '$(VERSION)' -push '$(PUSH)' \
		-revision "$$(git rev-parse HEAD 2>/dev/null)"

.PHONY: conformance
conformance: require-go ## Run the table of cases on a real API server, JUnit report in out/
	@assets=$$($(ASSETS)) || exit 1; export KUBEBUILDER_ASSETS="$$assets"; mkdir -p out; \
	$(GO) test -count=1 ./test/conformance $(TESTFLAGS) -ginkgo.v -ginkgo.junit-report="$(CURDIR)/out/conformance.xml"

.PHONY: mutants
mutants: require-go ## Break the policies in known ways and see the suite notice each
	@assets=$$($(ASSETS)) || exit 1; export KUBEBUILDER_ASSETS="$$assets"; $(GO) run ./test/mutants

.PHONY: fuzz
fuzz: require-go ## Send random writes to a real API server (WRITES=20000, SEED=1)
	@assets=$$($(ASSETS)) || exit 1; export KUBEBUILDER_ASSETS="$$assets"; \
	$(GO) test -count=1 -v -timeout 60m ./test/fuzz -args -writes=$(WRITES) -seed=$(SEED)

.PHONY: peace
peace: require-go ## Have guard and agents go through random troubles (ROUNDS=3, SEED=1)
	@assets=$$($(ASSETS)) || exit 1; export KUBEBUILDER_ASSETS="$$assets"; \
	$(GO) test -count=1 -v -timeout 60m ./guard -run TestPeace -args -peace-nodes=200 -peace-rounds=$(ROUNDS) -peace-seed=$(SEED)

.PHONY: bench
bench: require-go ## Measure, as ratios within one run (BENCH=pattern, BENCHTIME=1000x)
	@assets=$$($(ASSETS)) || exit 1; export KUBEBUILDER_ASSETS="$$assets"; \
	$(GO) test ./test/bench -run '^$$' -bench '$(BENCH)' -benchtime $(BENCHTIME) -timeout 60m

.PHONY: bench-life
bench-life: require-go ## Measure what happens to a node, seconds a run (BENCH=pattern, RUNS=20)
	@assets=$$($(ASSETS)) || exit 1; export KUBEBUILDER_ASSETS="$$assets"; \
	$(GO) test ./test/bench/life -run '^$$' -bench '$(BENCH)' -benchtime $(RUNS)x -timeout 60m

.PHONY: bench-fleet
bench-fleet: require-go ## Measure guard and command line in a large cluster (BENCH=pattern, NODES=5000)
	@assets=$$($(ASSETS)) || exit 1; export KUBEBUILDER_ASSETS="$$assets"; \
	$(GO) test ./test/bench/fleet -run '^$$' -bench '$(BENCH)' -benchtime 1x -timeout 120m -args -nodes=$(NODES)

.PHONY: idle
idle: require-go ## Measure an agent that has nothing to do (IDLE=5m, twice)
	@assets=$$($(ASSETS)) || exit 1; export KUBEBUILDER_ASSETS="$$assets"; \
	$(GO) test ./cmd/nodegate-agent -timeout 3h -run '^$$' -bench '^BenchmarkIdle$$' -benchtime 1x -args -idle=$(IDLE)

.PHONY: clean
clean: ## Remove what was built in the tree (the cache outside it stays)
	rm -rf bin out

##  Check and mend

.PHONY: verify
verify: require-go ## Check all that does not need running the code
	@$(MAKE) --no-print-directory -k verify-fmt verify-vet verify-tidy verify-generated verify-lint

.PHONY: verify-fmt
verify-fmt: require-go
	@echo 'verify: gofmt'
	@files=$$($(GOFMT) -l .); [ -z "$$files" ] || { \
		echo "not formatted, run make update:"; echo "$$files"; exit 1; } >&2

.PHONY: verify-vet
verify-vet: require-go
	@echo 'verify: go vet'
	@$(call each,$(MODULES),$(GO) vet -tags=e2e ./...)

.PHONY: verify-tidy
verify-tidy: require-go
	@echo 'verify: go mod tidy'
	@$(call each,$(MODULES) tools,$(GO) mod tidy -diff || { \
		echo "$$module/go.mod is not tidy; run make update" >&2; false; })

# A tree object of the files as they are, untracked ones included; the index
# of the user is not touched.
SNAPSHOT = GIT_INDEX_FILE="$$(git rev-parse --absolute-git-dir)/verify-index"; export GIT_INDEX_FILE; \
	rm -f "$$GIT_INDEX_FILE"; git add -A && git write-tree; rm -f "$$GIT_INDEX_FILE"

.PHONY: verify-generated
verify-generated: require-go
	@echo 'verify: generated files'
	@before=$$($(SNAPSHOT)); [ -n "$$before" ] && $(MAKE) -s generate || exit 1; \
	after=$$($(SNAPSHOT)); [ "$$before" = "$$after" ] || { \
		echo "generated files were out of date; they are made anew, commit them:"; \
		git diff --stat "$$before" "$$after"; exit 1; } >&2

.PHONY: verify-lint
verify-lint: require-go
	@echo 'verify: golangci-lint'
	@$(call each,$(MODULES),$(LINT) run ./...)

.PHONY: update
update: require-go generate ## Mend what verify checks, as far as it mends itself
	@$(call each,$(MODULES) tools,$(GO) mod tidy)
	@$(call each,$(MODULES),$(LINT) run --fix ./...)

.PHONY: generate
generate: require-go ## Make generated files anew
	@$(call each,$(MODULES),$(GO) generate ./...)

##  Requirements, checked before they are stumbled over

.PHONY: require-go
require-go:
	@want=$$(sed -n 's/^go //p' go.mod); \
	command -v $(GO) >/dev/null || { \
		echo "make: there is no $(GO) on PATH; install Go $$want or newer"; exit 1; } >&2; \
	have=$$($(GO) env GOVERSION) || exit 1; have=$${have#go}; have=$${have%% *}; \
	older=$$(printf '%s\n' "$$want" "$$have" | sort -t. -k1,1n -k2,2n -k3,3n | head -n 1); \
	case $$have in devel*) older=$$want;; esac; \
	[ "$$older" = "$$want" ] || { \
		echo "make: this is Go $$have, but go.mod asks for $$want or newer; upgrade it or set GOTOOLCHAIN=auto"; \
		exit 1; } >&2

.PHONY: require-cc
require-cc: require-go
	@cc=$$($(GO) env CC); command -v $${cc%% *} >/dev/null || { \
		echo "make: the race detector needs a C compiler, and there is no $$cc; install one or set CC"; exit 1; } >&2
